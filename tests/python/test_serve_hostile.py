#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`weft serve` among strangers: paths that try to get out, requests that are none, too large or never end,
readers that do not read, and connections that do nothing. Others are served meanwhile."""
import itertools
import json
import os
import random
import socket
import subprocess
import tempfile
import threading
import time

from serving import PATIENCE, WEFT, Server, main, read_all, status_of, wait_for


def get(target, more=b""):
    return b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + more + b"\r\n"


def test_no_path_leads_out():
    with Server() as server:
        secret = os.path.join(os.path.dirname(server.directory), "secret")
        for path in (secret, server.path("secret"), server.path(".hidden"), server.path("a")):
            with open(path, "wb") as file:
                file.write(b"SECRET" if path != server.path("a") else b"public")
        os.symlink(secret, server.path("link"))
        os.symlink("/etc/passwd", server.path("passwd"))
        os.rename(server.path("secret"), os.path.join(server.directory, ".secret"))

        ups = [b"..", b"%2e%2e", b"%2E.", b".%2e", b"%252e%252e", b"..%00", b"%c0%ae%c0%ae", b"\xc0\xae\xc0\xae",
               b"%u002e%u002e", b"..;", b"...", b"..\\", b"..%5c", b"%2e%2e%2f", b"..%2f", b".%00./"]
        slashes = [b"/", b"//", b"%2f", b"%2F", b"\\", b"%5c", b"/./", b"%252f", b"%c0%af"]
        targets = [b"/" + up + slash + b"secret" for up, slash in itertools.product(ups, slashes)]
        targets += [b"/a" + slash + up + slash + up + slash + b"secret"
                    for up, slash in itertools.product(ups, slashes)]
        targets += [b"../secret", b"..", b"secret", b"//secret", b"///etc/passwd", b"/" + secret.encode(),
                    b"//" + secret.encode(), b"file://" + secret.encode(), b"http://x/../secret",
                    b"http://x" + secret.encode(), b"/.hidden", b"/.secret", b"/%2ehidden", b"/a/../.hidden",
                    b"/link", b"/passwd", b"/.", b"/./", b"/a/", b"/a/.", b"/a%00.x", b"/a\x00", b"/%00", b"/a%",
                    b"/a%2", b"/a%gg", b"/?/../secret", b"/a?x=/../secret#/../secret", b"*", b"/*",
                    b"/" + b"x" * 201, b"/" + b"a/" * 101 + b"a", b"/" + b"x" * 30000, b"/con:x", b"/a:b",
                    b"/a%20b", b"/a%0d%0aX-Bad:%201", b"/\xff\xfe", b"/" + "ü".encode()]
        for target in targets:
            for method in (b"GET", b"PUT"):
                body = b"" if method == b"GET" else b"Content-Length: 3\r\n"
                data = (method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + body + b"\r\n" +
                        (b"bad" if body else b""))
                if method == b"PUT" and target.split(b"?")[0].split(b"\x00")[0] == b"/a":
                    continue  # the query and what a zero byte cuts off leave a good key
                answer = server.raw(data)
                code = status_of(answer)
                assert b"SECRET" not in answer and b"root:" not in answer, (target, answer)
                # a put may replace a link, and never follows it
                replaced = method == b"PUT" and target in (b"/link", b"/passwd") and code == 201
                assert replaced or code in (None, 200, 400, 404, 405, 413, 414, 431, 500), (target, answer)
                assert code != 200 or b"public" in answer or b"weft store" in answer, (target, answer)
                assert b"X-Bad" not in answer, answer
        above = sorted(os.listdir(os.path.dirname(server.directory)))
        assert above == ["log", "secret", "store", "url"], above
        with open(secret, "rb") as file:
            assert file.read() == b"SECRET"
        with open("/etc/passwd", "rb") as file:
            assert file.read(3) != b"bad"


def ask_as(server, host, method="GET", path="/v1/status", fields=b""):
    body = b"Content-Length: 3\r\n" if method == "PUT" else b""
    return status_of(server.raw(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n".encode() + body +
                                fields + b"\r\n" + (b"abc" if method == "PUT" else b"")))


def test_names_that_are_not_its_own():
    """A page in a browser on this machine can have its name point to 127.0.0.1, and is then taken for the server's
    own. It still asks under its name."""
    with Server() as server:
        good = (f"127.0.0.1:{server.port}", "127.0.0.1", "localhost", f"LOCALHOST:{server.port}", "[::1]", "[::1]:80",
                "10.0.0.5:8477")
        bad = ("evil.example", f"evil.example:{server.port}", "localhost.evil.example", "127.0.0.1.evil.example", "1",
               "[evil]", "[::1].evil", "x@127.0.0.1", "127.0.0.1:80:80", "localhost:x", "[::1", "::1")
        for host in good:
            assert ask_as(server, host) == 200, host
            assert ask_as(server, host, "PUT", "/pages/a") in (201, 204), host
            assert ask_as(server, host, "DELETE", "/pages/a") == 204, host
        assert server.request("PUT", "/pages/a", b"abc").status == 201
        for host in bad:
            for path in ("/", "/v1/status", "/metrics", "/pages/a", "/v1/watch?seconds=0", "/v1/list?prefix=followers"):
                assert ask_as(server, host, path=path) == 421, (host, path)
            assert ask_as(server, host, "PUT", "/pages/b") == 421, host
            assert ask_as(server, host, "PUT", "/followers/b") == 421, host
            assert ask_as(server, host, "DELETE", "/pages/a") == 421, host
        assert os.listdir(server.path("pages")) == ["a"]
    with Server("--host", "weights.example", "--host", "w") as server:
        assert ask_as(server, "weights.example") == ask_as(server, "W:80") == 200
        assert ask_as(server, "evil.example") == 421
    with Server("--listen", "localhost:0") as server:
        assert ask_as(server, f"localhost:{server.port}") == 200


def test_names_where_a_token_is_needed():
    """What a page cannot know, it cannot ask with."""
    with tempfile.NamedTemporaryFile("w") as token:
        token.write("secret\n")
        token.flush()
        bearer = b"Authorization: Bearer secret\r\n"
        with Server("--read-token-file", token.name) as server:
            assert ask_as(server, "weights.example", fields=bearer) == 200
            assert ask_as(server, "weights.example") == 401
        with Server("--write-token-file", token.name) as server:
            assert ask_as(server, "weights.example", "PUT", "/pages/a", bearer) == 201
            assert ask_as(server, "weights.example", "PUT", "/pages/a") == 401
            assert ask_as(server, "weights.example") == 421


def test_starts_with_few_descriptors_or_not_at_all():
    """Whatever it is that cannot be opened, the server says so and ends."""
    codes = set()
    with tempfile.TemporaryDirectory(prefix="weft-few.") as scratch:
        for count in range(5, 21):
            url = os.path.join(scratch, f"url-{count}")
            command = ["prlimit", f"--nofile={count}:{count}", WEFT, "serve", os.path.join(scratch, "store"),
                       "--listen", "127.0.0.1:0", "--url-file", url]
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
                assert wait_for(lambda: process.poll() is not None or os.path.exists(url)), count
                process.terminate()
                said = process.communicate(timeout=PATIENCE)[1]
            assert process.returncode in (0, 1, 127) and b"Sanitizer" not in said, (count, process.returncode, said)
            codes.add(process.returncode)
    assert {0, 1} <= codes, codes


def test_malformed_requests():
    line = b"GET / HTTP/1.1\r\n"
    requests = [
        b"", b"\r\n", b"\r\n\r\n", b"\x00" * 1000, b"GET", b"GET /", b"GET / \r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n", b"GET  /  HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        line + b"no colon\r\n\r\n", line + b": empty\r\n\r\n", line + b"Host: localhost\r\n folded\r\n\r\n",
        line + b"Host: localhost\r\nHo\x00st: y\r\n\r\n", line + b"Host: localhost\r\nA" * 5000 + b"\r\n\r\n",
        line + b"Host: localhost\r\nX: " + b"y" * 200000 + b"\r\n\r\n", b"G" * 200000, b"GET /" + b"a" * 200000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT x:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        line + b"Host: localhost\r\nRange: bytes=" + b"9" * 20000 + b"-\r\n\r\n",
        line + b"Host: localhost\r\nIf-None-Match: " + b'"a",' * 5000 + b"\r\n\r\n",
        line + b"Host: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", line + b"Host: localhost\r\nExpect: everything\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"PUT /a HTTP/1.0\r\n\r\n", b"PUT /a HTTP/1.1\r\nHost: localhost\r\nContent-Range: bytes 0-2/9\r\n"
                                     b"Content-Length: 3\r\n\r\nabc",
        b"PUT /a HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    ]
    with Server("--idle-seconds", "2") as server:
        for data in requests:
            answer = server.raw(data)
            code = status_of(answer)
            assert code is None or code in (200, 400, 405, 411, 413, 414, 417, 431, 500, 501, 505), (data[:60], answer)
        generator = random.Random(7)
        words = [b"GET ", b"PUT ", b"/a", b" HTTP/1.1", b"\r\n", b"Host: localhost", b"\r\n\r\n", b"Content-Length: 5",
                 b"Transfer-Encoding: chunked", b"Range: bytes=0-", b"\x00", b"\xff", b"5\r\nabcde", b"0\r\n\r\n", b":"]
        # all at once: each may have to wait until it has been idle
        threads = [threading.Thread(target=server.raw,
                                    args=(b"".join(generator.choices(words, k=generator.randrange(1, 12))),))
                   for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.request("GET", "/v1/status").status == 200


def test_idle_connections_do_not_matter():
    with Server("--idle-seconds", "6") as server:
        idle = [server.socket() for _ in range(200)]
        for number, plain in enumerate(idle):
            if number % 2:
                plain.sendall(b"GET /pages/a HTTP/1.1\r\nHo")  # half a header, and no more
        data = os.urandom(1 << 20)
        start = time.monotonic()
        for number in range(20):
            assert server.request("PUT", f"/pages/{number}", data).status == 201
            assert server.request("GET", f"/pages/{number}").body == data
        print(f"20 MiB there and back beside 200 idle connections: {time.monotonic() - start:.2f} s")
        # they are cut when their time is up
        for plain in idle:
            plain.settimeout(PATIENCE)
            read_all(plain)
            plain.close()
        assert wait_for(lambda: json.loads(server.request("GET", "/v1/status").body)["connections"] <= 2)


def test_more_connections_than_allowed_wait_their_turn():
    with Server("--max-connections", "16", "--idle-seconds", "3") as server:
        idle = [server.socket() for _ in range(40)]
        assert server.request("GET", "/v1/status").status == 200
        for plain in idle:
            plain.close()


def test_slow_readers_do_not_matter():
    with Server("--idle-seconds", "5") as server:
        size = 64 << 20
        server.request("PUT", "/patches/big", bytes(size))
        slow = []
        for _ in range(10):
            plain = socket.socket()
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.connect((server.host, server.port))
            plain.sendall(b"GET /patches/big HTTP/1.1\r\nHost: localhost\r\n\r\n")
            slow.append(plain)
        start = time.monotonic()
        for _ in range(3):
            assert len(server.request("GET", "/patches/big").body) == size
        print(f"3 times 64 MiB beside 10 slow readers: {time.monotonic() - start:.2f} s")
        with open(f"/proc/{server.process.pid}/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        print(f"resident: {resident >> 20} MiB")
        assert wait_for(lambda: json.loads(server.request("GET", "/v1/status").body)["requests_cut"] >= 10)
        for plain in slow:
            plain.close()


def test_slow_senders_are_cut():
    with Server("--idle-seconds", "1") as server:
        with server.socket() as plain:
            plain.sendall(b"PUT /pages/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
            assert read_all(plain) == b""
        assert wait_for(lambda: os.listdir(server.directory) == []), os.listdir(server.directory)


def test_bodies_that_nobody_wants():
    """A refusal reaches a client that is still sending, or the connection is cut; nothing is kept."""
    with Server("--read-only") as server:
        for length in (1000, 4 << 20, 64 << 20):
            for framing in ("length", "chunked"):
                with server.socket() as plain:
                    header = b"PUT /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    header += (b"Content-Length: %d\r\n\r\n" % length if framing == "length" else
                               b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % length)
                    plain.sendall(header)
                    try:
                        for _ in range(length // 1000):
                            plain.sendall(b"x" * 1000)
                        plain.sendall(b"x" * (length % 1000))
                        if framing == "chunked":
                            plain.sendall(b"\r\n0\r\n\r\n")
                    except ConnectionError:
                        assert length > 8 << 20
                    code = status_of(read_all(plain))
                    assert code == 403 or (length > 8 << 20 and code is None), (length, framing, code)
        assert server.request("GET", "/v1/status").status == 200


def test_pipelined_requests_are_answered_in_order():
    with Server() as server:
        for number in range(5):
            server.request("PUT", f"/pages/{number}", b"<%d>" % number)
        data = b"".join(b"GET /pages/%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number for number in range(4))
        answer = server.raw(data + get(b"/pages/4"))
        positions = [answer.index(b"<%d>" % number) for number in range(5)]
        assert positions == sorted(positions) and answer.count(b"HTTP/1.1 200") == 5, answer


def test_busy():
    """Puts, gets, removals and watches of many at once; every get is some whole content or none."""
    with Server("--volatile") as server:
        contents = [bytes([65 + i]) * (50000 + i) for i in range(6)]
        failures = []

        def work(number):
            generator = random.Random(number)
            connection = server.connection()
            try:
                for _ in range(60):
                    key = f"/shared/{generator.randrange(3)}"
                    choice = generator.randrange(10)
                    if choice < 4:
                        answer = server.request("PUT", key, generator.choice(contents), connection=connection)
                        assert answer.status in (201, 204), answer
                    elif choice < 8:
                        answer = server.request("GET", key, connection=connection)
                        assert answer.status == 404 or answer.body in contents, answer
                    elif choice == 8:
                        assert server.request("DELETE", key, connection=connection).status == 204
                    else:
                        path = "/v1/watch?after=0&seconds=0.02"
                        assert server.request("GET", path, connection=connection).status == 204
            except Exception as failure:  # told by the main thread
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert set(os.listdir(server.directory)) <= {"shared"}, os.listdir(server.directory)


main()
