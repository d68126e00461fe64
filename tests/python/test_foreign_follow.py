# SPDX-License-Identifier: Apache-2.0
"""Places that are not as they should be yet: a delta between is missing, an index is half there, a version that is
wanted has not come. Who follows waits, says for what, and goes on; who does not is told, and finds it in the exit
code."""

import os
import shutil
import subprocess

import serving
from foreign_scene import Scene, digest, same_directory, weft
from weft_foreign import write_prime_ranks, write_slime, write_trl

KINDS = {"a": ("BF16", (64, 64)), "b": ("BF16", (33,))}
MISSING = "nothing there leads on from version 1"


def chain(scene, count, write=write_slime):
    for version in range(1, count + 1):
        before, after = scene.advance(0.05)
        write(scene.place, version, version - 1, before, after)


def outputs(scene):
    """What a place leads to: a checkpoint by convert and by follow, and a store."""
    out, other = scene.path("out.safetensors"), scene.path("other.safetensors")
    shutil.copy(scene.base, out)
    shutil.copy(scene.base, other)
    place = f"slime:{scene.place}"
    return (["convert", "--follow", place, out],
            ["follow", place, other],
            ["convert", "--follow", place, f"store:{scene.path('store')}", "--base", scene.base, "--mirror",
             scene.path("mirror.safetensors")])


