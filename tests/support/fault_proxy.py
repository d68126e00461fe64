#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""An HTTP/1.1 proxy that does what networks, caches and object stores do on bad days, when told to.

    fault_proxy.py --upstream http://HOST:PORT --url-file FILE [--seed N] [--faults JSON]

listens on two ports of 127.0.0.1 that the kernel chooses, and writes two lines to FILE when it is ready: the
URL that clients use, and the URL that controls it. It runs until SIGTERM or SIGINT. In Python:

    with FaultProxy(upstream, seed=1) as proxy:
        proxy.set_faults([{"fault": "cut", "path": "/heads/*", "probability": 0.3}])
        ... use proxy.url ...
        proxy.counts()["cut"]

The control port knows PUT /__faults (a JSON list of rules, in force when the answer comes), GET /__faults,
DELETE /__faults, and GET /__faults/counts. Every fault is counted by its kind and logged to stderr.

The first rule that matches a request, wins its throw of dice and can do anything to the request, strikes.
What a rule may say beside "fault":

    method        GET, PUT, …; "*": any (default)
    path          a pattern as fnmatch takes it, for the path without its query; default "*"
    query         the same for what is behind the question mark
    probability   default 1
    skip          so many matching requests pass first
    count         it strikes at most so often
    per_key       … and at most so often for one path
    for_seconds   for one path, only so long after it was first asked for
    where         "answer" (default), or "request": whose body it is done to

and the faults:

    cut           the connection ends "after" so many bytes of the body (default: a random number of them);
                  with "where": "before" it ends at once, and the request is not forwarded
    truncate      only "after" bytes of the body, with a Content-Length that agrees
    flip          one random bit of the body is the other way round
    repeat        the body twice, with a Content-Length that agrees
    stall         nothing moves for "seconds" after so many bytes of the body
    delay         the request is forwarded "seconds" later
    duplicate     the request goes to the upstream twice; the answer is the second one
    lose          the request takes effect, and the connection ends before the answer
    status        "code" (default 503) and "body" instead of forwarding; "retry_after" becomes that header
    belie         the request takes effect, and the answer is "code" and "body" all the same
    missing       404 instead of forwarding a GET or HEAD
    stale         an older content of the key ("back" contents ago, default 1), if one passed through here
    wrong         what lies under another key: "other", which is asked for, or one that passed through here

Only bodies of answers 200 and 206 are touched. Everything else is forwarded as it comes, piece by piece.
"""

import argparse
import fnmatch
import http.client
import http.server
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.parse

BODY_FAULTS = ("cut", "truncate", "flip", "repeat", "stall")
READ_FAULTS = ("missing", "stale", "wrong")
FAULTS = BODY_FAULTS + READ_FAULTS + ("delay", "duplicate", "lose", "status", "belie")
FIELDS = {"fault": str, "method": str, "path": str, "query": str, "probability": (int, float), "skip": int,
          "count": int, "per_key": int, "for_seconds": (int, float), "where": str, "after": int,
          "seconds": (int, float), "code": int, "body": str, "retry_after": int, "back": int, "other": str}
HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
              "expect"}
PIECE = 64 * 1024
REMEMBERED_BYTES = 1 << 20  # of one content
REMEMBERED_CONTENTS = 16  # of one key


class Cut(Exception):
    """The client's connection is to end here."""


class Rule:
    def __init__(self, document):
        if not isinstance(document, dict) or document.get("fault") not in FAULTS:
            raise ValueError(f"a rule needs a fault, one of {', '.join(FAULTS)}: {document}")
        for name, value in document.items():
            if name not in FIELDS or not isinstance(value, FIELDS[name]):
                raise ValueError(f"{name} is no field of a rule, or has the wrong type: {document}")
        places = ("answer", "request", "before") if document["fault"] == "cut" else ("answer", "request")
        if document.get("where", "answer") not in places:
            raise ValueError(f"where is one of {', '.join(places)}: {document}")
        self.document = document
        self.fault = document["fault"]
        self.where = document.get("where", "answer")
        self.matched = 0
        self.struck = 0
        self.struck_for = {}
        self.first_seen = {}

    def get(self, name, otherwise=None):
        return self.document.get(name, otherwise)

    def matches(self, method, path, query):
        return (self.get("method", "*") in ("*", method) and fnmatch.fnmatchcase(path, self.get("path", "*"))
                and fnmatch.fnmatchcase(query, self.get("query", "*")))

    def is_open(self, path):
        """Counts a matching request; true unless the rule's numbers let it pass."""
        self.matched += 1
        first = self.first_seen.setdefault(path, time.monotonic())
        return (
            self.matched > self.get("skip", 0)
            and self.struck < self.get("count", sys.maxsize)
            and self.struck_for.get(path, 0) < self.get("per_key", sys.maxsize)
            and time.monotonic() - first < self.get("for_seconds", float("inf"))
        )


