#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files: patches with their base and their result, and damaged patches.

    WEFT=build/weft /usr/bin/python3 -B tests/golden/make.py

Golden files pin decoding for ever: every later weft decodes them to the same bytes, or refuses them as it
did. Encoding need not reproduce them. So this script is run by hand when a case is added, and leaves every
file alone that is there already; only manifest.toml, the list of all cases, is written anew each time. A
case is added by adding it here; none is taken away. A patch that said version 2 before there was one was an
error and is a patch now.

    checkpoints/    bases and results, made from random numbers that depend on the file's name only
    patches/        patches, most as the command made them, some put together by hand (see forge.py)
    errors/         damaged and lying patches; the manifest says what was done to them (damage) and what
                    weft_format.py says about it (refusal)
"""

import json
import os
import pathlib
import subprocess
import sys
import zlib
from dataclasses import replace

import numpy
import zstandard

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import forge
import random_checkpoints as checkpoints
from weft_format import ADDED, DIFFERENCE, DTYPE_OF_NAME, DTYPES, FAST, PACKED_STEPS, PACKED_VALUES, REMOVED, RICE_STEPS
from weft_format import REPLACED, SMALL
from weft_format import Dtype, Entry, FormatError, Tensor, apply_patch, exponent_in, parse_patch, read_checkpoint


class Golden:
    """Makes what is missing, and remembers all cases for the manifest."""

    def __init__(self, directory, command):
        self.directory = directory
        self.command = command
        self.lines = []

    def state(self, name):
        return read_checkpoint(self.directory / "checkpoints" / name).tensors()

    def checkpoint(self, name, state, **options):
        """A single file, or with shards given as a list of states, a directory."""
        path = self.directory / "checkpoints" / name
        if not path.exists():
            write = checkpoints.write_sharded if isinstance(state, list) else checkpoints.write_single
            write(state, path, **options)

    def run(self, *arguments):
        subprocess.run([self.command, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    def path(self, name):
        return self.directory / "patches" / f"{name}.weft"

    def case(self, name, base, result):
        self.lines += ["", "[[golden]]", f'name = "{name}"', f'base = "{base}"', f'result = "{result}"']

    def diff(self, name, base, result, *options):
        if not self.path(name).exists():
            directory = self.directory / "checkpoints"
            self.run("diff", directory / base, directory / result, "-o", self.path(name), *options)
        self.case(name, base, result)

    def merge(self, name, base, result, patches, *options):
        if not self.path(name).exists():
            self.run("merge", *(self.path(patch) for patch in patches), "-o", self.path(name), *options)
        self.case(name, base, result)

    def forged(self, name, base, result, pieces):
        if not self.path(name).exists():
            self.path(name).write_bytes(pieces.seal())
        self.case(name, base, result)

    def error(self, name, base, damage, data):
        """A patch that is refused. The command's exit code for it is 3."""
        path = self.directory / "errors" / f"{name}.weft"
        if not path.exists():
            path.write_bytes(data)
        refusal = self.refusal(base, path)
        self.lines += ["", "[[error]]", f'name = "{name}"', f'base = "{base}"']
        self.lines += [f'damage = "{damage}"', f'refusal = "{refusal}"']

    def refusal(self, base, path):
        try:
            checkpoint = read_checkpoint(self.directory / "checkpoints" / base)
            apply_patch(checkpoint, parse_patch(path.read_bytes()))
        except FormatError as error:
            return str(error).replace("\\", "\\\\").replace('"', '\\"')
        raise SystemExit(f"{path} is not refused")

    def write_manifest(self):
        head = ["# SPDX-License-Identifier: Apache-2.0", "#", "# All golden cases; written by make.py."]
        (self.directory / "manifest.toml").write_text("\n".join(head + self.lines) + "\n")


def random_for(name):
    return numpy.random.default_rng(zlib.crc32(name.encode()))


# ----------------------------------------------------------------------------------------------------------
# Patches that the command made
# ----------------------------------------------------------------------------------------------------------


def weights_by_exponent(random, shape, exponents):
    """A BF16 tensor with these exponents only, so that few units make for several classes."""
    size = int(numpy.prod(shape))
    units = random.integers(0, 2, size) << 15 | random.choice(exponents, size) << 7
    units |= random.integers(0, 128, size)
    return Tensor(DTYPE_OF_NAME["BF16"], shape, units.astype("<u2").tobytes())


def changed_by_exponent(random, tensor, densities):
    """A copy in which units have changed with the density of their exponent."""
    result = tensor.copy()
    exponents = (result.units & 0x7FFF) >> 7
    chances = numpy.vectorize(densities.get)(exponents)
    chosen = numpy.flatnonzero(random.random(len(exponents)) < chances)
    result.units[chosen] += random.choice([1, 1, 1, 2, 0xFFFF, 0xFFFF, 0xFFFE], len(chosen)).astype("<u2")
    return result


def make_weights(golden):
    """BF16 weights of which 15% change, small ones more often: several classes, and two buckets."""
    random = random_for("weights")
    densities = {110: 0.4, 120: 0.05, 127: 0.001}
    shapes = {b"norm": (77,), b"weight": (260, 64)}
    first = {name: weights_by_exponent(random, shape, list(densities)) for name, shape in shapes.items()}
    second = {name: changed_by_exponent(random, tensor, densities) for name, tensor in first.items()}
    names = ("weights-0.safetensors", "weights-1.safetensors")
    golden.checkpoint(names[0], first)
    golden.checkpoint(names[1], second)
    for profile in ("fast", "small"):
        golden.diff(f"weights-{profile}", *names, "--profile", profile)
        golden.diff(f"weights-buckets-{profile}", *names, "--profile", profile, "--bucket-size", "32KiB")


def make_steps(golden):
    """Three states in a row, each with 1% of changes: patches, patches back, and patches merged."""
    random = random_for("steps")
    first = checkpoints.random_state(random, {"norm": ("BF16", (77,)), "weight": ("BF16", (30, 64))})
    second = checkpoints.changed_state(random, first, 0.01)
    third = checkpoints.changed_state(random, second, 0.01, 40)
    names = [f"steps-{number}.safetensors" for number in range(3)]
    for name, state in zip(names, (first, second, third)):
        golden.checkpoint(name, state)
    for profile in ("fast", "small"):
        options = ("--profile", profile, "--label")
        golden.diff(f"steps-1-{profile}", names[0], names[1], *options, "step=1")
        golden.diff(f"steps-2-{profile}", names[1], names[2], *options, "step=2")
        make_inverse(golden, f"steps-back-{profile}", names[2], names[1], profile)
    golden.merge("steps-merged-fast", names[0], names[2], ["steps-1-fast", "steps-2-fast"])
    base = golden.directory / "checkpoints" / names[0]
    patches = ["steps-1-small", "steps-2-small"]
    golden.merge("steps-merged-small", names[0], names[2], patches, "--base", base, "--label", "step=2")


def make_inverse(golden, name, base, result, profile):
    """The patch back to the result, a by-product of the one from the result to the base."""
    if not golden.path(name).exists():
        directory = golden.directory / "checkpoints"
        options = ("-o", os.devnull, "--inverse", golden.path(name), "--profile", profile)
        golden.run("diff", directory / result, directory / base, *options)
    golden.case(name, base, result)


