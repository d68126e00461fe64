# SPDX-License-Identifier: Apache-2.0
"""The directories of slime, miles, SGLang, Stitch and ModelExpress, read and written by `weft convert`, `weft pull`
and `weft follow`, against a writer and a reader that know them from their description alone (weft_foreign.py)."""

import filecmp
import json
import os
import shutil
import subprocess
import time

import numpy
import zstandard

import serving
import weft_foreign
from foreign_scene import DENSITIES, KINDS, Scene, digest, same_directory, weft
from weft_foreign import apply_slime, changed_state, random_state, read_state, write_slime, write_state

def chain(scene, densities, **options):
    for version, density in enumerate(densities, 1):
        before, after = scene.advance(density)
        write_slime(scene.place, version, version - 1, before, after, **options)


def test_every_coding_and_density_is_read_to_the_same_state():
    for encoding in "xor", "overwrite":
        for checksum in "xxh3-128", "adler32":
            with Scene() as scene:
                chain(scene, DENSITIES, encoding=encoding, checksum=checksum, files=3)
                out = scene.path("out.safetensors")
                weft("convert", f"slime://{scene.place}", out, "--base", scene.base)
                assert digest(out) == digest(scene.save("expected.safetensors")), (encoding, checksum)
                assert filecmp.cmp(out, scene.path("expected.safetensors"), shallow=False)


def test_what_is_written_is_what_others_write_byte_for_byte():
    for encoding in "xor", "overwrite":
        for checksum in "xxh3-128", "adler32":
            for density in DENSITIES:
                with Scene(seed=7) as scene:
                    before, after = scene.advance(density)
                    theirs = write_slime(scene.place, 7, 6, before, after, encoding, checksum)
                    ours = scene.path("ours")
                    weft("convert", scene.save("next.safetensors"), f"slime:{ours}", "--base", scene.base,
                         "--base-version", "6", "--encoding", encoding, "--checksum", checksum)
                    same_directory(theirs, os.path.join(ours, "weight_v000007"))
                    assert apply_slime(os.path.join(ours, "weight_v000007"), before) == after


def test_files_can_be_cut():
    with Scene() as scene:
        before, after = scene.advance(0.5)
        weft("convert", scene.save("next.safetensors"), f"slime:{scene.place}", "--base", scene.base, "--shard-bytes",
             "8K")
        directory = os.path.join(scene.place, "weight_v000001")
        assert len(os.listdir(directory)) > 3
        assert apply_slime(directory, before) == after


def test_a_patch_of_a_version_and_back():
    with Scene() as scene:
        before, after = scene.advance(0.01)
        theirs = write_slime(scene.place, 1, 0, before, after, checksum="adler32")
        patch, out, ours = scene.path("1.weft"), scene.path("out.safetensors"), scene.path("ours")
        weft("convert", scene.place, patch, "--base", scene.base, "--version", "1")
        labels = json.loads(weft("inspect", patch, "--json"))["labels"]
        assert labels == {"foreign.format": "slime", "foreign.version": "1", "foreign.base": "0",
                          "foreign.encoding": "xor", "foreign.checksum": "adler32"}, labels
        weft("apply", scene.base, patch, "-o", out)
        assert read_state(out) == after
        weft("convert", patch, f"slime:{ours}", "--base", scene.base, "--checksum", "adler32")
        same_directory(theirs, os.path.join(ours, "weight_v000001"))


def test_the_bridge_gives_the_same_directories_on_the_other_side():
    with Scene(seed=3) as scene:
        chain(scene, (0.01, 0.0, 0.02))
        before, after = scene.advance(0.01)
        write_slime(scene.place, 4, 3, before, after, encoding="overwrite", checksum="adler32")
        store, engine = scene.path("store"), scene.path("engine")
        inbound = ("convert", scene.place, f"store:{store}", "--base", scene.base, "--mirror",
                   scene.path("in.safetensors"))
        outbound = ("convert", f"store:{store}", f"slime:{engine}", "--mirror", scene.path("out.safetensors"))
        weft(*inbound, "--version", "2")
        weft(*outbound)
        assert sorted(os.listdir(engine)) == ["weight_v000001", "weight_v000002"]
        weft(*inbound)  # both go on where they were
        weft(*outbound)
        for version in 1, 2, 3, 4:
            name = f"weight_v{version:06d}"
            same_directory(os.path.join(scene.place, name), os.path.join(engine, name))
        assert digest(scene.path("out.safetensors")) == digest(scene.save("expected.safetensors"))


