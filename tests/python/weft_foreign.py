# SPDX-License-Identifier: Apache-2.0
"""The formats of other systems, written and read from their descriptions alone (doc/INTEROP.md), without weft.

A state is a dictionary from name to Weights. Writers take the state before and the state after; they are as plain as
can be, and so are the readers, which put a delta on a state.
"""

import dataclasses
import hashlib
import json
import os
import struct
import zlib

import numpy
import xxhash
import zstandard

WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4,
          "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}


@dataclasses.dataclass
class Weights:
    dtype: str
    shape: tuple
    data: bytes

    @property
    def bytes(self):
        return numpy.frombuffer(self.data, numpy.uint8)

    @property
    def units(self):
        return numpy.frombuffer(self.data, f"<u{WIDTHS[self.dtype]}")


# ---- states ----

def safetensors_bytes(entries, metadata=None):
    """A safetensors file from (name, dtype, shape, bytes), in that order."""
    header, offset = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape, data in entries:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(bytes(entry[3]) for entry in entries)


def safetensors_read(path):
    """(entries by name: (dtype, shape, bytes), metadata)"""
    with open(path, "rb") as file:
        data = file.read()
    length, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    start = 8 + length
    return {name: (entry["dtype"], tuple(entry["shape"]),
                   data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
            for name, entry in header.items()}, metadata


def write_state(path, state):
    entries = [(name, weights.dtype, weights.shape, weights.data) for name, weights in state.items()]
    with open(path, "wb") as file:
        file.write(safetensors_bytes(entries))


def read_state(path):
    return {name: Weights(*entry) for name, entry in safetensors_read(path)[0].items()}


def random_state(random, kinds):
    state = {}
    for name, (dtype, shape) in kinds.items():
        units = int(numpy.prod(shape, dtype=numpy.int64))
        if dtype == "BF16":
            values = (random.standard_normal(units) * 0.02).astype("<f4")
            data = (values.view("<u4") >> 16).astype("<u2").tobytes()
        elif dtype == "BOOL":
            data = random.integers(0, 2, units, dtype=numpy.uint8).tobytes()
        else:
            data = random.bytes(units * WIDTHS[dtype])
        state[name] = Weights(dtype, tuple(shape), data)
    return state


def changed_state(random, state, density):
    """A copy in which that share of the units is something else; of exactly one unit if the density is 1 as an int."""
    result = {}
    names = [name for name in state if len(state[name].data) > 0]
    for name, weights in state.items():
        units = weights.units.copy()
        if isinstance(density, int):
            chosen = numpy.array([len(units) // 2] if density and name == names[0] else [], dtype=int)
        else:
            chosen = numpy.flatnonzero(random.random(len(units)) < density)
        if weights.dtype == "BOOL":
            units[chosen] ^= 1
        else:
            units[chosen] ^= random.integers(1, 200, len(chosen)).astype(units.dtype)
        result[name] = Weights(weights.dtype, weights.shape, units.tobytes())
    return result


# ---- checksums ----

def adler32(data):
    return f"{zlib.adler32(data):08x}"


CHECKSUMS = {"xxh3-128": lambda data: xxhash.xxh3_128(data).hexdigest(), "adler32": adler32}


# ---- slime, miles, SGLang, Stitch, ModelExpress ----

def xor_payload(before, after):
    return (before.bytes ^ after.bytes).tobytes()


def overwrite_payload(before, after):
    positions = numpy.flatnonzero(before.bytes != after.bytes)
    return struct.pack("<I", len(positions)) + positions.astype("<u4").tobytes() + after.bytes[positions].tobytes()


def compress(data):
    return zstandard.ZstdCompressor(level=1).compress(data)


def write_slime(root, version, base_version, before, after, encoding="xor", checksum="xxh3-128", files=1):
    """weight_vNNNNNN/. Of several files, tensors go to each in turn."""
    directory = os.path.join(root, f"weight_v{version:06d}")
    os.makedirs(directory)
    payload = {"xor": xor_payload, "overwrite": overwrite_payload}[encoding]
    changed = [name for name in sorted(after, key=str.encode) if before[name].data != after[name].data]
    weight_map, bytes_written = {}, 0
    for number in range(files if changed else 0):
        name_of_file = f"model-{number:05d}-of-{files:05d}.safetensors"
        names = changed[number::files]
        blobs = {name: compress(payload(before[name], after[name])) for name in names}
        sums = {name: CHECKSUMS[checksum](after[name].data) for name in names}
        data = safetensors_bytes([(name, "U8", (len(blobs[name]),), blobs[name]) for name in names], sums)
        with open(os.path.join(directory, name_of_file), "wb") as file:
            file.write(data)
        weight_map.update({name: name_of_file for name in names})
    index = {"metadata": {"version": f"{version:06d}", "base_version": f"{base_version:06d}", "delta_encoding": encoding,
                          "compression_format": "zstd", "checksum_format": checksum},
             "weight_map": {name: weight_map[name] for name in changed}}
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump(index, file)
    return directory


def apply_slime(directory, before):
    """The state after a delta, as SGLang's pull makes it; every checksum is checked."""
    with open(os.path.join(directory, "model.safetensors.index.json")) as file:
        metadata = json.load(file)["metadata"]
    assert metadata["compression_format"] == "zstd"
    after = dict(before)
    for name_of_file in sorted(os.listdir(directory)):
        if not name_of_file.endswith(".safetensors"):
            continue
        entries, sums = safetensors_read(os.path.join(directory, name_of_file))
        for name, (dtype, _, blob) in entries.items():
            assert dtype == "U8" and after[name] is before[name]
            old = before[name]
            delta = numpy.frombuffer(zstandard.ZstdDecompressor().decompress(blob), numpy.uint8)
            if metadata["delta_encoding"] == "xor":
                data = old.bytes ^ delta
            else:
                count, = struct.unpack_from("<I", delta)
                data = old.bytes.copy()
                data[numpy.frombuffer(delta[4:4 + 4 * count].tobytes(), "<u4")] = delta[4 + 4 * count:]
            assert CHECKSUMS[metadata["checksum_format"]](data.tobytes()) == sums[name], name
            after[name] = Weights(old.dtype, old.shape, data.tobytes())
    return after


# ---- SkyRL ----

TORCH = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64", "I64": "int64", "BOOL": "bool",
         "F8_E4M3": "float8_e4m3fn", "U8": "uint8", "I32": "int32"}
SKYRL_CHECKSUMS = {"xxh3-128": CHECKSUMS["xxh3-128"], "sha256": lambda data: hashlib.sha256(data).hexdigest()}


def write_skyrl(root, version, base_version, before, after, checksum="xxh3-128", files=1):
    directory = os.path.join(root, f"delta-{version:08d}")
    os.makedirs(directory)
    changed = [name for name in sorted(after, key=str.encode) if before[name].data != after[name].data]
    tensors, names = [], []
    for number in range(files if changed else 0):
        file_name = f"delta-rank00000-file{number:06d}.safetensors"
        names.append(file_name)
        entries = []
        for name in changed[number::files]:
            blob, weights = compress(xor_payload(before[name], after[name])), after[name]
            entries.append((name, "U8", (len(blob),), blob))
            tensors.append({"name": name, "dtype": TORCH[weights.dtype], "shape": list(weights.shape),
                            "uncompressed_num_bytes": len(weights.data), "compressed_num_bytes": len(blob),
                            "payload_file": file_name, "payload_key": name,
                            "checksum": SKYRL_CHECKSUMS[checksum](weights.data), "checksum_algorithm": checksum})
        with open(os.path.join(directory, file_name), "wb") as file:
            file.write(safetensors_bytes(entries))
    manifest = {"version": version, "base_version": base_version, "tensors": tensors,
                "total_uncompressed_num_bytes": sum(t["uncompressed_num_bytes"] for t in tensors),
                "total_compressed_num_bytes": sum(t["compressed_num_bytes"] for t in tensors), "payload_files": names}
    with open(os.path.join(directory, "manifest.json"), "w") as file:
        json.dump(manifest, file)
    return directory


def apply_skyrl(directory, before):
    with open(os.path.join(directory, "manifest.json")) as file:
        manifest = json.load(file)
    after = dict(before)
    for tensor in manifest["tensors"]:
        entries, _ = safetensors_read(os.path.join(directory, tensor["payload_file"]))
        old, blob = before[tensor["name"]], entries[tensor["payload_key"]][2]
        assert len(blob) == tensor["compressed_num_bytes"] and list(old.shape) == tensor["shape"]
        assert TORCH[old.dtype] == tensor["dtype"] and len(old.data) == tensor["uncompressed_num_bytes"]
        data = (old.bytes ^ numpy.frombuffer(zstandard.ZstdDecompressor().decompress(blob), numpy.uint8)).tobytes()
        assert SKYRL_CHECKSUMS[tensor["checksum_algorithm"]](data) == tensor["checksum"]
        after[tensor["name"]] = Weights(old.dtype, old.shape, data)
    return after


# ---- ARC2 ----

def write_arc2(root, version, base_version, before, after):
    """Every tensor, in one file, with decimal checksums; `base_version` is the one before."""
    assert base_version == version - 1
    directory = os.path.join(root, f"v{version}")
    os.makedirs(directory)
    names = sorted(after, key=str.encode)
    blobs = {name: compress(xor_payload(before[name], after[name])) for name in names}
    sums = {name: str(zlib.adler32(after[name].data)) for name in names}
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(safetensors_bytes([(name, "U8", (len(blobs[name]),), blobs[name]) for name in names], sums))
    return directory


def apply_arc2(directory, before):
    after = {}
    for file_name in sorted(os.listdir(directory)):
        entries, sums = safetensors_read(os.path.join(directory, file_name))
        for name, (_, _, blob) in entries.items():
            old = before[name]
            data = (old.bytes ^ numpy.frombuffer(zstandard.ZstdDecompressor().decompress(blob), numpy.uint8)).tobytes()
            assert str(zlib.adler32(data)) == sums[name] and name not in after
            after[name] = Weights(old.dtype, old.shape, data)
    assert set(after) == set(before)
    return {name: after[name] for name in before}


# ---- sparse formats, which are only read ----

def changed_units(before, after):
    """(positions, new values as bytes) of a tensor."""
    positions = numpy.flatnonzero(before.units != after.units)
    return positions, after.units[positions].tobytes()


def changed_tensors(before, after):
    for name in sorted(after, key=str.encode):
        positions, values = changed_units(before[name], after[name])
        if len(positions):
            yield name, positions, values


def write_trl(root, version, base_version, before, after, encoding="gap_delta"):
    """deltas/step_NNNNNN.safetensors; with the encoding None, the older names."""
    os.makedirs(os.path.join(root, "deltas"), exist_ok=True)
    os.makedirs(os.path.join(root, "anchors"), exist_ok=True)
    entries = []
    for name, positions, values in changed_tensors(before, after):
        suffixes = (".indices", ".values") if encoding is None else (".idx", ".val")
        if encoding == "gap_delta":
            gaps = numpy.diff(positions, prepend=-1) - 1
            width = "U16" if gaps.max() < 1 << 16 else "U32"
            index = width, gaps.astype("<u2" if width == "U16" else "<u4").tobytes()
        else:
            index = "I32", positions.astype("<i4").tobytes()
        entries.append((name + suffixes[0], index[0], (len(positions),), index[1]))
        entries.append((name + suffixes[1], after[name].dtype, (len(positions),), values))
    metadata = {"format": "sparse_weight_patch", "version": "1", "sparse": "True", "model_version": str(version)}
    if encoding is not None:
        metadata["encoding"] = encoding
    path = os.path.join(root, "deltas", f"step_{version:06d}.safetensors")
    with open(path, "wb") as file:
        file.write(safetensors_bytes(entries, metadata))
    return path


def write_prime_ranks(root, version, base_version, before, after, ranks=3):
    """The shape by rank: each has every n-th position of a tensor."""
    directory = os.path.join(root, f"step_{version}")
    os.makedirs(directory)
    described, payload_bytes = [], 0
    for rank in range(ranks):
        entries, tensors = [], []
        for number, (name, positions, _) in enumerate(changed_tensors(before, after)):
            held = positions[rank::ranks]
            if not len(held):
                continue
            weights = after[name]
            wide = int(numpy.prod(weights.shape, dtype=numpy.int64)) >= 1 << 31
            entries.append((f"t{number}_indices", "I64" if wide else "I32", (len(held),),
                            held.astype("<i8" if wide else "<i4").tobytes()))
            entries.append((f"t{number}_values", weights.dtype, (len(held),), weights.units[held].tobytes()))
            tensors.append({"name": name, "global_shape": list(weights.shape), "dtype": TORCH[weights.dtype],
                            "indices_key": f"t{number}_indices", "values_key": f"t{number}_values", "changed": len(held)})
        file_name = f"rank_{rank}.safetensors"
        if entries:
            data = safetensors_bytes(entries)
            payload_bytes += len(data)
            with open(os.path.join(directory, file_name), "wb") as file:
                file.write(data)
        described.append({"rank": rank, "base_step": base_version, "target_step": version, "file": file_name,
                          "tensors": tensors})
    manifest = {"format": "prime-rl-sparse-hf-v1", "base_step": base_version, "target_step": version,
                "changed": sum(t["changed"] for r in described for t in r["tensors"]), "payload_bytes": payload_bytes,
                "ranks": described}
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    with open(os.path.join(directory, "sparse_manifest.json"), "w") as file:
        file.write(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    open(os.path.join(directory, "STABLE"), "w").close()
    return directory


def hash_tensor(dtype, units):
    """What torch.hash_tensor gives: the exclusive or of all elements, widened to 64 bits."""
    if dtype == "BF16":
        wide = (units.astype("<u4") << 16).view("<f4").astype("<f8").view("<u8")
    elif dtype == "F32":
        wide = units.view("<f4").astype("<f8").view("<u8")
    elif dtype in ("I32", "I64", "I8", "I16"):
        wide = units.view(units.dtype.str.replace("u", "i")).astype("<i8").view("<u8")
    else:
        wide = units.astype("<u8")
    return int(numpy.bitwise_xor.reduce(wide)) if len(wide) else 0


def write_prime_update(root, version, base_version, before, after, compressed=False):
    directory = os.path.join(root, f"step_{version}")
    os.makedirs(directory)
    entries, tensors = [], []
    for number, (name, positions, values) in enumerate(changed_tensors(before, after)):
        weights = after[name]
        index = positions.astype("<i4")
        entries.append((f"tensor_{number}.indices", "I32", (len(positions),), index.tobytes()))
        entries.append((f"tensor_{number}.values", weights.dtype, (len(positions),), values))
        entry = {"name": name, "shape": list(weights.shape), "dtype": TORCH[weights.dtype],
                 "indices": f"tensor_{number}.indices", "values": f"tensor_{number}.values",
                 "numel": len(weights.units), "changed_numel": len(positions)}
        if weights.dtype != "F16":
            entry["checksum"] = hash_tensor("I32", index.view("<u4")) ^ hash_tensor(weights.dtype, weights.units[positions])
        tensors.append(entry)
    if entries:
        data = safetensors_bytes(entries, {"format": "pt"})
        with open(os.path.join(directory, "sparse_update_patch.safetensors"), "wb") as file:
            file.write(compress(data) if compressed else data)
    manifest = {"format": "prime-rl-sparse-update", "version": 1, "step": version, "base_step": base_version,
                "compute_dtype": "bfloat16", "compressed": compressed,
                "patch_file": "sparse_update_patch.safetensors" if entries else None, "tensors": tensors,
                "stats": {"sparsity": 0.99}}
    with open(os.path.join(directory, "sparse_update_manifest.json"), "w") as file:
        json.dump(manifest, file, indent=2, sort_keys=True)
    return directory


def write_areal(root, version, base_version, before, after):
    entries, sparse, dense = [], 0, 0
    for name, positions, values in changed_tensors(before, after):
        weights = after[name]
        if len(positions) * (4 + WIDTHS[weights.dtype]) < len(weights.data):
            sparse += 1
            entries.append((name + "@delta_idx", "I32", (len(positions),), positions.astype("<i4").tobytes()))
            entries.append((name + "@delta_val", weights.dtype, (len(positions),), values))
        else:
            dense += 1
            entries.append((name, weights.dtype, weights.shape, weights.data))
    header = struct.pack("<6q", 0x41574558, 1, version, base_version, sparse, dense)
    path = os.path.join(root, f"delta-{version}.safetensors")
    os.makedirs(root, exist_ok=True)
    with open(path, "wb") as file:
        file.write(safetensors_bytes([("__awex_delta_header__", "I64", (6,), header)] + entries))
    return path


# ---- PULSEPT1 ----

def pulse_gaps(positions):
    out = struct.pack("<I", positions[0]) if len(positions) else b""
    for gap in numpy.diff(positions):
        out += struct.pack("<H", gap) if gap < 0xFFFF else struct.pack("<HI", 0xFFFF, gap)
    return out


def pulse_rice(positions, bits=None):
    if not len(positions):
        return b""
    gaps = numpy.diff(positions, prepend=-1) - 1
    bits = max(0, int(numpy.log2(gaps.mean() + 1))) if bits is None else bits
    unary, rest, escapes = "", "", b""
    for gap in map(int, gaps):
        quotient = gap >> bits
        unary += "1" * min(quotient, 32) + "0"
        rest += f"{gap & ((1 << bits) - 1):0{bits}b}" if bits else ""
        escapes += struct.pack("<I", quotient) if quotient >= 32 else b""
    unary += "1" * (-len(unary) % 8)
    rest += "0" * (-len(rest) % 8)

    def packed(text):
        return int(text, 2).to_bytes(len(text) // 8, "big") if text else b""
    return struct.pack("<BI", bits, len(unary) // 8) + packed(unary) + packed(rest) + escapes


def pulse_classes(positions, old):
    if not len(positions):
        return b""
    exponents = (old >> 7) & 0xFF
    records, blocks = b"", b""
    for exponent in numpy.unique(exponents[positions]):
        members = numpy.flatnonzero(exponents == exponent)
        changed = numpy.isin(members, positions)
        complement = 2 * int(changed.sum()) > len(members)
        block = pulse_rice(numpy.flatnonzero(~changed if complement else changed))
        ranks = int((~changed if complement else changed).sum())
        records += struct.pack("<BBII", exponent, complement, ranks, len(block))
        blocks += block
    return struct.pack("<H", len(records) // 10) + records + blocks


def pulse_steps(old, new):
    step = (new - old).view("<i2").astype("<i4")
    zigzag = ((step << 1) ^ (step >> 15)).astype("<u2")
    return numpy.minimum(zigzag, 0xFF).astype("u1").tobytes() + zigzag[zigzag >= 0xFF].tobytes()


def write_pulse(root, version, base_version, before, after, format_version=1):
    """Of BF16 tensors only."""
    payload, tensors = b"", []
    for name in sorted(after):
        old, new = before[name].units, after[name].units
        positions = numpy.flatnonzero(old != new)
        index = {1: lambda: pulse_gaps(positions), 2: lambda: pulse_rice(positions),
                 3: lambda: pulse_classes(positions, old)}[format_version]()
        values = new[positions].tobytes() if format_version == 1 else pulse_steps(old[positions], new[positions])
        entry = {"name": name, "shape": list(after[name].shape), "numel": len(new), "dtype": "bf16",
                 "changed": len(positions), "idxBytes": len(index), "valBytes": len(values),
                 "idxEnc": {1: "delta-u16-esc", 2: "rice-gap", 3: "exp-class-rice"}[format_version],
                 "tensorDigest": "xxh3:" + xxhash.xxh3_128(after[name].data).hexdigest()}
        if format_version > 1:
            entry["valEnc"] = "zz-delta-u8esc"
        tensors.append(entry)
        payload += index + values
    header = json.dumps({"formatVersion": format_version, "step": version, "baseStep": base_version,
                         "model": {"id": "m", "digest": "", "paramCount": 0}, "tensors": tensors,
                         "stateDigest": ""}, sort_keys=True, separators=(",", ":")).encode()
    os.makedirs(root, exist_ok=True)
    path = os.path.join(root, f"{version}.patch")
    with open(path, "wb") as file:
        file.write(b"PULSEPT1" + struct.pack("<I", len(header)) + header + compress(payload))
    return path


# ---- grail's COO ----

def write_grail(root, version, base_version, before, after, format_version=31):
    tensors, chunks, offset = [], [], 0
    for name, positions, values in changed_tensors(before, after):
        weights = after[name]
        columns = max(1, int(numpy.prod(weights.shape[1:], dtype=numpy.int64))) if len(weights.shape) > 1 else 1
        rows, cols = positions // columns, positions % columns
        down = numpy.diff(rows, prepend=0)
        right = numpy.where(numpy.concatenate(([True], down[1:] != 0)), cols, numpy.diff(cols, prepend=0))

        def narrow(steps, kinds):
            kind = next(k for k in kinds if steps.max() <= {"uint8": 255, "uint16": 65535, "int32": 2**31}[k])
            return kind, steps.astype({"uint8": "u1", "uint16": "<u2", "int32": "<i4"}[kind]).tobytes()
        row_kind, row_bytes = narrow(down, ("uint8", "uint16", "int32") if format_version == 31 else ("int32",))
        col_kind, col_bytes = narrow(right, ("uint16", "int32") if format_version == 31 else ("int32",))
        meta = {"name": name, "shape": list(weights.shape), "num_nonzero": len(positions),
                "value_dtype": TORCH[weights.dtype], "indices_offset": offset,
                "indices_size": len(row_bytes) + len(col_bytes), "rows_size": len(row_bytes), "cols_size": len(col_bytes),
                "values_offset": offset + len(row_bytes) + len(col_bytes), "values_size": len(values)}
        if format_version == 31:
            meta.update(row_dtype=row_kind, col_dtype=col_kind)
        tensors.append(meta)
        chunks += [row_bytes, col_bytes, values]
        offset += len(row_bytes) + len(col_bytes) + len(values)
    header = json.dumps({"version": format_version, "tensors": tensors}, separators=(",", ":")).encode()
    os.makedirs(root, exist_ok=True)
    path = os.path.join(root, f"delta_{version}.bin.zst")
    with open(path, "wb") as file:
        file.write(compress(struct.pack("<I", len(header)) + header + b"".join(chunks)))
    return path
