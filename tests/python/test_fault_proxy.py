#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tests/support/fault_proxy.py against an origin of our own: it forwards faithfully, and each fault does what
it says. A tool that injects faults and does not would make the tests that rest on it say nothing.
"""

import hashlib
import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
sys.path.insert(0, SUPPORT)
import fault_proxy  # noqa: E402


def tag_of(content):
    return '"' + hashlib.sha256(content).hexdigest()[:16] + '"'


class Origin(http.server.BaseHTTPRequestHandler):
    """Keeps objects in memory: GET with ranges and conditions, HEAD, PUT with conditions, DELETE. Answers to
    /chunked come in chunks, and /slow waits as long as its query says."""

    protocol_version = "HTTP/1.1"

    def exactly(self, length):
        content = self.rfile.read(length)
        if len(content) < length:
            raise ConnectionError("the client broke off")
        return content

    def request_content(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.exactly(int(self.headers.get("Content-Length", 0)))
        content = b""
        while True:
            length = int(self.rfile.readline() or b"broken off", 16)
            content += self.exactly(length)
            self.rfile.readline()
            if length == 0:
                return content

    def reply(self, code, content=b"", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if code not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD" and code not in (204, 304):
            self.wfile.write(content)

    def do_PUT(self):
        content = self.request_content()
        objects = self.server.objects
        self.server.log.append((self.command, self.path, content))
        if self.headers.get("If-None-Match") == "*" and self.path in objects:
            self.reply(412)
        elif "If-Match" in self.headers and self.headers["If-Match"] != tag_of(objects.get(self.path, b"")):
            self.reply(412)
        else:
            code = 200 if self.path in objects else 201
            objects[self.path] = content
            self.reply(code, ETag=tag_of(content))

    def do_DELETE(self):
        self.server.log.append((self.command, self.path, b""))
        self.server.objects.pop(self.path, None)
        self.reply(204)

    def do_GET(self):
        self.server.log.append((self.command, self.path, b""))
        place = urllib.parse.urlsplit(self.path)
        if place.path == "/slow":
            time.sleep(float(place.query))
        if place.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
            return
        content = self.server.objects.get(place.path)
        if content is None:
            self.reply(404, b"no such object\n")
        elif self.headers.get("If-None-Match") == tag_of(content):
            self.reply(304, ETag=tag_of(content))
        elif "Range" in self.headers:
            first, last = (int(number) for number in self.headers["Range"].partition("=")[2].split("-"))
            part = content[first:last + 1]
            self.reply(206, part, ETag=tag_of(content),
                       Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(content)}")
        else:
            self.reply(200, content, ETag=tag_of(content))

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


class OriginServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Connections that break off are what is tested."""


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()


CONTENT = bytes(range(256)) * 1024  # several pieces long


