# SPDX-License-Identifier: Apache-2.0
"""What a hostile or a clumsy neighbour leaves in a place of deltas: links, pipes, lists that are missing,
numbers that nothing can hold. Nothing outside of the place is touched, nothing is waited for, and the checkpoint stays
as it was."""

import hashlib
import http.server
import json
import os
import shutil
import threading

import serving
from foreign_scene import Scene, weft
from weft_foreign import (compress, write_arc2, write_prime_ranks, write_prime_update, write_skyrl, write_slime,
                          write_trl)

KINDS = {"a": ("BF16", (64, 64)), "b": ("BF16", (33,))}


def one(scene, write, **options):
    before, after = scene.advance(0.05)
    return write(scene.place, 1, 0, before, after, **options)


def edit(path, change):
    with open(path) as file:
        content = json.load(file)
    change(content)
    with open(path, "w") as file:
        json.dump(content, file)


def test_a_link_in_the_place_of_the_hidden_directory_leads_nowhere():
    with Scene(kinds=KINDS) as scene:
        victim, out = scene.path("victim"), scene.path("out")
        os.mkdir(victim)
        with open(os.path.join(victim, "precious"), "w") as file:
            file.write("kept")
        os.mkdir(out)
        os.symlink(victim, os.path.join(out, ".weight_v000001.tmp"))
        scene.advance(0.05)
        weft("convert", scene.save("next.safetensors"), f"slime:{out}", "--base", scene.base)
        assert os.listdir(victim) == ["precious"], os.listdir(victim)
        assert os.listdir(out) == ["weight_v000001"] and not os.path.islink(os.path.join(out, "weight_v000001"))


def test_what_a_kill_left_in_the_hidden_directory_is_no_part_of_the_version():
    with Scene(kinds=KINDS) as scene:
        left = os.path.join(scene.place, ".weight_v000001.tmp")
        os.mkdir(left)
        for name in "model-00007-of-00009.safetensors", ".hidden":
            with open(os.path.join(left, name), "w") as file:
                file.write("half")
        scene.advance(0.05)
        weft("convert", scene.save("next.safetensors"), f"slime:{scene.place}", "--base", scene.base)
        assert sorted(os.listdir(os.path.join(scene.place, "weight_v000001"))) == [
            "model-00000-of-00001.safetensors", "model.safetensors.index.json"]


