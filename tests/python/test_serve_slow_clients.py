#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Clients of `weft serve` that take their time: a byte now and then keeps no connection, and those who have shown no
token make room for one who has. How fast a valid client is answered is printed and not judged."""
import json
import os
import socket
import tempfile
import threading
import time

from relaying import Relay, Run
from serving import PATIENCE, Server, main, read_all, wait_for

BEARER = {"Authorization": "Bearer secret"}


def token_file(directory):
    path = os.path.join(directory, "token")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write("secret\n")
    return path


class Dripper(threading.Thread):
    """Sends a byte per `pause` for ever, and comes again whenever it is cut."""

    def __init__(self, server, head, ended, pause):
        super().__init__(daemon=True)
        self.server, self.head, self.ended, self.pause, self.cuts = server, head, ended, pause, 0
        self.start()

    def run(self):
        while not self.ended.is_set():
            try:
                with self.server.socket(PATIENCE) as plain:
                    plain.sendall(self.head)
                    plain.setblocking(False)
                    while not self.is_cut(plain) and not self.ended.wait(self.pause):
                        plain.send(b"x")
            except OSError:
                pass
            self.cuts += 1
            self.ended.wait(self.pause)

    @staticmethod
    def is_cut(plain):
        try:
            return plain.recv(1000) == b""
        except BlockingIOError:
            return False


def attack(server, head, fields, pause, asks):
    """What a valid client meets beside 40 that drip; each of its requests is a new connection."""
    ended, delays = threading.Event(), []
    drippers = [Dripper(server, head, ended, pause) for _ in range(40)]
    try:
        for _ in range(asks):
            start = time.monotonic()
            answer = server.request("GET", "/pages/a", fields=fields)
            delays.append(time.monotonic() - start)
            assert answer.status == 200 and answer.body == b"here", answer
            time.sleep(0.05)
        status = json.loads(server.request("GET", "/v1/status", fields=fields).body)
        assert status["connections"] <= 32, status["connections"]
    finally:
        ended.set()
        for dripper in drippers:
            dripper.join()
    print(f"40 drippers on 32 connections: a valid client is answered after {max(delays):.3f} s at most")


def put_object(server):
    os.makedirs(server.path("pages"))
    with open(server.path("pages/a"), "wb") as file:
        file.write(b"here")


def test_headers_that_drip():
    """Every dripper would hold its connection for ten minutes."""
    with tempfile.TemporaryDirectory() as scratch:
        patient = ("--max-connections", "32", "--request-seconds", "600", "--idle-seconds", "600")
        with Server("--read-token-file", token_file(scratch), "--max-per-address", "64", *patient) as server:
            put_object(server)
            attack(server, b"GET /pages/a HTTP/1.1\r\nX-", BEARER, 1, 60)
            # without a token also those go whose request was refused, and whose connection is kept
            attack(server, b"GET /pages/a HTTP/1.1\r\nHost: localhost\r\n\r\nGET /", BEARER, 1, 20)
        with Server(*patient) as server:
            put_object(server)
            attack(server, b"GET /pages/a HTTP/1.1\r\nX-", {}, 1, 20)


def test_whole_requests_have_a_deadline():
    """No byte comes too late, and all of them do."""
    heads = [b"", b"GET /pages/a HTTP/1.1\r\nX-", b"GET /pages/a HTTP/1.1\r\nHost: localhost\r\n\r\nGET ",
             b"PUT /pages/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n",
             b"PUT /pages/b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n100000\r\n"]
    with Server("--request-seconds", "1", "--idle-seconds", "2") as server:
        put_object(server)
        ended = threading.Event()
        drippers = [Dripper(server, head, ended, 0.1) for head in heads]
        assert wait_for(lambda: all(dripper.cuts > 0 for dripper in drippers)), [d.cuts for d in drippers]
        ended.set()
        for dripper in drippers:
            dripper.join()
        text = server.request("GET", "/metrics").body.decode()
        late = [line for line in text.splitlines() if line.startswith("weft_serve_connections_late_total ")]
        assert float(late[0].split()[1]) >= len(heads), late


def read_slowly(server, key):
    """A byte now and then, until the connection is cut."""
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect((server.host, server.port))
        plain.sendall(f"GET /{key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        status = {}

        def is_cut():
            try:
                plain.recv(100)
            except ConnectionError:
                pass
            status.update(json.loads(server.request("GET", "/v1/status").body))
            return status["requests_cut"] == 1

        assert wait_for(is_cut), status


def test_answers_have_to_be_taken():
    """A reader of a byte now and then is cut, though something always moves."""
    hurried = ("--request-seconds", "1", "--least-rate", "8M", "--idle-seconds", "60")
    with Server(*hurried) as server:
        server.request("PUT", "/patches/a", bytes(8 << 20))
        read_slowly(server, "patches/a")
    # so it is where a relay passes on what it is still fetching
    with Run(parameters="4M", steps=1) as run:
        run.publish()
        with Relay(run.origin.url, *hurried) as relay:
            relay.has_version(1)
            read_slowly(relay, run.keys("anchors")[0])


def test_slow_uploads_that_keep_to_the_rate():
    with Server("--request-seconds", "2", "--least-rate", "16K") as server:
        with server.socket() as plain:
            plain.sendall(b"PUT /patches/b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                          b"Content-Length: 1048576\r\n\r\n")
            for _ in range(16):
                plain.sendall(bytes(65536))
                time.sleep(0.2)
            assert b" 201 " in read_all(plain)


def test_one_address_has_its_share():
    with Server("--max-connections", "64", "--max-per-address", "8") as server:
        put_object(server)
        idle = [server.socket() for _ in range(30)]
        try:
            assert wait_for(lambda: json.loads(server.request("GET", "/v1/status").body)["connections"] <= 8)
            assert server.request("GET", "/pages/a").status == 200
        finally:
            for plain in idle:
                plain.close()


main()