def make_dtypes(golden):
    """All dtypes: with few small steps, with steps over the whole range, with nearly all units changed."""
    random = random_for("dtypes")
    first = checkpoints.random_state(random, {f"t.{dtype.name}": (dtype.name, (8, 7)) for dtype in DTYPES})
    sparse = checkpoints.changed_state(random, first, 0.05)
    wide = checkpoints.changed_state(random, first, 0.05, 2**64 - 1)
    dense = checkpoints.changed_state(random, first, 0.8)
    golden.checkpoint("dtypes-0.safetensors", first)
    for name, state in {"sparse": sparse, "wide": wide, "dense": dense}.items():
        golden.checkpoint(f"dtypes-{name}.safetensors", state)
        names = ("dtypes-0.safetensors", f"dtypes-{name}.safetensors")
        for profile in ("fast", "small"):
            golden.diff(f"dtypes-{name}-{profile}", *names, "--profile", profile)


def make_dense(golden):
    """Dense buckets: differences where steps are small, values where nothing is left of the base."""
    random = random_for("dense")
    kinds = {f"near.{name}": (name, (200,)) for name in ("BF16", "F64")}
    kinds |= {f"far.{name}": (name, (200,)) for name in ("F16", "F32", "I8")}
    first = checkpoints.random_state(random, kinds)
    second = checkpoints.random_state(random, kinds)
    for name in first:
        if name.startswith(b"near"):
            second[name] = checkpoints.changed_tensor(random, first[name], 0.7)
    names = ("dense-0.safetensors", "dense-1.safetensors")
    golden.checkpoint(names[0], first)
    golden.checkpoint(names[1], second)
    for profile in ("fast", "small"):
        golden.diff(f"dense-{profile}", *names, "--profile", profile)


def make_packed(golden):
    """Packed buckets of every dtype that is packed, and of values that are no ordinary numbers, by steps and whole."""
    random = random_for("packed")
    specials = {"BF16": [0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 1, 0x8001]}
    specials["F16"] = [0, 0x8000, 0x7C00, 0xFC00, 0x7E01, 0xFFFF, 1, 0x8001]
    kinds = {f"t.{name}": (name, (4100,)) for name in ("F8_E4M3", "F8_E5M2", "BF16", "F16", "F32", "F64")}
    first = checkpoints.random_state(random, kinds)
    densities = dict(zip(first, (0.3, 0.9, 0.2, 0.6, 1.0, 0.4)))
    second = {name: checkpoints.changed_tensor(random, first[name], densities[name], 9) for name in first}
    for dtype, values in specials.items():
        units = second[f"t.{dtype}".encode()].units
        units[random.choice(len(units), len(values), replace=False)] = values
    first[b"w"] = weights_by_exponent(random, (70, 64), [110, 114, 118, 120, 121])
    second[b"w"] = changed_by_exponent(random, first[b"w"], {110: 1, 114: 0.9, 118: 0.3, 120: 0.08, 121: 0.04})
    make_packed_pair(golden, "packed", first, second)
    kinds = {"far": ("BF16", (65, 64)), "constant": ("F32", (4096,))}
    first, second = (checkpoints.random_state(random, kinds) for _ in range(2))
    second[b"constant"].units[:] = 0x3F800000
    make_packed_pair(golden, "packed-far", first, second)


def make_packed_pair(golden, name, first, second):
    names = (f"{name}-0.safetensors", f"{name}-1.safetensors")
    golden.checkpoint(names[0], first)
    golden.checkpoint(names[1], second)
    golden.checkpoint("nothing.safetensors", {})
    for profile in ("fast", "small"):
        golden.diff(f"{name}-{profile}", *names, "--profile", profile)
        golden.diff(f"{name}-whole-{profile}", "nothing.safetensors", names[1], "--profile", profile)


def make_rice(golden):
    """Steps by Rice's code, of one unit in twenty and of all, and of more than a block."""
    random = random_for("rice")
    kinds = {f"t.{name}": (name, (4100,)) for name in ("F8_E4M3", "F8_E5M2", "BF16", "F16", "F32", "F64")}
    first = checkpoints.random_state(random, kinds)
    names = ("rice-0.safetensors", "rice-few.safetensors", "rice-all.safetensors")
    golden.checkpoint(names[0], first)
    for result, density in zip(names[1:], (0.05, 1)):
        changed = {name: checkpoints.changed_tensor(random, first[name], density, 9) for name in first}
        golden.checkpoint(result, changed)
        golden.diff(result.partition(".")[0], names[0], result, "--profile", "fast")


def make_laws(golden):
    """Buckets whose tables follow laws: of weights in several classes, of few changes, and of all dtypes."""
    golden.diff("laws-weights", "weights-0.safetensors", "weights-1.safetensors")
    golden.diff("laws-steps", "steps-0.safetensors", "steps-1.safetensors")
    for name in ("sparse", "wide"):
        golden.diff(f"laws-dtypes-{name}", "dtypes-0.safetensors", f"dtypes-{name}.safetensors")


def make_widths(golden):
    """Classes of every dtype of floats that has them: of few changes, and of so many that buckets are packed."""
    random = random_for("widths")
    kinds = {"F8_E4M3": (3, [9, 10, 12, 13]), "F8_E5M2": (2, [13, 14, 16, 17]), "F16": (10, [8, 11, 14, 15])}
    kinds |= {"F8_E4M3FNUZ": (3, [9, 10, 12, 13]), "F8_E5M2FNUZ": (2, [13, 14, 16, 17])}
    kinds |= {"F32": (23, [110, 114, 118, 121])}
    first = {f"t.{name}".encode(): floats_by_exponent(random, name, *kind) for name, kind in kinds.items()}
    golden.checkpoint("widths-0.safetensors", first)
    for result, most in (("widths-few", 0.1), ("widths-many", 1)):
        second = {}
        for name, (_, exponents) in kinds.items():
            tensor = first[f"t.{name}".encode()].copy()
            places = numpy.searchsorted(exponents, exponent_in(tensor.units, tensor.dtype))
            chosen = numpy.flatnonzero(random.random(len(places)) < most / 8.0**places)
            tensor.units[chosen] += random.choice([1, 1, 2, 3, 5], len(chosen)).astype(tensor.units.dtype)
            second[f"t.{name}".encode()] = tensor
        golden.checkpoint(f"{result}.safetensors", second)
        golden.diff(result, "widths-0.safetensors", f"{result}.safetensors")


def floats_by_exponent(random, name, shift, exponents):
    """A tensor with these exponents only."""
    dtype = DTYPE_OF_NAME[name]
    units = random.choice(exponents, 6000) << shift | random.integers(0, 1 << shift, 6000)
    units |= random.integers(0, 2, 6000) << 8 * dtype.width - 1
    return Tensor(dtype, (6000,), units.astype(f"<u{dtype.width}").tobytes())


