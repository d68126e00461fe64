#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`weft serve` at several addresses: one store, one bound on connections, one end."""
import json
import os
import subprocess
import tempfile
import threading
import urllib.parse

from serving import PATIENCE, WEFT, Server, head_key, main, make_head, read_all, status_of, wait_for


class Place:
    """One of the addresses of a server, as a server."""

    def __init__(self, server, number):
        parts = urllib.parse.urlsplit(server.urls[number])
        self.tls, self.host, self.port = parts.scheme == "https", parts.hostname, parts.port
        self.request, self.socket = Server.request.__get__(self), Server.socket.__get__(self)
        self.connection = Server.connection.__get__(self)


def test_two_addresses():
    with Server("--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0") as server:
        places = [Place(server, 0), Place(server, 1)]
        assert [place.host for place in places] == ["127.0.0.1", "127.0.0.2"], server.urls
        answers = []
        watcher = threading.Thread(target=lambda: answers.append(places[1].request("GET", "/v1/watch?after=0")))
        watcher.start()
        assert wait_for(lambda: json.loads(places[0].request("GET", "/v1/status").body)["watchers"] == 1)
        assert places[0].request("PUT", "/" + head_key(1), make_head(1, 1, 1)).status == 201
        watcher.join(PATIENCE)
        assert answers[0].status == 200 and answers[0].body == places[0].request("GET", "/" + head_key(1)).body
        # both are loopback addresses, so a name that is none of theirs is refused at each
        for place in places:
            with place.socket() as plain:
                plain.sendall(b"GET /v1/status HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n")
                assert status_of(read_all(plain)) == 421
        assert server.log().count(" serves ") == 2, server.log()


def is_open(plain):
    plain.setblocking(False)
    try:
        return plain.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_one_bound_for_all():
    """Connections that wait for a version are not cut to make room, so who comes to a full server is."""
    with Server("--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0", "--max-connections", "16", "--max-watchers", "64",
                "--max-per-address", "64", "--watch-seconds", "600") as server:
        places = [Place(server, 0), Place(server, 1)]
        waiting = []
        try:
            for number in range(40):
                plain = places[number % 2].socket()
                plain.sendall(b"GET /v1/watch?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                waiting.append(plain)
            # with those at one address that the kernel has taken and the server has not
            assert wait_for(lambda: 12 <= sum(map(is_open, waiting)) <= 20), sum(map(is_open, waiting))
        finally:
            for plain in waiting:
                plain.close()


def test_an_address_that_is_taken():
    with Server() as server, tempfile.TemporaryDirectory() as scratch:
        result = subprocess.run([WEFT, "serve", os.path.join(scratch, "store"), "--listen", "127.0.0.1:0", "--listen",
                                 f"127.0.0.1:{server.port}"], capture_output=True, text=True, timeout=PATIENCE)
        assert result.returncode == 1 and "another process listens there" in result.stderr, result
        many = [word for _ in range(9) for word in ("--listen", "127.0.0.1:0")]
        result = subprocess.run([WEFT, "serve", os.path.join(scratch, "store"), *many], capture_output=True, text=True,
                                timeout=PATIENCE)
        assert result.returncode == 2 and "--listen is given at most 8 times" in result.stderr, result


main()