class Endless(http.server.BaseHTTPRequestHandler):
    """A server that has every version that it is asked for."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    asked = 0

    def do_GET(self):
        type(self).asked += 1
        body = b"weight_v%d" % 2**62 if self.path.endswith("/latest") else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_server_without_an_end_is_not_asked_for_all_of_it():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with Scene(kinds=KINDS) as scene:
            weft("pull", f"slime:http://127.0.0.1:{server.server_port}/x", scene.base, code=3)
    finally:
        server.shutdown()
        server.server_close()
    assert 4096 < Endless.asked < 3 * 4096, Endless.asked


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for():
    for scheme, write in ("slime", write_slime), ("skyrl", write_skyrl), ("arc2", write_arc2):
        with Scene(kinds=KINDS) as scene:
            directory = one(scene, write)
            name = next(name for name in os.listdir(directory) if name.endswith(".safetensors"))
            os.remove(os.path.join(directory, name))
            os.mkfifo(os.path.join(directory, name))
            scene.refused(scheme, 3, "this is no file")


def test_a_frame_of_more_than_the_model_can_need_is_not_unpacked():
    """limits.stage_bytes alone would let a few kilobytes take 4 GiB of memory."""
    frame = compress(bytes(80 << 20))
    header = json.dumps({"formatVersion": 2, "step": 1, "baseStep": 0, "tensors": []}).encode()
    for scheme, name, data in (
            ("grail", "1.delta", frame), ("trl", "deltas/step_000001.safetensors", frame),
            ("pulse", "1.patch", b"PULSEPT1" + len(header).to_bytes(4, "little") + header + frame)):
        with Scene(kinds=KINDS) as scene:
            path = os.path.join(scene.place, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
            scene.refused(scheme, 1, "it holds more than", "--assume-base")


def test_a_file_in_the_place_of_a_directory_is_said():
    with Scene(kinds=KINDS) as scene:
        for scheme in "slime", "skyrl":
            scene.refused(scheme, 1, "this is no directory", place=scene.base)


def test_a_list_that_is_missing_is_not_an_empty_one():
    def seal(content):
        content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def no_ranks(content):
        del content["ranks"], content["sha256"]
        seal(content)

    def fewer(content):
        content["ranks"][0]["tensors"][0]["changed"] += 1
        del content["sha256"]
        seal(content)

    for write, name, change, words in (
            (write_prime_ranks, "sparse_manifest.json", no_ranks, "does not list its ranks"),
            (write_prime_ranks, "sparse_manifest.json", fewer, "not there as it says"),
            (write_prime_update, "sparse_update_manifest.json", lambda content: content.pop("tensors"),
             "does not list its tensors"),
            (write_prime_update, "sparse_update_manifest.json",
             lambda content: content["tensors"][0].update(changed_numel=0), "not there as it says")):
        with Scene(kinds=KINDS) as scene:
            edit(os.path.join(one(scene, write), name), change)
            scene.refused("prime", 3, words, "--assume-base")
    with Scene(kinds=KINDS) as scene:
        header = json.dumps({"version": 31}).encode()
        with open(os.path.join(scene.place, "1.delta"), "wb") as file:
            file.write(compress(len(header).to_bytes(4, "little") + header))
        scene.refused("grail", 3, "does not list its tensors", "--assume-base")


def test_a_file_that_is_missing_is_missed_without_a_map_too():
    with Scene(kinds=KINDS) as scene:
        directory = one(scene, write_slime, files=2)
        os.remove(os.path.join(directory, "model-00000-of-00002.safetensors"))
        index = os.path.join(directory, "model.safetensors.index.json")
        scene.refused("slime", 3, "the index names 2 tensors, and 1 are there")
        edit(index, lambda content: content.pop("weight_map"))
        scene.refused("slime", 3, "no weight_map")


def test_a_tensor_that_comes_twice_is_refused():
    with Scene(kinds=KINDS) as scene:
        directory = one(scene, write_skyrl)
        edit(os.path.join(directory, "manifest.json"), lambda content: content["tensors"].append(content["tensors"][0]))
        scene.refused("skyrl", 3, "two deltas of tensor")


def test_an_encoding_that_is_not_known_is_not_guessed():
    with Scene(kinds=KINDS) as scene:
        before, after = scene.advance(0.05)
        write_trl(scene.place, 1, 0, before, after, encoding="raw")
        path = os.path.join(scene.place, "deltas", "step_000001.safetensors")
        with open(path, "rb") as file:
            data = file.read()
        with open(path, "wb") as file:
            file.write(data.replace(b'"encoding":"raw"', b'"encoding":"rle"'))
        scene.refused("trl", 1, "coded as rle", "--assume-base")


def test_a_place_that_is_refused_leaves_no_checkpoint_behind():
    with Scene(kinds=KINDS) as scene:
        out = scene.path("out.safetensors")
        for place in f"arc3:{scene.place}", f"trl:{scene.place}", f"slime:{scene.path('nowhere')}":
            weft("convert", place, out, "--base", scene.base, code=1)
            assert not os.path.exists(out), place


def test_a_version_that_cannot_be_remembered_is_none():
    with Scene(kinds=KINDS) as scene:
        before, after = scene.advance(0.05)
        write_slime(scene.place, 1 << 63, 0, before, after)
        out = scene.path("out.safetensors")
        shutil.copy(scene.base, out)
        weft("pull", f"slime:{scene.place}", out)
        assert not os.path.exists(scene.path(".out.safetensors.weft-foreign"))


if __name__ == "__main__":
    serving.main()
