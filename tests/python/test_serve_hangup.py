#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A server that is sent SIGHUP goes on, and reads its tokens again: those that were taken back are refused from then
on, new ones are good, and a file that cannot be used changes nothing. Whoever is being served notices nothing."""

import os
import pathlib
import signal
import tempfile
import threading

import serving
from serving import Server, wait_for


def write_token(path, text):
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def status(server, token=None, method="GET", path="/v1/status", body=None):
    fields = {"Authorization": f"Bearer {token}"} if token else {}
    return server.request(method, path, body=body, fields=fields).status


def hang_up(server, said):
    """Sends the signal, and waits until the server has said so once more."""
    before = server.log().count(said)
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: server.log().count(said) > before or server.process.poll() is not None)
    assert server.process.poll() is None and server.log().count(said) > before, server.log()


def test_without_tokens():
    with Server() as server:
        for _ in range(3):
            hang_up(server, "serving on")
            assert status(server) == 200 and server.process.poll() is None


def test_where_hangups_are_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Server() as server:
            server.process.send_signal(signal.SIGHUP)
            assert status(server) == 200 and server.process.poll() is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_tokens_are_read_again():
    with tempfile.TemporaryDirectory(prefix="weft-tokens.") as scratch:
        reading, writing = pathlib.Path(scratch, "reading"), pathlib.Path(scratch, "writing")
        write_token(reading, "reader-1\n")
        write_token(writing, "writer-1\n")
        with Server("--read-token-file", str(reading), "--write-token-file", str(writing)) as server:
            put = {"method": "PUT", "path": "/pages/x", "body": b"x"}
            assert [status(server, token) for token in (None, "reader-1", "reader-2", "writer-1")] == [401, 200, 401, 200]
            write_token(reading, "reader-2\nreader-3\n")
            assert status(server, "reader-2") == 401, "not before it is told"
            hang_up(server, "tokens were read again")
            assert [status(server, token) for token in (None, "reader-1", "reader-2", "reader-3")] == [401, 401, 200, 200]
            write_token(writing, "writer-2\n")
            hang_up(server, "tokens were read again")
            assert [status(server, token, **put) for token in ("writer-1", "writer-2", "reader-2")] == [401, 201, 403]
            # nothing is opened by accident
            write_token(reading, "\n")
            hang_up(server, "those from before stay")
            assert [status(server, token) for token in (None, "", "reader-2")] == [401, 401, 200]
            reading.unlink()
            hang_up(server, "those from before stay")
            assert [status(server, token) for token in (None, "reader-2", "writer-2")] == [401, 200, 200]


def test_while_it_is_asked():
    """Tokens that are in both files are good at every moment."""
    with tempfile.TemporaryDirectory(prefix="weft-tokens.") as scratch:
        tokens = pathlib.Path(scratch, "tokens")
        write_token(tokens, "steady\n")
        with Server("--read-token-file", str(tokens)) as server:
            bad, over = [], threading.Event()

            def ask():
                while not over.is_set():
                    bad.extend(code for code in [status(server, "steady")] if code != 200)

            askers = [threading.Thread(target=ask) for _ in range(3)]
            for asker in askers:
                asker.start()
            for turn in range(20):
                serving.write_whole(str(tokens), f"{'other' * turn}\nsteady\n".lstrip().encode())
                os.chmod(tokens, 0o600)
                hang_up(server, "tokens were read again")
            over.set()
            for asker in askers:
                asker.join()
            assert bad == [], bad


if __name__ == "__main__":
    serving.main()