class Faults:
    """The rules in force, the dice, the counts, and the contents that passed. Shared by all connections."""

    def __init__(self, seed):
        self.lock = threading.Lock()
        self.dice = random.Random(seed)
        self.rules = []
        self.counts = dict.fromkeys(FAULTS, 0)
        self.requests = 0
        self.contents = {}  # path: [(headers, bytes), …], the newest last

    def replace(self, documents):
        if not isinstance(documents, list):
            raise ValueError("the rules are a list")
        rules = [Rule(document) for document in documents]
        with self.lock:
            self.rules = rules

    def choose(self, method, path, query):
        """The rule that strikes, already counted, or None."""
        with self.lock:
            self.requests += 1
            for rule in self.rules:
                if (rule.matches(method, path, query) and self.possible(rule, method, path) and rule.is_open(path)
                        and self.dice.random() < rule.get("probability", 1)):
                    self.count(rule, path, 1)
                    return rule
        return None

    def possible(self, rule, method, path):
        if rule.fault in READ_FAULTS and method not in ("GET", "HEAD"):
            return False
        if rule.fault == "stale":
            return len(self.contents.get(path, ())) > 1
        if rule.fault == "wrong":
            return rule.get("other") is not None or any(other != path for other in self.contents)
        return True

    def count(self, rule, path, change):
        rule.struck += change
        rule.struck_for[path] = rule.struck_for.get(path, 0) + change
        self.counts[rule.fault] += change

    def withdraw(self, rule, path):
        """The chosen rule had nothing to strike at: there was no body."""
        with self.lock:
            self.count(rule, path, -1)

    def below(self, limit):
        with self.lock:
            return self.dice.randrange(limit)

    def remember(self, path, headers, content):
        with self.lock:
            contents = self.contents.setdefault(path, [])
            if not contents or contents[-1][1] != content:
                contents.append((headers, content))
                del contents[:-REMEMBERED_CONTENTS]

    def recall(self, rule, path):
        """An older content of the path, or the last one of another path."""
        with self.lock:
            if rule.fault == "wrong":
                return self.contents[self.dice.choice(sorted(set(self.contents) - {path}))][-1]
            contents = self.contents[path]
            return contents[max(0, len(contents) - 1 - rule.get("back", 1))]

    def report(self):
        with self.lock:
            return {**self.counts, "requests": self.requests}

    def rules_in_force(self):
        with self.lock:
            return [{**rule.document, "matched": rule.matched, "struck": rule.struck} for rule in self.rules]


class Body:
    """Bytes on their way. `length` is None if it is not known in advance: then they travel in chunks."""

    def __init__(self, length, pieces):
        self.length = length
        self.pieces = pieces

    def known(self):
        """How many bytes there are, if need be by waiting for all of them."""
        if self.length is not None:
            return self.length
        content = b"".join(self.pieces)
        self.pieces = [content]
        return len(content)

    def remembered(self, remember):
        """The same body, whose bytes are given to `remember` when all are here, if they are not many: before the
        last of them has passed, since who has all may ask again at once."""
        def pieces():
            kept, size, last = [], 0, b""
            for piece in self.pieces:
                if last:
                    yield last
                last = piece
                size += len(piece)
                if size <= REMEMBERED_BYTES:
                    kept.append(piece)
            if size <= REMEMBERED_BYTES:
                remember(b"".join(kept))
            if last:
                yield last
        return Body(self.length, pieces())


def split(pieces, position):
    """Pieces such that one of them begins at the position. Yields (offset, piece)."""
    offset = 0
    for piece in pieces:
        if offset < position < offset + len(piece):
            yield offset, piece[:position - offset]
            yield position, piece[position - offset:]
        else:
            yield offset, piece
        offset += len(piece)


