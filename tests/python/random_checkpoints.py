# SPDX-License-Identifier: Apache-2.0
"""Random checkpoints and random changes to them, for tests of the format.

A state is a dictionary from tensor name to weft_format.Tensor. Floats look like weights (normally
distributed around zero), because the coding small sorts them by exponent; all other dtypes are plain random
bytes.
"""

import json

import numpy

from weft_format import DTYPE_OF_NAME, INDEX_NAME, Tensor, tensor_bytes

FLOATS_OF_NUMPY = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def random_tensor(random, dtype_name, shape):
    dtype = DTYPE_OF_NAME[dtype_name]
    size = tensor_bytes(dtype, shape)
    weights = random.standard_normal(size // dtype.width) * 0.02
    if dtype_name == "BF16":
        data = (weights.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    elif dtype_name in FLOATS_OF_NUMPY:
        data = weights.astype(FLOATS_OF_NUMPY[dtype_name]).tobytes()
    elif dtype_name == "BOOL":
        data = random.integers(0, 2, size, dtype=numpy.uint8).tobytes()
    else:
        data = random.bytes(size)
    return Tensor(dtype, shape, data)


def random_state(random, kinds):
    """A state from a dictionary of name to (dtype name, shape)."""
    return {name.encode(): random_tensor(random, *kind) for name, kind in kinds.items()}


def changed_tensor(random, tensor, density, largest_step=3):
    """A copy in which about that share of the units has moved by at most that step, up or down."""
    result = tensor.copy()
    units = result.units
    chosen = numpy.flatnonzero(random.random(len(units)) < density)
    steps = random.integers(1, largest_step, len(chosen), dtype=numpy.uint64, endpoint=True)
    is_down = random.random(len(chosen)) < 0.5
    steps = numpy.where(is_down, numpy.uint64(0) - steps, steps)
    units[chosen] += steps.astype(units.dtype)
    return result


def changed_small_exponents(random, tensor, density):
    """A copy of a BF16 tensor in which small weights change often and large ones seldom, as in training."""
    result = tensor.copy()
    units = result.units
    exponents = ((units & 0x7FFF) >> 7).astype(int)
    chance = density * numpy.exp2((numpy.median(exponents) - exponents).clip(-8, 3))
    chosen = numpy.flatnonzero(random.random(len(units)) < chance)
    is_down = random.random(len(chosen)) < 0.5
    units[chosen] += numpy.where(is_down, 0xFFFF, 1).astype(units.dtype)
    return result


def changed_state(random, state, density, largest_step=3):
    return {name: changed_tensor(random, tensor, density, largest_step) for name, tensor in state.items()}


def safetensors_file(state, metadata=None):
    """The bytes of one safetensors file with all tensors of a state, in the dictionary's order."""
    header = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, tensor in state.items():
        end = offset + len(tensor.data)
        header[name.decode()] = {
            "dtype": tensor.dtype.name,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(t.data.tobytes() for t in state.values())


def write_single(state, path, metadata=None):
    path.write_bytes(safetensors_file(state, metadata))


def write_sharded(shards, path):
    """Writes a list of states as the shards of one checkpoint, with its index."""
    path.mkdir()
    file_of_tensor = {}
    total = 0
    for number, state in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_single(state, path / name)
        file_of_tensor |= {tensor.decode(): name for tensor in state}
        total += sum(len(tensor.data) for tensor in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": file_of_tensor}
    (path / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")