def make_roster(golden):
    """Tensors added, removed and replaced; tensors without dimensions and tensors without elements."""
    random = random_for("roster")
    kept = {
        "kept.empty": ("BF16", (0, 3)),
        "kept.large": ("BF16", (9, 31)),
        "kept.name.µ.重み": ("BF16", (3,)),
        "kept.scalar": ("BF16", ()),
        "kept.scalar.f64": ("F64", ()),
    }
    first = checkpoints.random_state(random, kept)
    second = checkpoints.changed_state(random, first, 0.1)
    second[b"kept.scalar"] = checkpoints.changed_tensor(random, first[b"kept.scalar"], 1)
    gone = {
        "gone": ("U8", (5, 5)),
        "gone.empty": ("I64", (0,)),
        "other.dtype": ("F32", (20,)),
        "other.emptied": ("F16", (7,)),
        "other.filled": ("F16", (0,)),
        "other.shape": ("F16", (4, 6)),
    }
    new = {
        "new": ("BF16", (2, 2, 9)),
        "new.empty": ("BF16", (2, 0)),
        "new.scalar": ("I32", ()),
        "new.tail": ("F4", (5, 6)),
        "other.dtype": ("BF16", (20,)),
        "other.emptied": ("F16", (0,)),
        "other.filled": ("F16", (7,)),
        "other.shape": ("F16", (6, 4)),
    }
    names = ("roster-0.safetensors", "roster-1.safetensors")
    golden.checkpoint(names[0], first | checkpoints.random_state(random, gone))
    metadata = {"format": "pt", "step": "1"}
    golden.checkpoint(names[1], second | checkpoints.random_state(random, new), metadata=metadata)
    golden.diff("roster-fast", *names, "--profile", "fast")
    golden.diff("roster-small", *names)
    make_inverse(golden, "roster-inverse", *reversed(names), "small")


def make_cuts(golden):
    """Tensors cut into boxes along each dimension, for ranks that hold parts of them."""
    random = random_for("cuts")
    kinds = {
        "a.rows": ("BF16", (16, 24)),
        "b.columns": ("BF16", (12, 64)),
        "c.middle": ("F32", (3, 8, 8)),
        "d.bytes": ("I8", (5, 64)),
        "e.whole": ("BF16", (33,)),
        "f.wide": ("F64", (6, 8)),
    }
    first = checkpoints.random_state(random, kinds)
    second = checkpoints.changed_state(random, first, 0.06)
    second[b"d.bytes"] = checkpoints.changed_tensor(random, first[b"d.bytes"], 0.9, 100)
    second |= checkpoints.random_state(random, {"g.new": ("F16", (4, 32))})
    names = ("cuts-0.safetensors", "cuts-1.safetensors")
    golden.checkpoint(names[0], first)
    golden.checkpoint(names[1], second)
    cuts = ("a.rows:0:4", "b.columns:1:4", "c.middle:1:2", "d.bytes:1:2", "f.wide:1:4", "g.*:1:2")
    options = [word for cut in cuts for word in ("--cut", cut)]
    for profile in ("fast", "small"):
        golden.diff(f"cuts-{profile}", *names, "--profile", profile, *options)


def make_files(golden):
    """Shards that stay, are spread otherwise, become one file or come from one; headers; no tensors."""
    random = random_for("files")
    kinds = {"a": ("BF16", (100,)), "b": ("F32", (30,)), "c": ("BF16", (64,)), "d": ("I64", (3,))}
    first = checkpoints.random_state(random, kinds)
    second = checkpoints.changed_state(random, first, 0.1)
    third = second | checkpoints.random_state(random, {"e": ("BF16", (20,))})
    golden.checkpoint("shards-0", [pick(first, b"ab"), pick(first, b"cd")])
    golden.checkpoint("shards-1", [pick(second, b"ab"), pick(second, b"cd")])
    golden.checkpoint("shards-2", [pick(third, b"a"), pick(third, b"ec"), pick(third, b"db")])
    golden.checkpoint("single-0.safetensors", first)
    golden.checkpoint("single-1.safetensors", pick(second, b"dcba"))
    golden.checkpoint("single-0-metadata.safetensors", first, metadata={"format": "pt"})
    golden.checkpoint("nothing.safetensors", {})
    labels = ("--label", "step=42", "--label", "empty=", "--label", "naïve=日本語", "--label", "a=b=c")
    golden.diff("shards-same", "shards-0", "shards-1")
    golden.diff("shards-spread", "shards-1", "shards-2", "--profile", "fast", *labels)
    golden.diff("shards-joined", "shards-0", "single-1.safetensors")
    golden.diff("shards-split", "single-0.safetensors", "shards-2")
    golden.diff("header-order", "single-0.safetensors", "single-1.safetensors", "--profile", "fast")
    golden.diff("header-metadata", "single-0.safetensors", "single-0-metadata.safetensors", *labels)
    golden.diff("folded-metadata", "single-0.safetensors", "single-0-metadata.safetensors", *labels)
    golden.diff("folded-shards", "single-0.safetensors", "shards-2")
    golden.diff("unchanged", "single-0.safetensors", "single-0.safetensors")
    golden.diff("unchanged-nothing", "nothing.safetensors", "nothing.safetensors")
    golden.diff("all-new", "nothing.safetensors", "single-0.safetensors")
    golden.diff("all-gone", "single-0.safetensors", "nothing.safetensors")


def pick(state, letters):
    return {bytes([letter]): state[bytes([letter])] for letter in letters}


# ----------------------------------------------------------------------------------------------------------
# Patches that are valid, and that weft's writer would not write
# ----------------------------------------------------------------------------------------------------------

PAGE_BASE = """
3f80 bf80 3e4d 3c23 0000 8000 3a80 bb00 7f80 3f00 3d12 bc9a 3b07 3c6e bd55 3e01 3980 bc31
3f87 bf87 3e54 3c2a 0007 8007 3a87 bb07 7f87 3f07 3d19 bca1 3b0e 3c75 bd5c 3e08 3987 bc38
"""
PAGE_TWO_CLASSES = """
02 78 02 01 1e
08 fc ff 63 ff 7f 00 fc ff 63 14 fe ff b1 ff 3f 00 00 c0 ff 3f 36 80 ff 7f 0d e0 ff 5f 33
00 00 04 00  00 18 04 00  00 00 01 00  00 00 01 00
"""


def make_page(golden):
    """The examples of doc/FORMAT.md."""
    units = numpy.array([int(word, 16) for word in PAGE_BASE.split()], dtype="<u2")
    first = {b"w": Tensor(DTYPE_OF_NAME["BF16"], (2, 18), units.tobytes())}
    second = {b"w": first[b"w"].copy()}
    second[b"w"].units[[3, 6, 34]] = 0x3C24, 0x3A7F, 0x399B
    names = ("page-0.safetensors", "page-1.safetensors")
    golden.checkpoint(names[0], first)
    golden.checkpoint(names[1], second)
    golden.diff("page-fast", *names, "--profile", "fast", "--label", "step=42")
    golden.diff("page-small", *names)
    pieces = forge.take_apart(golden.path("page-small").read_bytes())
    payload = bytes.fromhex(PAGE_TWO_CLASSES)
    golden.forged("page-two-classes", *names, pieces.with_frame(0, payload=payload))
    golden.diff("page-laws", *names)


def make_forged(golden):
    """Other orders, other forms of the same content, and classes of all kinds."""
    names = ("dtypes-0.safetensors", "dtypes-wide.safetensors")
    data = golden.path("dtypes-wide-fast").read_bytes()
    patch, pieces = parse_patch(data), forge.take_apart(data)
    old, new = (golden.state(name) for name in names)
    golden.forged("forged-frames-reversed", *names, replace(pieces, frames=pieces.frames[::-1]))
    small = pieces
    cuts_of = {"BF16": [1, 100, 112, 114, 116, 118, 255], "F16": [1, 3, 5, 7, 9, 11, 31]}
    for number, frame in enumerate(patch.frames):
        dtype = patch.header.roster[frame.spans[0].tensor].dtype
        small = forge.recode_small(small, patch, number, old, new, cuts_of.get(dtype.name, []))
    golden.forged("forged-classes-of-all", *names, small)
    make_forged_weights(golden)
    make_forged_dense(golden)
    make_forged_packed(golden)