def healed(scene, command, words, heal, last):
    """The command says these words, goes on after `heal`, and gets to the version `last`."""
    process = subprocess.Popen([serving.WEFT, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        assert words in line, (command, line)
        heal()
        for line in process.stdout:
            if line.startswith(f"version {last} "):
                break
        else:
            raise AssertionError((command, process.stderr.read()))
    finally:
        process.terminate()
        process.communicate(timeout=serving.PATIENCE)


def test_a_delta_that_is_missing_is_waited_for():
    for number in range(3):
        with Scene(kinds=KINDS) as scene:
            chain(scene, 3)
            hidden, place = scene.path("hidden"), os.path.join(scene.place, "weight_v000002")
            os.rename(place, hidden)
            healed(scene, outputs(scene)[number], MISSING, lambda: os.rename(hidden, place), 3)


def test_an_index_that_is_half_there_is_looked_at_again():
    for number in range(3):
        with Scene(kinds=KINDS) as scene:
            chain(scene, 2)
            index = os.path.join(scene.place, "weight_v000002", "model.safetensors.index.json")
            with open(index) as file:
                text = file.read()

            def write(part):
                with open(index, "w") as file:
                    file.write(part)

            write(text[:50])
            healed(scene, outputs(scene)[number], "trying again", lambda: write(text), 2)


def test_a_payload_that_is_half_there_is_read_again():
    for number in range(3):
        with Scene(kinds=KINDS) as scene:
            chain(scene, 2)
            payload = os.path.join(scene.place, "weight_v000002", "model-00000-of-00001.safetensors")
            size = os.path.getsize(payload)
            shutil.copy(payload, scene.path("whole"))
            os.truncate(payload, size // 2)
            healed(scene, outputs(scene)[number], "trying again", lambda: os.rename(scene.path("whole"), payload), 2)


def test_a_delta_that_goes_away_gives_way_to_a_checkpoint():
    """A follower that knows of a delta does not wait for it when it is gone, and something else leads on."""
    for number in range(3):
        with Scene(kinds=KINDS) as scene:
            chain(scene, 2)
            delta, whole = (os.path.join(scene.place, f"weight_v00000{version}") for version in (2, 3))
            os.truncate(os.path.join(delta, "model-00000-of-00001.safetensors"), 100)

            def heal():
                os.rename(delta, scene.path("gone"))
                scene.advance(0.1)
                os.mkdir(scene.path("whole"))
                shutil.copy(scene.save("next.safetensors"), scene.path("whole/model.safetensors"))
                os.rename(scene.path("whole"), whole)

            healed(scene, outputs(scene)[number], "trying again", heal, 3)


def test_a_delta_that_is_written_again_from_another_base_is_not_put_on():
    """prime's have no checksum: the step that one leads on from is all that there is."""
    with Scene(kinds=KINDS) as scene:
        chain(scene, 2, write_prime_ranks)
        step, out = os.path.join(scene.place, "step_2"), scene.path("out.safetensors")
        os.truncate(os.path.join(step, "rank_0.safetensors"), 100)
        shutil.copy(scene.base, out)
        other = write_prime_ranks(scene.path("other"), 2, 0, *scene.advance(0.05))
        follower = subprocess.Popen([serving.WEFT, "follow", f"prime:{scene.place}", out, "--assume-base"],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            line = follower.stderr.readline()
            assert "trying again" in line, line
            at = digest(out)
            os.rename(step, scene.path("gone"))
            os.rename(other, step)
            assert any(MISSING in line for line in follower.stderr)
            assert digest(out) == at
        finally:
            follower.kill()
            follower.communicate()


def test_a_bridge_may_be_there_before_its_store_and_outlives_it():
    with Scene(kinds=KINDS) as scene, serving.hold_port() as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        run, engine, store = f"http://{address}/run", scene.path("engine"), scene.path("store")
        commands = (["convert", "--follow", f"slime:{scene.place}", run, "--base", scene.base, "--mirror",
                     scene.path("in.safetensors")],
                    ["convert", "--follow", run, f"slime:{engine}", "--mirror", scene.path("out.safetensors")])
        sides = [subprocess.Popen([serving.WEFT, *command, "--retries", "0", "--poll", "0.05"], stderr=subprocess.PIPE,
                                  stdout=subprocess.DEVNULL, text=True) for command in commands]
        try:
            for version in 1, 2:
                before, after = scene.advance(0.05)
                written = write_slime(scene.place, version, version - 1, before, after)
                for side in sides[:3 - version]:  # that of the engine may not have asked the store meanwhile
                    assert any("trying again" in line for line in side.stderr)
                arrived = os.path.join(engine, os.path.basename(written))
                with serving.Server("--listen", address, directory=store):
                    assert serving.wait_for(lambda: os.path.exists(arrived)), version
                same_directory(written, arrived)
        finally:
            for side in sides:
                side.terminate()
                side.communicate(timeout=serving.PATIENCE)


def test_who_does_not_wait_is_told_that_a_delta_is_missing():
    with Scene(kinds=KINDS) as scene:
        chain(scene, 3)
        shutil.rmtree(os.path.join(scene.place, "weight_v000002"))
        out = scene.path("out.safetensors")
        shutil.copy(scene.base, out)
        for arguments in (["pull", f"slime:{scene.place}", out], ["convert", scene.place, out],
                          ["convert", scene.place, f"store:{scene.path('store')}", "--base", scene.base, "--mirror",
                           scene.path("mirror.safetensors")]):
            assert MISSING in weft(*arguments, code=1), arguments


def test_a_version_that_is_not_reached_is_a_failure():
    with Scene(kinds=KINDS) as scene:
        chain(scene, 1)
        out, store, mirror = scene.path("out.safetensors"), f"store:{scene.path('store')}", scene.path("mirror.safetensors")
        words = "leads to version 1 and no further"
        assert words in weft("convert", scene.place, out, "--base", scene.base, "--version", "2", code=1)
        assert words in weft("pull", f"slime:{scene.place}", out, "--version", "2", code=1)
        assert words in weft("convert", scene.place, store, "--base", scene.base, "--mirror", mirror, "--version", "2",
                             code=1)
        arguments = store, f"slime:{scene.path('engine')}", "--mirror", scene.path("engine.safetensors"), "--version"
        assert words in weft("convert", *arguments, "2", code=1)
        weft("convert", *arguments, "1")


def test_pull_and_follow_assume_a_base_when_they_are_told_to():
    with Scene(kinds=KINDS) as scene:
        chain(scene, 2, write_trl)
        expected = digest(scene.save("expected.safetensors"))
        for verb in ["pull"], ["follow", "--until", "2"]:
            out = scene.path(f"{verb[0]}.safetensors")
            shutil.copy(scene.base, out)
            assert "--assume-base" in weft(*verb, f"trl:{scene.place}", out, code=1)
            weft(*verb, f"trl:{scene.place}", out, "--assume-base")
            assert digest(out) == expected, verb


def test_what_is_about_a_store_is_refused_of_a_place():
    with Scene(kinds=KINDS) as scene:
        chain(scene, 1)
        for option in ["--verify", "full"], ["--replace"], ["--name", "worker"]:
            assert "about a store" in weft("pull", f"slime:{scene.place}", scene.base, *option, code=2)


if __name__ == "__main__":
    serving.main()