def test_a_bridge_that_was_killed_goes_on():
    with Scene(seed=4) as scene:
        chain(scene, (0.01, 0.02, 0.01))
        store, engine, mirror = scene.path("store"), scene.path("engine"), scene.path("out.safetensors")
        weft("convert", scene.place, f"store:{store}", "--base", scene.base, "--mirror", scene.path("in.safetensors"))
        weft("convert", f"store:{store}", f"slime:{engine}", "--mirror", mirror, "--version", "2")
        # killed behind a directory and before the commit: the mirror is older than what is written
        shutil.copy(scene.base, mirror)
        weft("convert", f"store:{store}", f"slime:{engine}", "--mirror", mirror)
        for name in os.listdir(scene.place):
            same_directory(os.path.join(scene.place, name), os.path.join(engine, name))
        # killed in the middle of a commit: the mirror is at no version at all
        shutil.rmtree(os.path.join(engine, "weight_v000003"))
        with open(mirror, "r+b") as file:
            file.seek(-1000, 2)
            file.write(b"x" * 100)
        weft("convert", f"store:{store}", f"slime:{engine}", "--mirror", mirror)
        same_directory(os.path.join(scene.place, "weight_v000003"), os.path.join(engine, "weight_v000003"))


def test_follow_and_pull_take_a_directory_as_it_grows():
    with Scene(seed=5) as scene:
        chain(scene, (0.01,))
        out, seen = scene.path("out.safetensors"), scene.path("seen")
        shutil.copy(scene.base, out)
        follower = subprocess.Popen([serving.WEFT, "follow", f"slime://{scene.place}", out, "--until", "3", "--poll",
                                     "0.05", "--exec", f"echo $WEFT_VERSION >> {seen}"], stdout=subprocess.PIPE)
        try:
            for version in 2, 3:
                before, after = scene.advance(0.02)
                temporary = scene.path("temporary")
                os.mkdir(temporary)
                directory = write_slime(temporary, version, version - 1, before, after)
                time.sleep(0.1)
                os.rename(directory, os.path.join(scene.place, os.path.basename(directory)))
                os.rmdir(temporary)
            lines = follower.communicate(timeout=serving.PATIENCE)[0].decode().splitlines()
        finally:
            follower.kill()
            follower.wait()
        assert follower.returncode == 0 and len(lines) == 3, lines
        with open(seen) as file:
            assert file.read().split()[-1] == "3"
        assert read_state(out) == scene.state
        # a second one finds the version beside the checkpoint, and has nothing to do
        assert weft("pull", f"slime:{scene.place}", out) == ""
        before, after = scene.advance(0.5)
        write_slime(scene.place, 4, 3, before, after)
        weft("pull", f"slime:{scene.place}", out)
        assert read_state(out) == after


def test_a_bridge_does_not_take_the_work_of_others_for_its_own():
    """A directory that is there already must be what the bridge would write, byte for byte or not."""
    with Scene(kinds={"a": ("BF16", (64, 64)), "b": ("BF16", (33,))}) as scene:
        store, engine = f"store:{scene.path('store')}", scene.path("engine")
        states = [scene.state]
        for version in 1, 2:
            before, after = scene.advance(0.05)
            states.append(after)
            write_slime(scene.place, version, version - 1, before, after)
        weft("convert", scene.place, store, "--base", scene.base, "--mirror", scene.path("in.safetensors"))
        outward = store, f"slime:{engine}", "--mirror", scene.path("out.safetensors")
        weft("convert", *outward, "--version", "1")
        name = "weight_v000002"
        wrong = changed_state(scene.random, states[2], 0.1)
        for before, after, base in (states[1], wrong, 1), (states[0], states[2], 0), (wrong, states[2], 1):
            write_slime(engine, 2, base, before, after)
            error = weft("convert", *outward, code=1)
            assert "version 2 already" in error and "somebody else" in error, error
            shutil.rmtree(os.path.join(engine, name))
        os.mkdir(os.path.join(engine, name))  # somebody's that is not complete
        assert "version 2 already" in weft("convert", *outward, code=1)
        os.rmdir(os.path.join(engine, name))
        write_slime(engine, 2, 1, states[1], states[2], "overwrite", "adler32", files=2)  # the same in another form
        weft("convert", *outward)
        assert digest(scene.path("out.safetensors")) == digest(scene.save("expected.safetensors"))


