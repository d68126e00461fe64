# SPDX-License-Identifier: Apache-2.0
"""relaying.py: a run that is published to an origin, and relays of it, for tests.

Between an origin and a relay stands a proxy that counts what is asked of it, and misbehaves when it is told to.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import serving  # noqa: E402
from fault_proxy import FaultProxy  # noqa: E402
from serving import Server, wait_for  # noqa: E402

WEFT = os.path.abspath(serving.WEFT)
DOWN = [{"fault": "cut", "where": "before"}]  # nothing comes through
QUICK = ("--retries", "1", "--timeout", "5")  # of a relay whose upstream will fail


class Relay(Server):
    """A relay of the store at `upstream`; its cache is the server's directory. One that is `closed` asks for a token,
    which requests bring along, and so says what its errors are."""

    def __init__(self, upstream, *arguments, cache=None, environment=None, closed=False):
        self.own = tempfile.TemporaryDirectory(prefix="weft-relay.", dir=serving.MEMORY)
        self.cache = cache or os.path.join(self.own.name, "cache")
        self.fields = {}
        if closed:
            token = os.path.join(self.own.name, "token")
            with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write("reader\n")
            arguments += ("--read-token-file", token)
            self.fields = {"Authorization": "Bearer reader"}
        super().__init__("--cache", self.cache, *arguments, directory=upstream, environment=environment)

    def __exit__(self, *error):
        super().__exit__(*error)
        self.own.cleanup()

    def request(self, method, path, body=None, fields=None, connection=None):
        return super().request(method, path, body, {**self.fields, **(fields or {})}, connection)

    def status(self):
        return json.loads(self.request("GET", "/v1/status").body)

    def relay(self):
        return self.status()["relay"]

    def cached(self, key):
        return os.path.join(self.cache, key)

    def has_version(self, version):
        """Waits until the relay has learned of a version."""
        assert wait_for(lambda: (self.status()["head"] or {"version": 0})["version"] >= version), self.log()


def same_bytes(path, other):
    """Read anew each time: that a file has changed cannot always be told from its time."""
    with open(path, "rb") as have, open(other, "rb") as want:
        return have.read() == want.read()


class Run:
    """An origin, a proxy before it, and models to publish. Ends with `with`."""

    def __init__(self, parameters="60K", steps=4, origin=()):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-run.", dir=serving.MEMORY)
        self.steps = steps
        self.root = self.scratch.name
        self.environment = dict(os.environ, HOME=self.root)
        self.environment.pop("WEFT_TOKEN", None)
        self.weft("bench", "--make", os.path.join(self.root, "m"), "--params", parameters, "--steps", str(steps))
        self.origin = Server(*origin)
        self.proxy = FaultProxy(self.origin.url, seed=1).__enter__()
        self.published = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.proxy.__exit__(*error)
        self.origin.__exit__(*error)
        self.scratch.cleanup()

    def weft(self, *arguments, codes=(0,)):
        result = subprocess.run([WEFT, *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                                capture_output=True, text=True, timeout=serving.PATIENCE)
        assert result.returncode in codes and "Sanitizer" not in result.stderr, \
            f"{arguments}: {result.returncode}: {result.stderr}"
        return result

    def model(self, number):
        """To and fro along the steps."""
        place = number % (2 * self.steps)
        place = place if place <= self.steps else 2 * self.steps - place
        return os.path.join(self.root, "m", f"step-{place}.safetensors")

    def publish(self, *arguments):
        """The next model; returns its version."""
        self.weft("publish", self.origin.url, self.model(self.published), "-q", *arguments)
        self.published += 1
        return self.published

    def pull(self, url, name="out", *arguments, codes=(0,)):
        """A replica at `name` follows to the newest version, which must be the one published last."""
        path = os.path.join(self.root, name + ".safetensors")
        result = self.weft("pull", url, path, *arguments, codes=codes)
        if result.returncode == 0:
            assert same_bytes(path, self.model(self.published - 1)), "the replica is not what was published"
        return result

    def keys(self, room):
        """The objects of a room, oldest first."""
        names = sorted(glob.glob(os.path.join(self.origin.directory, room, "*")))
        return [f"{room}/{os.path.basename(name)}" for name in names]

    def content(self, key):
        with open(self.origin.path(key), "rb") as file:
            return file.read()

    def asked(self):
        """How often the rules in force have matched a request."""
        return sum(rule["matched"] for rule in self.proxy.faults.rules_in_force())


def at_once(count, function):
    """Calls function(i) in `count` threads that begin together; the results in order."""
    barrier, results = threading.Barrier(count), [None] * count

    def work(i):
        barrier.wait()
        try:
            results[i] = function(i)
        except Exception as error:  # noqa: BLE001 - a failure is a result too
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
