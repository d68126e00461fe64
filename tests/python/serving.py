# SPDX-License-Identifier: Apache-2.0
"""serving.py: a running `weft serve` for tests, requests to it, and heads to put into it.

Servers listen on a port that the kernel chose, work in a directory of their own, and are ended with the test
that started them.
"""
import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse

WEFT = os.environ.get("WEFT") or os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "weft")
MEMORY = os.environ.get("WEFT_TEST_MEMORY") or None  # where servers have their files, if not where all have theirs
STRIDE = max(1, int(os.environ.get("WEFT_TEST_STRIDE") or 1))  # as in tests/support/stride.h
SKIPPED = 77  # what a script ends with if something could not be tested, and nothing failed
PATIENCE = 200  # seconds that anything may take on a busy machine before a test gives up


class Answer:
    def __init__(self, status, fields, body):
        self.status, self.fields, self.body = status, fields, body

    def __getitem__(self, name):
        return self.fields.get(name.lower())

    def __repr__(self):
        return f"{self.status} {self.fields} {self.body[:200]!r}"


class Server:
    """A server and its directory; ends with `with`."""

    def __init__(self, *arguments, directory=None, ca_file=None, environment=None):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-serve.", dir=MEMORY)
        self.directory = directory or os.path.join(self.scratch.name, "store")
        self.ca_file = ca_file
        url_file = os.path.join(self.scratch.name, "url")
        self.log_path = os.path.join(self.scratch.name, "log")
        with open(self.log_path, "wb") as log:
            command = [WEFT, "serve", self.directory, "--url-file", url_file]
            if "--listen" not in arguments:
                command += ["--listen", "127.0.0.1:0"]
            self.process = subprocess.Popen(command + list(arguments), stdin=subprocess.DEVNULL, stderr=log,
                                            env=dict(os.environ, **(environment or {})))
        end = time.monotonic() + PATIENCE
        while not os.path.exists(url_file):
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError("the server did not start: " + self.log())
            time.sleep(0.01)
        with open(url_file) as file:
            self.urls = file.read().split()
        self.url = self.urls[0]
        parts = urllib.parse.urlsplit(self.url)
        self.tls, self.host, self.port = parts.scheme == "https", parts.hostname, parts.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        code = self.stop()
        log = self.log()
        self.scratch.cleanup()
        assert code == 0, f"the server ended with {code}: {log}"
        assert "Sanitizer" not in log, log

    def log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            return "no end"

    def path(self, key):
        return os.path.join(self.directory, key)

    def connection(self, timeout=PATIENCE):
        if self.tls:
            context = ssl.create_default_context(cafile=self.ca_file)
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def request(self, method, path, body=None, fields=None, connection=None):
        """One request, on a connection of its own if none is given."""
        own = connection or self.connection()
        own.putrequest(method, path, skip_accept_encoding=True)
        for name, value in (fields or {}).items():
            own.putheader(name, value)
        if body is not None and "Transfer-Encoding" not in (fields or {}):
            own.putheader("Content-Length", str(len(body)))
        own.endheaders(body)
        response = own.getresponse()
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        if connection is None:
            own.close()
        return answer

    def socket(self, timeout=PATIENCE):
        return socket.create_connection((self.host, self.port), timeout)

    def raw(self, data, timeout=PATIENCE):
        """Sends bytes as they are and returns everything that comes until the server closes."""
        with self.socket(timeout) as plain:
            try:
                plain.sendall(data)
                plain.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has closed already; what it said before is still there
            return read_all(plain)


def read_all(plain):
    parts = []
    try:
        while True:
            part = plain.recv(65536)
            if not part:
                break
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def read_until(plain, mark):
    data = b""
    while mark not in data:
        part = plain.recv(65536)
        if not part:
            break
        data += part
    return data


def status_of(data):
    """The code of a raw answer, None if there is none."""
    words = data.split(b"\r\n", 1)[0].split(b" ")
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/1.") else None


def hold_port():
    """A socket whose port nobody else is given while it is open. It never listens: until a server does that is told
    to listen there, whoever connects is refused."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def some_of(count):
    """How many of so many cases that differ little are done."""
    return max(1, count // STRIDE)


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def head_key(epoch):
    return f"heads/{epoch:08d}"


def make_head(epoch, sequence, version):
    """The bytes of a head, as lib/sync writes them."""
    body = {"weft": 1, "kind": "head", "run": "0123456789abcdef0123456789abcdef", "epoch": epoch,
            "sequence": sequence, "writer": "0123456789abcdef"}
    if version > 0:
        body["page"] = {"key": "pages/x", "bytes": 10, "sha256": "ab" * 32}
        body["newest"] = {"version": version, "epoch": epoch, "time": int(time.time() * 1000), "floor": 1,
                          "digest": "cd" * 16, "changed": 10, "total": 1000, "dense_bytes": 2000,
                          "base": "ef" * 16,
                          "patch": {"key": "patches/x", "bytes": 77, "chunk_bytes": 1 << 20,
                                    "sha256": ["ab" * 32]}}
    text = json.dumps(body).encode()
    return text + b"\nsha256 " + hashlib.sha256(text).hexdigest().encode() + b"\n"


def write_whole(path, data):
    """Into a directory as another process would: a file beside, then a rename."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = os.path.join(os.path.dirname(path), ".new")
    with open(temporary, "wb") as file:
        file.write(data)
    os.rename(temporary, path)


def main():
    """Runs the test_* functions of the calling script, or those that its arguments name."""
    functions = {name: value for name, value in vars(sys.modules["__main__"]).items() if name.startswith("test_")}
    suite = unittest.TestSuite(unittest.FunctionTestCase(functions[name], description=name)
                               for name in sys.argv[1:] or functions)
    end(unittest.TextTestRunner(verbosity=2).run(suite))


def end(result):
    """The end of a script: whoever runs it is told of what could not be tested, too."""
    sys.exit(1 if not result.wasSuccessful() else SKIPPED if result.skipped else 0)


def skip_all(text):
    """The end of a script that cannot test anything here."""
    print("SKIPPED:", text)
    sys.exit(SKIPPED)