def make_forged_version(golden):
    """A patch of version 2 that has nothing of it."""
    pieces = forge.take_apart(golden.path("victim-fast").read_bytes())
    golden.forged("version-2", VICTIM, AFTER, replace(pieces, version=2))


def make_forged_weights(golden):
    names = ("weights-0.safetensors", "weights-1.safetensors")
    data = golden.path("weights-small").read_bytes()
    patch, pieces = parse_patch(data), forge.take_apart(data)
    old, new = (golden.state(name) for name in names)
    for cuts in ([115], [115, 125], [110, 111, 120, 121, 127, 128, 129]):
        recoded = forge.recode_small(pieces, patch, 0, old, new, cuts)
        golden.forged(f"forged-{len(cuts) + 1}-classes", *names, recoded)
    # every shape; scales from the least to the largest; tokens more, and levels in between
    laws = [(30, 0, 20), (14, 1, 3), None, (0, 3, 61), (127, 2, 0), (60, 3, 2)]
    laws_of_all = forge.recode_small(pieces, patch, 0, old, new, [115, 125], laws)
    golden.forged("forged-laws", *names, replace(laws_of_all, version=2))
    before, after = (numpy.concatenate([tensor.units for tensor in state.values()]) for state in (old, new))
    positions = numpy.flatnonzero(before != after)
    gaps = numpy.diff(positions, prepend=-1) - 1
    steps = (after - before).astype("<i2")[positions]
    payload = forge.fast_payload(0, list(zip(gaps.tolist(), steps.tolist())))
    golden.forged("forged-fast-escapes", *names, pieces.with_frame(0, coding=FAST, payload=payload))
    spans = forge.span_list(forge.whole(0), forge.flat(1, 0, 640), forge.flat(1, 640, 16000))
    golden.forged("forged-flat-spans", *names, pieces.with_frame(0, spans=spans))


def make_forged_dense(golden):
    """zstd frames that do not say their size, and frames with zstd's own checksum."""
    names = ("dense-0.safetensors", "dense-1.safetensors")
    pieces = forge.take_apart(golden.path("dense-small").read_bytes())
    packer = zstandard.ZstdCompressor(level=19, write_content_size=False, write_checksum=True)
    for number, frame in enumerate(pieces.frames):
        content = zstandard.ZstdDecompressor().decompress(frame.payload)
        pieces = pieces.with_frame(number, payload=packer.compress(content))
    header = pieces.header[:-1] + b"\1" + forge.text(b"filling") + forge.text(b"x" * 99)
    pieces = replace(pieces, header=header, compressed_header=packer.compress(header))
    golden.forged("forged-zstd-forms", *names, pieces)


def make_forged_packed(golden):
    """Packed buckets of all dtypes, each code and each place of the cut, and of few units."""
    names = ("dtypes-0.safetensors", "dtypes-dense.safetensors")
    data = golden.path("dtypes-dense-fast").read_bytes()
    patch, old, new = parse_patch(data), *(golden.state(name) for name in names)
    for code in (1, 2, 4, 8):
        pieces = replace(forge.take_apart(data), version=2)
        for number, frame in enumerate(patch.frames):
            bits = 8 * patch.header.roster[frame.spans[0].tensor].dtype.width
            cut = (number * 5 + code) % bits
            values = (number + code) % 3 == 0
            pieces = forge.recode_packed(pieces, patch, number, old, new, values, cut, code)
        golden.forged(f"forged-packed-{code}-bit{'s' if code > 1 else ''}", *names, pieces)
    make_forged_packed_classes(golden)
    make_forged_rice(golden)


def make_forged_rice(golden):
    """Steps by Rice's code of all dtypes, in forms that the command would not choose."""
    names = ("dtypes-0.safetensors", "dtypes-dense.safetensors")
    data = golden.path("dtypes-dense-fast").read_bytes()
    patch, old, new = parse_patch(data), *(golden.state(name) for name in names)
    for rungs in (0, 1, 2, 5, 16):
        pieces = replace(forge.take_apart(data), version=2)
        for number, frame in enumerate(patch.frames):
            bits = 8 * patch.header.roster[frame.spans[0].tensor].dtype.width
            low, thin = (number * 5 + rungs) % bits, (number + rungs) % 2
            pieces = forge.recode_rice(pieces, patch, number, old, new, low, rungs, thin)
        golden.forged(f"forged-rice-{rungs}-rung{'' if rungs == 1 else 's'}", *names, pieces)


def make_forged_packed_classes(golden):
    """Eight classes, of which some have no units."""
    names = ("weights-0.safetensors", "weights-1.safetensors")
    data = golden.path("weights-small").read_bytes()
    patch, old, new = parse_patch(data), *(golden.state(name) for name in names)
    before, after = (forge.bucket_units(patch.frames[0].spans, patch.header.roster, state) for state in (old, new))
    cuts = [110, 111, 120, 121, 127, 128, 129]
    numbers = numpy.array(forge.packed_numbers(before, after, False, 2))
    classes = []
    for place, members in enumerate(forge.class_members(before, cuts, DTYPE_OF_NAME["BF16"])):
        mine = numbers[members].tolist()
        classes.append((mine, forge.packed_form(mine, place % 3, 1 << place % 4)))
    payload = forge.packed_payload(classes, cuts, 2)
    pieces = replace(forge.take_apart(data), version=2)
    pieces = pieces.with_frame(0, coding=PACKED_STEPS, payload=payload)
    golden.forged("forged-packed-8-classes", *names, pieces)


# ----------------------------------------------------------------------------------------------------------
# Patches that are refused
# ----------------------------------------------------------------------------------------------------------

VICTIM, AFTER = "victim-0.safetensors", "victim-1.safetensors"
BFLOATS, BYTES, LEFT, RIGHT = range(4)  # the frames of the victim's patches
A, B, F, M, EMPTY = range(5)  # the tensors of the victim

MOVER, MOVED = "mover-0.safetensors", "mover-1.safetensors"


def make_victims(golden):
    """The patches to be damaged: one with a bucket of each kind, and one with tensors that come and go."""
    random = random_for("victim")
    kinds = {"a": ("BF16", (64,)), "b": ("BF16", (36,)), "f": ("I8", (48,)), "m": ("F32", (4, 16))}
    first = checkpoints.random_state(random, kinds | {"n.empty": ("F64", (0, 7))})
    second = checkpoints.changed_state(random, first, 0.08)
    second[b"f"] = checkpoints.changed_tensor(random, first[b"f"], 0.6)
    golden.checkpoint(VICTIM, first)
    golden.checkpoint(AFTER, second)
    for profile in ("fast", "small"):
        golden.diff(f"victim-{profile}", VICTIM, AFTER, "--profile", profile, "--cut", "m:1:2")
    kinds = {"a": ("BF16", (8,)), "new": ("F16", (20,)), "other": ("F16", (6,))}
    golden.checkpoint(MOVED, checkpoints.random_state(random, kinds))
    kinds = {"a": ("BF16", (8,)), "gone": ("U8", (3,)), "other": ("F16", (4,))}
    golden.checkpoint(MOVER, checkpoints.random_state(random, kinds))
    golden.diff("mover", MOVER, MOVED)


