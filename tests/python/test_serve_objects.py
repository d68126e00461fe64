#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Objects through `weft serve`: round trips, ranges, conditions, tokens, limits, status and metrics."""
import json
import os
import shutil
import subprocess
import tempfile
import threading
import unittest
from email.utils import parsedate_to_datetime

from serving import Server, main, make_head, head_key, status_of, wait_for

DATA = bytes(range(256)) * 40


def files_under(directory):
    return sorted(os.path.relpath(os.path.join(root, name), directory)
                  for root, _, names in os.walk(directory) for name in names if name != ".lock")


def test_round_trip():
    with Server() as server:
        connection = server.connection()
        large = os.urandom(5 << 20)
        for key, data in (("pages/a", DATA), ("empty", b""), ("patches/1/x.weft", large), ("one", b"1")):
            put = server.request("PUT", "/" + key, data, connection=connection)
            assert put.status == 201 and put["etag"].startswith('"'), put
            get = server.request("GET", "/" + key, connection=connection)
            assert get.status == 200 and get.body == data and get["etag"] == put["etag"], get
            head = server.request("HEAD", "/" + key, connection=connection)
            assert head.status == 200 and head.body == b"" and head["etag"] == put["etag"]
            assert head["content-length"] == str(len(data))
            again = server.request("PUT", "/" + key, data, connection=connection)
            assert again.status == 204 and again["etag"] != put["etag"], again
            with open(server.path(key), "rb") as file:
                assert file.read() == data
            for _ in range(2):
                assert server.request("DELETE", "/" + key, connection=connection).status == 204
            for method in ("GET", "HEAD"):
                gone = server.request(method, "/" + key, connection=connection)
                assert gone.status == 404 and gone["weft-server"] == "1", gone
        assert files_under(server.directory) == []


def test_chunked():
    with Server() as server:
        body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (DATA[:1], DATA[1:5000], DATA[5000:]))
        fields = {"Transfer-Encoding": "chunked"}
        assert server.request("PUT", "/c", body + b"0\r\n\r\n", fields).status == 201
        assert server.request("GET", "/c").body == DATA


def test_fields():
    with Server() as server:
        for key, policy in (("pages/a", "immutable"), ("patches/a", "immutable"), ("anchors/a", "immutable"),
                            ("chunks/a", "immutable"), ("pieces/a", "immutable"),
                            ("heads/00000009", "no-cache"), ("x", "no-cache")):
            server.request("PUT", "/" + key, DATA)
            answer = server.request("GET", "/" + key)
            assert policy in answer["cache-control"] and answer["accept-ranges"] == "bytes", answer
            head = server.request("HEAD", "/" + key)
            dates = [parsedate_to_datetime(head[name]) for name in ("last-modified", "date")]
            assert 0 <= (dates[1] - dates[0]).total_seconds() < 3600, head
            assert ("max-age=31536000" in answer["cache-control"]) == (policy == "immutable")


def test_ranges():
    size = len(DATA)
    good = {
        "bytes=0-0": (0, 1), "bytes=0-": (0, size), "bytes=5-9": (5, 10), f"bytes={size - 1}-": (size - 1, size),
        "bytes=-1": (size - 1, size), f"bytes=-{size}": (0, size), "bytes=-99999999999999999999": (0, size),
        "bytes=100-99999999999999999999999": (100, size), "Bytes= 7-8 ": (7, 9), "bytes=,7-8": (7, 9),
    }
    ignored = ["bytes=", "bytes=-", "bytes=5-3", "bytes=a-b", "bytes=0-1,5-6", "items=0-1", "bytes 0-1",
               "bytes=0-1-2", "bytes=--1", "bytes=" + "0-0," * 2000 + "1-1"]
    beyond = [f"bytes={size}-", f"bytes={size}-{size + 5}", "bytes=-0", "bytes=99999999999999999999-"]
    with Server() as server:
        tag = server.request("PUT", "/pages/r", DATA)["etag"]
        connection = server.connection()

        def get(field, **more):
            fields = {"Range": field, **more}
            return server.request("GET", "/pages/r", fields=fields, connection=connection)

        for field, (start, end) in good.items():
            answer = get(field)
            assert answer.status == 206 and answer.body == DATA[start:end], (field, answer)
            assert answer["content-range"] == f"bytes {start}-{end - 1}/{size}", (field, answer)
            assert answer["etag"] == tag
        for field in ignored:
            answer = get(field)
            assert answer.status == 200 and answer.body == DATA, (field[:40], answer)
        for field in beyond:
            answer = get(field)
            assert answer.status == 416 and answer["content-range"] == f"bytes */{size}", (field, answer)
            assert answer["cache-control"] == "no-store", (field, answer)

        answer = get("bytes=1-2", **{"If-Range": tag})
        assert answer.status == 206 and answer.body == DATA[1:3]
        for other in ('"other"', "W/" + tag, "*", "Sun, 06 Nov 1994 08:49:37 GMT", "", tag[:-1]):
            answer = get("bytes=1-2", **{"If-Range": other})
            assert answer.status == 200 and answer.body == DATA, (other, answer)
        assert get("bytes=1-2", **{"If-None-Match": tag}).status == 304
        head = server.request("HEAD", "/pages/r", fields={"Range": "bytes=1-2"}, connection=connection)
        assert head.status == 200 and head["content-length"] == str(size), head

        server.request("PUT", "/pages/empty", b"")
        for field, code in (("bytes=0-", 416), ("bytes=0-0", 416), ("bytes=-1", 200), ("bytes=-0", 416)):
            assert server.request("GET", "/pages/empty", fields={"Range": field}).status == code, field


