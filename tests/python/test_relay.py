# SPDX-License-Identifier: Apache-2.0
"""`weft serve STORE --cache DIR`: what a relay fetches, keeps, hands on and says, with real followers."""
import http.server
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import serving
from relaying import DOWN, QUICK, WEFT, Relay, Run, at_once
from serving import Server, read_until, some_of, wait_for

MIB = 1 << 20


def test_followers_through_a_relay():
    with Run() as run:
        run.publish()
        with Relay(run.origin.url) as relay:
            run.pull(relay.url)
            for _ in range(3):
                relay_version = run.publish()
                relay.has_version(relay_version)
                run.pull(relay.url)
            run.pull(relay.url, "newcomer")
            state = relay.relay()
            assert state["reached"] and state["error"] is None and state["upstream"] == "http://…", state
            assert state["damaged"] == 0 and state["refused_heads"] == 0 and not state["disk_full"], state
            log = run.weft("log", relay.url, "--json").stdout
            assert log == run.weft("log", run.origin.url, "--json").stdout


def test_where_it_fetches_is_told_with_a_token():
    """Whoever asks without one learns neither the address nor what errors say of it."""
    with Run() as run, tempfile.TemporaryDirectory(prefix="weft-tokens.") as scratch:
        run.publish()
        token = os.path.join(scratch, "token")
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("reader\n")
        address = run.proxy.url.split("//")[1].rstrip("/")
        host, port = address.split(":")
        fields = {"Authorization": "Bearer reader"}
        with Relay(run.proxy.url, *QUICK) as open_one, \
                Relay(run.proxy.url, *QUICK, "--read-token-file", token) as closed_one:
            open_one.has_version(1)
            run.proxy.set_faults(DOWN)
            assert wait_for(lambda: not open_one.relay()["reached"])

            def told(path):
                return closed_one.request("GET", path, fields=fields).body.decode()

            assert wait_for(lambda: not json.loads(told("/v1/status"))["relay"]["reached"])
            state = json.loads(told("/v1/status"))["relay"]
            assert address in state["upstream"] and address in state["error"], state
            assert closed_one.request("GET", "/v1/status").status == 401
            state = open_one.relay()
            assert state["upstream"] == "http://…" and "token" in state["error"], state
            open_one.request("GET", "/patches/none")
            for path in ("/v1/status", "/v1/history", "/v1/train", "/metrics", "/", "/patches/none", "/heads/00000009"):
                said = open_one.request("GET", path).body.decode()
                assert f"{host}:{port}" not in said and f"port {port}" not in said, (path, said)


def test_one_fetch_however_many_ask():
    with Run("2M", steps=1) as run:
        run.publish()
        anchor = run.keys("anchors")[0]
        content = run.content(anchor)
        assert len(content) > 2 * MIB  # several chunks
        with Relay(run.proxy.url) as relay:
            relay.has_version(1)
            run.proxy.set_faults([{"fault": "delay", "seconds": 1, "path": "/anchors/*"}])
            before = relay.relay()
            answers = at_once(64, lambda i: relay.request("GET", "/" + anchor))
            assert all(answer.status == 200 and answer.body == content for answer in answers)
            assert run.asked() == 1, run.proxy.faults.rules_in_force()
            state = relay.relay()
            assert state["fetches"] - before["fetches"] <= 2, state  # the anchor, and the page that names it
            assert state["misses"] - before["misses"] <= 2, state
            assert state["joined"] + state["hits"] + state["misses"] >= 64, state
            # and once it is here, it is not asked for at all
            assert relay.request("GET", "/" + anchor).body == content
            assert run.asked() == 1
            metrics = relay.request("GET", "/metrics").body.decode()
            assert f"weft_relay_joined_total {state['joined']}" in metrics
            assert "weft_relay_upstream_up 1" in metrics


