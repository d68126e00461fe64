#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What strangers put as reports of followers through `weft serve`: who may, what is taken, and how many."""
import json
import os
import re
import subprocess
import tempfile

from serving import PATIENCE, Server, WEFT, head_key, main, make_head, some_of, wait_for, write_whole

RUN = "0123456789abcdef0123456789abcdef"
MOST = 4096


def report(name, **changes):
    body = {"weft": 1, "kind": "follower", "name": name, "run": RUN, "version": 3, "digest": "ab" * 16, "newest": 5,
            "lag": 2, "time": 1794799232420, "published": 1794799231173, "state": "waiting",
            "phases": {"wait": 1.5, "fetch": 0.25, "decode": 0, "verify": 0, "commit": 0.001}, "pause": 0.001,
            "patches": 2, "anchors": 1, "healed": 0, "fetched_bytes": 1000, "requests": 9, "interval": 1200}
    body.update(changes)
    return json.dumps({k: v for k, v in body.items() if v is not None}).encode()


def put(server, name, body, fields=None, connection=None):
    return server.request("PUT", "/followers/" + name, body, fields, connection=connection)


def with_head(server, version=5):
    write_whole(server.path(head_key(1)), make_head(1, version, version))
    assert wait_for(lambda: (status(server)["head"] or {}).get("version") == version)


def status(server, fields=None):
    return json.loads(server.request("GET", "/v1/status", fields=fields).body)


def listed(server):
    answer = server.request("GET", "/v1/list?prefix=followers")
    assert answer.status == 200 and answer["content-type"] == "application/x-ndjson", answer
    return {entry["key"]: entry["age"] for entry in map(json.loads, answer.body.splitlines())}


def shown(server):
    return {follower["name"]: follower for follower in status(server)["followers"]}


def in_directory(server, name):
    """What others find there; it is written a moment later."""
    try:
        with open(server.path("followers/" + name), "rb") as file:
            return file.read()
    except OSError:
        return None


def names_in_directory(server):
    try:
        return sorted(name for name in os.listdir(server.path("followers")) if not name.startswith("."))
    except OSError:
        return []


def test_taken_and_shown():
    with Server() as server:
        assert put(server, "early", report("early")).status == 400  # of no run that is here
        with_head(server)
        assert listed(server) == {} and shown(server) == {}
        error = {"time": 1794799230000, "text": "<script>alert(1)</script> \u001b[2J \u2028"}
        assert put(server, "a", report("a")).status == 204
        assert put(server, "b.c_d-9", report("b.c_d-9", version=0, state="failed", error=error)).status == 204
        assert wait_for(lambda: len(listed(server)) == 2)
        assert listed(server).keys() == {"followers/a", "followers/b.c_d-9"}
        found = shown(server)
        assert list(found) == ["b.c_d-9", "a"]  # the one that is more behind comes first
        a, b = found["a"], found["b.c_d-9"]
        assert (a["version"], a["lag"], a["live"], a["state"], a["error"]) == (3, 2, True, "waiting", None)
        assert a["lag_seconds"] > 0 and 0 <= a["age_seconds"] < 60 and a["phase_seconds"]["wait"] == 1.5
        assert (b["lag"], b["lag_seconds"], b["error"]["text"]) == (5, None, error["text"])
        fleet = status(server)["fleet"]
        assert (fleet["live"], fleet["failed"], fleet["least_version"], fleet["most_lag"]) == (2, 1, 3, 5), fleet
        metrics = server.request("GET", "/metrics").body.decode()
        for line in ("followers_live 2", "followers_failed 1", "followers_least_version 3", "followers_most_lag 5"):
            assert f"\nweft_serve_{line}\n" in metrics, line
        # over the one before, and into the directory, where anybody finds it
        assert put(server, "a", report("a", version=5)).status == 204
        assert wait_for(lambda: shown(server)["a"]["lag"] == 0)
        assert server.request("GET", "/followers/a").body == report("a", version=5)
        assert wait_for(lambda: in_directory(server, "a") == report("a", version=5)), in_directory(server, "a")
        # and from the directory: one that writes there is seen here
        write_whole(server.path("followers/local"), report("local"))
        assert wait_for(lambda: "local" in shown(server))
        # what has ended is shown, and is not live; what is removed is gone
        assert put(server, "a", report("a", state="ended")).status == 204
        assert wait_for(lambda: not shown(server)["a"]["live"])
        assert server.request("DELETE", "/followers/a").status == 204
        assert wait_for(lambda: "a" not in shown(server))
        # the next version leaves those behind that do not report
        with_head(server, 9)
        assert wait_for(lambda: shown(server)["local"]["lag"] == 6)


