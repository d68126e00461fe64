#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""/v1/history of `weft serve`: it says what `weft log` says, follows what is published, keeps the newest 2048
versions, and survives damage; and / in its two forms."""
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile

from serving import WEFT, Server, head_key, main, wait_for, write_whole

RUN = "00112233445566778899aabbccddeeff"


class Models:
    """Some steps of a small model, and the command to publish them with."""

    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-history.")
        self.environment = dict(os.environ, HOME=self.scratch.name)
        self.environment.pop("WEFT_TOKEN", None)
        self.weft("bench", "--make", self.path("m"), "--params", "60K", "--steps", "3")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.scratch.cleanup()

    def path(self, name):
        return os.path.join(self.scratch.name, name)

    def weft(self, *arguments):
        return subprocess.run([WEFT, *arguments], env=self.environment, check=True, capture_output=True, text=True).stdout

    def publish(self, store, step, *arguments):
        self.weft("publish", store, self.path(f"m/step-{step % 4}.safetensors"), *arguments)

    def log(self, store):
        """The history by `weft log`, ascending, without what the server does not tell."""
        versions = json.loads(self.weft("log", store, "--json"))["versions"]
        return [{key: value for key, value in version.items() if key != "kept"} for version in reversed(versions)]


def history(server, query=""):
    answer = server.request("GET", "/v1/history" + query)
    assert answer.status == 200 and answer["content-type"] == "application/json", answer
    return json.loads(answer.body)


def round_density(versions):
    return [dict(version, density=round(version["density"], 6)) for version in versions]


def settles(server, models):
    """Until the server tells what the log does."""
    return wait_for(lambda: round_density(history(server)["versions"]) == round_density(models.log(server.directory)))


def test_it_follows():
    with Models() as models, Server() as server:
        empty = history(server)
        assert empty["versions"] == [] and empty["newest"] == 0 and empty["error"] is None, empty
        for step in range(12):
            models.publish(server.directory if step % 2 else server.url, step, "--label", f"step={step}",
                           "--anchor", "never")
            assert wait_for(lambda: history(server)["newest"] == step + 1)
        assert settles(server, models)
        told = history(server)
        status = json.loads(server.request("GET", "/v1/status").body)
        assert status["history"] == {key: told[key] for key in ("generation", "oldest", "newest", "error")}, status
        assert status["store"] == "store", status
        assert told["versions"][3]["labels"] == {"step": "3"} and told["versions"][3]["patch_bytes"] > 0, told
        for query, expected in (("?since=9", [10, 11, 12]), ("?limit=2", [11, 12]), ("?since=10&limit=5", [11, 12]),
                                ("?since=12", []), ("?since=99", []), ("?limit=0", []), ("?since=3&limit=1", [12])):
            assert [version["version"] for version in history(server, query)["versions"]] == expected, query
        # an anchor of a version that was told already
        models.publish(server.directory, 12, "--anchor", "now")
        assert settles(server, models)
        assert history(server)["versions"][-1]["anchor_bytes"] > 0
        for query in ("?since=x", "?since=-1", "?limit=", "?limit=1e3", "?since=1&limit=x"):
            assert server.request("GET", "/v1/history" + query).status == 400, query
        assert server.request("HEAD", "/v1/history").status == 200
        assert server.request("PUT", "/v1/history", b"x").status == 405


def test_another_run_takes_its_place():
    with Models() as models, Server() as server:
        for step in range(3):
            models.publish(server.directory, step)
        assert settles(server, models)
        generation = history(server)["generation"]
        for room in ("heads", "pages", "patches", "anchors"):
            shutil.rmtree(server.path(room))
        assert wait_for(lambda: history(server)["versions"] == [])
        for step in range(2):
            models.publish(server.directory, step + 1)
        assert settles(server, models)
        assert history(server)["generation"] > generation


def blob(key, data):
    return {"key": key, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def digest(version):
    return f"{version:032x}"


def make_record(version):
    record = {"version": version, "epoch": 1, "time": 1760000000000 + 1000 * version, "floor": 1,
              "digest": digest(version), "changed": 10 + version % 7, "total": 1000, "dense_bytes": 2000}
    if version > 1:
        record["base"] = digest(version - 1)
        record["patch"] = {"key": f"patches/{version}", "bytes": 70 + version % 9, "chunk_bytes": 1 << 20,
                           "sha256": ["ab" * 32]}
    return record


def forge_run(server, newest, damage=None):
    """The pages and the head of a run of so many versions, whose patches nobody will ask for. `damage` changes the
    newest page."""
    previous = None
    for version in sorted({*range(64, newest + 1, 64), *range(newest - newest % 64 + 8, newest + 1, 8), newest}):
        step = 64 if version % 64 == 0 else 8
        first = (version - 1) // step * step + 1
        page = {"weft": 1, "kind": "page", "run": RUN, "anchors": [],
                "records": [make_record(v) for v in range(first, version + 1)]}
        if previous is not None:
            page["previous"] = previous
        data = json.dumps(page).encode() + b"\n"
        previous = blob(f"pages/{version}", data)
        write_whole(server.path(previous["key"]), damage(data) if damage and version == newest else data)
    body = {"weft": 1, "kind": "head", "run": RUN, "epoch": 1, "sequence": newest, "writer": "0123456789abcdef",
            "newest": make_record(newest), "page": previous}
    text = json.dumps(body).encode()
    write_whole(server.path(head_key(1)), text + b"\nsha256 " + hashlib.sha256(text).hexdigest().encode() + b"\n")


def test_it_is_bounded():
    with Server() as server:
        forge_run(server, 2100)
        assert wait_for(lambda: history(server)["newest"] == 2100), history(server, "?limit=1")
        told = history(server)
        assert told["oldest"] == 53 and told["error"] is None, (told["oldest"], told["error"])
        assert [version["version"] for version in told["versions"]] == list(range(53, 2101))
        forge_run(server, 2103)
        assert wait_for(lambda: history(server)["newest"] == 2103)
        later = history(server)
        assert later["oldest"] == 56 and later["generation"] == told["generation"], (later["oldest"], told["generation"])
        assert later["versions"][:-3] == told["versions"][3:]


def test_damage():
    with Server() as server:
        forge_run(server, 200)
        assert wait_for(lambda: history(server)["newest"] == 200)
        generation = history(server)["generation"]
        # the newest page is damaged: what is known stays
        forge_run(server, 202, lambda data: data.replace(b"1000", b"1001", 1))
        assert wait_for(lambda: history(server)["error"] is not None)
        told = history(server)
        assert told["newest"] == 200 and len(told["versions"]) == 200 and "pages/202" in told["error"], told["error"]
        # an old one is: what lies behind it is not told once it has to be read
        forge_run(server, 203)
        assert wait_for(lambda: history(server)["newest"] == 203)
        os.unlink(server.path("pages/64"))
        with Server(directory=server.directory) as other:
            assert wait_for(lambda: history(other)["newest"] == 203)
            told = history(other)
            assert told["oldest"] == 65 and "store/pages/64" in told["error"], (told["oldest"], told["error"])
            for place in ("/v1/history", "/v1/status"):  # where it lies is nobody's business
                assert os.path.dirname(server.directory) not in other.request("GET", place).body.decode()
        # and again once it can be had
        forge_run(server, 204)
        assert wait_for(lambda: history(server)["newest"] == 204 and history(server)["oldest"] == 1)
        assert history(server)["generation"] >= generation and history(server)["error"] is None


def test_two_forms_of_the_root():
    with Server() as server:
        for accept in (None, "*/*", "text/plain", "application/json"):
            plain = server.request("GET", "/", fields={} if accept is None else {"Accept": accept})
            assert plain.status == 200 and plain["content-type"] == "text/plain; charset=utf-8", plain
            assert b"/v1/history" in plain.body, plain
        fields = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
        page = server.request("GET", "/", fields=fields)
        assert page.status == 200 and page["content-type"] == "text/html; charset=utf-8", page
        policy = page["content-security-policy"]
        assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        for name in ("script", "style"):
            text = re.search(f"<{name}>(.*?)</{name}>".encode(), page.body, re.S).group(1)
            code = base64.b64encode(hashlib.sha256(text).digest()).decode()
            assert f"{name}-src 'sha256-{code}'" in policy, policy
        assert not re.search(rb"(src|href)=[\"'](https?:)?//", page.body), "the page names another host"
        head = server.request("HEAD", "/", fields=fields)
        assert head.status == 200 and head.body == b"" and head["content-length"] == str(len(page.body)), head
        assert server.request("PUT", "/", b"x", fields).status == 405


main()
