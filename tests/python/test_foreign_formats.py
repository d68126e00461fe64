# SPDX-License-Identifier: Apache-2.0
"""SkyRL's deltas and ARC2, read and written by `weft convert`, against writers and readers that know them from their
descriptions alone (weft_foreign.py); and what ARC3 gets."""

import filecmp
import json
import os
import shutil

import serving
import weft_foreign
from foreign_scene import DENSITIES, Scene, digest, same_directory, weft
from weft_foreign import apply_arc2, apply_skyrl, read_state, write_arc2, write_skyrl, write_slime

FORMATS = {"skyrl": (write_skyrl, apply_skyrl, "delta-{:08d}"), "arc2": (write_arc2, apply_arc2, "v{}")}


def test_every_density_is_read_to_the_same_state():
    for scheme, (write, apply, _) in FORMATS.items():
        with Scene(seed=11) as scene:
            for version, density in enumerate(DENSITIES, 1):
                before, after = scene.advance(density)
                assert apply(write(scene.place, version, version - 1, before, after), before) == after
            out = scene.path("out.safetensors")
            weft("convert", f"{scheme}:{scene.place}", out, "--base", scene.base)
            assert digest(out) == digest(scene.save("expected.safetensors")), scheme
            assert filecmp.cmp(out, scene.path("expected.safetensors"), shallow=False)


def test_what_is_written_is_what_others_write():
    for scheme, (write, apply, name) in FORMATS.items():
        for density in DENSITIES:
            with Scene(seed=12) as scene:
                before, after = scene.advance(density)
                theirs = write(scene.place, 1, 0, before, after)
                ours = scene.path("ours")
                weft("convert", scene.save("next.safetensors"), f"{scheme}:{ours}", "--base", scene.base)
                same_directory(theirs, os.path.join(ours, name.format(1)))
                assert apply(os.path.join(ours, name.format(1)), before) == after


def test_skyrl_with_sha256_and_several_files():
    with Scene(seed=13) as scene:
        before, after = scene.advance(0.2)
        write_skyrl(scene.place, 1, 0, before, after, checksum="sha256", files=3)
        out = scene.path("out.safetensors")
        weft("convert", scene.place, out, "--base", scene.base)
        assert read_state(out) == after
        ours = scene.path("ours")
        weft("convert", out, f"skyrl:{ours}", "--base", scene.base, "--checksum", "sha256", "--shard-bytes", "10K")
        directory = os.path.join(ours, "delta-00000001")
        assert len(os.listdir(directory)) > 2 and apply_skyrl(directory, before) == after


def test_one_format_becomes_another():
    with Scene(seed=14) as scene:
        before, after = scene.advance(0.05)
        slime = write_slime(scene.place, 1, 0, before, after)
        skyrl, arc2, back = scene.path("skyrl"), scene.path("arc2"), scene.path("back")
        weft("convert", f"slime:{scene.place}", f"skyrl:{skyrl}", "--base", scene.base)
        weft("convert", f"skyrl:{skyrl}", f"arc2:{arc2}", "--base", scene.base)
        weft("convert", f"arc2:{arc2}", f"slime:{back}", "--base", scene.base)
        same_directory(slime, os.path.join(back, "weight_v000001"))


def test_a_bridge_of_skyrl():
    with Scene(seed=15) as scene:
        for version in 1, 2:
            before, after = scene.advance(0.02)
            write_skyrl(scene.place, version, version - 1, before, after)
        store, engine = scene.path("store"), scene.path("engine")
        weft("convert", scene.place, f"store:{store}", "--base", scene.base, "--mirror", scene.path("in.safetensors"))
        weft("convert", f"store:{store}", f"skyrl:{engine}", "--mirror", scene.path("out.safetensors"))
        for version in 1, 2:
            name = f"delta-{version:08d}"
            same_directory(os.path.join(scene.place, name), os.path.join(engine, name))