def test_listings():
    with Server() as server:
        for path in ("/v1/list", "/v1/list?prefix=", "/v1/list?prefix=followers/", "/v1/list?prefix=..",
                     "/v1/list?prefix=/etc", "/v1/list?prefix=.weft", "/v1/list?prefix=heads&after=../x"):
            answer = server.request("GET", path)
            assert answer.status == 404 and answer["weft-server"] == "1", (path, answer)
        assert server.request("HEAD", "/v1/list?prefix=followers").status == 200
        assert server.request("PUT", "/v1/list?prefix=followers", b"x").status == 405


def test_refused():
    with Server() as server:
        with_head(server)
        connection = server.connection()
        good = report("x")
        wrong = {
            "nothing": b"", "no JSON": b"hello", "an array": b"[]", "a head": make_head(1, 1, 1),
            "half": good[:-10], "more": good + b"{}", "another's": report("y"), "another run": report("x", run="ab"),
            "no run": report("x", run=None), "version": report("x", version=-1), "text": report("x", version="3"),
            "state": report("x", state="<b>"), "interval": report("x", interval=0),
            "nan": good.replace(b"1.5", b"NaN"),
            "format": report("x", weft=2), "kind": report("x", kind="head"), "digest": report("x", digest="zz" * 16),
            "not UTF-8": good.replace(b"waiting", b"\xff"), "zero": good.replace(b"waiting", b"\\u0000"),
            "twice": good.replace(b'"lag": 2', b'"time": 1'),
            "deep": report("x", more=[[[[[[1]]]]]]), "long error": report("x", error={"time": 1, "text": "e" * 301}),
        }
        for what, body in wrong.items():
            answer = put(server, "x", body, connection=connection)
            assert answer.status == 400 and answer["weft-server"] == "1", (what, answer)
        padded = good + b" " * (2048 - len(good))
        assert put(server, "x", padded + b" ", connection=connection).status == 413
        assert put(server, "x", padded + b" " * (1 << 20), connection=connection).status == 413
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (1 << 16, b"a" * (1 << 16))
        assert put(server, "x", chunked, {"Transfer-Encoding": "chunked"}).status == 413
        for field, value in (("If-Match", '"a"'), ("If-None-Match", "*"), ("Content-Range", "bytes 0-1/2"),
                             ("Content-Encoding", "gzip")):
            assert put(server, "x", good, {field: value}).status == 400, field
        assert not os.path.exists(server.path("followers")), os.listdir(server.path("followers"))
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(padded), padded)
        assert put(server, "x", chunked, {"Transfer-Encoding": "chunked"}).status == 204
        assert wait_for(lambda: names_in_directory(server) == ["x"])