def make_errors(golden):
    data = golden.path("victim-fast").read_bytes()
    pieces = forge.take_apart(data)
    make_damaged_bytes(golden, data)
    make_lying_files(golden, data, pieces)
    make_lying_rosters(golden, parse_patch(data).header.roster, pieces)
    make_lying_fates(golden)
    make_lying_file_lists(golden)
    make_lying_spans(golden, pieces)
    make_lying_boxes(golden, pieces)
    make_lying_frames(golden, pieces)
    make_lying_fast_payloads(golden, pieces)
    make_lying_small_payloads(golden, pieces)
    make_lying_dense_payloads(golden, pieces)
    make_lying_packed_payloads(golden, pieces)
    make_lying_rice_payloads(golden, pieces)
    golden.error("base-is-the-result", AFTER, "none: the patch has been applied already", data)
    golden.error("base-has-other-tensors", MOVER, "none: the base is another one", data)


def make_damaged_bytes(golden, data):
    """What happens to files on the way."""
    patch = parse_patch(data)
    index = patch.footer.index_offset
    cuts = {"nothing": 0, "magic": 7, "preamble": 19, "header": 30, "frames": patch.header.size + 30}
    cuts |= {"index": index + 5, "footer": len(data) - 50, "last-byte": len(data) - 1}
    for name, size in cuts.items():
        golden.error(f"cut-short-{name}", VICTIM, f"cut short after {size} bytes", data[:size])
    flips = {"magic": 3, "version": 9, "stored": 13, "raw": 17, "header": 30}
    flips |= {"header-checksum": patch.header.size - 1, "frame-length": patch.header.size}
    flips |= {"payload": patch.header.size + 30, "index": index + 1}
    flips |= {"index-offset": len(data) - 92, "base": len(data) - 75, "result": len(data) - 60}
    flips |= {"footer-checksum": len(data) - 12, "end-magic": len(data) - 1}
    for name, place in flips.items():
        damaged = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        golden.error(f"flipped-{name}", VICTIM, f"a bit flipped at byte {place}", damaged)
    golden.error("trailing-byte", VICTIM, "a byte behind the end", data + b"\0")
    golden.error("twice", VICTIM, "the file twice in a row", data + data)
    golden.error("line-endings", VICTIM, "newlines rewritten", data.replace(b"\r\n", b"\n"))


def make_lying_files(golden, data, pieces):
    """Preamble, index and footer that lie behind correct checksums."""

    def error(name, damage, **fields):
        golden.error(name, VICTIM, damage, replace(pieces, **fields).seal())

    error("version-0", "version 0", version=0)
    error("version-3", "version 3", version=3)
    error("flags", "a flag set", flags=1)
    error("header-left-over", "a byte behind the labels", header=pieces.header + b"\0")
    error("header-ends-early", "the labels end early", header=pieces.header[:-1])
    error("header-zstd-garbage", "a compressed header that is none", compressed_header=b"garbage")
    longer = pieces.header[:-1] + b"\1" + forge.text(b"k") + forge.text(b"v" * 99)
    packed = zstandard.ZstdCompressor().compress(longer[:-9])
    error("header-zstd-short", "compressed to another size", header=longer, compressed_header=packed)
    error("header-stored-larger", "stored above raw", compressed_header=pieces.header + b"\0")
    error("profile", "profile 2", header=b"\2" + pieces.header[1:])
    error("index-left-over", "a byte behind the last record", index_tail=b"\0")
    error("base-digest", "another base", base=bytes(16))
    error("result-digest", "another result", result=bytes(16))
    error("footer-total", "another number of units", total=pieces.total + 1)
    error("footer-dense-bytes", "another number of bytes", dense_bytes=pieces.dense_bytes + 1)
    error("frame-missing", "a frame left out", frames=pieces.frames[1:])
    error("frame-twice", "a frame twice", frames=pieces.frames + pieces.frames[:1])
    longer = replace(pieces.frames[0], index_length=len(pieces.frames[0].seal()) + 1)
    frames = [longer] + pieces.frames[1:]
    error("index-length", "a length in the index that is not the frame's", frames=frames)
    without_labels = pieces.header[:-1]
    error("varint-too-large", "a varint of 65 bits", header=without_labels + b"\x80" * 9 + b"\x02")
    error("varint-not-shortest", "a varint with a zero at its end", header=without_labels + b"\x80\0")
    labels = forge.varint(1025) + (forge.text(b"k") + forge.text(b"v")) * 1025
    body = forge.header_body(labels=labels)
    packed = zstandard.ZstdCompressor().compress(body)
    error("labels-too-many", "1025 labels", header=body, compressed_header=packed)
    make_lying_ends(golden, data, pieces)


def make_lying_ends(golden, data, pieces):
    patch = parse_patch(data)
    start, size = patch.footer.index_offset, patch.footer.index_bytes
    front, index = data[:start], data[start : start + size]

    def error(name, damage, new_front, new_index, offset):
        golden.error(name, VICTIM, damage, new_front + pieces.seal_end(offset, new_index))

    error("frames-not-end-to-end", "a byte behind the last frame", front + b"\0", index, start + 1)
    longer = bytes([index[0] + 1]) + index[1:]
    error("index-count", "an index that counts a frame too many", front, longer, start)
    error("index-ends-early", "an index cut short", front, index[:-1], start)
    error("index-offset", "an index that starts a byte early", front, index, start - 1)
    error("index-in-header", "an index that starts in the header", front[:20], front[20:] + index, 20)
    wrong = index[:3] + bytes([index[3] ^ 1]) + index[4:]
    error("index-checksum", "a checksum in the index that is not the frame's", front, wrong, start)


def make_lying_rosters(golden, roster, pieces):
    """Rosters that break a rule, or that the base does not fit; the footer counts so many units more."""

    def error(case, damage, tensor, more=0, **fields):
        changed = list(roster)
        changed[tensor] = replace(roster[tensor], **fields)
        totals = (pieces.total + more, pieces.dense_bytes + more * roster[tensor].dtype.width)
        lying = replace(pieces, total=totals[0], dense_bytes=totals[1])
        lying.header = forge.header_body(roster=changed)
        golden.error(f"roster-{case}", VICTIM, damage, lying.seal())

    error("zero-byte", "a name with a zero byte", EMPTY, name=b"z\0")
    error("long-name", "a name of 4097 bytes", EMPTY, name=b"z" * 4097)
    error("not-utf-8", "a name that is not UTF-8", EMPTY, name=b"z\xff")
    error("order", "names that do not ascend", A, name=b"c")
    error("same-name", "a name twice", A, name=b"b")
    error("fate", "fate 4", A, fate=4)
    error("dtype-0", "dtype 0", EMPTY, dtype=Dtype(0, "", 8, 1))
    error("dtype-23", "dtype 23", EMPTY, dtype=Dtype(23, "", 8, 1))
    error("rank", "seventeen dimensions", EMPTY, shape=(0,) * 17)
    error("half-byte", "three elements of four bits", EMPTY, dtype=DTYPE_OF_NAME["F4"], shape=(3,))
    error("too-large", "2^63 bits", EMPTY, dtype=DTYPE_OF_NAME["U8"], shape=(2**30, 2**30))
    error("span-of-removed", "a frame of a tensor that is removed", A, -64, fate=REMOVED)
    error("mixed-fates", "a bucket with an added tensor", A, fate=ADDED)
    error("replaced-uncovered", "a replaced tensor without content", EMPTY, 3, fate=REPLACED, shape=(3,))
    error("kept-shape", "another shape than the base's", EMPTY, shape=(0, 8))
    error("kept-dtype", "another dtype than the base's", EMPTY, dtype=DTYPE_OF_NAME["F32"])
    error("kept-missing", "a tensor that the base does not have", A, name=b"A")
    error("added-is-there", "an added tensor that the base has", EMPTY, fate=ADDED)
    error("removed-shape", "a removed tensor with another shape", EMPTY, fate=REMOVED, shape=(0, 8))
    error("removed-missing", "a removed tensor that is not there", EMPTY, fate=REMOVED, name=b"o")
    error("replaced-by-like", "a replaced tensor that stays what it is", EMPTY, fate=REPLACED)
    error("empty-too-large", "2^63 bits if it were not empty", EMPTY, shape=(0, 2**57))
    huge = [Entry(b"o%d" % number, ADDED, DTYPE_OF_NAME["U8"], (2**60 - 1,)) for number in range(9)]
    lying = replace(pieces, header=forge.header_body(roster=roster + huge))
    golden.error("roster-sum-too-large", VICTIM, "a result of 2^63 bytes", lying.seal())


