#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Waiting for versions through `weft serve`: woken by a put and by a file, sent away by the clock and by the
server's end. How fast is printed and not judged."""
import json
import os
import shutil
import signal
import statistics
import threading
import time

from serving import (PATIENCE, Server, head_key, main, make_head, read_all, status_of, wait_for, write_whole)


class Watcher(threading.Thread):
    """A request that waits, in a thread of its own; `at` is when its answer came."""

    def __init__(self, server, after, seconds=PATIENCE):
        super().__init__(daemon=True)
        self.server, self.path = server, f"/v1/watch?after={after}&seconds={seconds}"
        self.answer = self.at = None
        self.start()

    def run(self):
        self.answer = self.server.request("GET", self.path)
        self.at = time.monotonic()

    def result(self):
        self.join(PATIENCE)
        assert self.answer is not None, "no answer to a watch"
        return self.answer


def count_watchers(server):
    return json.loads(server.request("GET", "/v1/status").body)["watchers"]


def start_watchers(server, count, after):
    watchers = [Watcher(server, after) for _ in range(count)]
    assert wait_for(lambda: count_watchers(server) == count)
    return watchers


def put_head(server, epoch, sequence, version):
    head = make_head(epoch, sequence, version)
    assert server.request("PUT", "/" + head_key(epoch), head).status in (201, 204)
    return head


def write_head(server, epoch, sequence, version):
    head = make_head(epoch, sequence, version)
    write_whole(server.path(head_key(epoch)), head)
    return head


def test_answers_at_once_if_there_is_something():
    with Server() as server:
        head = put_head(server, 1, 1, 5)
        answer = Watcher(server, 4).result()
        assert answer.status == 200 and answer.body == head, answer
        assert answer["content-type"] == "application/json" and answer["weft-server"] == "1", answer
        assert server.request("GET", "/v1/watch").body == head
        none = server.request("GET", "/v1/watch?after=5&seconds=0")
        assert none.status == 204 and none["cache-control"] == "no-store", none
        start = time.monotonic()
        assert server.request("GET", "/v1/watch?after=5&seconds=0.5").status == 204
        assert time.monotonic() - start >= 0.49


def test_woken_by_put_and_by_file():
    with Server("--watch-seconds", "60") as server:
        delays = {"put": [], "file": []}
        for version in range(1, 21):
            # the first file is written before there is a directory of heads
            way = "file" if version % 2 == 1 else "put"
            write = write_head if way == "file" else put_head
            watchers = start_watchers(server, 3, version - 1)
            start = time.monotonic()
            head = write(server, 1, version, version)
            written = time.monotonic()
            for watcher in watchers:
                answer = watcher.result()
                assert answer.status == 200 and answer.body == head, answer
                # of a put, the request that wakes them is part of the time
                delays[way].append(watcher.at - (written if way == "file" else start))
        for way, times in delays.items():
            print(f"{way}: median {1e3 * statistics.median(times):.1f} ms, most {1e3 * max(times):.1f} ms")


def test_not_woken_by_what_is_no_news():
    with Server() as server:
        # epochs are found one after the other
        put_head(server, 1, 1, 10)
        head = put_head(server, 2, 7, 30)
        assert wait_for(lambda: server.request("GET", "/v1/watch?after=0").body == head)
        watcher = Watcher(server, 30, 3)
        put_head(server, 1, 9, 99)                       # a stale writer
        put_head(server, 2, 6, 98)                       # an older head of this epoch
        server.request("PUT", "/" + head_key(2), b"no head at all")
        server.request("PUT", "/" + head_key(2), make_head(5, 1, 97))  # another epoch's
        server.request("PUT", "/pages/x", b"x")
        assert watcher.result().status == 204, watcher.answer
        assert server.request("GET", "/v1/watch?after=29").body == head
        status = json.loads(server.request("GET", "/v1/status").body)
        assert status["head"]["version"] == 30 and status["errors"], status
        # and it goes on from there
        head = put_head(server, 2, 8, 31)
        assert Watcher(server, 30).result().body == head
        head = put_head(server, 3, 1, 32)
        assert Watcher(server, 31).result().body == head


