# SPDX-License-Identifier: Apache-2.0
"""checkpoints.py DIRECTORY: small checkpoints for the tests of the command, good ones and broken ones.

base, next, last      three states of one model (.safetensors), one step apart
other                 the same tensors with other weights
grown                 next, with a tensor more and another dtype
sharded/              base as two shards and an index
bad-*.safetensors     one for each way to be broken that a header has
"""

import json
import os
import random
import struct
import sys

DICE = random.Random(5)


def write(path, header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text) if length is None else length) + text + data)


def layout(tensors):
    header, offset = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    return header, b"".join(data for _, _, _, data in tensors)


def step(data):
    copy = bytearray(data)
    for _ in range(len(copy) // 200):
        at = 2 * DICE.randrange(len(copy) // 2)
        value = struct.unpack_from("<H", copy, at)[0]
        struct.pack_into("<H", copy, at, value + 1 & 0xFFFF)
    return bytes(copy)


def trained(count):
    """BF16 weights of a narrow band of exponents."""
    return b"".join(
        struct.pack("<H", DICE.getrandbits(1) << 15 | DICE.randrange(112, 122) << 7 | DICE.getrandbits(7))
        for _ in range(count)
    )


def states():
    tensors = [
        ["embed", "BF16", [300, 64], trained(300 * 64)],
        ["layer.up", "BF16", [64, 128], trained(64 * 128)],
        ["norm", "F32", [64], DICE.randbytes(256)],
        ["step", "I64", [], bytes(8)],
    ]
    for name in ("base", "next", "last", "other"):
        if name == "other":
            tensors = [[n, d, s, DICE.randbytes(len(data))] for n, d, s, data in tensors]
        header, data = layout(tensors)
        write(f"{name}.safetensors", header, data)
        if name == "base":
            shards(tensors)
        if name == "next":
            grown = [list(tensor) for tensor in tensors] + [["bias", "F16", [10], bytes(20)]]
            grown[2][1:] = ["F64", [32], grown[2][3]]
            write("grown.safetensors", *layout(grown))
        tensors = [[n, d, s, step(data)] for n, d, s, data in tensors]


def shards(tensors):
    os.mkdir("sharded")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    places = {}
    for name, part in zip(names, (tensors[:2], tensors[2:])):
        write(f"sharded/{name}", *layout(part))
        places.update({tensor[0]: name for tensor in part})
    with open("sharded/model.safetensors.index.json", "w") as file:
        json.dump({"metadata": {}, "weight_map": places}, file)


def entry(begin, end, dtype="U8", shape=None):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def broken():
    data = bytes(64)
    whole = {"a": entry(0, 32), "b": entry(32, 64)}
    text = json.dumps(whole).encode()
    deep = b'{"__metadata__":' + b"[" * 20000 + b"]" * 20000 + b"}"
    cases = {
        "overlap": ({"a": entry(0, 40), "b": entry(32, 64)}, data),
        "hole": ({"a": entry(0, 16), "b": entry(32, 64)}, data),
        "trailing": (whole, data + b"x"),
        "short-data": (whole, data[:-1]),
        "wrong-length": ({"a": entry(0, 64, shape=[63])}, data),
        "overflow": ({"a": entry(0, 64, "F64", [1 << 62, 1 << 62])}, data),
        "negative": ({"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 64]}}, data),
        "huge-offsets": ({"a": {"dtype": "U8", "shape": [64], "data_offsets": [0, 1 << 70]}}, data),
        "dtype": ({"a": entry(0, 64, "BF17")}, data),
        "no-object": ([1, 2], data),
        "deep": (deep, data),
        "no-json": (b"{nothing", data),
        "not-utf-8": (text.replace(b'"a"', b'"\xff\xfe"'), data),
        "duplicate": (b'{"a":{"dtype":"U8","shape":[32],"data_offsets":[0,32]},'
                      b'"a":{"dtype":"U8","shape":[32],"data_offsets":[32,64]}}', data),
        "empty-header": (b"", data),
    }
    for name, (header, content) in cases.items():
        write(f"bad-{name}.safetensors", header, content)
    write("bad-huge-length.safetensors", whole, data, length=1 << 60)
    write("bad-past-end.safetensors", whole, data, length=len(text) + 1000)
    for name, content in (("nothing", b""), ("seven-bytes", b"\x08\0\0\0\0\0\0"), ("prefix-only", bytes(8))):
        with open(f"bad-{name}.safetensors", "wb") as file:
            file.write(content)


os.chdir(sys.argv[1])
states()
broken()
