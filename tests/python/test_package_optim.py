#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""weft.optim.PublishAfterStep: FP32 masters, BF16 parameters with masters inside the optimizer, on the CPU and through the
device path, where change lists travel."""

import unittest
from unittest import mock

import package
import serving
import weft
from package import torch

if torch is None:
    serving.skip_all("there is no torch")
if not hasattr(torch.optim.Optimizer, "register_step_post_hook"):
    serving.skip_all(f"torch {torch.__version__} has no hooks after a step")

from weft.device import through_device


class Net(torch.nn.Module):
    """Tied parameters, and a buffer that changes although no optimizer has it."""

    def __init__(self, dtype):
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8, dtype=dtype)
        self.layer = torch.nn.Linear(8, 8, dtype=dtype)
        self.head = torch.nn.Linear(8, 20, bias=False, dtype=dtype)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens):
        self.seen += len(tokens)
        return self.head(torch.tanh(self.layer(self.embedding(tokens))))


class Mastered(torch.optim.Optimizer):
    """BF16 parameters, with FP32 masters in the state."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    master = state.setdefault("master", parameter.float())
                    master.sub_(parameter.grad.float(), alpha=group["lr"])
                    parameter.copy_(master)


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        tokens = torch.randint(0, 20, (5,))
        torch.nn.functional.cross_entropy(model(tokens).float(), tokens).backward()
        optimizer.step()


class Hook(package.Case):
    def follow(self, dtype, make, given, calls):
        """Every version is what the model was after its step; `calls` are what publishes it."""
        torch.manual_seed(1)
        model = Net(dtype)
        optimizer = make(model.parameters(), lr=0.05)
        published = "bfloat16" if dtype == torch.float32 else None
        worker = {name: torch.zeros_like(tensor, dtype=torch.bfloat16 if tensor.is_floating_point() else tensor.dtype)
                  for name, tensor in model.state_dict().items()}
        with weft.Publisher(self.path("store"), given(model), dtype=published) as publisher, \
                weft.optim.PublishAfterStep(optimizer, publisher) as hook, \
                weft.Subscriber(self.path("store"), worker) as subscriber, \
                mock.patch.object(publisher, "publish_changes", wraps=publisher.publish_changes) as told:
            for step in range(1, 6):
                train(model, optimizer)
                self.assertEqual(hook.published.digest, weft.digest(model, dtype=published))
                subscriber.pull()
                self.assertEqual(subscriber.labels, {"step": str(step)})
                for name, tensor in model.state_dict().items():
                    self.assertTrue(torch.equal(worker[name], tensor.to(worker[name].dtype)), name)
                if step > 1:
                    self.assertGreater(hook.published.changed, 0)
            self.assertEqual(told.call_count, calls)

    def test_masters(self):
        self.follow(torch.float32, torch.optim.AdamW, lambda model: model, 0)

    def test_masters_device(self):
        self.follow(torch.float32, torch.optim.AdamW, through_device, 4)

    def test_parameters(self):
        self.follow(torch.bfloat16, Mastered, lambda model: model, 0)

    def test_parameters_device(self):
        self.follow(torch.bfloat16, Mastered, through_device, 4)

    def test_every(self):
        model = Net(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with weft.Publisher(self.path("store"), model) as publisher:
            hook = weft.optim.PublishAfterStep(optimizer, publisher, every=3, step=10, labels=lambda: {"loss": 0.5})
            with hook:
                train(model, optimizer, 8)
                self.assertEqual((publisher.version, hook.step), (3, 18))
                hook.publish()
            train(model, optimizer, 3)
            self.assertEqual(publisher.version, 4)
            hook.close()
        self.assertEqual([entry.labels for entry in weft.log(self.path("store"))],
                         [{"step": str(step), "loss": "0.5"} for step in (18, 18, 15, 12)])

    def test_failure(self):
        """A step whose publish fails is done, and its changes go with the next one."""
        for given in (lambda model: model, through_device):
            self.setUp()
            model = Net(torch.bfloat16)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            with weft.testing.FaultyStore() as store, weft.Publisher(store, given(model)) as publisher, \
                    weft.optim.PublishAfterStep(optimizer, publisher) as hook:
                train(model, optimizer, 2)
                store.fail("put")
                with self.assertRaises(weft.Error):
                    train(model, optimizer)
                self.assertNotEqual(hook.published.digest, weft.digest(model))
                store.heal()
                train(model, optimizer)
                self.assertEqual((hook.published.digest, publisher.version), (weft.digest(model), 3))

    def test_ties(self):
        """A device's tie is published under each of its names, also if C can see it."""
        model = Net(torch.bfloat16)
        with weft.Publisher(self.path("store"), model) as publisher:
            publisher.publish()
            model.head.weight.data[3, 3] += 1
            both = {name: ([27], model.head.weight.data.view(-1)[27:28]) for name in ("head.weight", "embedding.weight")}
            self.assertEqual(publisher.publish_changes(both).digest, weft.digest(model))

    def test_moved(self):
        model = Net(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with weft.Publisher(self.path("store"), through_device(model)) as publisher, \
                weft.optim.PublishAfterStep(optimizer, publisher):
            train(model, optimizer)
            model.layer.weight.data = model.layer.weight.data.clone()
            with self.assertRaisesRegex(weft.StaleError, "layer.weight"):
                train(model, optimizer)

    def test_refused(self):
        model = Net(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with weft.Publisher(self.path("store"), model) as publisher:
            with self.assertRaisesRegex(weft.InvalidArgument, "every is 0"):
                weft.optim.PublishAfterStep(optimizer, publisher, every=0)
            with self.assertRaisesRegex(weft.UnsupportedError, "torch 2.0"):
                weft.optim.PublishAfterStep(object(), publisher)
        with self.assertRaisesRegex(weft.InvalidArgument, "closed"):
            weft.optim.PublishAfterStep(optimizer, publisher)


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