class Gate(http.server.BaseHTTPRequestHandler):
    """A plain server of a directory. Of large objects it gives `first` bytes, and the rest when it is opened."""
    protocol_version = "HTTP/1.1"
    root, first, opened = None, 0, None

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_body):
        path = os.path.join(self.root, self.path.lstrip("/"))
        if self.path.startswith("/v1/") or not os.path.isfile(path):
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with open(path, "rb") as file:
            content = file.read()
        asked = self.headers.get("Range", "").replace("bytes=", "").split("-")
        part = content
        if len(asked) == 2:
            start, end = int(asked[0]), min(int(asked[1]) + 1, len(content))
            part = content[start:end]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if with_body:
            self.wfile.write(part[:self.first])
            if len(part) > self.first:
                self.opened.wait(serving.PATIENCE)
            self.wfile.write(part[self.first:])

    def log_message(self, *arguments):
        pass


def test_streams_while_it_fetches():
    """The first chunk reaches a client while the upstream still holds the last ones back."""
    with Run("2M", steps=1) as run:
        run.publish()
        anchor = run.keys("anchors")[0]
        content = run.content(anchor)
        opened = threading.Event()
        gate = type("Held", (Gate,), {"root": run.origin.directory, "first": MIB + 1000, "opened": opened})
        upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), gate)
        upstream.daemon_threads = True
        threading.Thread(target=upstream.serve_forever, args=(0.05,), daemon=True).start()
        with Relay(f"http://127.0.0.1:{upstream.server_port}") as relay:
            relay.has_version(1)
            with relay.socket() as client:
                client.sendall(f"GET /{anchor} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                data = read_until(client, b"\r\n\r\n")
                head, _, body = data.partition(b"\r\n\r\n")
                assert b" 200 " in head and f"content-length: {len(content)}".encode() in head.lower(), head
                while len(body) < MIB:
                    body += client.recv(65536)
                assert not opened.is_set() and not os.path.exists(relay.cached(anchor))
                client.settimeout(0.3)  # not one byte of the second chunk, which was not checked yet
                try:
                    more = client.recv(65536)
                except socket.timeout:
                    more = b""
                assert body + more == content[:MIB], len(body + more)
                opened.set()
                client.settimeout(serving.PATIENCE)
                while len(body) < len(content):
                    body += client.recv(65536)
                assert body == content
            run.pull(relay.url)
        upstream.shutdown()
        upstream.server_close()


def test_upstream_down_and_up():
    with Run() as run:
        run.publish()
        with Relay(run.proxy.url, *QUICK) as relay:
            run.pull(relay.url)
            missing = run.keys("anchors")[0]
            run.proxy.set_faults(DOWN)
            assert wait_for(lambda: not relay.relay()["reached"])
            run.pull(relay.url, "while it is down")
            state = relay.relay()
            assert state["error"] and state["head_seconds"] >= 0 and state["state_seconds"] >= 0, state
            assert "weft_relay_upstream_up 0" in relay.request("GET", "/metrics").body.decode()
            # what is not here cannot be had, and whoever asks is told to come again
            assert wait_for(lambda: os.path.exists(relay.cached(missing)))
            os.remove(relay.cached(missing))
            answer = relay.request("GET", "/" + missing)
            assert answer.status == 503 and answer["Retry-After"] and answer["Cache-Control"] == "no-store", answer
            run.proxy.set_faults([])
            assert wait_for(lambda: relay.relay()["reached"])
            assert wait_for(lambda: relay.request("GET", "/" + missing).body == run.content(missing))
            relay.has_version(run.publish())
            run.pull(relay.url)


def test_restart_with_a_warm_cache():
    """What an earlier process has fetched is used, without the upstream, and by newcomers too."""
    with Run() as run:
        run.publish()
        cache = os.path.join(run.root, "cache")
        with Relay(run.proxy.url, cache=cache) as relay:
            for _ in range(2):
                relay.has_version(run.publish())
            run.pull(relay.url)
            run.pull(relay.url, "newcomer")
        run.proxy.set_faults(DOWN)
        with Relay(run.proxy.url, *QUICK, cache=cache) as relay:
            run.pull(relay.url, "offline")
            state = relay.relay()
            assert state["fetches"] == 0 and state["damaged_cached"] == 0 and not state["reached"], state


def test_restart_after_a_long_time():
    """The head that it had is of a version that was collected: nobody is told of it before the store was asked."""
    with Run() as run:
        run.publish()
        cache = os.path.join(run.root, "cache")
        with Relay(run.proxy.url, cache=cache) as relay:
            relay.has_version(1)
        for _ in range(4):
            run.publish("--keep-anchors", "1", "--anchor", "now")
        run.weft("gc", run.origin.directory, "--grace", "0")
        run.proxy.set_faults([{"fault": "delay", "seconds": 0.3, "path": "/heads/*"}])
        with Relay(run.proxy.url, cache=cache) as relay:
            assert relay.status()["head"]["version"] == 5, relay.status()
            run.pull(relay.url)


def test_no_head_yet():
    with Run() as run:
        with Relay(run.proxy.url) as relay:
            assert relay.request("GET", "/heads/00000001").status == 404
            assert relay.request("GET", "/patches/x").status == 404
            relay.has_version(run.publish())
            run.pull(relay.url)
    with Run() as run:
        run.proxy.set_faults(DOWN)
        with Relay(run.proxy.url, *QUICK) as relay:
            answer = relay.request("GET", "/heads/00000001")
            assert answer.status in (404, 503), answer
            assert wait_for(lambda: relay.request("GET", "/heads/00000001").status == 503)
            run.publish()
            run.proxy.set_faults([])
            relay.has_version(1)
            run.pull(relay.url)


def test_relays_chain():
    with Run() as run:
        run.publish()
        with Relay(run.origin.url) as first, Relay(first.url) as second, Relay(second.url) as third:
            for _ in range(3):
                third.has_version(run.publish())
                at_once(4, lambda i: run.pull(third.url, f"out-{i}"))
            # each asks the one before it, and not one object twice
            for relay in (first, second, third):
                state = relay.relay()
                assert state["reached"] and state["damaged"] == 0, state
            assert second.relay()["fetches"] <= first.relay()["fetches"]


def test_a_directory_upstream():
    with Run() as run:
        run.publish()
        with Relay(run.origin.directory) as relay:
            run.pull(relay.url)
            relay.has_version(run.publish())
            run.pull(relay.url)


def test_reports_go_upstream():
    """What a follower tells a relay of a relay is told to the origin too, and shown by each of them."""
    with Run() as run:
        run.publish()
        with Relay(run.origin.url) as first, Relay(first.url) as second:
            second.has_version(1)
            command = [WEFT, "follow", second.url, os.path.join(run.root, "out.safetensors"), "--name", "worker-7"]
            with subprocess.Popen(command, env=run.environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as follower:
                try:
                    for server in (second, first, run.origin):
                        assert wait_for(lambda: any(
                            entry["name"] == "worker-7" and entry["version"] == 1
                            for entry in json.loads(server.request("GET", "/v1/status").body)["followers"])), server.url
                        report = json.loads(server.request("GET", "/followers/worker-7").body)
                        assert report["kind"] == "follower" and report["name"] == "worker-7", report
                        told = subprocess.run([WEFT, "fleet", server.url, "--json"], env=run.environment,
                                              capture_output=True, check=True, timeout=60)
                        assert [one["name"] for one in json.loads(told.stdout)["followers"]] == ["worker-7"]
                finally:
                    follower.terminate()
            assert second.request("GET", "/followers/x").status == 404
            assert second.request("PUT", "/followers/x", b"{}").status == 400
            assert second.request("PUT", "/patches/x", b"{}").status == 403


def test_reports_do_not_wait_for_the_upstream():
    """A follower is answered when its report is kept here, however long the upstream takes to take it, and so does
    the end of the relay not wait for it. Of each follower the newest report goes on once it can."""
    def report(name, version):
        body = {"weft": 1, "kind": "follower", "name": name, "run": run_id, "version": version, "digest": "ab" * 16,
                "newest": 1, "lag": 0, "time": 1794799232420, "published": 1794799231173, "state": "waiting",
                "phases": {"wait": 0, "fetch": 0, "decode": 0, "verify": 0, "commit": 0}, "pause": 0, "patches": 0,
                "anchors": 0, "healed": 0, "fetched_bytes": 0, "requests": 0, "interval": 1200}
        return json.dumps(body).encode()

    stuck = [{"fault": "delay", "seconds": 300, "method": "PUT", "path": "*/followers*"}]
    with Run() as run:
        run.publish()
        with Relay(run.proxy.url, "--stop-seconds", "1") as relay:
            relay.has_version(1)
            run_id = relay.status()["head"]["run"]
            run.proxy.set_faults(stuck)
            start = time.monotonic()
            for version in (0, 1):
                for i in range(12):
                    assert relay.request("PUT", f"/followers/f{i}", report(f"f{i}", version)).status == 204
            assert wait_for(lambda: run.asked() > 0)
            assert relay.stop() == 0
            took = time.monotonic() - start
            assert took < 150, took  # a delay of 300 s was not waited for
        run.proxy.set_faults([dict(stuck[0], count=1)])
        with Relay(run.proxy.url, "--retries", "1", "--timeout", "1") as relay:
            relay.has_version(1)
            for version in (0, 1):
                for i in range(3):
                    assert relay.request("PUT", f"/followers/f{i}", report(f"f{i}", version)).status == 204

            def newest(name):
                answer = run.origin.request("GET", f"/followers/{name}")
                return answer.status == 200 and json.loads(answer.body)["version"] == 1
            assert wait_for(lambda: all(newest(f"f{i}") for i in range(3)))


def test_coming_back():
    """Who was away takes the same way through a relay as without one: over leaps, where there are any."""
    with Run() as run:
        run.publish()
        for name in ("direct", "relayed"):
            run.pull(run.origin.url, name)
        for _ in range(21):
            run.publish()
        with Relay(run.origin.url) as relay:
            ways = [json.loads(run.pull(url, name, "--json").stdout)
                    for url, name in ((run.origin.url, "direct"), (relay.url, "relayed"))]
            for number in ("version", "patches", "anchors", "fetched_bytes"):
                assert ways[0][number] == ways[1][number], ways
            assert run.keys("leaps") and ways[0]["patches"] < 21, ways


def test_old_epochs():
    """Who looks for the newest head by trying finds those of earlier writers, and the newest."""
    with Run(steps=5) as run:
        for _ in range(5):
            run.publish("--cache", os.path.join(run.root, f"writer-{run.published}"))
        assert len(run.keys("heads")) == 5
        with Relay(run.proxy.url) as relay:
            for key in run.keys("heads"):
                assert relay.request("GET", "/" + key).body == run.content(key), key
            assert relay.request("HEAD", "/heads/00000006").status == 404
            assert relay.request("GET", "/heads/6").status == 404
            run.pull(relay.url)
            # and again when the upstream is gone
            run.proxy.set_faults(DOWN)
            for key in run.keys("heads"):
                assert relay.request("GET", "/" + key).status == 200


def test_unknown_keys_cost_nothing():
    with Run() as run:
        for _ in range(3):
            run.publish()
        with Relay(run.proxy.url) as relay:
            assert relay.request("GET", "/patches/none").status == 404
            run.proxy.set_faults([{"fault": "delay", "seconds": 0, "path": "/p*"}])
            answers = at_once(16, lambda i: [relay.request("GET", f"/patches/none-{i}-{j}").status
                                             for j in range(20)])
            assert all(statuses == [404] * 20 for statuses in answers), answers
            assert run.asked() == 0, run.proxy.faults.rules_in_force()
            answer = relay.request("GET", "/patches/none")
            assert answer["Cache-Control"] == "no-store", answer


def test_bounded_cache():
    with Run("400K", steps=8) as run:
        limit = 570 << 10
        with Relay(run.origin.url, "--cache-bytes", str(limit)) as relay:
            for _ in range(9):
                relay.has_version(run.publish("--anchor-ratio", "0.2"))
                results = at_once(some_of(3), lambda i: run.pull(relay.url, f"out-{i}"))
                assert not any(isinstance(result, Exception) for result in results), results
                at_once(some_of(3), lambda i: run.pull(relay.url, f"new-{i}-{run.published}"))
            assert wait_for(lambda: relay.relay()["under_way"] == 0 and relay.relay()["cached_bytes"] <= limit)
            state = relay.relay()
            assert state["evictions"] > 0 and state["cache_limit"] == limit, state
            used = int(subprocess.run(["du", "-sb", "--exclude=heads", relay.cache], capture_output=True,
                                      check=True).stdout.split()[0])
            assert used < limit + (64 << 10), used  # directories count too
            for key in run.keys("anchors") + run.keys("patches"):
                assert relay.request("GET", "/" + key).body == run.content(key), key


def test_read_only_and_locked():
    with Run() as run:
        run.publish()
        with Relay(run.origin.url) as relay:
            for method in ("PUT", "DELETE"):
                assert relay.request(method, "/patches/x", b"x").status == 403
            result = run.weft("serve", run.origin.url, "--cache", relay.cache, "--listen", "127.0.0.1:0", codes=(1,))
            assert "another relay" in result.stderr, result.stderr
        result = run.weft("serve", run.origin.url, codes=(2,))
        assert "--cache" in result.stderr
        result = run.weft("serve", run.root, "--trust", "x", codes=(2,))
        assert "--cache" in result.stderr
        token = os.path.join(run.root, "token")
        with open(token, "w") as file:
            file.write("secret\n")
        result = run.weft("serve", run.origin.url, "--cache", run.root, "--write-token-file", token, codes=(2,))
        assert "read-only" in result.stderr


def test_fields_and_ranges():
    """What a cache before the relay goes by."""
    with Run("2M", steps=1) as run:
        run.publish()
        anchor, page = run.keys("anchors")[0], run.keys("pages")[0]
        content = run.content(anchor)
        with Relay(run.origin.url) as relay, Relay(run.origin.url) as other:
            head = relay.request("HEAD", "/" + anchor)
            assert head["last-modified"] is None, head
            assert head.status == 200 and int(head["Content-Length"]) == len(content)
            assert not os.path.exists(relay.cached(anchor))
            for key in (anchor, page):
                first = relay.request("GET", "/" + key)
                assert first["Cache-Control"] == "public, max-age=31536000, immutable", first
                assert first["ETag"] == relay.request("GET", "/" + key)["ETag"] == other.request("GET", "/" + key)["ETag"]
                again = relay.request("GET", "/" + key, fields={"If-None-Match": first["ETag"]})
                assert again.status == 304 and again.body == b""
            assert relay.request("GET", "/heads/00000001")["Cache-Control"] == "no-cache"
            assert relay.request("GET", "/v1/watch?after=0")["Cache-Control"] == "no-store"
            for start, end in ((0, 0), (5, MIB + 5), (len(content) - 3, len(content) + 9)):
                part = relay.request("GET", "/" + anchor, fields={"Range": f"bytes={start}-{end}"})
                assert part.status == 206 and part.body == content[start:end + 1], (start, end)
            assert relay.request("GET", "/" + anchor, fields={"Range": f"bytes={len(content)}-"}).status == 416
        # a range of what is not here yet: the end first
        with Relay(run.origin.url) as relay:
            part = relay.request("GET", "/" + anchor, fields={"Range": "bytes=-10"})
            assert part.status == 206 and part.body == content[-10:]


def test_large_objects():
    """More than a segment, with a list of hashes of its own; many readers at many places."""
    with Run("16M", steps=1) as run:
        run.publish()
        anchor = run.keys("anchors")[0]
        content = run.content(anchor)
        assert len(content) > 17 * MIB and run.keys("chunks")
        with Relay(run.proxy.url) as relay:
            relay.has_version(1)
            run.proxy.set_faults([{"fault": "delay", "seconds": 0.1, "path": "/anchors/*"}])
            places = [i * (len(content) // 16) for i in range(16)]
            parts = at_once(16, lambda i: relay.request("GET", "/" + anchor, fields={
                "Range": f"bytes={places[i]}-{places[i] + 999}"}).body)
            assert parts == [content[place:place + 1000] for place in places]
            assert relay.request("GET", "/" + anchor).body == content
            assert run.asked() == -(-len(content) // (16 * MIB)), run.proxy.faults.rules_in_force()
            run.pull(relay.url)


def test_tokens():
    with Run() as run:
        token = os.path.join(run.root, "token")
        with open(token, "w") as file:
            file.write("secret\n")
        os.chmod(token, 0o600)
        run.publish()
        with Server("--read-token-file", token, directory=run.origin.directory) as origin:
            with Relay(origin.url, "--token-file", token, "--read-token-file", token) as relay:
                page = "/" + run.keys("pages")[0]
                assert relay.request("GET", page).status == 401
                answer = relay.request("GET", page, fields={"Authorization": "Bearer secret"})
                assert answer.status == 200 and answer["Cache-Control"].startswith("private"), answer
                run.pull(relay.url, "out", "--token-file", token)
            with Relay(origin.url, closed=True) as relay:
                assert relay.request("GET", "/heads/00000001").status in (502, 503)
                assert "token" in relay.relay()["error"], relay.relay()


def test_full_disk():
    """What cannot be kept is handed on all the same."""
    with Run("2M", steps=2) as run:
        run.publish()
        full = os.path.join(run.root, "full")
        os.mkdir(full)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", full], capture_output=True).returncode:
            raise unittest.SkipTest("no tmpfs can be mounted here")
        try:
            with Relay(run.origin.url, cache=os.path.join(full, "cache")) as relay:
                anchor = run.keys("anchors")[0]
                answers = at_once(8, lambda i: relay.request("GET", "/" + anchor))
                assert all(answer.body == run.content(anchor) for answer in answers)
                assert relay.relay()["disk_full"]
                run.pull(relay.url)
                relay.has_version(run.publish())
                run.pull(relay.url)
        finally:
            subprocess.run(["umount", full], check=True)


def test_ends_promptly():
    """With clients that wait for a version, for an object that is stuck, and for a key that nobody knows."""
    with Run("2M", steps=1) as run:
        run.publish()
        anchor = run.keys("anchors")[0]
        with Relay(run.proxy.url, "--stop-seconds", "1") as relay:
            relay.has_version(1)
            run.proxy.set_faults([{"fault": "stall", "seconds": 300, "after": MIB + 5, "path": "/anchors/*"},
                                  {"fault": "delay", "seconds": 300, "path": "/pages/*"}])
            clients = [relay.socket() for _ in range(6)]
            for client, path in zip(clients, [anchor, anchor, "patches/x", "v1/watch?after=1", "patches/y", anchor]):
                client.sendall(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert wait_for(lambda: relay.status()["watchers"] == 1)
            start = time.monotonic()
            assert relay.stop() == 0
            took = time.monotonic() - start
            assert took < 150, took  # a stall of 300 s was not waited for
            for client in clients:
                client.close()


if __name__ == "__main__":
    serving.main()