def test_names():
    with Server() as server:
        with_head(server)
        connection = server.connection()
        for name in ("../x", "..%2fx", "%2e%2e/heads/00000001", ".x", "a/b", "a%2fb", "a~b", "a b", "%00", "a" * 65,
                     "", "a/", "%c3%a4", "/x"):
            answer = put(server, name.replace(" ", "%20"), report(name), connection=connection)
            assert answer.status == 400, (name, answer)
        assert put(server, "a" * 64, report("a" * 64), connection=connection).status == 204
        assert put(server, "%61b", report("ab"), connection=connection).status == 204
        assert wait_for(lambda: names_in_directory(server) == ["a" * 64, "ab"])
        assert sorted(os.listdir(server.path("heads"))) == ["00000001"]
        # beside the room, all is as ever
        assert server.request("PUT", "/followers", b"x").status in (201, 500)


def test_many_names():
    with Server() as server:
        with_head(server)
        connection = server.connection()
        codes = [put(server, f"n{i}", report(f"n{i}"), connection=connection).status for i in range(MOST + some_of(6000))]
        assert set(codes) == {204, 507} and codes[:1000] == [204] * 1000, set(codes)
        assert MOST - 200 <= codes.count(204) <= MOST, codes.count(204)
        assert wait_for(lambda: len(names_in_directory(server)) == codes.count(204))
        # who is known is still heard, and the answer stays small
        assert wait_for(lambda: status(server)["fleet"]["reports"] == codes.count(204))
        assert put(server, "n0", report("n0", version=1)).status == 204
        assert wait_for(lambda: next(iter(shown(server))) == "n0")
        assert len(shown(server)) == 256 and len(listed(server)) == codes.count(204)
        result = subprocess.run([WEFT, "fleet", server.url, "--json"], capture_output=True, timeout=PATIENCE)
        assert len(json.loads(result.stdout)["followers"]) == codes.count(204), result.stderr


def token_file(directory, name, token):
    path = os.path.join(directory, name)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(token + "\n")
    return path


def bearer(token):
    return {"Authorization": "Bearer " + token}


def test_tokens():
    with tempfile.TemporaryDirectory() as directory:
        reading = token_file(directory, "reading", "may-read")
        writing = token_file(directory, "writing", "may-write")
        with Server("--read-token-file", reading, "--write-token-file", writing) as server:
            write_whole(server.path(head_key(1)), make_head(1, 5, 5))
            assert wait_for(lambda: status(server, bearer("may-read"))["head"] is not None)
            for fields, code in ((None, 401), (bearer("other"), 401), (bearer("may-read"), 204),
                                 (bearer("may-write"), 204)):
                assert put(server, "x", report("x"), fields).status == code, fields
            assert server.request("PUT", "/x", b"x", bearer("may-read")).status == 403
            assert server.request("DELETE", "/followers/x", fields=bearer("may-read")).status == 403
            assert server.request("GET", "/v1/list?prefix=followers").status == 401
            assert server.request("DELETE", "/followers/x", fields=bearer("may-write")).status == 204


def test_read_only_and_without():
    with Server("--read-only") as server:
        with_head(server)
        assert put(server, "x", report("x")).status == 204
        assert server.request("DELETE", "/followers/x").status == 403
        assert server.request("PUT", "/x", b"x").status == 403
    with Server("--no-reports") as server:
        with_head(server)
        assert put(server, "x", report("x")).status == 403
        assert server.request("PUT", "/x", b"x").status == 201
        write_whole(server.path("followers/local"), report("local"))
        assert wait_for(lambda: "local" in shown(server))


def test_cannot_be_kept():
    """A disk that takes nothing: reports are seen here, the server says so once, and goes on."""
    with Server() as server:
        with_head(server)
        with open(server.path("followers"), "w"):
            pass
        for version in range(20):
            assert put(server, "x", report("x", version=version)).status == 204
            assert wait_for(lambda: shown(server).get("x", {}).get("version") == version)
        assert wait_for(lambda: status(server)["errors"])
        said = re.findall("cannot be written", server.log())
        assert len(said) == len(status(server)["errors"]) == 1, server.log()
        os.unlink(server.path("followers"))
        assert wait_for(lambda: in_directory(server, "x") is not None)


if __name__ == "__main__":
    main()