def test_the_directory_of_heads_may_come_and_go():
    with Server() as server:
        write_head(server, 1, 1, 1)
        assert Watcher(server, 0).result().status == 200
        shutil.rmtree(server.path("heads"))
        watcher = Watcher(server, 1)
        time.sleep(0.1)
        head = write_head(server, 1, 2, 2)
        assert watcher.result().body == head


def test_wrong_questions():
    with Server() as server:
        for query in ("after=x", "after=-1", "after=", "after=1e3", "after=99999999999999999999", "seconds=x",
                      "after=0&seconds=-1", "after=0&seconds=inf", "after=0&seconds=", "after=%30"):
            answer = server.request("GET", "/v1/watch?" + query)
            assert answer.status == 400, (query, answer)
        assert server.request("HEAD", "/v1/watch").status == 405


def test_at_most_so_long_and_so_many():
    with Server("--watch-seconds", "5", "--max-watchers", "3") as server:
        watchers = start_watchers(server, 3, 0)
        answer = server.request("GET", "/v1/watch?after=0")
        assert answer.status == 503 and answer["retry-after"] == "1", answer
        assert all(watcher.result().status == 204 for watcher in watchers)
        assert Watcher(server, 0).result().status == 204


def test_watchers_that_leave_are_forgotten():
    with Server("--watch-seconds", "1", "--max-watchers", "3") as server:
        for _ in range(3):
            with server.socket() as plain:
                plain.sendall(b"GET /v1/watch?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                time.sleep(0.05)
        assert wait_for(lambda: count_watchers(server) == 0)
        head = put_head(server, 1, 1, 1)
        assert Watcher(server, 0).result().body == head


def test_many_watchers():
    with Server("--watch-seconds", "60") as server:
        watchers = start_watchers(server, 150, 0)
        assert server.request("PUT", "/pages/a", b"x" * 100000).status == 201
        start = time.monotonic()
        head = put_head(server, 1, 1, 1)
        for watcher in watchers:
            assert watcher.result().body == head
        print(f"150 watchers: the last after {1e3 * (max(w.at for w in watchers) - start):.1f} ms")
        assert wait_for(lambda: count_watchers(server) == 0)


def test_the_end_sends_them_away():
    with Server("--stop-seconds", "60") as server:
        watchers = start_watchers(server, 5, 0)
        start = time.monotonic()
        assert server.stop() == 0
        print(f"ended after {time.monotonic() - start:.2f} s")
        assert all(watcher.result().status == 204 for watcher in watchers)


def test_the_end_lets_transfers_finish():
    with Server("--stop-seconds", "60") as server:
        data = os.urandom(8 << 20)
        server.request("PUT", "/pages/a", data)
        reader = server.socket()
        reader.sendall(b"GET /pages/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        begun = reader.recv(1000)
        writer = server.socket()
        writer.sendall(b"PUT /pages/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n01234")
        idle = server.socket()
        assert wait_for(lambda: any(name.startswith(".tmp") for name in os.listdir(server.directory)))
        server.process.send_signal(signal.SIGINT)
        refused = False
        while not refused and server.process.poll() is None:
            try:
                server.socket(1).close()
            except OSError:
                refused = True
            time.sleep(0.01)
        assert refused, "it ended without letting the transfers finish"
        writer.sendall(b"56789")
        assert status_of(read_all(writer)) == 201
        body = (begun + read_all(reader)).split(b"\r\n\r\n", 1)[1]
        assert body == data
        for plain in (reader, writer, idle):
            plain.close()
        assert server.process.wait(PATIENCE) == 0
        with open(server.path("pages/b"), "rb") as file:
            assert file.read() == b"0123456789"


def test_the_end_does_not_wait_for_ever():
    with Server("--stop-seconds", "1") as server:
        server.request("PUT", "/pages/a", os.urandom(64 << 20))
        with server.socket() as plain, server.socket() as writer:
            plain.sendall(b"GET /pages/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
            plain.recv(1000)
            writer.sendall(b"PUT /pages/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n01234")
            assert wait_for(lambda: any(name.startswith(".tmp") for name in os.listdir(server.directory)))
            assert server.stop() == 0
        assert os.listdir(server.directory) == ["pages"] and os.listdir(server.path("pages")) == ["a"]


main()