def test_a_pull_that_is_killed_goes_on():
    """Whenever it is killed, the checkpoint is at a version, and the next one finds which."""
    with Scene(seed=9, kinds={f"w{i}": ("BF16", (300, 1000)) for i in range(4)}) as scene:
        out, states = scene.path("out.safetensors"), [scene.state]
        for version in range(1, 7):
            before, after = scene.advance(0.1)
            write_slime(scene.place, version, version - 1, before, after)
            states.append(after)
        shutil.copy(scene.base, out)
        for attempt in range(15):
            process = subprocess.Popen([serving.WEFT, "pull", f"slime:{scene.place}", out], stdout=subprocess.DEVNULL)
            time.sleep(0.01 * attempt)
            process.kill()
            process.wait()
        weft("pull", f"slime:{scene.place}", out)
        assert read_state(out) == states[-1]


def test_a_kill_between_the_commit_and_the_note_of_it():
    with Scene(seed=10) as scene:
        chain(scene, (0.01,))
        out, note = scene.path("out.safetensors"), scene.path(".out.safetensors.weft-foreign")
        weft("convert", scene.place, out, "--base", scene.base)
        with open(note) as file:
            content = json.load(file)
        content["states"].insert(0, {"version": 0, "digest": digest(scene.base)})  # as it is before the commit
        for at, path in ((1, out), (0, scene.base)):
            with open(note, "w") as file:
                json.dump(content, file)
            if at == 0:
                shutil.copy(path, out)
            lines = weft("pull", f"slime:{scene.place}", out).splitlines()
            assert len(lines) == 1 - at and read_state(out) == scene.state


def test_a_whole_version_is_taken_as_it_is():
    with Scene(seed=6) as scene:
        chain(scene, (0.01,))
        scene.advance(0.3)
        full = os.path.join(scene.place, "weight_v000002")
        os.mkdir(full)
        write_state(os.path.join(full, "model.safetensors"), scene.state)
        before, after = scene.advance(0.01)
        write_slime(scene.place, 3, 2, before, after)
        out = scene.path("out.safetensors")
        weft("convert", scene.place, out, "--base", scene.base)
        assert read_state(out) == after


def test_stitch_names_the_newest_and_the_run():
    with Scene(seed=8) as scene:
        root = scene.path("stitch")
        run = os.path.join(root, "updates", "run-a")
        os.makedirs(run)
        before, middle = scene.advance(0.01)
        write_slime(run, 1, 0, before, middle)
        before, after = scene.advance(0.01)
        write_slime(run, 2, 1, before, after)
        with open(os.path.join(root, "latest"), "w") as file:
            file.write("run-a/weight_v000001\n")
        out = scene.path("out.safetensors")
        weft("convert", f"stitch:{root}", out, "--base", scene.base)
        assert read_state(out) == middle
        with open(os.path.join(root, "latest"), "w") as file:
            file.write("../run-a/weight_v000002")
        weft("convert", f"stitch:{root}", out)
        assert read_state(out) == middle


# ---- what is refused, and touches nothing ----

def refused(scene, status, words, *arguments):
    out = scene.path("refused.safetensors")
    shutil.copy(scene.base, out)
    text = weft("pull", f"slime:{scene.place}", out, *arguments, code=status)
    assert words in text, text
    assert filecmp.cmp(out, scene.base, shallow=False)
    os.remove(out)


def rewrite(directory, change):
    """Changes the entries and the metadata of a version's only file."""
    path = os.path.join(directory, "model-00000-of-00001.safetensors")
    entries, metadata = weft_foreign.safetensors_read(path)
    entries, metadata = change(entries, metadata) or (entries, metadata)
    with open(path, "wb") as file:
        file.write(weft_foreign.safetensors_bytes([(name, *entry) for name, entry in entries.items()], metadata))


def test_another_base_is_refused():
    with Scene() as scene:
        other = random_state(numpy.random.default_rng(99), KINDS)
        write_slime(scene.place, 1, 0, other, changed_state(scene.random, other, 0.5))
        refused(scene, 3, "was promised")


