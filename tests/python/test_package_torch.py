#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""torch tensors and modules through the package, in place: publish and follow, ties, masters, and what is refused."""

import copy
import unittest

import package
import serving
import weft
from package import torch

if torch is None:
    serving.skip_all("there is no torch")


class Net(torch.nn.Module):
    """Parameters, tied ones, a buffer, and one that is not kept."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16, dtype=dtype)
        self.layer = torch.nn.Linear(16, 16, dtype=dtype)
        self.norm = torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 50, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight
        self.register_buffer("scratch", torch.zeros(3), persistent=False)


def same(one, other):
    """Bit for bit, NaNs too."""
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(
        torch.equal(one[name].contiguous().view(-1).view(torch.uint8), other[name].contiguous().view(-1).view(torch.uint8))
        if one[name].dim() else bool(one[name] == other[name]) for name in one)


def step(module, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_((torch.rand(parameter.shape, generator=generator) < 0.1).to(parameter.dtype))
        module.norm.num_batches_tracked += 1


class Torch(package.Case):
    def test_follow(self):
        torch.manual_seed(1)
        trainer, worker = Net(), Net()
        with weft.Publisher(self.path("store"), trainer) as publisher, weft.Subscriber(self.path("store"), worker) as subscriber:
            for seed in range(4):
                published = publisher.publish(step=seed)
                self.assertEqual(published.digest, weft.digest(trainer))
                subscriber.pull()
                self.assertTrue(same(trainer, worker))
                self.assertEqual(worker.head.weight.data_ptr(), worker.embed.weight.data_ptr())
                step(trainer, seed)
            self.assertFalse(same(trainer, worker))

    def test_logits(self):
        """What the worker computes is what the trainer computes."""
        trainer, worker = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        with weft.Publisher(self.path("store"), trainer.state_dict()) as publisher:
            publisher.publish()
            optimizer = torch.optim.AdamW(trainer.parameters(), lr=0.1)
            given = torch.randn(4, 8)
            for _ in range(3):
                optimizer.zero_grad()
                trainer(given).square().sum().backward()
                optimizer.step()
                publisher.publish()
            with weft.Subscriber(self.path("store"), worker) as subscriber:
                subscriber.pull()
        self.assertTrue(torch.equal(trainer(given), worker(given)))

    def test_masters(self):
        """FP32 masters are followed as BF16, cast as torch casts."""
        masters = Net(torch.float32)
        worker = {name: torch.zeros_like(tensor, dtype=torch.bfloat16 if tensor.dtype == torch.float32 else tensor.dtype)
                  for name, tensor in masters.state_dict().items()}
        with weft.Publisher(self.path("store"), masters, dtype=torch.bfloat16) as publisher:
            publisher.publish()
        with weft.Subscriber(self.path("store"), worker) as subscriber:
            subscriber.pull()
        for name, tensor in masters.state_dict().items():
            self.assertTrue(torch.equal(worker[name], tensor.to(worker[name].dtype)), name)

    def test_patches(self):
        old = Net()
        new = copy.deepcopy(old)
        step(new, 1)
        patch = weft.diff(old, new)
        with weft.Transaction(old, patch) as change:
            self.assertFalse(same(old, new))
            change.commit()
        self.assertTrue(same(old, new))
        numpy_too = {"w": torch.arange(10).numpy()}
        self.assertEqual(weft.digest(numpy_too), weft.digest({"w": torch.arange(10)}))

    def test_dtypes(self):
        names = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
                 "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "uint16", "uint32", "uint64")
        for name in names:
            dtype = getattr(torch, name, None)
            if dtype is not None:
                old, new = {"w": torch.zeros(9).to(dtype)}, {"w": torch.arange(9).to(torch.float32).to(dtype)}
                weft.apply(old, weft.diff(old, new))
                self.assertEqual(*(bytes(one["w"].view(torch.uint8).tolist() if name != "bool" else one["w"].tolist())
                                   for one in (old, new)))

    def refused(self, tensor, pattern):
        with self.assertRaisesRegex(weft.UnsupportedError, "tensor w: .*" + pattern):
            weft.digest({"w": tensor})

    def test_refused(self):
        self.refused(torch.zeros(4).expand(4, 4), r"expanded.*give tensor.contiguous\(\)")
        self.refused(torch.zeros(4, device="meta"), r"device meta.*to_empty")
        self.refused(torch.zeros(4, 4).to_sparse(), r"torch.sparse_coo; give tensor.to_dense\(\)")
        self.refused(torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8), "quantised; give tensor.int_repr")
        self.refused(torch.zeros(4, dtype=torch.complex64).conj(), "resolve_conj")
        self.refused(torch.zeros(4, dtype=torch.complex128), "no dtype for torch.complex128")

    def test_moved(self):
        """A parameter that was given other memory is noticed."""
        module = Net()
        with weft.Publisher(self.path("store"), module) as publisher:
            publisher.publish()
            module.layer.weight.data = module.layer.weight.data.clone()
            with self.assertRaisesRegex(weft.StaleError, "layer.weight"):
                publisher.publish()

    def test_dtensor(self):
        try:
            import os
            import torch.distributed as distributed
            from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
        except ImportError:
            self.skipTest("this torch has no DTensor")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            mesh = init_device_mesh("cpu", (1,))
            self.refused(DTensor.from_local(torch.zeros(4), mesh, [Replicate()]), r"DTensor.*to_local\(\)")
        finally:
            distributed.destroy_process_group()


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
