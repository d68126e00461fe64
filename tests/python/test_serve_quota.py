#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a server holds: listings of its rooms, which collectors go by, and the bytes that a run may have."""
import json
import os
import subprocess
import tempfile
import time

from relaying import Run
from serving import WEFT, Server, main, wait_for

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
        keys = sorted(f"patches/{i:02}" for i in range(20)) + ["patches/aa/deeper"]
        for key in keys + ["pages/a", "patchesx/a"]:
            assert server.request("PUT", "/" + key, b"x" * (len(key) + 1)).status == 201
        found = listing(server, "patches")
        assert [line["key"] for line in found] == sorted(keys), found
        assert all(line["size"] == len(line["key"]) + 1 and 0 <= line["age"] < 3600 for line in found), found
        assert [line["key"] for line in listing(server, "patches", "patches/17")] == keys[18:]
        assert listing(server, "patches", "patches/zz") == [] and listing(server, "leaps") == []
        assert [line["key"] for line in listing(server, "patches/aa")] == ["patches/aa/deeper"]


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


def asked(access_log):
    """How many listings a server was asked for; the log has no queries."""
    with open(access_log) as file:
        return sum("/v1/list" in line for line in file)


def weft(run, *arguments):
    return json.loads(run.weft(*arguments, "--json").stdout)


def test_collecting_and_repairing_through_a_server():
    """What nobody names is looked for, as where the store is a directory. How old that must be, which the store's clock
    tells, is for tests/unit/test_sync_gc.c."""
    with tempfile.TemporaryDirectory() as place:
        log = os.path.join(place, "access")
        with Run(origin=("--access-log", log)) as run:
            run.weft("publish", run.origin.url, run.model(0), "-q")
            assert weft(run, "repair", run.origin.url)["listed"] is True
            weft(run, "gc", run.origin.url)
            assert wait_for(lambda: asked(log) > 6), asked(log)
            for key in ("0/0", "0/closed", "snapshot"):
                assert run.origin.request("PUT", f"/loco/seven/{key}", b"payload").status == 201
            said = weft(run, "gc", run.origin.url, "--meetings", "1d")
            assert (said["objects"], said["waiting"]) == (0, 3), said
            time.sleep(1.5)
            said = weft(run, "gc", run.origin.url, "--meetings", "1s")
            assert [each["key"] for each in said["removed"]] == [
                "loco/seven/0/0", "loco/seven/snapshot", "loco/seven/0/closed"], said
            assert run.origin.request("GET", "/loco/seven/snapshot").status == 404


def test_meetings_where_nobody_publishes():
    with Server() as server:
        assert server.request("PUT", "/loco/seven/0/closed", b"x").status == 201
        time.sleep(1.5)
        assert subprocess.run([WEFT, "gc", server.url], stderr=subprocess.DEVNULL).returncode != 0
        subprocess.run([WEFT, "gc", server.url, "--meetings", "1s"], check=True, stdout=subprocess.DEVNULL)
        assert server.request("GET", "/loco/seven/0/closed").status == 404


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
        subprocess.run([WEFT, "bench", "--quiet", "--make", path, "--params", "200K", "--steps", "1"], check=True,
                       stdout=subprocess.DEVNULL)
        ran = subprocess.run([WEFT, "publish", run.origin.url, os.path.join(path, "step-0.safetensors")],
                             capture_output=True, text=True, env=run.environment)
        assert ran.returncode != 0 and "no space left" in ran.stderr and "--max-bytes" in ran.stderr, ran


main()
