# SPDX-License-Identifier: Apache-2.0
"""Foreign formats against the real thing, where PyPI has it: ARC2 by fireworks-delta-compression, in both directions, and
files of payloads by safetensors; and slime's documented hooks, by their signatures."""

import filecmp
import os
import shutil
import subprocess
import types
import unittest

import foreign_scene
import numpy
import package
import serving
import weft_foreign
from foreign_scene import Scene, digest, weft

weft_package = package.weft
KINDS = {name: kind for name, kind in foreign_scene.KINDS.items() if name != "empty"}


def arc2():
    try:
        import fireworks_delta_compression.compression
        return fireworks_delta_compression.compression
    except ImportError as error:
        raise unittest.SkipTest(f"no fireworks-delta-compression: {error}") from None


def test_arc2_by_fireworks_is_read():
    compression = arc2()
    for density in foreign_scene.DENSITIES:
        with Scene(seed=51, kinds=KINDS) as scene:
            scene.advance(density)
            following = scene.save("next.safetensors")
            os.mkdir(os.path.join(scene.place, "v1"))
            compression.delta_compress_files_to_file(src=scene.base, dst=following, compression_format="arc_v2",
                                                     diff_file=os.path.join(scene.place, "v1", "model.safetensors"))
            out = scene.path("out.safetensors")
            weft("convert", f"arc2:{scene.place}", out, "--base", scene.base)
            assert filecmp.cmp(out, following, shallow=False), density


def test_arc2_by_weft_is_read_by_fireworks():
    compression = arc2()
    for density in foreign_scene.DENSITIES:
        with Scene(seed=52, kinds=KINDS) as scene:
            scene.advance(density)
            following, copy = scene.save("next.safetensors"), scene.path("copy.safetensors")
            weft("convert", following, f"arc2:{scene.place}", "--base", scene.base)
            shutil.copy(scene.base, copy)
            compression.delta_decompress_inplace(base_path=copy, compression_format="arc_v2",
                                                 diff_path=os.path.join(scene.place, "v1", "model.safetensors"))
            assert filecmp.cmp(copy, following, shallow=False), density


def test_arc3_by_fireworks_is_refused():
    compression = arc2()
    with Scene(seed=53, kinds={"w": ("BF16", (64, 64))}) as scene:
        scene.advance(0.1)
        os.mkdir(os.path.join(scene.place, "v1"))
        compression.delta_compress_files_to_file(src=scene.base, dst=scene.save("next.safetensors"),
                                                 compression_format="arc_v3",
                                                 diff_file=os.path.join(scene.place, "v1", "model.safetensors"))
        scene.refused("arc2", 3, "")
        scene.refused("arc3", 1, "unpickles")
        for verb in "pull", "follow":
            assert "unpickles" in weft(verb, f"arc3:{scene.place}", scene.base, code=1)
        try:
            weft_package.Subscriber(f"arc3:{scene.place}", scene.base)
        except weft_package.UnsupportedError as error:
            assert "unpickles" in str(error)
        else:
            raise AssertionError("ARC3 was taken")


def test_payloads_are_read_by_safetensors():
    try:
        import safetensors
    except ImportError as error:
        raise unittest.SkipTest(f"no safetensors: {error}") from None
    with Scene(seed=54, kinds=KINDS) as scene:
        before, after = scene.advance(0.1)
        weft("convert", scene.save("next.safetensors"), f"slime:{scene.place}", "--base", scene.base)
        path = os.path.join(scene.place, "weight_v000001", "model-00000-of-00001.safetensors")
        with safetensors.safe_open(path, "np") as file:
            for name in file.keys():
                xor = weft_foreign.zstandard.ZstdDecompressor().decompress(file.get_tensor(name).tobytes())
                assert xor == weft_foreign.xor_payload(before[name], after[name])
                assert file.metadata()[name] == weft_foreign.CHECKSUMS["xxh3-128"](after[name].data)


def test_the_hooks_of_slime():
    """The trainer's post-write hook, hook(args, version_dir, rollout_engines), carries a version to the store, and the
    engine's pre-read hook, hook(source_dir, target_version), brings it: each is a call of the command."""
    with Scene(seed=55, kinds=KINDS) as scene:
        store, engine = scene.path("store"), scene.path("engine")

        def after_write(args, version_dir, rollout_engines):
            weft("convert", f"slime:{os.path.dirname(version_dir)}", f"store:{store}", "--base", scene.base, "--mirror",
                 scene.path("in.safetensors"))

        def before_read(source_dir, target_version):
            weft("convert", f"store:{store}", f"slime:{source_dir}", "--mirror", scene.path("out.safetensors"), "--version",
                 str(target_version))

        local = scene.state
        for version in 1, 2, 3:
            before, after = scene.advance(0.02)
            after_write(None, weft_foreign.write_slime(scene.place, version, version - 1, before, after), [])
            before_read(engine, version)
            local = weft_foreign.apply_slime(os.path.join(engine, f"weight_v{version:06d}"), local)
            assert local == after