def damage(rule, body, below):
    """The body after a body fault, and what was done to it; (body, None) if there is nothing to damage."""
    length = body.known()
    if length == 0:
        return body, None
    position = min(rule.get("after", below(length)), length)

    def cut():
        for offset, piece in split(body.pieces, position):
            if offset >= position:
                raise Cut
            yield piece
        raise Cut

    def truncated():
        for offset, piece in split(body.pieces, position):
            if offset < position:
                yield piece

    def flipped():
        bit = 1 << below(8)
        for offset, piece in split(body.pieces, position):
            if offset == position:
                piece = bytes([piece[0] ^ bit]) + piece[1:]
            yield piece

    def stalled():
        for offset, piece in split(body.pieces, position):
            if offset == position:
                time.sleep(rule.get("seconds", 1))
            yield piece

    if rule.fault == "repeat":
        content = b"".join(body.pieces)
        return Body(None if body.length is None else 2 * length, [content, content]), f"{length} bytes twice"
    if rule.fault in ("flip", "stall"):
        position = min(position, length - 1)
    pieces = {"cut": cut, "truncate": truncated, "flip": flipped, "stall": stalled}[rule.fault]()
    new_length = position if rule.fault == "truncate" and body.length is not None else body.length
    return Body(new_length, pieces), f"at byte {position} of {length}"


def framed(body):
    """The pieces of a body as they go over the line, in chunks if its length is not known in advance."""
    for piece in body.pieces if body is not None else ():
        if piece and body.length is None:
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
        elif piece:
            yield piece
    if body is not None and body.length is None:
        yield b"0\r\n\r\n"


def is_whole(answer):
    """All bytes of an object, be it as a range."""
    span, _, size = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    return answer.status == 200 or (answer.status == 206 and size.isdigit() and span == f"0-{int(size) - 1}")


def forwarded_headers(headers, drop=()):
    return [(name, value) for name, value in headers.items()
            if name.lower() not in HOP_BY_HOP and name.lower() not in drop]


def is_answered_here(rule):
    return (rule.fault in ("missing", "stale", "status") or rule.where == "before"
            or (rule.fault == "wrong" and rule.get("other") is None))