def test_a_bridge_from_one_format_to_another():
    """What one format is coded with, and the other does not have, is left to the other."""
    with Scene(seed=17) as scene:
        before, after = scene.advance(0.02)
        write_slime(scene.place, 1, 0, before, after, encoding="overwrite", checksum="adler32")
        store = scene.path("store")
        weft("convert", scene.place, f"store:{store}", "--base", scene.base, "--mirror", scene.path("in.safetensors"))
        for scheme, (_, apply, name) in FORMATS.items():
            engine = scene.path(scheme)
            weft("convert", f"store:{store}", f"{scheme}:{engine}", "--mirror", scene.path(f"{scheme}.safetensors"))
            assert apply(os.path.join(engine, name.format(1)), before) == after


def test_arc2_keeps_the_files_of_the_base():
    for count in 1, 2:
        keep_files(count)


def keep_files(count):
    with Scene(seed=16) as scene:
        sharded = scene.path("sharded")
        os.mkdir(sharded)
        names = list(scene.state)
        files = {f"model-{i + 1:05d}-of-{count:05d}.safetensors": names[i::count] for i in range(count)}
        for file, held in files.items():
            weft_foreign.write_state(os.path.join(sharded, file), {name: scene.state[name] for name in held})
        with open(os.path.join(sharded, "model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {}, "weight_map": {name: f for f, held in files.items() for name in held}}, file)
        before, after = scene.advance(0.1)
        arc2 = scene.path("arc2")
        weft("convert", scene.save("next.safetensors"), f"arc2:{arc2}", "--base", sharded)
        directory = os.path.join(arc2, "v1")
        assert sorted(os.listdir(directory)) == sorted(files)
        for file, held in files.items():
            assert sorted(weft_foreign.safetensors_read(os.path.join(directory, file))[0]) == sorted(held)
        assert apply_arc2(directory, before) == after


# ---- what is refused, and touches nothing ----

def change_manifest(directory, change):
    path = os.path.join(directory, "manifest.json")
    with open(path) as file:
        manifest = json.load(file)
    change(manifest)
    with open(path, "w") as file:
        json.dump(manifest, file)


def test_a_manifest_that_does_not_fit_is_refused():
    for change, words in (
            (lambda m: m.update(version=9), "does not say that it is version"),
            (lambda m: m["tensors"][0].update(payload_file="../base.safetensors"), "a file that is not in it"),
            (lambda m: m["tensors"][0].update(payload_key="nothing"), "it has no payload"),
            (lambda m: m["tensors"][0].update(dtype="float16"), "another dtype or shape"),
            (lambda m: m["tensors"][0]["shape"].append(1), "another dtype or shape"),
            (lambda m: m["tensors"][0].update(checksum="0" * 32), "was promised"),
            (lambda m: m["tensors"][0].update(checksum_algorithm="crc"), "not known"),
            (lambda m: m["tensors"].append(m["tensors"][0]), "two deltas of tensor"),
            (lambda m: m["tensors"][0].pop("checksum"), "not complete"),
            (lambda m: m.pop("tensors"), "no tensors")):
        with Scene(seed=17) as scene:
            before, after = scene.advance(0.3)
            change_manifest(write_skyrl(scene.place, 1, 0, before, after), change)
            scene.refused("skyrl", 3 if words not in ("not known",) else 1, words)


def test_a_delta_that_is_not_committed_is_not_there():
    with Scene(seed=18) as scene:
        before, after = scene.advance(0.3)
        directory = write_skyrl(scene.place, 1, 0, before, after)
        os.remove(os.path.join(directory, "manifest.json"))
        out = scene.path("out.safetensors")
        weft("convert", f"skyrl:{scene.place}", out, "--base", scene.base)
        assert filecmp.cmp(out, scene.base, shallow=False)


def test_arc2_wants_every_tensor():
    with Scene(seed=19) as scene:
        before, after = scene.advance(0.3)
        path = os.path.join(write_arc2(scene.place, 1, 0, before, after), "model.safetensors")
        entries, sums = weft_foreign.safetensors_read(path)
        entries.pop("mask")
        with open(path, "wb") as file:
            file.write(weft_foreign.safetensors_bytes([(name, *entry) for name, entry in entries.items()], sums))
        scene.refused("arc2", 3, "this format has all of them")


def test_arc3_is_refused_and_said_why():
    with Scene(seed=20) as scene:
        shutil.copy(scene.base, scene.path("out.safetensors"))
        assert "unpickles" in weft("convert", f"arc3:{scene.place}", scene.path("out.safetensors"), code=1)


if __name__ == "__main__":
    serving.main()
