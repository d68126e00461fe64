#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a server holds: listings of its rooms, which collectors go by, and the bytes that a run may have."""
import json
import os
import subprocess
import tempfile
import time

from relaying import Run
from serving import WEFT, Server, main

BEARER = {"Authorization": "Bearer writes"}


def token_file(directory, name, token):
    path = os.path.join(directory, name)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(token + "\n")
    return path


def listing(server, prefix, after="", fields=None):
    answer = server.request("GET", f"/v1/list?prefix={prefix}" + (f"&after={after}" if after else ""), None, fields)
    assert answer.status == 200, answer
    return [json.loads(line) for line in answer.body.splitlines()]


def test_rooms_are_listed():
    with Server() as server:
        keys = sorted(f"patches/{i:02}" for i in range(20)) + ["patches/05/deeper"]
        for key in keys + ["pages/a", "patchesx/a"]:
            assert server.request("PUT", "/" + key, b"x" * (len(key) + 1)).status == 201
        found = listing(server, "patches")
        assert [line["key"] for line in found] == sorted(keys), found
        assert all(line["size"] == len(line["key"]) + 1 and 0 <= line["age"] < 3600 for line in found), found
        assert [line["key"] for line in listing(server, "patches", "patches/17")] == keys[18:20]
        assert listing(server, "patches", "patches/99") == [] and listing(server, "leaps") == []
        assert [line["key"] for line in listing(server, "patches/05")] == ["patches/05/deeper"]


def test_long_rooms_come_in_parts():
    with Server() as server:
        room = os.path.join(server.directory, "patches")
        os.makedirs(room)
        count = 20000
        for i in range(count):
            os.close(os.open(os.path.join(room, f"{i * 7919 % count:05}"), os.O_CREAT | os.O_WRONLY))
        seen, after, parts = [], "", 0
        while True:
            lines = listing(server, "patches", after)
            seen += [line["key"] for line in lines if "key" in line]
            parts += 1
            if "after" not in lines[-1]:
                break
            after = lines[-1]["after"]
            assert after == seen[-1]
        assert parts > 2 and seen == [f"patches/{i:05}" for i in range(count)], (parts, len(seen))


def test_who_may_list():
    with tempfile.TemporaryDirectory() as secrets:
        read, write = token_file(secrets, "read", "reads"), token_file(secrets, "write", "writes")
        with Server("--read-token-file", read, "--write-token-file", write) as server:
            assert server.request("PUT", "/pages/a", b"x", BEARER).status == 201
            assert [line["key"] for line in listing(server, "pages", fields=BEARER)] == ["pages/a"]
            reader = {"Authorization": "Bearer reads"}
            assert server.request("GET", "/v1/list?prefix=pages", fields=reader).status == 403
            assert server.request("GET", "/v1/list?prefix=followers", fields=reader).status == 200
            assert server.request("GET", "/v1/list?prefix=pages").status == 401