def test_the_hooks_of_the_package_carry_deltas():
    """weft.slime, by slime's documented signatures: deltas go into the store, and engines find whole checkpoints. A hook that
    is called again, or late, does no harm."""
    os.environ.pop("WEFT_BASE", None)
    with Scene(seed=57, kinds=KINDS) as scene:
        os.environ["WEFT_STORE"] = scene.path("store")
        hub, engine = scene.path("hub"), scene.path("engine")
        os.mkdir(hub)
        os.mkdir(engine)
        shutil.copy(scene.base, os.path.join(hub, "model.safetensors"))
        args = types.SimpleNamespace()
        for version in 1, 2, 3, 4:
            before, after = scene.advance(0.02)
            written = weft_foreign.write_slime(scene.place, version, version - 1, before, after)
            if version == 1:
                try:
                    weft_package.slime.publish(args, written, [])
                except weft_package.InvalidArgument as error:
                    assert "WEFT_BASE" in str(error)
                else:
                    raise AssertionError("a delta of nothing was published")
                args.hf_checkpoint = hub
            if version == 3:
                continue  # a call that was lost: the next one carries it along
            weft_package.slime.publish(args, written, [])
            weft_package.slime.pull(engine, version)
            found = os.path.join(engine, f"weight_v{version:06d}", "model.safetensors")
            assert digest(found) == digest(scene.save("expected.safetensors")), version
        labels = weft_package.log(scene.path("store"))[0].labels
        assert (labels["weight_version"], labels["foreign.format"], labels["foreign.base"]) == ("4", "slime", "3"), labels
        # the same run, as deltas, by the command
        outward = scene.path("outward")
        weft("convert", f"store:{scene.path('store')}", f"slime:{outward}", "--mirror", scene.path("out.safetensors"))
        assert sorted(os.listdir(outward))[-1] == "weight_v000004", os.listdir(outward)


def test_blake3():
    """Against the real one; where weft was built without, which Debian 12 has no library for, it is refused and said."""
    try:
        import blake3
    except ImportError as error:
        raise unittest.SkipTest(f"no blake3: {error}") from None
    weft_foreign.CHECKSUMS["blake3"] = lambda data: blake3.blake3(data).hexdigest()
    with Scene(seed=58, kinds=KINDS) as scene:
        before, after = scene.advance(0.05)
        written = weft_foreign.write_slime(scene.place, 1, 0, before, after, checksum="blake3")
        out, following, made = scene.path("out.safetensors"), scene.save("next.safetensors"), scene.path("made")
        reading = ["convert", f"slime:{scene.place}", out, "--base", scene.base]
        writing = ["convert", following, f"slime:{made}", "--base", scene.base, "--checksum", "blake3"]
        if "blake3" in subprocess.run(["ldd", serving.WEFT], stdout=subprocess.PIPE, text=True).stdout:
            weft(*reading)
            assert filecmp.cmp(out, following, shallow=False)
            weft(*writing)
            foreign_scene.same_directory(written, os.path.join(made, "weight_v000001"))
        else:
            assert "built without BLAKE3" in weft(*reading, code=1)
            assert filecmp.cmp(out, scene.base, shallow=False)
            assert "built without BLAKE3" in weft(*writing, code=1)
            assert not os.path.exists(os.path.join(made, "weight_v000001"))


# ---- the package ----

def arrays(state):
    """Of dtypes that numpy has."""
    kinds = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "F64": "<f8", "BOOL": "?"}
    return {name: numpy.frombuffer(weights.data, kinds[weights.dtype]).reshape(weights.shape).copy()
            for name, weights in state.items()}


def test_the_package_makes_patches_of_versions():
    kinds = {name: kind for name, kind in KINDS.items() if kind[0] in ("F32", "F16", "I64", "F64", "BOOL")}
    with Scene(seed=56, kinds=kinds) as scene:
        live = arrays(scene.state)
        for version in 1, 2:
            before, after = scene.advance(0.2)
            weft_foreign.write_slime(scene.place, version, version - 1, before, after)
            listed = weft_package.foreign.versions(f"slime:{scene.place}")
            assert [(row.version, row.base, row.whole) for row in listed] == [(n, n - 1, False) for n in range(1, version + 1)]
            patch = weft_package.foreign.patch(f"slime:{scene.place}", live, version)
            assert weft_package.inspect(patch).labels["foreign.version"] == str(version)
            with weft_package.Transaction(live, patch) as change:
                change.commit()
            assert all(live[name].tobytes() == after[name].data for name in live)
        try:
            weft_package.foreign.patch(f"slime:{scene.place}", live, 1)
        except weft_package.IntegrityError as error:
            assert "was promised" in str(error)
        else:
            raise AssertionError("another base was taken")


if __name__ == "__main__":
    serving.main()
