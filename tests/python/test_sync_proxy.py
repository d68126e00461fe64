# SPDX-License-Identifier: Apache-2.0
"""A publisher and a follower over `weft serve` or S3, through a proxy that does what networks do on bad days.

A follower follows through one kind of fault after the other while a publisher publishes, and then the publisher
goes through the proxy too. The follower's command looks at OUT each time: it always holds the version that it
is said to hold, and that was published. Once the faults are over, it is the newest.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import origins  # noqa: E402
import serving  # noqa: E402
from fault_proxy import FaultProxy  # noqa: E402

WEFT = os.path.abspath(serving.WEFT)
MODELS = 6

# Each is in force for some versions. None of them lasts for one object, so that trying again helps.
READER_FAULTS = {
    "cut": [{"fault": "cut", "method": "GET", "probability": 0.4}],
    "cut before": [{"fault": "cut", "where": "before", "method": "GET", "probability": 0.4}],
    "truncate": [{"fault": "truncate", "method": "GET", "probability": 0.3}],
    "flip": [{"fault": "flip", "method": "GET", "probability": 0.4}],
    "repeat": [{"fault": "repeat", "method": "GET", "probability": 0.3}],
    "stall": [{"fault": "stall", "method": "GET", "probability": 0.3, "seconds": 0.3}],
    "500": [{"fault": "status", "code": 500, "probability": 0.4}],
    "503": [{"fault": "status", "code": 503, "retry_after": 1, "count": 3}],
    "429": [{"fault": "status", "code": 429, "probability": 0.3}],
    "stale": [{"fault": "stale", "path": "*/heads/*", "probability": 0.5}],
    "late": [{"fault": "missing", "path": "*/pa*/*", "per_key": 2}],
    "wrong": [{"fault": "wrong", "method": "GET", "probability": 0.3, "per_key": 2}],
    "delay": [{"fault": "delay", "probability": 0.3, "seconds": 0.05}],
}
WRITER_FAULTS = {
    "cut": [{"fault": "cut", "method": "PUT", "where": "request", "probability": 0.3}],
    "lose": [{"fault": "lose", "method": "PUT", "probability": 0.4}],
    "duplicate": [{"fault": "duplicate", "method": "PUT", "probability": 0.5}],
    "500": [{"fault": "status", "code": 500, "method": "PUT", "probability": 0.3}],
    "503": [{"fault": "status", "code": 503, "method": "PUT", "probability": 0.3}],
    "flip": [{"fault": "flip", "method": "GET", "probability": 0.4}],
}

# What an S3 service says when it has too much to do, and what becomes of bytes that are not what was signed.
SLOW = "<?xml version='1.0'?>\n<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
if origins.PLACES:
    READER_FAULTS["slow down"] = [{"fault": "status", "code": 503, "retry_after": 1, "body": SLOW, "count": 3}]
    WRITER_FAULTS["slow down"] = [{"fault": "status", "code": 503, "body": SLOW, "probability": 0.3}]
    WRITER_FAULTS["flip on the way there"] = [{"fault": "flip", "method": "PUT", "where": "request",
                                               "probability": 0.4}]
    WRITER_FAULTS["truncate on the way there"] = [{"fault": "truncate", "method": "PUT", "where": "request",
                                                   "probability": 0.3}]


class Scene:
    def __init__(self, root):
        self.root = root
        self.environment = dict(os.environ, HOME=root)
        self.environment.pop("WEFT_TOKEN", None)
        self.run("bench", "--make", os.path.join(root, "m"), "--params", "60K", "--steps", str(MODELS - 1))
        self.digests = [json.loads(self.run("digest", self.model(i), "--json"))["digest"] for i in range(MODELS)]
        self.turn = 0
        self.out = os.path.join(root, "out", "model.safetensors")
        self.seen = os.path.join(root, "seen")
        os.mkdir(os.path.join(root, "out"))

    def model(self, number):
        return os.path.join(self.root, "m", f"step-{number}.safetensors")

    def start(self, *arguments, error=subprocess.PIPE, environment=()):
        return subprocess.Popen([WEFT, *arguments], env=dict(self.environment, **dict(environment)), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=error, text=True)

    def run(self, *arguments, codes=(0,), environment=()):
        process = self.start(*arguments, environment=environment)
        output, error = process.communicate(timeout=serving.PATIENCE)
        assert process.returncode in codes and "Sanitizer" not in error, f"{arguments}: {process.returncode}: {error}"
        self.code, self.error = process.returncode, error
        return output

    def publish(self, way, codes=(0,)):
        """The digest of what was published, or None."""
        self.turn = (self.turn + 1) % MODELS
        self.run("publish", way.url, self.model(self.turn), "--cache", os.path.join(self.root, "cache"),
                 "--anchor-ratio", "0.4", "--retries", "6", "-q", codes=codes, environment=way.environment)
        return self.digests[self.turn] if self.code == 0 else None

    def follow(self, way):
        script = (f"printf '%s %s\\n' \"$WEFT_DIGEST\" \"$('{WEFT}' digest \"$WEFT_OUT\" --json | tr -d ' \\n')\""
                  f" >> '{self.seen}'")
        self.log = os.path.join(self.root, "follow.err")
        with open(self.log, "w") as error:
            return self.start("follow", way.url, self.out, "-q", "--exec", script, "--poll", "0.05", "--timeout", "2",
                              error=error, environment=way.environment)

    def lines(self):
        if not os.path.exists(self.seen):
            return []
        with open(self.seen) as file:
            return [line for line in file.read().splitlines() if line.endswith("}")]

    def check_seen(self):
        lines = self.lines()
        for line in lines:
            promised, found = line.split(" ", 1)
            assert json.loads(found)["digest"] == promised and promised in self.digests, line
        return len(lines)

    def await_digest(self, digest, process, what):
        def there():
            assert process.poll() is None, f"{what}: the follower has ended: {open(self.log).read()}"
            lines = self.lines()
            return bool(lines) and lines[-1].startswith(digest)
        assert serving.wait_for(there), f"{what}: the newest version did not arrive: {open(self.log).read()}"

    def end(self, process):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=serving.PATIENCE)
        with open(self.log) as file:
            assert "Sanitizer" not in file.read()


def test_a_follower_behind_bad_networks():
    with tempfile.TemporaryDirectory(prefix="weft-sync-proxy.") as root, origins.open_origin() as origin:
        scene = Scene(root)
        scene.publish(origin.direct)
        with origins.bad_way(origin, seed=5) as (proxy, way):
            follower = scene.follow(way)
            try:
                for name, faults in READER_FAULTS.items():
                    before = proxy.counts()
                    proxy.set_faults(faults)
                    for turn in range(300):
                        digest = scene.publish(origin.direct)
                        time.sleep(0.1)
                        # a follower that waits on the server asks for no head that could be stale
                        struck = name == "stale" or proxy.counts()[faults[0]["fault"]] > before[faults[0]["fault"]]
                        if turn >= 2 and struck:
                            break
                    # some faults only slow it down; those that do more may still be in its way
                    proxy.set_faults([])
                    scene.await_digest(digest, follower, name)
            finally:
                scene.end(follower)
            counts = proxy.counts()
        scene.check_seen()
        for fault in ("cut", "truncate", "flip", "repeat", "stall", "status", "missing", "wrong", "delay"):
            assert counts[fault] > 0, f"{fault} never struck: {counts}"


def test_a_publisher_behind_bad_networks():
    with tempfile.TemporaryDirectory(prefix="weft-sync-proxy.") as root, origins.open_origin() as origin:
        scene = Scene(root)
        scene.publish(origin.direct)
        with origins.good_way(origin) as way, FaultProxy(origin.address, seed=6) as proxy:
            follower = scene.follow(way)
            try:
                for name, faults in WRITER_FAULTS.items():
                    before = proxy.counts()
                    proxy.set_faults(faults)
                    for turn in range(300):
                        digest = scene.publish(origin.through(proxy), codes=(0, 1, 3, 4))
                        if digest is not None:
                            scene.await_digest(digest, follower, name)
                        if turn >= 2 and proxy.counts()[faults[0]["fault"]] > before[faults[0]["fault"]]:
                            break
                    proxy.set_faults([])
                    scene.await_digest(scene.publish(origin.through(proxy)), follower, name)
                counts = proxy.counts()
            finally:
                scene.end(follower)
        scene.check_seen()
        for fault in ("cut", "lose", "duplicate", "status", "flip"):
            assert counts[fault] > 0, f"{fault} never struck: {counts}"


def test_a_server_that_comes_and_goes():
    with tempfile.TemporaryDirectory(prefix="weft-sync-proxy.") as root, origins.open_origin() as origin:
        scene = Scene(root)
        scene.publish(origin.direct)
        with origins.bad_way(origin, seed=7) as (proxy, way):
            follower = scene.follow(way)
            try:
                for _ in range(2):
                    proxy.set_faults([{"fault": "cut", "where": "before"}])
                    for _ in range(4):
                        digest = scene.publish(origin.direct)
                    time.sleep(0.5)
                    proxy.set_faults([])
                    scene.await_digest(digest, follower, "a server that was away")
            finally:
                scene.end(follower)
        assert scene.check_seen() >= 2


serving.main()
