# SPDX-License-Identifier: Apache-2.0
"""Formats of positions and values, which are only read: TRL, prime-rl in both shapes, AReaL-DTE, PULSEPT1 in its three
versions, and grail's COO; by `weft convert`, against writers that know them from their descriptions alone."""

import filecmp
import functools
import json
import os
import struct

import numpy

import serving
import weft_foreign
from foreign_scene import DENSITIES, Scene, digest, weft

FLOATS = {
    "model.embed_tokens.weight": ("BF16", (257, 96)),
    "model.layers.0.mlp.weight": ("BF16", (96, 200)),
    "model.cube": ("BF16", (3, 5, 7)),
    "model.norm.weight": ("BF16", (95,)),
}
MIXED = dict(FLOATS, scale=("F32", (33,)), half=("F16", (3, 31)))
ALL = dict(MIXED, steps=("I64", (50,)), mask=("BOOL", (77,)), fp8=("F8_E4M3", (64, 65)))

# scheme, writer, what it carries, and whether it proves the result
FORMATS = {
    "trl, raw": ("trl", functools.partial(weft_foreign.write_trl, encoding="raw"), ALL, False),
    "trl, gaps": ("trl", weft_foreign.write_trl, ALL, False),
    "trl, older": ("trl", functools.partial(weft_foreign.write_trl, encoding=None), ALL, False),
    "prime, by rank": ("prime", weft_foreign.write_prime_ranks, ALL, False),
    "prime, at once": ("prime", weft_foreign.write_prime_update, ALL, False),
    "prime, zstd": ("prime", functools.partial(weft_foreign.write_prime_update, compressed=True), ALL, False),
    "areal": ("areal", weft_foreign.write_areal, ALL, False),
    "pulse 1": ("pulse", weft_foreign.write_pulse, FLOATS, True),
    "pulse 2": ("pulse", functools.partial(weft_foreign.write_pulse, format_version=2), FLOATS, True),
    "pulse 3": ("pulse", functools.partial(weft_foreign.write_pulse, format_version=3), FLOATS, True),
    "grail 3": ("grail", functools.partial(weft_foreign.write_grail, format_version=3), MIXED, False),
    "grail 3.1": ("grail", weft_foreign.write_grail, MIXED, False),
}


def test_every_density_is_read_to_the_same_state():
    for name, (scheme, write, kinds, _) in FORMATS.items():
        with Scene(seed=31, kinds=kinds) as scene:
            for version, density in enumerate(DENSITIES, 1):
                before, after = scene.advance(density)
                write(scene.place, version, version - 1, before, after)
            out = scene.path("out.safetensors")
            weft("convert", f"{scheme}:{scene.place}", out, "--base", scene.base, "--assume-base")
            assert digest(out) == digest(scene.save("expected.safetensors")), name
            assert filecmp.cmp(out, scene.path("expected.safetensors"), shallow=False), name


def test_what_proves_nothing_is_taken_only_if_the_base_is_assumed():
    for name, (scheme, write, kinds, proves) in FORMATS.items():
        with Scene(seed=32, kinds=kinds) as scene:
            before, after = scene.advance(0.1)
            write(scene.place, 1, 0, before, after)
            if proves:
                weft("convert", f"{scheme}:{scene.place}", scene.path("out.safetensors"), "--base", scene.base)
            else:
                scene.refused(scheme, 1, "--assume-base")


def test_another_base_is_found_where_the_format_can():
    for version in 1, 2, 3:
        with Scene(seed=33, kinds=FLOATS) as scene:
            other = weft_foreign.random_state(numpy.random.default_rng(99), FLOATS)
            weft_foreign.write_pulse(scene.place, 1, 0, other, weft_foreign.changed_state(scene.random, other, 0.1), version)
            scene.refused("pulse", 3, "")


def test_places_are_detected():
    for name, write in (("trl", weft_foreign.write_trl), ("prime", weft_foreign.write_prime_ranks)):
        with Scene(seed=34, kinds=FLOATS) as scene:
            before, after = scene.advance(0.1)
            write(scene.place, 1, 0, before, after)
            out = scene.path("out.safetensors")
            weft("convert", scene.place, out, "--base", scene.base, "--assume-base")
            assert weft_foreign.read_state(out) == after, name


def test_gaps_of_every_width():
    """Escapes of PULSE, 32-bit gaps of TRL, and wide steps of grail."""
    kinds = {"w": ("BF16", (300000,))}
    for scheme, write in (("pulse", weft_foreign.write_pulse),
                          ("pulse", functools.partial(weft_foreign.write_pulse, format_version=2)),
                          ("pulse", functools.partial(weft_foreign.write_pulse, format_version=3)),
                          ("trl", weft_foreign.write_trl), ("grail", weft_foreign.write_grail)):
        with Scene(seed=35, kinds=kinds) as scene:
            before = scene.state
            units = before["w"].units.copy()
            units[[0, 1, 65534, 131070, 131071, 299999]] ^= numpy.array([1, 2, 0x8000, 3, 0x7FFF, 5], "<u2")
            scene.state = {"w": weft_foreign.Weights("BF16", (300000,), units.tobytes())}
            write(scene.place, 1, 0, before, scene.state)
            out = scene.path("out.safetensors")
            weft("convert", f"{scheme}:{scene.place}", out, "--base", scene.base, "--assume-base")
            assert weft_foreign.read_state(out) == scene.state, scheme