def test_damage_is_refused():
    def truncated(entries, metadata):
        name = next(iter(entries))
        dtype, _, data = entries[name]
        entries[name] = (dtype, (len(data) - 3,), data[:-3])

    def trailing(entries, metadata):
        name = next(iter(entries))
        dtype, _, data = entries[name]
        entries[name] = (dtype, (len(data) + 1,), data + b"x")

    def unsummed(entries, metadata):
        metadata.pop(next(iter(metadata)))

    def longer(entries, metadata):
        name = next(iter(entries))
        data = weft_foreign.compress(bytes(1 << 20))
        entries[name] = ("U8", (len(data),), data)

    def shorter(entries, metadata):
        name = next(iter(entries))
        data = weft_foreign.compress(b"\1\2")
        entries[name] = ("U8", (len(data),), data)

    def unknown(entries, metadata):
        name = next(iter(entries))
        entries["no such tensor"] = entries.pop(name)
        metadata["no such tensor"] = metadata.pop(name)

    for change, words in ((truncated, "cut short"), (trailing, "bytes behind"), (unsummed, "no checksum"),
                          (longer, "longer than"), (shorter, "shorter than"), (unknown, "index does not say so")):
        with Scene() as scene:
            before, after = scene.advance(0.5)
            directory = write_slime(scene.place, 1, 0, before, after)
            rewrite(directory, change)
            refused(scene, 3, words)


def test_what_the_index_does_not_name_is_refused():
    with Scene() as scene:
        before, after = scene.advance(0.5)
        directory = write_slime(scene.place, 1, 0, before, after)
        index = os.path.join(directory, "model.safetensors.index.json")
        shutil.copy(os.path.join(directory, "model-00000-of-00001.safetensors"), os.path.join(directory, "again.safetensors"))
        refused(scene, 3, "the index does not say so")
        with open(index) as file:
            content = json.load(file)
        del content["weight_map"]
        with open(index, "w") as file:
            json.dump(content, file)
        refused(scene, 3, "no weight_map")


def test_an_index_that_does_not_fit_is_refused():
    for key, value, words in (("version", "000009", "says that it is version"), ("base_version", "000001", "does not say"),
                              ("compression_format", "lz4", "zstd is what is read"), ("delta_encoding", "typed", "encoding"),
                              ("checksum_format", "crc32", "not known"), ("checksum_format", "blake3", "")):
        with Scene() as scene:
            before, after = scene.advance(0.5)
            directory = write_slime(scene.place, 1, 0, before, after)
            index = os.path.join(directory, "model.safetensors.index.json")
            with open(index) as file:
                content = json.load(file)
            content["metadata"][key] = value
            with open(index, "w") as file:
                json.dump(content, file)
            out = scene.path("out.safetensors")
            shutil.copy(scene.base, out)
            done = subprocess.run([serving.WEFT, "pull", f"slime:{scene.place}", out], capture_output=True, text=True)
            assert done.returncode != 0 and words in done.stderr, (key, done.stderr)
            assert filecmp.cmp(out, scene.base, shallow=False)


def test_positions_that_do_not_ascend_are_refused():
    with Scene(kinds={"w": ("BF16", (1000,))}) as scene:
        before, after = scene.advance(0.5)
        directory = write_slime(scene.place, 1, 0, before, after, encoding="overwrite")

        def swapped(entries, metadata):
            dtype, _, data = entries["w"]
            plain = bytearray(zstandard.ZstdDecompressor().decompress(data))
            plain[4:8], plain[8:12] = plain[8:12], plain[4:8]
            data = weft_foreign.compress(bytes(plain))
            entries["w"] = (dtype, (len(data),), data)

        rewrite(directory, swapped)
        refused(scene, 3, "do not ascend")


def test_a_checkpoint_that_somebody_changed_is_not_gone_on_with():
    with Scene() as scene:
        chain(scene, (0.01,))
        out = scene.path("out.safetensors")
        weft("convert", scene.place, out, "--base", scene.base)
        shutil.copy(scene.base, out)
        assert "somebody else has changed it" in weft("pull", f"slime:{scene.place}", out, code=3)


def test_a_version_that_is_there_is_not_written_again():
    with Scene() as scene:
        scene.advance(0.01)
        following = scene.save("next.safetensors")
        weft("convert", following, f"slime:{scene.place}", "--base", scene.base)
        text = weft("convert", following, f"slime:{scene.place}", "--base", scene.base, code=4)
        assert "there already" in text, text


if __name__ == "__main__":
    serving.main()