def test_conditional_gets():
    with Server() as server:
        tag = server.request("PUT", "/heads/00000001", DATA)["etag"]
        connection = server.connection()
        for field in (tag, "W/" + tag, "*", f'"x", {tag}', f'"x",W/{tag},"y"'):
            answer = server.request("GET", "/heads/00000001", fields={"If-None-Match": field},
                                    connection=connection)
            assert answer.status == 304 and answer.body == b"" and answer["etag"] == tag, (field, answer)
            assert answer["content-length"] in (None, str(len(DATA))), answer
        for field in ('"x"', "", tag[1:], tag[:-1], '"', "W/"):
            answer = server.request("GET", "/heads/00000001", fields={"If-None-Match": field},
                                    connection=connection)
            assert answer.status == 200 and answer.body == DATA, (field, answer)
        assert server.request("GET", "/heads/00000001", fields={"If-Match": tag}).status == 200
        assert server.request("GET", "/heads/00000001", fields={"If-Match": '"x"'}).status == 412
        assert server.request("GET", "/none", fields={"If-None-Match": "*"}).status == 404


def test_conditional_puts():
    with Server() as server:
        connection = server.connection()

        def put(data, **fields):
            fields = {name.replace("_", "-"): value for name, value in fields.items()}
            return server.request("PUT", "/heads/00000001", data, fields, connection)

        assert put(b"0", If_Match="*").status == 412
        assert put(b"0", If_Match='"x"').status == 412
        first = put(b"1", If_None_Match="*")
        assert first.status == 201, first
        assert put(b"2", If_None_Match="*").status == 412
        assert put(b"2", If_Match='"x"').status == 412
        assert put(b"2", If_Match="W/" + first["etag"]).status == 412
        second = put(b"2", If_Match=first["etag"])
        assert second.status == 204 and second["etag"] != first["etag"], second
        assert put(b"3", If_Match=first["etag"]).status == 412
        third = put(b"3", If_Match=f'"x", {second["etag"]}')
        assert third.status == 204, third
        assert put(b"4", If_Match="*").status == 204
        assert put(b"5", If_None_Match='"x"').status == 400
        assert server.request("GET", "/heads/00000001").body == b"4"
        assert server.request("DELETE", "/heads/00000001", fields={"If-Match": "*"}).status == 501
        # the refused ones left the connection usable, and a large one is refused before it is sent
        data = server.raw(b"PUT /heads/00000001 HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: *\r\n"
                          b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
        assert status_of(data) == 412, data
        assert files_under(server.directory) == ["heads/00000001"]


def test_one_of_many_wins():
    """All put at once, if absent and then if unchanged: exactly one may."""
    with Server() as server:
        for fields in ({"If-None-Match": "*"}, None):
            if fields is None:
                fields = {"If-Match": server.request("HEAD", "/contended")["etag"]}
            answers = []
            barrier = threading.Barrier(12)

            def put(number):
                connection = server.connection()
                connection.connect()
                barrier.wait()
                body = b"%d" % number
                answers.append((server.request("PUT", "/contended", body, fields, connection).status, body))

            threads = [threading.Thread(target=put, args=(i,)) for i in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            won = [body for status, body in answers if status in (201, 204)]
            assert len(won) == 1 and len(answers) == 12, answers
            assert all(status == 412 for status, body in answers if body != won[0]), answers
            assert server.request("GET", "/contended").body == won[0]


def test_limits_of_objects():
    with Server("--max-object", "100K") as server:
        assert server.request("PUT", "/fits", b"x" * 102400).status == 201
        for size in (102401, 1 << 20):
            assert server.request("PUT", "/large", b"x" * size).status == 413, size
        # a chunked body is too long only once it has come
        body = b"".join(b"4000\r\n" + b"x" * 0x4000 + b"\r\n" for _ in range(8)) + b"0\r\n\r\n"
        assert server.request("PUT", "/large", body, {"Transfer-Encoding": "chunked"}).status == 413
        data = b"PUT /large HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\nabc"
        assert status_of(server.raw(data)) == 413
        for length in (b"99999999999999999999999", b"-5", b"0x10", b"", b"5, 5", b"5 5"):
            data = (b"PUT /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " + length +
                    b"\r\n\r\nabc")
            assert status_of(server.raw(data)) in (400, 411, 413, None), length
        assert files_under(server.directory) == ["fits"]


def test_cut_uploads_leave_nothing():
    # libmicrohttpd may notice an end that comes together with data only when the connection was idle
    with Server("--idle-seconds", "2") as server:
        server.request("PUT", "/kept", b"old")
        starts = [b"Content-Length: 1000000\r\n\r\n" + b"x" * 500000,
                  b"Content-Length: 10\r\n\r\n",
                  b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
                  b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
                  b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n",
                  b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabcde\r\n0\r\n\r\n",
                  b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabcde\r\n0\r\n\r\n",
                  b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                  b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"]
        for start in starts:
            for key in (b"new", b"kept"):
                data = server.raw(b"PUT /" + key + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + start)
                assert status_of(data) in (None, 400, 413), (start[:60], data)
        assert wait_for(lambda: files_under(server.directory) == ["kept"]), files_under(server.directory)
        assert server.request("GET", "/kept").body == b"old"


def test_methods():
    with Server() as server:
        for method in ("POST", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get", "X"):
            answer = server.request(method, "/a", b"")
            assert answer.status == 405 and answer["allow"] == "GET, HEAD, PUT, DELETE", (method, answer)
        for path in ("/", "/metrics", "/v1/status", "/v1/watch"):
            for method in ("PUT", "DELETE"):
                answer = server.request(method, path, b"x")
                assert answer.status == 405 and answer["allow"].startswith("GET"), (method, path, answer)
        assert server.request("GET", "/v1/other").status == 404
        assert server.request("PUT", "/v1/other", b"x").status == 404
        assert server.request("PUT", "/a").status == 411
        # a body that nobody asked for does no harm
        assert server.request("GET", "/v1/status", b"x" * 100000).status == 200
        assert files_under(server.directory) == []


def test_read_only():
    with Server("--read-only") as server:
        os.makedirs(server.path("pages"))
        with open(server.path("pages/a"), "wb") as file:
            file.write(DATA)
        assert server.request("GET", "/pages/a").body == DATA
        assert server.request("PUT", "/pages/a", b"x").status == 403
        assert server.request("DELETE", "/pages/a").status == 403
        assert server.request("GET", "/pages/a").body == DATA


def token_file(directory, name, *tokens):
    path = os.path.join(directory, name)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write("\n".join(tokens) + "\n")
    return path


def bearer(token):
    return {"Authorization": "Bearer " + token}


def test_tokens():
    reads = ("/a", "/", "/metrics", "/v1/status", "/v1/watch?after=0&seconds=0")
    with tempfile.TemporaryDirectory() as directory:
        reader = token_file(directory, "reader", "read-1", "", "read-2\r")
        writer = token_file(directory, "writer", "write-1")
        with Server("--read-token-file", reader, "--write-token-file", writer) as server:
            assert server.request("PUT", "/a", b"x", bearer("write-1")).status == 201
            for fields in ({}, bearer(""), bearer("wrong"), bearer("read-1x"), bearer("read-"), bearer("read-2\t1"),
                           {"Authorization": "read-1"}, {"Authorization": "Basic read-1"}, bearer("x" * 9000)):
                for path in reads:
                    answer = server.request("GET", path, fields=fields)
                    assert answer.status == 401, (path, fields, answer)
                    assert answer["www-authenticate"].startswith("Bearer"), answer
                assert server.request("PUT", "/a", b"y", fields).status == 401
                assert server.request("DELETE", "/a", fields=fields).status == 401
            for token in ("read-1", "read-2", "write-1"):
                for path in reads:
                    assert server.request("GET", path, fields=bearer(token)).status in (200, 204), (token, path)
                assert server.request("HEAD", "/a", fields=bearer(token)).status == 200
            for method in ("PUT", "DELETE"):
                assert server.request(method, "/a", b"y", bearer("read-1")).status == 403
            assert server.request("GET", "/a", fields=bearer("read-1")).body == b"x"
            server.request("PUT", "/pages/a", b"x", bearer("write-1"))
            assert "private" in server.request("GET", "/pages/a", fields=bearer("read-1"))["cache-control"]
            assert server.request("DELETE", "/a", fields={"authorization": "bearer  write-1 "}).status == 204
        with Server("--write-token-file", writer) as server:
            assert server.request("PUT", "/a", b"x").status == 401
            assert server.request("PUT", "/a", b"x", bearer("write-1")).status == 201
            assert server.request("GET", "/a").body == b"x"
        with Server("--read-token-file", reader) as server:
            assert server.request("PUT", "/a", b"x", bearer("read-1")).status == 403
            assert server.request("GET", "/a", fields=bearer("read-1")).status == 404


def test_status_and_metrics():
    with Server() as server:
        server.request("PUT", "/" + head_key(1), make_head(1, 3, 41))
        server.request("GET", "/none")
        server.request("OPTIONS", "/")
        server.request("GET", "/" + head_key(1), fields={"Range": "bytes=0-9"})

        def status():
            return json.loads(server.request("GET", "/v1/status").body)

        assert wait_for(lambda: status()["head"] is not None)
        def counted():
            """A request is counted when its last byte is gone, which the client may see earlier."""
            requests = status()["requests"]
            gets, others = requests["GET"], (requests.get("PUT"), requests.get("other"))
            return gets.get("206") == 1 and gets.get("404") == 1 and others == ({"201": 1}, {"405": 1})

        assert wait_for(counted), status()
        now = status()
        assert now["head"]["version"] == 41 and now["head"]["epoch"] == 1 and now["head"]["sequence"] == 3, now
        assert now["head"]["patch_bytes"] == 77 and now["head"]["dense_bytes"] == 2000, now
        assert abs(now["head"]["density"] - 0.01) < 1e-9 and now["head"]["digest"], now
        assert now["requests"]["PUT"] == {"201": 1} and now["requests"]["GET"]["404"] == 1, now
        assert now["requests"]["other"] == {"405": 1} and now["bytes_received"] > 500, now
        assert now["connections"] >= 1 and now["watchers"] == 0 and now["errors"] == [], now

        metrics = server.request("GET", "/metrics")
        assert metrics["content-type"].startswith("text/plain; version=0.0.4"), metrics
        text = metrics.body.decode()
        for line in ("weft_serve_version 41", "weft_serve_epoch 1", "weft_serve_watchers 0",
                     'weft_serve_requests_total{method="PUT",code="201"} 1',
                     'weft_serve_requests_total{method="GET",code="206"} 1'):
            assert line in text.splitlines(), (line, text)
        assert b"/v1/status" in server.request("GET", "/").body
        if shutil.which("promtool") is None:
            raise unittest.SkipTest("promtool is not installed (make deps-test installs it): it did not check /metrics")
        checked = subprocess.run(["promtool", "check", "metrics"], input=metrics.body, capture_output=True)
        assert checked.returncode == 0 and not checked.stdout and not checked.stderr, checked


def test_failures_of_the_disk_are_told():
    with Server() as server:
        # a file where a directory has to be: nothing can be put below it
        with open(server.path("pages"), "w"):
            pass
        answer = server.request("PUT", "/pages/a", b"x")
        assert answer.status == 500 and server.directory.encode() not in answer.body, answer
        errors = json.loads(server.request("GET", "/v1/status").body)["errors"]
        assert len(errors) == 1 and "pages" in errors[0]["text"], errors
        assert "PUT pages/a" in server.log()
        assert server.request("GET", "/pages/a").status == 404
        assert files_under(server.directory) == ["pages"]


main()
