#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""weft.sharded with real ranks of torch.distributed: what they publish together, each its shards, is bit for bit what one
of them publishes of the gathered model. And the plan of cuts alone, on random shards."""

import math
import os
import random
import time
import unittest

import package
import ranks
import serving
import weft
from package import torch

if torch is None:
    serving.skip_all("there is no torch")
try:
    import torch.distributed as distributed
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
except (ImportError, ValueError):  # of torch 1.13 on Python 3.11 the latter
    serving.skip_all("this torch has no fully_shard")

from weft import layouts, sharded  # noqa: E402  (torch was looked for first)

WIDTH, HIDDEN, VOCABULARY = 32, 64, 61  # 61 rows split unevenly over every number of ranks


class Block(torch.nn.Module):
    """As Llama's, with one head."""

    def __init__(self):
        super().__init__()
        for name in ("q", "k", "v", "o"):
            setattr(self, name + "_proj", torch.nn.Linear(WIDTH, WIDTH, bias=False))
        self.gate_proj = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = torch.nn.Linear(HIDDEN, WIDTH, bias=False)
        self.first_norm, self.second_norm = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)

    def forward(self, x):
        y = self.first_norm(x)
        scores = self.q_proj(y) @ self.k_proj(y).transpose(-1, -2)
        x = x + self.o_proj(torch.softmax(scores / self.q_proj.out_features**0.5, -1) @ self.v_proj(y))
        y = self.second_norm(x)
        return x + self.down_proj(torch.nn.functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Net(torch.nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.layers:
            x = block(x)
        return self.head(self.norm(x))


def split_tensors(module, mesh):
    """Columns, then rows: as tensor-parallel engines do it."""
    for block in module.layers:
        parallelize_module(block, mesh, {
            "q_proj": ColwiseParallel(), "k_proj": ColwiseParallel(), "v_proj": ColwiseParallel(), "o_proj": RowwiseParallel(),
            "gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()})


def shard(module, mesh=None, **options):
    for block in module.layers:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(module, mesh=mesh, **options)


def shard_alike(parameter):
    """Along the dimension that tensor parallelism has sharded."""
    return Shard(1) if isinstance(parameter, DTensor) and parameter.placements[0].is_shard(1) else None


def gathered(module):
    """The whole model, on every rank."""
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in module.state_dict().items()}


def bits(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def compare(rank, place, name, module, dtype, train):
    """Publishes three versions by all ranks and, of the gathered model, by rank 0; both must have the same digests, and be
    followed to the same bits."""
    store = os.path.join(place, name)
    exchanged = {}
    with sharded.Publisher(store, module, dtype=dtype, part_seconds=30, bucket_bytes=1 << 15) as publisher:
        alone = None
        for step in range(3):
            train(step)
            published = publisher.publish(step=step)
            whole = gathered(module)
            if rank == 0:
                if alone is None:
                    copies = {key: value.clone() for key, value in whole.items()}
                    alone = weft.Publisher(store + ".alone", copies, dtype=dtype)
                for key, value in copies.items():
                    value.copy_(whole[key])
                expected = alone.publish(step=step)
                assert (published.version, published.digest) == (step + 1, expected.digest)
                assert published.changed == expected.changed
                assert step == 0 or 0 < published.changed
        exchanged = dict(publisher.exchanged)
        assert publisher.version == 3
    if rank == 0:
        alone.close()
        cast = {key: torch.empty_like(value, dtype=dtype if dtype and value.dtype == torch.float32 else None)
                for key, value in whole.items()}
        with weft.Subscriber(store, cast) as subscriber:
            subscriber.pull()
            assert subscriber.labels["step"] == "2"
        for key, value in whole.items():
            assert torch.equal(bits(cast[key]), bits(value.to(cast[key].dtype))), key
    distributed.barrier()
    return exchanged


def adamw(module, rank):
    """Steps of AdamW on tokens of the rank's own."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)

    def train(step):
        tokens = torch.randint(VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(100 * step + rank))
        logits = module(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY).float(), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            module.steps += 1

    return train


def publish_fsdp(rank, count, place, dtype, cast):
    torch.manual_seed(7)
    module = Net().to(dtype)
    shard(module)
    return compare(rank, place, "fsdp", module, cast, adamw(module, rank))


def publish_tensor_parallel(rank, count, place):
    torch.manual_seed(8)
    module = Net()
    split_tensors(module, init_device_mesh("cpu", (count,)))
    return compare(rank, place, "tp", module, torch.bfloat16, adamw(module, 0))


def publish_grid(rank, count, place):
    """Two dimensions: both at once, both at once along the same dimension, and shards that are replicated (HSDP)."""
    torch.manual_seed(9)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    module = Net(1)
    split_tensors(module, mesh["tensor"])
    shard(module, mesh["data"])
    exchanged = compare(rank, place, "grid", module, None, adamw(module, rank // 2))
    module = Net(1)
    split_tensors(module, mesh["tensor"])
    shard(module, mesh["data"], shard_placement_fn=shard_alike)
    alike = compare(rank, place, "alike", module, None, adamw(module, rank // 2))
    module = Net(1)
    shard(module, mesh)
    return exchanged, alike, compare(rank, place, "hybrid", module, torch.bfloat16, adamw(module, rank))


def publish_odd(rank, count, place):
    """Tensors by themselves: uneven, smaller than a word, fewer rows than ranks, columns, tied, held by one
    rank alone; all signed."""
    mesh = init_device_mesh("cpu", (count,))
    torch.manual_seed(10)

    def spread(dtype, *shape, dim=0):
        return distribute_tensor(torch.randn(shape).to(dtype), mesh, [Shard(dim)])

    module = torch.nn.Module()
    tensors = {
        "even": spread(torch.float32, 8, 4),
        "uneven": spread(torch.float32, 4 * count + 1, 12),
        "prime": spread(torch.float32, 8191, 16),  # in no more than 4096 equal parts
        "small": spread(torch.bfloat16, 2 * count),
        "few": spread(torch.float32, 1, 4),
        "columns": spread(torch.float32, 6, 8 * count, dim=1),
        "copied": distribute_tensor(torch.randn(5), mesh, [Replicate()]),
        "plain": torch.full((3,), 2.5),
    }
    tensors["tied"] = tensors["even"]
    if rank == 1:
        tensors["own"] = torch.arange(7)
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)

    def train(step):
        for name in sorted(set(tensors) - {"tied", "own"}):
            tensors[name] += 1

    store = os.path.join(place, "odd")
    with sharded.Publisher(store, module, key=os.path.join(place, "key"), part_seconds=30) as publisher:
        for step in range(2):
            train(step)
            publisher.publish({"step": step, "note": "odd"})
        exchanged = dict(publisher.exchanged)
    whole = gathered(module)
    if rank == 1:
        with weft.Subscriber(store, {name: torch.zeros_like(value) for name, value in whole.items()}) as subscriber:
            subscriber.pull()
            for name, value in subscriber._tensors.values.items():
                assert torch.equal(value, whole[name]), name
    return exchanged


def publish_to_workers(rank, count, place):
    """Trainers hold rows; each of four workers holds columns of one tensor and rows of another."""
    torch.manual_seed(11)
    module = torch.nn.ModuleDict({"o": torch.nn.Linear(256, 64, bias=False), "q": torch.nn.Linear(64, 256, bias=False)})
    for linear in module.values():
        fully_shard(linear)
    workers = [
        layouts.Layout({"o": layouts.Recipe("concat", (layouts.Slice("o.weight", 1, 64 * worker, 64),)),
                        "q": layouts.Recipe("concat", (layouts.Slice("q.weight", 0, 64 * worker, 64),))}, {}, (), {})
        for worker in range(4)
    ]
    store = os.path.join(place, "workers")
    with sharded.Publisher(store, module, workers=workers, part_seconds=30) as publisher:
        publisher.publish(step=1)
        assert publisher.exchanged == {"o.weight": "along dimension 1"}, publisher.exchanged
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.25)
        publisher.publish(step=2)
    whole = gathered(module)
    for worker in range(rank, 4, count):
        live = {"o": torch.zeros(64, 64), "q": torch.zeros(64, 64)}
        with weft.Subscriber(store, live, layout=workers[worker].to_json()) as subscriber:
            subscriber.pull()
        assert torch.equal(live["o"], whole["o.weight"][:, 64 * worker : 64 * worker + 64])
        assert torch.equal(live["q"], whole["q.weight"][64 * worker : 64 * worker + 64])


def publish_badly(rank, count, place):
    """What is refused, and what fails on all ranks together."""
    mesh = init_device_mesh("cpu", (count,))
    tensor = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    store = os.path.join(place, "bad")
    found = []

    def refused(kind, pattern, call):
        try:
            call()
        except kind as error:
            assert pattern in str(error), error
            found.append(pattern)
        # a rank that goes on takes back what it has said: the other has then failed for another reason
        torch.distributed.barrier()

    refused(weft.UnsupportedError, "weft.sharded.Publisher", lambda: weft.Publisher(store, {"w": tensor}))
    refused(weft.InvalidArgument, "follow from the shards", lambda: sharded.Publisher(store, {"w": tensor}, part=(0, 2)))
    refused(weft.InvalidArgument, "weft.Publisher", lambda: sharded.Publisher(store, "model.safetensors"))
    flat = type("FlatParameter", (torch.nn.Parameter,), {})
    refused(weft.UnsupportedError, "fully_shard", lambda: sharded.Publisher(store, {"w": flat(torch.zeros(3))}))
    partial = DTensor.from_local(torch.zeros(3), mesh, [Partial() if rank == 1 else Replicate()])
    refused(weft.UnsupportedError, "rank 1: tensor w is a DTensor of partial sums", lambda: sharded.Publisher(store, {"w": partial}))
    refused(weft.InvalidArgument, "same model", lambda: sharded.Publisher(store, {"w": torch.zeros(3 + rank)}))
    model = {"w": tensor}
    with sharded.Publisher(store, model, part_seconds=20) as publisher:
        refused(weft.InvalidArgument, "publish(step=42)", publisher.publish)
        refused(weft.Error, "label", lambda: publisher.publish(step=rank))
        assert publisher.publish(step=1).version == 1
        model["more"] = torch.zeros(3)
        refused(weft.StaleError, "more", lambda: publisher.publish(step=2))
        del model["more"]
        model["w"] = tensor.clone()
        refused(weft.StaleError, "in place", lambda: publisher.publish(step=2))
    return found


class Ranks(package.Case):
    def test_fsdp_masters(self):
        """FP32 parameters, published as BF16."""
        for exchanged in ranks.run(2, publish_fsdp, self.place, torch.float32, torch.bfloat16):
            self.assertEqual(exchanged, {})

    def test_fsdp(self):
        for exchanged in ranks.run(4, publish_fsdp, self.place, torch.bfloat16, None):
            self.assertEqual(exchanged, {})

    def test_tensor_parallel(self):
        for exchanged in ranks.run(2, publish_tensor_parallel, self.place):
            self.assertEqual(exchanged, {})

    def test_tensor_parallel_by_four(self):
        for exchanged in ranks.run(4, publish_tensor_parallel, self.place):
            self.assertEqual(exchanged, {})

    def test_grid(self):
        for both, alike, replicated in ranks.run(4, publish_grid, self.place):
            self.assertEqual(set(both), {"layers.0.o_proj.weight", "layers.0.down_proj.weight"})
            self.assertEqual((alike, replicated), ({}, {}))

    def test_odd(self):
        weft.Key.generate().write(self.path("key"), self.path("key.pub"))
        for exchanged in ranks.run(2, publish_odd, self.place):
            self.assertEqual(exchanged, {"prime": "along dimension 1", "small": "whole"})
        with self.assertRaises(weft.SignatureMismatch):
            weft.Subscriber(self.path("odd"), {}, trust=weft.Key.generate()).pull()

    def test_workers(self):
        ranks.run(2, publish_to_workers, self.place)

    def test_refused(self):
        for found in ranks.run(2, publish_badly, self.place):
            self.assertEqual(len(found), 10)


class Plans(unittest.TestCase):
    """The plan alone: whatever the shards, some rank holds each box, and boxes that share a bucket."""

    def held(self, holding, choice, part, parts):
        """Whether a rank holds this part."""
        if choice.kind == "whole":
            return True
        ranges = holding.turned(choice.dim) if choice.kind == "turned" else holding.ranges
        for dim, start, length in ranges:
            extent = holding.shape[choice.dim] // parts
            if dim is None or (start <= part * extent and (part + 1) * extent <= start + length):
                return True
        return False

    def check(self, holdings, workers=()):
        plan = sharded.make_plan(holdings, workers)
        shared = {}
        for name, choice in plan.choices.items():
            if choice.dim is None:
                continue
            dim, parts = next((dim, parts) for pattern, dim, parts in plan.cuts if layouts.fnmatch.fnmatchcase(name, pattern))
            self.assertEqual(dim, choice.dim)
            shape = plan.shapes[name]
            self.assertEqual(shape.shape[dim] % parts, 0)
            run = shape.shape[dim] // parts * math.prod(shape.shape[dim + 1:])
            self.assertEqual(run * sharded.functions.dtype_width(shape.dtype) % 16, 0)
            for part in range(parts):
                holders = {rank for rank, held in enumerate(holdings) if name in held and self.held(held[name], choice, part, parts)}
                common = shared.setdefault((shape.dtype, part, parts), holders)
                common &= holders
                self.assertTrue(common, (name, part, parts))
        return plan

    def test_random(self):
        kinds = set()
        for seed in range(200):
            generator = random.Random(seed)
            count = generator.choice((2, 3, 4, 6, 8))
            holdings = [{} for _ in range(count)]
            for number in range(generator.randrange(1, 9)):
                shape = tuple(generator.choice((1, 4, 6, 7, 8, 12, 16, 30, 64)) for _ in range(generator.randrange(1, 4)))
                dim = generator.randrange(len(shape))
                dtype = generator.choice((sharded.BF16, sharded.F32))
                groups = generator.choice([g for g in range(1, count + 1) if count % g == 0])
                for rank in range(count):
                    index, size = rank % groups, groups

                    def chunk(extent):
                        length = -(-extent // size)
                        start = min(index * length, extent)
                        return start, min(length, extent - start)

                    start, length = chunk(shape[dim])
                    offsets = tuple(start if axis == dim else 0 for axis in range(len(shape)))
                    sizes = tuple(length if axis == dim else extent for axis, extent in enumerate(shape))
                    others = tuple((axis, *chunk(extent)) for axis, extent in enumerate(shape))
                    holdings[rank][f"t{number}.weight"] = sharded.Holding(dtype, shape, offsets, sizes, others)
            plan = self.check(holdings)
            kinds |= {choice.kind for choice in plan.choices.values()}
        self.assertEqual(kinds, {"kept", "turned", "whole"})

    def test_workers(self):
        """A worker that holds columns of what trainers hold in rows: it is turned."""
        holdings = [{"w": sharded.Holding(sharded.BF16, (16, 32), (8 * rank, 0), (8, 32), ((0, 8 * rank, 8), (1, 16 * rank, 16)))}
                    for rank in range(2)]
        columns = [layouts.Layout({"w": layouts.Recipe("concat", (layouts.Slice("w", 1, 8 * rank, 8),))}, {}, (), {})
                   for rank in range(4)]
        plan = self.check(holdings, columns)
        self.assertEqual((plan.choices["w"].kind, plan.cuts), ("turned", [("w", 1, 4)]))
        plan = self.check(holdings)
        self.assertEqual((plan.choices["w"].kind, plan.cuts), ("kept", [("w", 0, 2)]))

    def test_apart(self):
        """Tensors that would be cut into as many parts, and are held differently: their boxes must not share buckets."""
        def over(groups, rows):
            chunk = -(-rows // groups)
            return [sharded.Holding(sharded.F32, (rows, 4), (start, 0), (min(chunk, rows - start), 4), ())
                    for start in (rank % groups * chunk for rank in range(4))]

        for rows, cuts, kind in ((14, [("a", 0, 7), ("b", 0, 14)], "kept"), (7, [("a", 0, 7)], "whole")):
            plan = self.check([{"a": one, "b": other} for one, other in zip(over(2, 7), over(4, rows))])
            self.assertEqual((plan.cuts, plan.choices["b"].kind), (cuts, kind))

    def test_many(self):
        """A plan for 256 ranks and 1000 tensors takes seconds, not minutes."""
        began = time.monotonic()
        holdings = [{f"layers.{layer}.{name}": sharded.Holding(sharded.BF16, shape, (rank * shape[0] // 256, 0),
                                                               (shape[0] // 256, shape[1]), ((0, rank * shape[0] // 256, shape[0] // 256),))
                     for layer in range(100) for name, shape in ((f"{letter}.weight", (1024 + 256 * index, 64))
                                                                 for index, letter in enumerate("abcdefghij"))}
                    for rank in range(256)]
        plan = sharded.make_plan(holdings)
        self.assertEqual({(dim, parts) for _, dim, parts in plan.cuts}, {(0, 256)})
        self.assertLess(len(plan.cuts), 20)
        self.assertLess(time.monotonic() - began, 60)

    def test_lost(self):
        half = sharded.Holding(sharded.F32, (8, 4), (0, 0), (4, 4), ((0, 0, 4), (1, 0, 2)))
        with self.assertRaisesRegex(weft.InvalidArgument, "do not hold tensor w once and whole"):
            sharded.make_plan([{"w": half}])


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