class FaultProxyTest(unittest.TestCase):
    def setUp(self):
        self.origin = OriginServer(("127.0.0.1", 0), Origin)
        self.origin.objects = {"/a": CONTENT, "/b": b"other bytes", "/slow": b"at last"}
        self.origin.log = []
        threading.Thread(target=self.origin.serve_forever, args=(0.05,), daemon=True).start()
        self.addCleanup(self.origin.server_close)
        self.addCleanup(self.origin.shutdown)
        self.origin_url = f"http://127.0.0.1:{self.origin.server_port}"
        self.proxy = fault_proxy.FaultProxy(self.origin_url, seed=3)
        self.proxy.__enter__()
        self.addCleanup(self.proxy.__exit__)
        # what the proxy has to say is of interest only when somebody looks for it
        self.stderr, sys.stderr = sys.stderr, open(os.devnull, "w", encoding="ascii")
        self.addCleanup(self.restore_stderr)

    def restore_stderr(self):
        sys.stderr.close()
        sys.stderr = self.stderr

    def connect(self, url=None):
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(url or self.proxy.url).netloc, timeout=60)
        self.addCleanup(connection.close)
        return connection

    def ask(self, method, path, body=None, connection=None, **headers):
        connection = connection or self.connect()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, headers, encode_chunked=hasattr(body, "__next__"))
        return Answer(connection.getresponse())

    def faults(self, **rule):
        self.proxy.set_faults([rule])

    def struck(self, fault, times):
        self.assertEqual(self.proxy.counts()[fault], times)

    def assertBroken(self, *arguments, **named):
        """The connection ends before a whole answer is there."""
        with self.assertRaises((http.client.HTTPException, ConnectionError)):
            self.ask(*arguments, **named)

    # ---- forwarding ----

    def test_forwards_everything_on_one_connection(self):
        connection = self.connect()
        answer = self.ask("GET", "/a", connection=connection)
        self.assertEqual((answer.status, answer.body), (200, CONTENT))
        self.assertEqual(answer.headers["ETag"], tag_of(CONTENT))
        line = connection.sock
        answer = self.ask("GET", "/a", connection=connection, Range="bytes=100000-100099")
        self.assertEqual((answer.status, answer.body), (206, CONTENT[100000:100100]))
        self.assertEqual(answer.headers["Content-Range"], f"bytes 100000-100099/{len(CONTENT)}")
        answer = self.ask("GET", "/a", connection=connection, If_None_Match=tag_of(CONTENT))
        self.assertEqual((answer.status, answer.body), (304, b""))
        answer = self.ask("HEAD", "/a", connection=connection)
        self.assertEqual((answer.status, answer.headers["Content-Length"]), (200, str(len(CONTENT))))
        answer = self.ask("PUT", "/new", b"new bytes", connection=connection, If_None_Match="*")
        self.assertEqual((answer.status, answer.headers["ETag"]), (201, tag_of(b"new bytes")))
        self.assertEqual(self.ask("PUT", "/new", b"x", connection=connection, If_None_Match="*").status, 412)
        self.assertEqual(self.ask("PUT", "/new", b"x", connection=connection, If_Match=tag_of(b"?")).status, 412)
        self.assertEqual(self.ask("PUT", "/empty", b"", connection=connection).status, 201)
        self.assertEqual(self.ask("GET", "/empty", connection=connection).body, b"")
        self.assertEqual(self.ask("DELETE", "/new", connection=connection).status, 204)
        answer = self.ask("GET", "/new", connection=connection)
        self.assertEqual((answer.status, answer.body), (404, b"no such object\n"))
        self.assertEqual(self.ask("GET", "/chunked", connection=connection).body, b"onetwo")
        self.assertIs(connection.sock, line)
        self.assertEqual(sum(self.proxy.counts().values()), self.proxy.counts()["requests"])

    def test_forwards_chunked_requests(self):
        answer = self.ask("PUT", "/new", (CONTENT[i:i + 5000] for i in range(0, len(CONTENT), 5000)),
                          Transfer_Encoding="chunked")
        self.assertEqual(answer.status, 201)
        self.assertEqual(self.origin.objects["/new"], CONTENT)

    def test_an_upload_that_breaks_off_is_no_upload(self):
        for header in (b"Content-Length: 100", b"Transfer-Encoding: chunked"):
            with socket.create_connection(("127.0.0.1", self.proxy.server.server_port)) as line:
                line.sendall(b"PUT /broken HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n4\r\nabcd\r\n")
                line.shutdown(socket.SHUT_WR)
                line.settimeout(60)
                self.assertEqual(line.recv(100), b"")
        self.assertNotIn("/broken", self.origin.objects)

    def test_waits_for_late_answers_and_answers_expectations(self):
        self.assertEqual(self.ask("GET", "/slow?1.5").body, b"at last")
        with socket.create_connection(("127.0.0.1", self.proxy.server.server_port)) as line:
            line.settimeout(60)
            line.sendall(b"PUT /e HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            self.assertTrue(line.recv(100).startswith(b"HTTP/1.1 100 "))
            line.sendall(b"ab")
            self.assertTrue(line.recv(100).startswith(b"HTTP/1.1 201 "))

    def test_an_old_client_gets_no_chunks(self):
        with socket.create_connection(("127.0.0.1", self.proxy.server.server_port)) as line:
            line.settimeout(60)
            line.sendall(b"GET /chunked HTTP/1.0\r\n\r\n")
            self.assertEqual(line.makefile("rb").read().partition(b"\r\n\r\n")[2], b"onetwo")

    def test_an_upstream_that_is_gone(self):
        self.origin.shutdown()
        self.origin.server_close()
        self.assertEqual(self.ask("GET", "/a").status, 502)

    # ---- bodies ----

    def test_cut(self):
        self.faults(fault="cut", after=1000)
        with self.assertRaises(http.client.IncompleteRead) as caught:
            self.ask("GET", "/a")
        self.assertEqual(caught.exception.partial, CONTENT[:1000])
        self.assertBroken("GET", "/chunked")
        self.struck("cut", 2)
        self.assertEqual(self.ask("HEAD", "/a").status, 200)
        self.assertEqual(self.ask("GET", "/none").status, 404)
        self.struck("cut", 2)

    def test_cut_before_and_in_the_request(self):
        self.faults(fault="cut", where="before")
        self.assertBroken("GET", "/a")
        self.assertBroken("PUT", "/new", b"bytes")
        self.assertEqual(self.origin.log, [])
        self.faults(fault="cut", where="request", after=70000)
        self.assertBroken("PUT", "/new", CONTENT)
        self.struck("cut", 3)
        self.assertNotIn("/new", self.origin.objects)

    def test_truncate(self):
        self.faults(fault="truncate", after=100000)
        answer = self.ask("GET", "/a")
        self.assertEqual((answer.status, answer.body), (200, CONTENT[:100000]))
        self.assertEqual(answer.headers["Content-Length"], "100000")
        self.faults(fault="truncate")
        self.assertLess(len(self.ask("GET", "/chunked").body), 6)
        self.struck("truncate", 2)

    def test_flip(self):
        self.faults(fault="flip")
        for path, content in (("/a", CONTENT), ("/chunked", b"onetwo")):
            body = self.ask("GET", path).body
            self.assertEqual(len(body), len(content))
            bits = sum(bin(x ^ y).count("1") for x, y in zip(body, content))
            self.assertEqual(bits, 1)
        self.faults(fault="flip", where="request")
        self.ask("PUT", "/new", b"bytes")
        self.assertNotEqual(self.origin.objects["/new"], b"bytes")
        self.assertEqual(len(self.origin.objects["/new"]), 5)
        self.struck("flip", 3)

    def test_repeat(self):
        self.faults(fault="repeat")
        self.assertEqual(self.ask("GET", "/a", Range="bytes=5-9").body, CONTENT[5:10] * 2)
        self.struck("repeat", 1)

    def test_stall(self):
        self.faults(fault="stall", seconds=1, after=100)
        begin = time.monotonic()
        self.assertEqual(self.ask("GET", "/a").body, CONTENT)
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        self.struck("stall", 1)

    # ---- requests and answers ----

    def test_delay(self):
        self.faults(fault="delay", seconds=1)
        begin = time.monotonic()
        self.assertEqual(self.ask("GET", "/a").body, CONTENT)
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        self.struck("delay", 1)

    def test_duplicate(self):
        self.faults(fault="duplicate", method="PUT")
        self.assertEqual(self.ask("PUT", "/new", b"bytes", If_None_Match="*").status, 412)
        self.assertEqual(self.origin.log, [("PUT", "/new", b"bytes")] * 2)
        self.struck("duplicate", 1)

    def test_lose(self):
        self.faults(fault="lose", method="PUT")
        self.assertBroken("PUT", "/new", b"bytes")
        self.assertEqual(self.origin.objects["/new"], b"bytes")
        self.struck("lose", 1)

    def test_status(self):
        self.faults(fault="status", code=503, retry_after=2)
        connection = self.connect()
        answer = self.ask("PUT", "/new", CONTENT, connection=connection)
        self.assertEqual((answer.status, answer.headers["Retry-After"]), (503, "2"))
        self.faults(fault="status", code=429)
        self.assertEqual(self.ask("HEAD", "/a", connection=connection).status, 429)
        self.assertEqual(self.origin.log, [])
        self.proxy.set_faults([])
        self.assertEqual(self.ask("GET", "/a", connection=connection).body, CONTENT)
        self.struck("status", 2)
        self.faults(fault="status", code=400, body="<Error/>", query="part=[12]*")
        answer = self.ask("PUT", "/new?part=2&x=y", CONTENT, connection=connection)
        self.assertEqual((answer.status, answer.body), (400, b"<Error/>"))
        self.assertEqual(self.ask("GET", "/a?part=3", connection=connection).body, CONTENT)
        self.struck("status", 3)

    def test_belie(self):
        self.faults(fault="belie", method="PUT", code=500, body="no")
        answer = self.ask("PUT", "/new", b"bytes")
        self.assertEqual((answer.status, answer.body), (500, b"no"))
        self.assertEqual(self.origin.objects["/new"], b"bytes")
        self.struck("belie", 1)

    def test_stale(self):
        self.faults(fault="stale", path="/head")
        self.assertEqual(self.ask("PUT", "/head", b"first").status, 201)
        self.assertEqual(self.ask("GET", "/head").body, b"first")
        self.struck("stale", 0)
        self.assertEqual(self.ask("PUT", "/head", b"second").status, 200)
        answer = self.ask("GET", "/head", If_None_Match=tag_of(b"second"))
        self.assertEqual((answer.status, answer.body), (200, b"first"))
        self.assertEqual(answer.headers["ETag"], tag_of(b"first"))
        self.assertEqual(self.ask("GET", "/head", If_None_Match=tag_of(b"first")).status, 304)
        answer = self.ask("GET", "/head", Range="bytes=1-100")
        self.assertEqual((answer.status, answer.body), (206, b"irst"))
        self.assertEqual(answer.headers["Content-Range"], "bytes 1-4/5")
        self.assertEqual(self.ask("GET", "/head", Range="bytes=5-9").status, 416)
        self.assertEqual(self.ask("HEAD", "/head").headers["Content-Length"], "5")
        self.struck("stale", 5)
        self.origin.objects["/head"] = b"third"
        self.proxy.set_faults([])
        self.assertEqual(self.ask("GET", "/head").body, b"third")
        self.faults(fault="stale", back=2)
        self.assertEqual(self.ask("GET", "/head").body, b"first")

    def test_missing(self):
        self.faults(fault="missing", per_key=2)
        statuses = [self.ask("GET", path).status for path in ("/a", "/b", "/a", "/b", "/a", "/b")]
        self.assertEqual(statuses, [404, 404, 404, 404, 200, 200])
        self.assertEqual(self.ask("PUT", "/new", b"bytes").status, 201)
        self.struck("missing", 4)
        self.faults(fault="missing", for_seconds=0.5)
        self.assertEqual(self.ask("HEAD", "/a").status, 404)
        time.sleep(0.6)
        self.assertEqual(self.ask("HEAD", "/a").status, 200)

    def test_wrong(self):
        self.faults(fault="wrong", path="/a")
        self.assertEqual(self.ask("GET", "/a").body, CONTENT)
        self.struck("wrong", 0)
        self.ask("GET", "/b")
        self.assertEqual(self.ask("GET", "/a").body, b"other bytes")
        self.faults(fault="wrong", other="/a")
        self.assertEqual(self.ask("GET", "/b", Range="bytes=0-3").body, CONTENT[:4])
        self.struck("wrong", 2)

    # ---- rules ----

    def test_rules_choose(self):
        self.proxy.set_faults([
            {"fault": "status", "method": "PUT", "code": 500},
            {"fault": "status", "path": "/b*", "code": 501, "skip": 1, "count": 2},
        ])
        statuses = [self.ask("GET", "/b").status for _ in range(5)]
        self.assertEqual(statuses, [200, 501, 501, 200, 200])
        self.assertEqual(self.ask("GET", "/a").status, 200)
        self.assertEqual(self.ask("PUT", "/b", b"").status, 500)

    def test_the_same_seed_throws_the_same(self):
        series = []
        for _ in range(2):
            with fault_proxy.FaultProxy(self.origin_url, seed=11) as proxy:
                proxy.set_faults([{"fault": "status", "probability": 0.5}])
                connection = self.connect(proxy.url)
                series.append([self.ask("GET", "/b", connection=connection).status for _ in range(40)])
        self.assertEqual(series[0], series[1])
        self.assertEqual(set(series[0]), {200, 503})

    def test_rules_are_checked(self):
        for rule in ({"fault": "nonsense"}, {"fault": "cut", "pat": "/a"}, {"fault": "cut", "count": "1"},
                     {"fault": "flip", "where": "before"}, "cut"):
            with self.assertRaises(ValueError):
                self.proxy.set_faults([rule])

    def test_the_command_and_its_control_port(self):
        with tempfile.TemporaryDirectory() as directory:
            url_file = os.path.join(directory, "url")
            process = subprocess.Popen(
                [sys.executable, "-B", os.path.join(SUPPORT, "fault_proxy.py"), "--upstream", self.origin_url,
                 "--url-file", url_file, "--seed", "5"], stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.stderr.close)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            while not os.path.exists(url_file):
                self.assertIsNone(process.poll())
                time.sleep(0.02)
            with open(url_file, encoding="ascii") as file:
                url, control_url = file.read().split()
            control = self.connect(control_url)
            rules = [{"fault": "missing", "path": "/a"}]
            self.assertEqual(self.ask("PUT", "/__faults", json.dumps(rules), connection=control).status, 200)
            self.assertEqual(self.ask("PUT", "/__faults", '["x"]', connection=control).status, 400)
            self.assertEqual(self.ask("GET", "/a", connection=self.connect(url)).status, 404)
            counts = json.loads(self.ask("GET", "/__faults/counts", connection=control).body)
            self.assertEqual((counts["missing"], counts["requests"]), (1, 1))
            listed = json.loads(self.ask("GET", "/__faults", connection=control).body)
            self.assertEqual(listed, [{**rules[0], "matched": 1, "struck": 1}])
            self.assertEqual(self.ask("DELETE", "/__faults", connection=control).status, 200)
            self.assertEqual(self.ask("GET", "/a", connection=self.connect(url)).status, 200)
            process.terminate()
            self.assertEqual(process.wait(60), 0)
            self.assertIn("fault: missing GET /a", process.stderr.read())


if __name__ == "__main__":
    unittest.main()
