#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`weft serve ROOT --runs`: several runs under their names, each with all that one has; what is no run, or no name, and
tokens of one run."""
import json
import os
import re
import signal
import subprocess
import tempfile

from relaying import WEFT
from serving import (PATIENCE, Server, head_key, main, make_head, read_all, status_of, wait_for, write_whole)

RUN = "0123456789abcdef0123456789abcdef"


def add_run(server, name, version):
    write_whole(os.path.join(server.directory, name, head_key(1)), make_head(1, version, version))


def runs(server, fields=None):
    answer = server.request("GET", "/v1/runs", fields=fields)
    assert answer.status == 200 and answer["content-type"] == "application/json", answer
    return {run["name"]: run for run in json.loads(answer.body)["runs"]}


def test_each_has_everything():
    with tempfile.TemporaryDirectory() as root:
        for name, version in (("a", 3), ("run-7.x", 5)):
            write_whole(os.path.join(root, name, head_key(1)), make_head(1, version, version))
        log = os.path.join(root, ".access")
        with Server("--runs", "--access-log", log, "--access-format", "json", directory=root) as server:
            assert wait_for(lambda: {n: r["version"] for n, r in runs(server).items()} == {"a": 3, "run-7.x": 5})
            for name, version in (("a", 3), ("run-7.x", 5)):
                status = json.loads(server.request("GET", f"/{name}/v1/status").body)
                assert status["head"]["version"] == version and status["store"] == name, status
                assert server.request("GET", f"/{name}/v1/watch?after=0").body == \
                    server.request("GET", f"/{name}/{head_key(1)}").body
                page = server.request("GET", f"/{name}/", fields={"Accept": "text/html"})
                assert page.status == 200 and b"<script" in page.body, page
                assert server.request("GET", f"/{name}")["location"] == f"/{name}/"
            # a long poll of one does not hear of the other
            assert server.request("GET", "/a/v1/watch?after=3&seconds=0.2").status == 204
            assert server.request("PUT", "/a/pages/x", b"hello").status == 201
            assert server.request("GET", "/a/pages/x").body == b"hello"
            assert server.request("GET", "/run-7.x/pages/x").status == 404
            text = server.request("GET", "/metrics").body.decode()
            assert 'weft_serve_version{run="a"} 3' in text and 'weft_serve_version{run="run-7.x"} 5' in text
            assert 'weft_serve_requests_total{run="a",method="PUT",code="201"} 1\n' in text
            families = re.findall(r"^# TYPE (\S+)", text, re.M)
            assert len(families) == len(set(families)) and len(families) > 20, families
            samples = [line for line in text.splitlines() if not line.startswith("#")]
            assert len(samples) == len({line.rsplit(" ", 1)[0] for line in samples}), text
            own = server.request("GET", "/a/metrics").body.decode()
            assert 'weft_serve_version{run="a"} 3' in own and "run-7.x" not in own
            listed = server.request("GET", "/", fields={"Accept": "text/html"})
            assert b'<a href="a/">' in listed.body and "default-src 'none'" in listed["content-security-policy"], listed
            assert b"/run-7.x/" in server.request("GET", "/").body
            # one that comes later
            add_run(server, "late", 9)
            assert json.loads(server.request("GET", "/late/v1/status").body)["head"]["version"] == 9
            assert "late" in runs(server)
        with open(log) as file:
            told = {json.loads(line)["run"] for line in file}
        assert told == {"a", "run-7.x", "late", None}, told


def test_publish_and_follow():
    """The real ones, to two runs of which neither is there."""
    with tempfile.TemporaryDirectory() as scratch, Server("--runs") as server:
        environment = dict(os.environ, HOME=scratch)

        def weft(*arguments):
            result = subprocess.run([WEFT, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                                    text=True, timeout=PATIENCE)
            assert result.returncode == 0 and "Sanitizer" not in result.stderr, result

        weft("bench", "--make", os.path.join(scratch, "m"), "--params", "60K", "--steps", "1")
        for name, step in (("one", 0), ("two", 1)):
            model, out = os.path.join(scratch, "m", f"step-{step}.safetensors"), os.path.join(scratch, name)
            weft("publish", server.url + name, model)
            weft("follow", server.url + name, out + ".safetensors", "--until", "1", "--name", "f")
            with open(model, "rb") as have, open(out + ".safetensors", "rb") as want:
                assert have.read() == want.read()
            assert wait_for(lambda: json.loads(server.request("GET", f"/{name}/v1/status").body)["followers"])
        assert set(runs(server)) == {"one", "two"}


def test_names_that_are_none():
    with tempfile.TemporaryDirectory() as above:
        root = os.path.join(above, "root")
        os.makedirs(os.path.join(root, "plain"))  # no heads, so no run
        write_whole(os.path.join(above, "outside", head_key(1)), make_head(1, 1, 1))
        write_whole(os.path.join(root, ".hidden", head_key(1)), make_head(1, 1, 1))
        write_whole(os.path.join(root, "v1", head_key(1)), make_head(1, 1, 1))
        os.symlink(os.path.join(above, "outside"), os.path.join(root, "link"))
        with Server("--runs", directory=root) as server:
            names = ["..", "%2e%2e", ".", "%2e", ".hidden", "%2ehidden", "link", "plain", "nothing", "a b", "a%20b", "a%00",
                     "%00", "..%2foutside", "%2e%2e%2foutside", "../outside", "..;", "\\..", "a" * 65, "a" * 300, "%c3%a4",
                     "v1", "metrics", "~", "x:y", "", "/", "//outside"]
            for name in names:
                for key in (head_key(1), "v1/status", "../outside/" + head_key(1), "pages/../../../outside/heads/00000001"):
                    answer = server.raw(f"GET /{name}/{key} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                    assert status_of(answer) in (None, 400, 404), (name, key, answer)
                    assert RUN.encode() not in answer, (name, key, answer)
            for name in ("..", "%2e%2e", ".hidden", "link", "v1", "metrics", "a" * 65, "a%2f..%2f..", "%2e"):
                data = f"PUT /{name}/pages/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbad"
                assert status_of(server.raw(data.encode())) in (None, 400, 404, 405, 507), name
            assert runs(server) == {}
            assert server.request("DELETE", "/nothing/pages/x").status == 404
            assert server.request("PUT", "/pages", b"x").status in (400, 404, 405, 507)
        assert sorted(os.listdir(above)) == ["outside", "root"] and os.listdir(os.path.join(above, "outside")) == ["heads"]
        assert not os.path.exists(os.path.join(root, "nothing"))


def test_tokens_of_a_run():
    with tempfile.TemporaryDirectory() as scratch:
        tokens = {}
        for name, text in (("all", "root"), ("a.read", "ra"), ("a.write", "wa"), ("b.read", "rb")):
            tokens[name] = os.path.join(scratch, name)
            with open(os.open(tokens[name], os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(text + "\n")
        root = os.path.join(scratch, "root")
        for name in ("a", "b", "open"):
            write_whole(os.path.join(root, name, head_key(1)), make_head(1, 1, 1))
        with Server("--runs", "--run-tokens", scratch, "--write-token-file", tokens["all"], directory=root) as server:
            def ask(method, path, token, body=None):
                fields = {"Authorization": "Bearer " + token} if token else {}
                return server.request(method, path, body, fields).status

            cases = [("GET", "/a/v1/status", None, 401), ("GET", "/a/v1/status", "ra", 200), ("GET", "/a/v1/status", "rb", 401),
                     ("GET", "/a/v1/status", "wa", 200), ("GET", "/a/v1/status", "root", 200),
                     ("GET", "/b/v1/status", "rb", 200), ("GET", "/b/v1/status", "wa", 401),
                     ("GET", "/open/v1/status", None, 200), ("PUT", "/a/pages/x", "wa", 201), ("PUT", "/a/pages/y", "ra", 403),
                     ("PUT", "/b/pages/x", "wa", 401), ("PUT", "/b/pages/x", "root", 201), ("PUT", "/open/pages/x", None, 401),
                     ("PUT", "/new/pages/x", "wa", 401), ("PUT", "/new/pages/x", "root", 201), ("GET", "/none/v1/status", None, 404)]
            for method, path, token, code in cases:
                assert ask(method, path, token, b"x" if method == "PUT" else None) == code, (method, path, token, code)
            assert wait_for(lambda: "new" in runs(server, {"Authorization": "Bearer root"}))
            assert set(runs(server)) == {"open", "new"} and set(runs(server, {"Authorization": "Bearer ra"})) == {"a", "open", "new"}
            assert b'run="a"' not in server.request("GET", "/metrics").body
            # who may only read puts reports, and no run begins with one
            assert ask("PUT", "/more/followers/x", None, b"{}") == 404 and not os.path.exists(os.path.join(root, "more"))


def write_token(scratch, name, text):
    with open(os.open(os.path.join(scratch, name), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + "\n")


def test_tokens_that_come_later():
    """A run's own tokens count from its first object on, and from when their file is there or has changed."""
    with tempfile.TemporaryDirectory() as scratch:
        root = os.path.join(scratch, "root")
        write_whole(os.path.join(root, "a", head_key(1)), make_head(1, 1, 1))
        write_token(scratch, "new.write", "one")
        with Server("--runs", "--run-tokens", scratch, directory=root) as server:
            def ask(method, path, token=None):
                fields = {"Authorization": "Bearer " + token} if token else {}
                return server.request(method, path, b"x" if method == "PUT" else None, fields).status

            assert ask("PUT", "/new/pages/x") == 401 and ask("PUT", "/new/pages/x", "one") == 201
            assert ask("GET", "/a/v1/status") == 200 and ask("PUT", "/a/pages/x") == 201
            write_token(scratch, "a.read", "first")
            assert wait_for(lambda: ask("GET", "/a/v1/status") == 401), server.log()
            assert ask("GET", "/a/v1/status", "first") == 200 and ask("PUT", "/a/pages/y", "first") == 403
            write_token(scratch, "a.write", "writer")
            assert wait_for(lambda: ask("PUT", "/a/pages/y", "writer") == 201), server.log()
            write_token(scratch, "a.read", "second")
            assert wait_for(lambda: ask("GET", "/a/v1/status", "first") == 401), server.log()
            assert ask("GET", "/a/v1/status", "second") == 200
            os.unlink(os.path.join(scratch, "a.read"))
            server.process.send_signal(signal.SIGHUP)
            assert wait_for(lambda: "those from before stay" in server.log()), server.log()
            assert ask("GET", "/a/v1/status") == 401 and ask("GET", "/a/v1/status", "second") == 200


main()