def make_lying_fates(golden):
    """Tensors that come and go otherwise than the patch says."""
    data = golden.path("mover").read_bytes()
    pieces = forge.take_apart(data)
    new = next(n for n, entry in enumerate(parse_patch(data).header.roster) if entry.name == b"new")
    frame = next(n for n, frame in enumerate(parse_patch(data).frames) if frame.spans[0].tensor == new)

    def error(name, damage, lying):
        golden.error(f"new-{name}", MOVER, damage, lying.seal())

    part = forge.span_list(forge.flat(new, 0, 16))
    fewer = replace(pieces, frames=pieces.frames[:frame])
    error("not-covered", "added and replaced tensors without content", fewer)
    error("covered-in-part", "an added tensor covered in part", pieces.with_frame(frame, spans=part))
    difference = pieces.with_frame(frame, coding=DIFFERENCE)
    error("as-difference", "an added tensor coded as difference", difference)


def make_lying_file_lists(golden):
    """Headers of files that do not fit, and names of files that lead astray."""
    data = golden.path("mover").read_bytes()
    header, pieces = parse_patch(data).header, forge.take_apart(data)
    text = header.files.files[0].header

    def error(name, damage, files):
        body = forge.header_body(roster=header.roster, files=files)
        golden.error(f"files-{name}", MOVER, damage, replace(pieces, header=body).seal())

    def single(content):
        return b"\2\0\1" + forge.text(b"") + forge.text(content)

    def sharded(name):
        tensors = [entry.name.decode() for entry in header.roster if entry.fate != REMOVED]
        index = json.dumps({"weight_map": {tensor: name for tensor in tensors}}).encode()
        return b"\2\1\1" + forge.text(name.encode()) + forge.text(text) + forge.text(index)

    error("kind", "kind 9", b"\x09")
    error("none-given", "a list of no files", b"\2\0\0")
    for name, broken in {"no-number": b'{"a":\1]}', "no-end": b'{"a":\0015', "zeros": b'{"a":\00105]}'}.items():
        folded = b"\3\0\1" + forge.text(b"") + forge.text(broken)
        error(f"folded-{name}", "a folded header whose mark is not followed by a number and a bracket", folded)
    two_files = b"\2\0\2" + (forge.text(b"") + forge.text(text)) * 2
    error("two-single", "two files that are not sharded", two_files)
    error("not-json", "a header that is not JSON", single(b"x" * 16))
    error("other-name", "a header that names another tensor", single(text.replace(b'"new"', b'"old"')))
    error("other-dtype", "a header with another dtype", single(text.replace(b'"BF16"', b'"I16"')))
    error("hole", "a header with a hole", single(text.replace(b"[0,16]", b"[8,24]")))
    error("upwards", "a file name that leads upwards", sharded("../x.safetensors"))
    error("absolute", "a file name that starts at the root", sharded("/tmp/x.safetensors"))
    error("index-name", "a file with the name of the index", sharded("model.safetensors.index.json"))
    wrong = sharded("x.safetensors").replace(b'"a": "x', b'"a": "y')
    error("index-disagrees", "an index that puts a tensor elsewhere", wrong)


def make_lying_spans(golden, pieces):
    """Spans that break a rule of section 6."""

    def error(name, damage, *records):
        lying = pieces.with_frame(BFLOATS, spans=forge.span_list(*records))
        golden.error(f"spans-{name}", VICTIM, damage, lying.seal())

    whole_b = forge.whole(B)
    error("none", "a bucket without spans")
    error("kind", "a span of kind 3", b"\3\0\1")
    error("tensor", "a tensor that is not on the roster", forge.whole(5))
    error("too-many", "more whole tensors than there are", forge.whole(0, 6))
    error("empty-tensor", "an empty tensor", forge.whole(EMPTY))
    error("dtypes", "a bucket of two dtypes", forge.whole(A, 3))
    error("run-0", "a run of no units", forge.flat(A, 0, 0), whole_b)
    error("beyond", "a span beyond its tensor", forge.flat(A, 0, 72), whole_b)
    error("overflow", "a span whose end is beyond 64 bits", forge.flat(A, 2**64 - 8, 16), whole_b)
    error("start-in-word", "a start within a word", forge.flat(A, 4, 60), whole_b)
    error("end-in-word", "an end within a word", forge.flat(A, 0, 28), forge.flat(A, 32, 32), whole_b)
    error("same-twice", "a tensor twice in a bucket", forge.whole(A), forge.whole(A))
    error("overlap", "spans that overlap", forge.flat(A, 0, 40), forge.flat(A, 32, 32), whole_b)
    other = forge.span_list(forge.flat(A, 0, 64))
    lying = pieces.with_frame(BFLOATS, index_spans=other)
    golden.error("spans-index", VICTIM, "spans in the index that are not the frame's", lying.seal())


def make_lying_boxes(golden, pieces):
    """Boxes that break a rule of section 6; the other half of the matrix is left out."""
    frames = [frame for number, frame in enumerate(pieces.frames) if number != RIGHT]

    def error(name, damage, *records):
        lying = replace(pieces, frames=frames).with_frame(LEFT, spans=forge.span_list(*records))
        golden.error(f"box-{name}", VICTIM, damage, lying.seal())

    error("stride-0", "no stride", forge.box(M, 0, 8, 0, 4))
    error("count-0", "no rows", forge.box(M, 0, 8, 16, 0))
    error("run-0", "no columns", forge.box(M, 0, 0, 16, 4))
    error("run", "runs that end within a word", forge.box(M, 0, 6, 16, 4))
    error("start", "a start within a word", forge.box(M, 2, 8, 16, 4))
    error("stride", "rows that end within a word", forge.box(M, 0, 8, 18, 3))
    error("crosses", "runs that cross the end of a row", forge.box(M, 12, 8, 16, 3))
    error("beyond", "the last row beyond the tensor", forge.box(M, 0, 8, 16, 5))
    error("overflow", "an end beyond 64 bits", forge.box(M, 0, 8, 2**62, 2**62))
    upper = forge.box(M, 0, 8, 16, 2)
    error("overlap", "two boxes that cover a row twice", upper, forge.box(M, 16, 8, 16, 2))
    error("columns", "columns that overlap in part", upper, forge.box(M, 36, 8, 16, 2))
    error("widths", "columns of two widths", upper, forge.box(M, 32, 4, 16, 2))
    error("strides", "boxes of two strides", upper, forge.box(M, 32, 8, 32, 1))
    error("and-flat", "a box and a flat span", upper, forge.flat(M, 48, 16))


