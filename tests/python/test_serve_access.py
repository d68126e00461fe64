#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The access log of `weft serve`: what is in a line, what never is, and a file that is moved away."""
import json
import os
import re
import signal
import subprocess
import tempfile

from serving import PATIENCE, WEFT, Server, main, wait_for

COMBINED = re.compile(r'(\S+) - - \[(\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d:\d\d \+0000)\] "(\S+) (\S*) (HTTP/1\.[01])" (\d{3}) '
                      r'(\d+) "-" "([^"]*)" (\d+\.\d{6}) (\S+)')


def token_file(directory):
    path = os.path.join(directory, "token")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write("sesame\n")
    return path


def lines(path):
    with open(path) as file:
        return file.read().splitlines()


def ask(server, log):
    """A few requests; returns what lines of them have to say. A line is written when its request has ended, which may
    be after that of the next one on another connection: so each is waited for."""
    bearer = {"Authorization": "Bearer sesame", "User-Agent": 'a "b" \\ \x07c'}
    plain = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    requests = [
        (lambda: server.request("PUT", "/pages/a", b"hello", bearer).status == 201, ("PUT", "/pages/a", 201, 0)),
        (lambda: server.request("GET", "/pages/a?token=sesame", fields=bearer).body == b"hello",
         ("GET", "/pages/a", 200, 5)),
        (lambda: server.request("GET", "/pages/b", fields=bearer).status == 404, ("GET", "/pages/b", 404, None)),
        (lambda: server.request("GET", "/v1/watch?after=0&seconds=0.1", fields=bearer).status == 204,
         ("GET", "/v1/watch", 204, 0)),
        (lambda: server.request("GET", "/pages/a").status == 401, ("GET", "/pages/a", 401, None)),
        (lambda: server.raw(b'GET /"\\%0a\x01\xff' + plain), ("GET", None, 400, None)),
        (lambda: server.raw(b"BREW /" + b"x" * 1000 + plain), ("BREW", "/" + "x" * 299, None, None)),
    ]
    for i, (request, _) in enumerate(requests):
        assert request(), i
        assert wait_for(lambda: len(lines(log)) > i), lines(log)
    return [line for _, line in requests]


def compare(found, wanted):
    assert len(found) == len(wanted), found
    for (method, path, code, size), want in zip(found, wanted):
        assert method == want[0] and want[1] in (None, path) and want[2] in (None, code) and want[3] in (None, size), \
            ((method, path, code, size), want)


def test_combined():
    with tempfile.TemporaryDirectory() as scratch:
        log, token = os.path.join(scratch, "log"), token_file(scratch)
        with Server("--read-token-file", token, "--write-token-file", token, "--access-log", log) as server:
            wanted = ask(server, log)
            found = [COMBINED.fullmatch(line) for line in lines(log)]
            assert all(found), lines(log)
            compare([(f[3], f[4], int(f[6]), int(f[7])) for f in found], wanted)
            assert all(f[1] == "127.0.0.1" for f in found) and float(found[3][9]) >= 0.1
            assert found[0][8] == "a \\x22b\\x22 \\x5c \\x07c", found[0][8]
            # moved away, the file is written to until a hangup, and then there is a new one
            os.rename(log, log + ".1")
            server.process.send_signal(signal.SIGHUP)
            bearer = {"Authorization": "Bearer sesame"}
            assert wait_for(lambda: server.request("GET", "/pages/a", fields=bearer) and os.path.exists(log))
            assert wait_for(lambda: len(lines(log)) > 0)
        text = "".join(lines(log) + lines(log + ".1"))
        assert "sesame" not in text and all(" " <= byte <= "~" for byte in text), text


def test_json():
    with tempfile.TemporaryDirectory() as scratch:
        log, token = os.path.join(scratch, "log"), token_file(scratch)
        with Server("--read-token-file", token, "--write-token-file", token, "--access-log", log, "--access-format",
                    "json") as server:
            wanted = ask(server, log)
        found = [json.loads(line) for line in lines(log)]
        compare([(f["method"], f["path"], f["status"], f["bytes"]) for f in found], wanted)
        assert all(f["address"] == "127.0.0.1" and f["whole"] and f["seconds"] >= 0 for f in found), found
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found[0]["time"]), found[0]
        assert found[0]["received"] == 5 and "sesame" not in "".join(lines(log))


def test_where_it_cannot_be_written():
    with tempfile.TemporaryDirectory() as scratch:
        result = subprocess.run([WEFT, "serve", scratch, "--listen", "127.0.0.1:0", "--access-log", scratch],
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
        assert result.returncode == 1 and "cannot open the access log" in result.stderr, result
    with Server("--access-log", "/dev/full") as server:
        assert server.request("GET", "/v1/status").status == 200
        assert wait_for(lambda: json.loads(server.request("GET", "/v1/status").body)["errors"])


main()