class Upstream:
    """One request to the upstream, on a connection of its own."""

    def __init__(self, address, method, target, headers):
        self.connection = http.client.HTTPConnection(*address)
        self.method, self.target, self.headers = method, target, headers

    def send(self, body):
        """Sends the request. An upstream that hangs up early may still have answered."""
        self.connection.connect()
        self.connection.putrequest(self.method, self.target, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers:
            self.connection.putheader(name, value)
        if body is not None and body.length is None:
            self.connection.putheader("Transfer-Encoding", "chunked")
        elif body is not None:
            self.connection.putheader("Content-Length", str(body.length))
        self.connection.endheaders()
        sending = True
        for piece in framed(body):
            sending = sending and self.send_piece(piece)

    def send_piece(self, piece):
        try:
            self.connection.send(piece)
            return True
        except ConnectionError:
            return False

    def answer(self):
        return self.connection.getresponse()

    def close(self):
        self.connection.close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    # ---- the client's side ----

    def forward(self):
        self.faults = self.server.faults
        parts = urllib.parse.urlsplit(self.path)
        self.key = parts.path
        rule = self.faults.choose(self.command, self.key, parts.query)
        try:
            body = self.request_body()
            if rule is not None and is_answered_here(rule):
                self.answer_instead(rule, body)
            else:
                self.pass_on(rule, body)
        except Cut:
            self.close_connection = True
        except (OSError, http.client.HTTPException, ValueError) as error:
            # one of the two sides broke off; the other one is to see that
            print(f"fault_proxy: {self.command} {self.path}: {error!r}", file=sys.stderr, flush=True)
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_OPTIONS = do_PATCH = forward

    def say(self, rule, text):
        print(f"fault: {rule.fault} {self.command} {self.path}: {text}", file=sys.stderr, flush=True)

    def request_body(self):
        """None if there is none: an empty one is something else."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return Body(None, self.chunks())
        if "Content-Length" not in self.headers:
            return None
        length = int(self.headers["Content-Length"])
        return Body(length, self.exactly(length))

    def exactly(self, length):
        while length > 0:
            piece = self.rfile.read1(min(length, PIECE))
            if not piece:
                raise ConnectionError("the client broke off")
            length -= len(piece)
            yield piece

    def chunks(self):
        while True:
            line = self.rfile.readline(1024)
            if not line.endswith(b"\n"):
                raise ConnectionError("the client broke off between chunks")
            length = int(line.split(b";")[0], 16)
            if length == 0:
                break
            yield from self.exactly(length)
            self.rfile.readline(1024)
        while self.rfile.readline(1024) not in (b"\r\n", b"\n", b""):
            pass

    def deliver(self, status, reason, headers, body):
        """Writes an answer; `body` None: the headers say all, as for HEAD, 204 and 304."""
        lines = [f"HTTP/1.1 {status} {reason}"] + [f"{name}: {value}" for name, value in headers]
        old_client = self.request_version == "HTTP/1.0"
        if body is not None and body.length is not None:
            lines.append(f"Content-Length: {body.length}")
        elif body is not None and old_client:
            self.close_connection = True
        elif body is not None:
            lines.append("Transfer-Encoding: chunked")
        if self.close_connection:
            lines.append("Connection: close")
        self.wfile.write("\r\n".join(lines + ["", ""]).encode("latin-1"))
        for piece in body.pieces if body is not None and old_client else framed(body):
            self.wfile.write(piece)

    # ---- answers of our own ----

    def answer_instead(self, rule, body):
        if rule.where == "before":
            self.say(rule, "before the request is forwarded")
            raise Cut
        for _ in body.pieces if body is not None else ():
            pass
        if rule.fault in ("stale", "wrong"):
            self.answer_from_memory(rule)
            return
        self.answer_as_told(rule, 404 if rule.fault == "missing" else rule.get("code", 503))

    def answer_as_told(self, rule, code):
        headers = [("Retry-After", str(rule.get("retry_after")))] if rule.get("retry_after") is not None else []
        self.say(rule, f"{code}")
        self.answer_plainly(code, headers, rule.get("body", "a fault was asked for\n").encode())

    def answer_plainly(self, code, headers, content):
        body = Body(len(content), [content])
        if self.command == "HEAD":
            headers, body = headers + [("Content-Length", str(len(content)))], None
        self.deliver(code, http.client.responses.get(code, ""), headers, body)

    def answer_from_memory(self, rule):
        """As a server would that still has the older content: conditions and ranges count."""
        headers, content = self.faults.recall(rule, self.key)
        self.say(rule, f"{len(content)} other bytes")
        tag = dict(headers).get("ETag")
        if tag is not None and tag == self.headers.get("If-None-Match"):
            self.deliver(304, "Not Modified", headers, None)
            return
        first, last = self.range_asked(len(content))
        if first is None:
            self.answer_plainly(200, headers, content)
        elif first >= len(content):
            self.answer_plainly(416, headers + [("Content-Range", f"bytes */{len(content)}")], b"")
        else:
            part = ("Content-Range", f"bytes {first}-{last}/{len(content)}")
            self.answer_plainly(206, headers + [part], content[first:last + 1])

    def range_asked(self, size):
        unit, _, span = self.headers.get("Range", "").partition("=")
        first, _, last = span.partition("-")
        if unit != "bytes" or not first.isdigit() or "," in span:
            return None, None
        return int(first), min(int(last), size - 1) if last.isdigit() else size - 1

    # ---- the upstream's side ----

    def pass_on(self, rule, body):
        target = self.path
        if rule is not None and rule.fault == "delay":
            self.say(rule, f"{rule.get('seconds', 1)} s")
            time.sleep(rule.get("seconds", 1))
        if rule is not None and rule.fault == "wrong":
            target = rule.get("other")
            self.say(rule, f"the answer for {target}")
        if rule is not None and rule.fault == "duplicate":
            body = self.send_in_advance(rule, body)
        if rule is not None and rule.fault in BODY_FAULTS and rule.where == "request":
            body = self.damaged(rule, body)
        headers = forwarded_headers(self.headers, drop=("content-length",))
        sent = []
        if body is not None and self.command == "PUT":
            body = body.remembered(sent.append)
        upstream = Upstream(self.server.address, self.command, target, headers)
        try:
            try:
                upstream.send(body)
                answer = upstream.answer()
            except ConnectionRefusedError as error:
                self.close_connection = True
                self.answer_plainly(502, [], f"the upstream: {error}\n".encode())
                return
            if rule is not None and rule.fault == "lose":
                answer.read()
                self.say(rule, f"the answer was {answer.status}")
                raise Cut
            if rule is not None and rule.fault == "belie":
                answer.read()
                self.answer_as_told(rule, rule.get("code", 200))
                return
            if sent and answer.status in (200, 201, 204):
                self.remember(answer, sent[0])
            self.pass_back(rule, answer, target == self.path)
        finally:
            upstream.close()

    def send_in_advance(self, rule, body):
        """Sends the request once, and gives its body for once more."""
        content = b"".join(body.pieces) if body is not None else b""
        headers = forwarded_headers(self.headers, drop=("content-length",))
        upstream = Upstream(self.server.address, self.command, self.path, headers)
        upstream.send(None if body is None else Body(body.length, [content]))
        answer = upstream.answer()
        answer.read()
        upstream.close()
        self.say(rule, f"the first answer was {answer.status}")
        return None if body is None else Body(body.length, [content])

    def damaged(self, rule, body):
        text = None
        if body is not None:
            body, text = damage(rule, body, self.faults.below)
        if text is None:
            self.faults.withdraw(rule, self.key)
        else:
            self.say(rule, f"{rule.where}, {text}")
        return body

    def remember(self, answer, content):
        headers = [(name, answer.headers[name]) for name in ("ETag", "Last-Modified", "Content-Type")
                   if name in answer.headers]
        self.faults.remember(self.key, headers, content)

    def pass_back(self, rule, answer, own_key):
        bodiless = self.command == "HEAD" or answer.status in (204, 304) or answer.status < 200
        whole = self.command == "GET" and own_key and is_whole(answer)
        body = None if bodiless else Body(answer.length, self.answer_pieces(answer))
        if whole:
            body = body.remembered(lambda content: self.remember(answer, content))
        if rule is not None and rule.fault in BODY_FAULTS and rule.where == "answer":
            if answer.status in (200, 206):
                body = self.damaged(rule, body)
            else:
                self.faults.withdraw(rule, self.key)
        headers = forwarded_headers(answer.headers, drop=() if bodiless else ("content-length",))
        self.deliver(answer.status, answer.reason, headers, body)

    @staticmethod
    def answer_pieces(answer):
        left = answer.length
        while left != 0:
            piece = answer.read1(PIECE if left is None else min(PIECE, left))
            if not piece:
                break
            left = None if left is None else left - len(piece)
            yield piece
        if left:
            raise ConnectionError("the upstream broke off")

    def log_message(self, *arguments):
        pass


class ControlHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, code, document):
        content = (json.dumps(document) + "\n").encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        documents = {"/__faults": self.server.faults.rules_in_force, "/__faults/counts": self.server.faults.report}
        if self.path in documents:
            self.answer(200, documents[self.path]())
        else:
            self.answer(404, {"error": "there are /__faults and /__faults/counts"})

    def do_PUT(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self.server.faults.replace(json.loads(content))
        except ValueError as error:
            self.answer(400, {"error": str(error)})
            return
        self.answer(200, {})

    def do_DELETE(self):
        self.server.faults.replace([])
        self.answer(200, {})

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        print(f"fault_proxy: {sys.exc_info()[1]!r}", file=sys.stderr, flush=True)


class FaultProxy:
    """The proxy and its control port, each in a thread."""

    def __init__(self, upstream, seed=None):
        address = urllib.parse.urlsplit(upstream)
        self.faults = Faults(seed)
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.faults = self.faults
        self.server.address = (address.hostname, address.port or 80)
        self.control = Server(("127.0.0.1", 0), ControlHandler)
        self.control.faults = self.faults
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.control_url = f"http://127.0.0.1:{self.control.server_port}"

    def __enter__(self):
        for server in (self.server, self.control):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error):
        for server in (self.server, self.control):
            server.shutdown()
            server.server_close()

    def set_faults(self, documents):
        self.faults.replace(documents)

    def counts(self):
        return self.faults.report()


def main():
    parser = argparse.ArgumentParser(description="an HTTP proxy that injects faults")
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--url-file", required=True)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--faults", type=json.loads, default=[])
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with FaultProxy(options.upstream, options.seed) as proxy:
        proxy.set_faults(options.faults)
        with open(options.url_file + ".tmp", "w", encoding="ascii") as file:
            file.write(f"{proxy.url}\n{proxy.control_url}\n")
        os.rename(options.url_file + ".tmp", options.url_file)
        stop.wait()


if __name__ == "__main__":
    main()