def make_lying_frames(golden, pieces):
    def error(name, damage, frame, **fields):
        golden.error(f"frame-{name}", VICTIM, damage, pieces.with_frame(frame, **fields).seal())

    error("coding-0", "coding 0", BFLOATS, coding=0)
    error("coding-5", "coding 5", BFLOATS, coding=5)
    lying = replace(pieces, version=2).with_frame(BFLOATS, coding=7)
    golden.error("frame-coding-7", VICTIM, "coding 7 of a payload that has another", lying.seal())
    lying = replace(pieces, version=2).with_frame(BFLOATS, coding=8)
    golden.error("frame-coding-8", VICTIM, "coding 8", lying.seal())
    error("changed-0", "no changes", BYTES, changed=0)
    error("changed-above", "more changes than units", BYTES, changed=49)
    error("changed-less", "fewer changes than the payload has", BFLOATS, changed=1)
    delta = pieces.frames[BFLOATS].delta
    swapped = forge.span_list(forge.whole(B), forge.whole(A))
    error("delta-0", "another delta in lane 0", BFLOATS, delta=(delta[0] ^ 1, delta[1]))
    error("delta-1", "another delta in lane 1", BFLOATS, delta=(delta[0], delta[1] ^ 1))
    error("swapped-spans", "spans in another order than the payload's", BFLOATS, spans=swapped)


def make_lying_fast_payloads(golden, pieces):
    def error(name, damage, payload):
        lying = pieces.with_frame(BFLOATS, payload=payload, changed=2)
        golden.error(f"fast-{name}", VICTIM, damage, lying.seal())

    good = forge.fast_payload(3, [(5, 1), (50, -1)])
    error("wrong-steps", "steps that are not those of the delta", good)
    error("nothing", "a payload of no bytes", b"")
    error("k", "k = 29", bytes([29]) + good[1:])
    error("ends-early", "bits end early", good[:-1])
    error("left-over", "a byte of bits too many", good + b"\0")
    error("position", "a position outside of the bucket", forge.fast_payload(3, [(5, 1), (94, 1)]))
    far = forge.fast_payload(0, [(5, 1), (2**32 - 1, 1)])
    error("escaped-position", "an escaped gap beyond everything", far)
    error("step", "a step of 17 bits", forge.fast_payload(3, [(5, 1), (50, 1 << 16)]))


def make_lying_small_payloads(golden, pieces):
    def error(name, damage, payload, frame=BFLOATS, changed=2, version=1):
        lying = replace(pieces, version=version).with_frame(frame, coding=SMALL, payload=payload, changed=changed)
        golden.error(f"small-{name}", VICTIM, damage, lying.seal())

    def packed(*values, cuts=(), levels=forge.levels_near_counts):
        return forge.small_payload(values, list(cuts), levels)

    def levels_and(more):
        return lambda tokens: forge.levels_near_counts(tokens) + more

    pair = ([5, 50], [0, 1])
    good = packed(pair)
    error("wrong-steps", "steps that are not those of the delta", good)
    error("nothing", "a payload of no bytes", b"")
    error("classes-0", "no classes", bytes([0]) + good[1:])
    error("classes-9", "nine classes", packed(pair, *[([], [])] * 8, cuts=range(110, 118)))
    error("classes-of-integers", "two classes of I8", packed(pair, ([], []), cuts=[100]), frame=BYTES)
    error("cut-0", "a cut at exponent 0", packed(([], []), pair, cuts=[0]))
    error("cuts-equal", "two cuts at one exponent", packed(pair, ([], []), ([], []), cuts=[120, 120]))
    error("counts", "classes that have a change fewer than the frame", good, changed=3)
    error("bits-size", "bits beyond the payload", good[:2] + b"\x7f" + good[3:])
    error("no-stream", "a stream of 15 bytes", good[:-1])
    error("stream-left-over", "a stream with a word too many", good + b"\0\0")
    error("stream-odd", "a stream with a byte too many", good + b"\0")
    error("state-low", "a state below 2^16", good[:-2] + b"\0\0")
    error("state-end", "a state that does not end at 2^16", good[:-4] + b"\1\0\1\0")
    many = packed((list(range(40)), [0] * 40))
    error("stream-cut", "a stream that lacks its last word", many[:-2], changed=40)
    half = packed(([0] * 51, [0] * 51))
    error("more-than-half", "51 changes of 100 units", half, changed=51)
    error("rank", "a rank outside of the bucket", packed(([5, 94], [0, 1])))
    large = packed(([], []), ([5, 5], [0, 1]), cuts=[200])
    error("rank-of-class", "a rank that its class does not have", large)
    error("step", "a step of 17 bits", packed(([5, 50], [0, 1 << 16])))
    error("gap-tokens", "a table of gaps with 129 tokens", packed(pair, levels=levels_and([1] * 120)))
    error("level-65", "a level of 65", packed(pair, levels=levels_and([65])))
    error("last-level-0", "a table that ends with level 0", packed(pair, levels=levels_and([0])))
    bits_end = 3 + good[2]
    shorter = good[:2] + b"\1" + good[3:4] + good[bits_end:]
    error("table-ends-early", "bits that end within a table", shorter)
    longer = good[:2] + bytes([good[2] + 1]) + good[3:bits_end] + b"\0" + good[bits_end:]
    error("bits-left-over", "a byte of bits too many", longer)

    def lawful(*laws):
        return forge.small_payload([pair], [], laws=laws)

    law = (20, 3, 40)
    good = lawful(law, law)
    def lawless(name, damage, payload):
        error(name, damage, payload, version=2)

    lawless("laws-wrong-steps", "steps that are not those of the delta, by laws", good)
    lawless("laws-of-no-class", "laws, and no classes", bytes([128]) + good[1:])
    lawless("laws-of-9-classes", "laws, and nine classes", bytes([137]) + good[1:])
    lawless("laws-end-early", "bits that end within a law", good[:2] + b"\1" + good[3:4] + good[3 + good[2] :])
    zeros = bytes([129, 2, 4]) + (1 | law[0] << 1 | law[1] << 8).to_bytes(4, "little") + good[3 + good[2] :]
    lawless("law-of-zeros", "a law whose number of tokens has no end", zeros)
    own = len(forge.law_weights(20, 3, 0, False, 128))
    lawless("law-of-gaps", "a law of 129 tokens of gaps", forged_law(good, 20, 3, 129 - own, law))
    own = len(forge.law_weights(20, 3, 0, True, 64))
    lawless("law-of-steps", "a law of 65 tokens of steps", forged_law(good, 20, 3, 40, (20, 3, 65 - own)))


def forged_law(good, scale, shape, more, law):
    """A payload of one class with the tables of two laws, which may be none, before the stream of another."""
    bits = forge.BitWriter()
    for one in ((scale, shape, more), law):
        bits.write(1, 1)
        forge.write_law(bits, *one)
    bits.write(0, 40)  # what rests there are
    return good[:2] + forge.text(bits.bytes()) + good[3 + good[2] :]


