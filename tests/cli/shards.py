# SPDX-License-Identifier: Apache-2.0
"""shards.py FILE DIRECTORY: the tensors of a safetensors file as a checkpoint of two shards and an index."""

import json
import os
import struct
import sys


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack_from("<Q", data)[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write(path, names, header, data):
    entries, parts, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name in names:
        start, end = header[name]["data_offsets"]
        entries[name] = dict(header[name], data_offsets=[offset, offset + end - start])
        parts.append(data[start:end])
        offset += end - start
    text = json.dumps(entries).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def main():
    source, directory = sys.argv[1:]
    header, data = read(source)
    header.pop("__metadata__", None)
    names = sorted(header, key=lambda name: header[name]["data_offsets"])
    half = (len(names) + 1) // 2
    os.makedirs(directory)
    index = {"metadata": {"total_size": len(data)}, "weight_map": {}}
    for number, part in enumerate((names[:half], names[half:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        write(os.path.join(directory, file), part, header, data)
        index["weight_map"].update({name: file for name in part})
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump(index, file, indent=2)


main()