def test_leftovers_go_through_a_server():
    """What nobody names is collected by `weft gc URL`, as where the store is a directory; and so are meetings of
    trainers that are over, while those that are not stay."""
    with Run() as run:
        for _ in range(3):
            run.publish()
        store = run.origin.directory
        for key in ("patches/00000001-0000000001-00000000000000aa", "anchors/00000001-0000000002-00000000000000bb"):
            path = os.path.join(store, key)
            with open(path, "wb") as file:
                file.write(b"left by a writer that failed")
            os.utime(path, (1, 1))
        for meeting, age in (("over", 1), ("young", None), ("over-not", None)):
            for key in ("0/0", "0/1", "0/closed", "1/0", "snapshot-1", "snapshot"):
                path = os.path.join(store, "loco", meeting, key)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(b"payload")
                if age is not None:
                    os.utime(path, (age, age))
        # something late keeps a meeting whole
        os.utime(os.path.join(store, "loco/young/0/0"), (1, 1))
        said = json.loads(subprocess.run([WEFT, "gc", run.origin.url, "--meetings", "1d", "--dry-run", "--json"], check=True,
                                         capture_output=True, text=True, env=run.environment).stdout)
        assert os.path.exists(os.path.join(store, "loco/over/snapshot"))
        done = json.loads(subprocess.run([WEFT, "gc", run.origin.url, "--meetings", "1d", "--json"], check=True,
                                         capture_output=True, text=True, env=run.environment).stdout)
        removed = [each["key"] for each in done["removed"]]
        assert sorted(removed) == sorted(each["key"] for each in said["removed"]), (said, done)
        assert [key for key in removed if "over/" in key][-1] == "loco/over/0/closed", removed
        assert not [key for key in removed if "young" in key or "over-not" in key], removed
        left = [key for key in removed if key.startswith(("patches", "anchors"))]
        assert left and not [key for key in left if os.path.exists(os.path.join(store, key))], removed
        assert sorted(os.listdir(os.path.join(store, "loco"))) == ["over-not", "young"] or not os.listdir(
            os.path.join(store, "loco", "over")), os.listdir(os.path.join(store, "loco"))
        run.publish()


def test_meetings_where_nobody_publishes():
    with tempfile.TemporaryDirectory() as place:
        os.makedirs(os.path.join(place, "loco/a/0"))
        path = os.path.join(place, "loco/a/0/closed")
        with open(path, "wb") as file:
            file.write(b"x")
        os.utime(path, (1, 1))
        plain = subprocess.run([WEFT, "gc", place], capture_output=True, text=True)
        assert plain.returncode != 0, plain
        subprocess.run([WEFT, "gc", place, "--meetings", "7d"], check=True)
        assert not os.path.exists(path)


def test_quota():
    with Server("--max-bytes", "1M") as server:
        block = b"b" * 300000
        for i in range(3):
            assert server.request("PUT", f"/patches/{i}", block).status == 201
        answer = server.request("PUT", "/patches/3", block)
        assert answer.status == 507 and b"--max-bytes" in answer.body, answer
        assert server.request("GET", "/patches/3").status == 404
        assert server.request("PUT", "/patches/large", b"l" * 1200000).status == 507
        # what is small and has to go, goes; and what is removed makes room, also behind the server's back
        assert server.request("PUT", "/gc/mark", b"{}").status == 201
        assert server.request("DELETE", "/patches/0").status == 204
        assert eventually(lambda: server.request("PUT", "/patches/3", block).status, 201)
        os.unlink(os.path.join(server.directory, "patches/1"))
        assert eventually(lambda: server.request("PUT", "/patches/4", block).status, 201)
        assert server.request("PUT", "/patches/5", block).status == 507


def eventually(ask, wanted):
    """What is there is counted anew after a second."""
    end = time.monotonic() + 60
    while ask() != wanted and time.monotonic() < end:
        time.sleep(0.2)
    return time.monotonic() < end


def test_each_run_has_its_own():
    with Server("--runs", "--max-bytes", "100K") as server:
        for run in ("a", "b"):
            assert server.request("PUT", f"/{run}/patches/0", b"x" * 80000).status == 201
            assert server.request("PUT", f"/{run}/patches/1", b"x" * 80000).status == 507


def test_publisher_is_told():
    """A publish that does not fit fails, names the reason, and nobody has noticed; with room it goes through."""
    with Run(origin=("--max-bytes", "64K")) as run:
        path = os.path.join(run.root, "big")
        subprocess.run([WEFT, "bench", "--quiet", "--make", path, "--params", "200K", "--steps", "0"], check=True,
                       stdout=subprocess.DEVNULL)
        ran = subprocess.run([WEFT, "publish", run.origin.url, os.path.join(path, "step-0.safetensors")],
                             capture_output=True, text=True, env=run.environment)
        assert ran.returncode != 0 and "no room" in ran.stderr, ran


main()