def make_lying_dense_payloads(golden, pieces):
    def error(name, damage, payload):
        golden.error(f"dense-{name}", VICTIM, damage, pieces.with_frame(BYTES, payload=payload).seal())

    payload = pieces.frames[BYTES].payload
    content = zstandard.ZstdDecompressor().decompress(payload)
    compress = zstandard.ZstdCompressor().compress
    error("nothing", "a payload of no bytes", b"")
    error("garbage", "a payload that is not zstd", b"garbage" * 5)
    error("cut-short", "a zstd frame cut short", payload[:-1])
    error("short", "content of a byte fewer", compress(content[:-1]))
    error("long", "content of a byte more", compress(content + b"\0"))
    error("other", "other content", compress(bytes([content[0] ^ 1]) + content[1:]))
    packer = zstandard.ZstdCompressor(write_checksum=True)
    good = packer.compress(content)
    error("zstd-checksum", "a wrong checksum of zstd's own", good[:-1] + bytes([good[-1] ^ 1]))


def make_lying_packed_payloads(golden, pieces):
    """The bucket of 100 BF16 units, packed in one class unless cuts are given."""
    patch = parse_patch(golden.path("victim-fast").read_bytes())
    states = [golden.state(name) for name in (VICTIM, AFTER)]
    before, after = (forge.bucket_units(patch.frames[BFLOATS].spans, patch.header.roster, state) for state in states)
    numbers = forge.packed_numbers(before, after, False, 2)
    form = forge.packed_form(numbers, 1, 2)

    def error(name, damage, payload, frame=BFLOATS, **fields):
        lying = replace(pieces, version=2).with_frame(frame, coding=PACKED_STEPS, payload=payload)
        golden.error(f"packed-{name}", VICTIM, damage, lying.with_frame(frame, **fields).seal())

    def packed(*classes, cuts=(), width=2, states=32):
        return forge.packed_payload(classes, list(cuts), width, states)

    good = packed((numbers, form))
    assert good[:7] == bytes([1, 100, 1 | 1 << 6, 0, 1, 0]) + good[6:7]
    planes = 6 + 8 + 5  # where the planes of 64 and of 36 units end
    bits = planes + 2 + good[planes + 1]
    error("wrong-steps", "steps that are not those of the delta", packed(([0] * 100, form)))
    error("nothing", "a payload of no bytes", b"")
    error("classes-0", "no classes", b"\0" + good[1:])
    error("classes-9", "nine classes", packed((numbers, form), *[([], form)] * 8, cuts=range(110, 118)))
    error("classes-of-values", "two classes of values", packed((numbers, form), ([], form), cuts=[100]),
          coding=PACKED_VALUES)
    error("classes-of-integers", "two classes of I8", packed(([0] * 48, forge.packed_form([0] * 48, 0, 1)),
          ([], form), cuts=[100], width=1), frame=BYTES)
    error("cuts-equal", "two cuts at one exponent", packed((numbers, form), ([], form), ([], form), cuts=[120, 120]))
    error("units", "a class with a unit fewer than the bucket", packed((numbers[:-1], form)))
    error("units-of-class", "classes of other units than the base has",
          packed((numbers[:99], form), (numbers[99:], forge.packed_form(numbers[99:], 0, 1)), cuts=[1]))
    error("low", "no upper part", good[:2] + bytes([16 | 1 << 6]) + good[3:])
    error("first", "a first upper part of 16 bits", good[:3] + forge.varint(1 << 15) + good[4:])
    error("varying", "a plane beyond the lowest bits", good[:4] + b"\2" + good[5:])
    error("fixed", "a bit that is fixed and varies", good[:5] + b"\1" + good[6:])
    error("planes-cut", "planes beyond the payload", good[:planes - 1])
    error("escapes-above", "more escapes than units", good[:planes] + b"\x65" + good[planes + 1 :])
    error("escapes", "another number of escapes", good[:planes] + bytes([good[planes] ^ 1]) + good[planes + 1 :])
    error("bits-size", "bits beyond the payload", good[: planes + 1] + b"\x7f" + good[planes + 2 :])
    error("bits-left-over", "a byte of bits too many",
          good[: planes + 1] + bytes([good[planes + 1] + 1]) + good[planes + 2 : bits] + b"\0" + good[bits:])
    error("no-stream", "a stream of 127 bytes", good[: bits + 127])
    error("four-states", "a stream of four states", packed((numbers, form), states=4))
    error("stream-left-over", "a stream with a word too many", good + b"\0\0")
    error("state-low", "a state below 2^16", good[: bits + 2] + b"\0\0" + good[bits + 4 :])
    changed = bytes([good[bits + 1] ^ 1])
    error("state-end", "a state that does not end at 2^16", good[: bits + 1] + changed + good[bits + 2 :])
    far = [*numbers[:-1], 1 << 16]
    error("beyond", "an upper part of 17 bits", packed((far, form), width=3))


def make_lying_rice_payloads(golden, pieces):
    """The bucket of 100 BF16 units, in two groups."""
    patch = parse_patch(golden.path("victim-fast").read_bytes())
    states = [golden.state(name) for name in (VICTIM, AFTER)]
    before, after = (forge.bucket_units(patch.frames[BFLOATS].spans, patch.header.roster, state) for state in states)
    numbers = forge.packed_numbers(before, after, False, 2)

    def error(name, damage, payload):
        lying = replace(pieces, version=2).with_frame(BFLOATS, coding=RICE_STEPS, payload=payload)
        golden.error(f"rice-{name}", VICTIM, damage, lying.seal())

    good, thin = (forge.rice_payload(numbers, 2, 1, 2, flag) for flag in (0, 1))
    climbed = sum(number > 1 for number in numbers)
    assert 0 < climbed < 100 and climbed % 8 != 0
    second = 3 + 16 + 16 + climbed // 8  # the last byte of the second rung
    error("nothing", "a payload of no bytes", b"")
    error("front-cut", "a front of two bytes", good[:2])
    error("low", "no upper part", b"\x10" + good[1:])
    error("rungs-17", "seventeen rungs", good[:1] + b"\x11" + good[2:])
    error("thin", "a first rung of another kind", good[:2] + b"\2" + good[3:])
    error("planes-cut", "planes beyond the payload", good[:18])
    error("ground-cut", "a first rung beyond the payload", good[:34])
    error("thin-cut", "a first rung without its bytes", thin[:21])
    error("rung-cut", "a second rung beyond the payload", good[:second])
    error("padding", "a bit behind the last of a rung", good[:second] + bytes([good[second] | 0x80]) + good[second + 1 :])
    error("rest-cut", "a byte of the last number too few", good[:-1])
    error("left-over", "a byte too many", good + b"\0")
    error("wrong-steps", "steps that are not those of the delta", forge.rice_payload([0] * 100, 2, 1, 2, 0))


def main():
    golden = Golden(HERE, os.environ.get("WEFT", "weft"))
    for name in ("checkpoints", "patches", "errors"):
        (HERE / name).mkdir(exist_ok=True)
    families = [make_weights, make_steps, make_dtypes, make_dense, make_roster, make_cuts, make_files]
    for make in (*families, make_packed, make_rice, make_laws, make_widths, make_page, make_forged, make_victims,
                 make_forged_version, make_errors):
        make(golden)
    golden.write_manifest()


if __name__ == "__main__":
    main()