# ---- what is refused, and touches nothing ----

def edit_archive(path, change):
    entries, metadata = weft_foreign.safetensors_read(path)
    change(entries)
    with open(path, "wb") as file:
        file.write(weft_foreign.safetensors_bytes([(name, *entry) for name, entry in entries.items()], metadata))


def set_positions(name, positions, kind="<i4"):
    def change(entries):
        dtype, shape, _ = entries[name]
        entries[name] = (dtype, shape, numpy.resize(numpy.array(positions), shape).astype(kind).tobytes())
    return change


def test_positions_that_are_not_as_they_should_be():
    kinds = {"w": ("BF16", (1000,))}
    for positions, words in (([5, 5], "do not ascend"), ([9, 3], "do not ascend"), ([-1, 3], "outside"), ([0, 1000], "outside")):
        for scheme, write, key in (("trl", functools.partial(weft_foreign.write_trl, encoding="raw"), "w.idx"),
                                   ("areal", weft_foreign.write_areal, "w@delta_idx")):
            with Scene(seed=36, kinds=kinds) as scene:
                before = scene.state
                units = before["w"].units.copy()
                units[[10, 20]] ^= 1
                path = write(scene.place, 1, 0, before, {"w": weft_foreign.Weights("BF16", (1000,), units.tobytes())})
                edit_archive(path, set_positions(key, positions))
                scene.refused(scheme, 3, words, "--assume-base")


def test_two_ranks_that_change_the_same_unit():
    with Scene(seed=37, kinds={"w": ("BF16", (1000,))}) as scene:
        before, after = scene.advance(0.1)
        directory = weft_foreign.write_prime_ranks(scene.place, 1, 0, before, after, ranks=2)
        entries, _ = weft_foreign.safetensors_read(os.path.join(directory, "rank_0.safetensors"))
        first = numpy.frombuffer(entries["t0_indices"][2], "<i4")

        def repeat(entries):
            dtype, shape, data = entries["t0_indices"]
            positions = numpy.frombuffer(data, "<i4").copy()
            positions[0] = first[0]
            entries["t0_indices"] = (dtype, shape, positions.tobytes())
        edit_archive(os.path.join(directory, "rank_1.safetensors"), repeat)
        scene.refused("prime", 3, "change the same unit", "--assume-base")


def test_checksums_of_prime_are_checked():
    with Scene(seed=38, kinds=FLOATS) as scene:
        before, after = scene.advance(0.1)
        path = os.path.join(weft_foreign.write_prime_ranks(scene.place, 1, 0, before, after), "sparse_manifest.json")
        with open(path) as file:
            manifest = json.load(file)
        manifest["changed"] += 1
        with open(path, "w") as file:
            json.dump(manifest, file)
        scene.refused("prime", 3, "SHA-256", "--assume-base")
    with Scene(seed=39, kinds=FLOATS) as scene:
        before, after = scene.advance(0.1)
        path = os.path.join(weft_foreign.write_prime_update(scene.place, 1, 0, before, after),
                            "sparse_update_patch.safetensors")

        def flip(entries):
            dtype, shape, data = entries["tensor_0.values"]
            entries["tensor_0.values"] = (dtype, shape, bytes([data[0] ^ 1]) + data[1:])
        edit_archive(path, flip)
        scene.refused("prime", 3, "what its checksum says", "--assume-base")


def test_a_step_of_prime_that_is_not_stable_is_not_there():
    with Scene(seed=40, kinds=FLOATS) as scene:
        before, after = scene.advance(0.1)
        os.remove(os.path.join(weft_foreign.write_prime_ranks(scene.place, 1, 0, before, after), "STABLE"))
        out = scene.path("out.safetensors")
        weft("convert", f"prime:{scene.place}", out, "--base", scene.base, "--assume-base")
        assert filecmp.cmp(out, scene.base, shallow=False)


def test_damage_of_pulse_is_found():
    """Any byte of the payload that is another one is refused: by its coding, or by the digest of the result."""
    for version in 1, 2, 3:
        with Scene(seed=41, kinds={"w": ("BF16", (40, 30)), "x": ("BF16", (7,))}) as scene:
            before, after = scene.advance(0.2)
            path = weft_foreign.write_pulse(scene.place, 1, 0, before, after, version)
            with open(path, "rb") as file:
                data = file.read()
            length, = struct.unpack_from("<I", data, 8)
            payload = weft_foreign.zstandard.ZstdDecompressor().decompress(data[12 + length:])
            for at in range(0, len(payload), max(1, len(payload) // 25)):
                changed = payload[:at] + bytes([payload[at] ^ 0x10]) + payload[at + 1:]
                with open(path, "wb") as file:
                    file.write(data[:12 + length] + weft_foreign.compress(changed))
                scene.refused("pulse", 3, "")


if __name__ == "__main__":
    serving.main()
