#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Relays of histories that somebody made up: they have no end, do not go back, or name more than a relay remembers;
and heads that come for ever. Whoever asks is answered, and the relay takes no more memory than it says."""
import hashlib
import json
import os
import subprocess
import threading
import time

import serving
import weft_store
from relaying import QUICK, WEFT, FaultProxy, Relay, Run, same_bytes
from serving import wait_for, write_whole

WALK_PAGES = 1 << 14  # as lib/relay/relay_lookup.c has it
ITEMS_MOST = 1 << 17  # as lib/relay/relay_catalog.c has it
SHORT, LONG = 8, 64   # a page begins behind a multiple of SHORT; one that ends at a multiple of LONG has so many versions


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Forger:
    """A directory with a history of any length, which a relay takes for a store. Ends with `with`."""

    def __init__(self):
        self.run = Run()
        self.run.publish()
        self.run.publish()
        # of format 1, in which any page tells of anchors
        page = weft_store.parse_packed(self.run.content(self.run.keys("pages")[-1]), weft_store.MAXIMUM_PAGE, "page")
        self.page = {**page, "weft": 1}
        self.head = {**weft_store.parse_head(self.run.content("heads/00000001")), "weft": 1}
        self.record = self.page["records"][1]
        self.record.pop("retired", None)
        self.directory = self.run.origin.directory
        self.newest = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.run.__exit__(*error)

    def write(self, key, data):
        with open(os.path.join(self.directory, key), "wb") as file:
            file.write(data)

    def records(self, first, count, changes):
        for version in range(first, first + count):
            record = {**self.record, "version": version, "base": f"{version - 1:032x}", "digest": f"{version:032x}"}
            yield {**record, **changes(version)}

    def add_page(self, first, count=1, changes=lambda version: {}, linked=True):
        """A page of versions behind the newest, which it is from now on."""
        page = {**self.page, "records": list(self.records(first, count, changes))}
        if linked and self.newest is not None:
            page["previous"] = self.newest
        data = json.dumps(page, separators=(",", ":")).encode() + b"\n"
        key = f"pages/forged-{first}-{sha(data)[:16]}"
        self.write(key, data)
        self.newest = {"key": key, "bytes": len(data), "sha256": sha(data)}

    def lead(self, version):
        """A head with that version, which leads to the newest page."""
        self.head["page"] = self.newest
        self.head["sequence"] += 1
        self.head["newest"] = {**self.head["newest"], "version": version, "floor": 1}
        line = json.dumps(self.head, separators=(",", ":")).encode()
        write_whole(os.path.join(self.directory, "heads/00000001"), line + b"\nsha256 " + sha(line).encode() + b"\n")

    def relay(self, *arguments):
        return Relay(self.directory, *QUICK, *arguments, closed=True)


def memory_of(relay):
    """KiB that the process has ever used."""
    with open(f"/proc/{relay.process.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def test_history_without_end():
    """Pages that lead to older ones, on and on, as long as somebody asks for a key that none of them has."""
    length = WALK_PAGES + 200
    with Forger() as forger:
        for i in range(length):
            forger.add_page(1 + i * SHORT)
        forger.lead(length * SHORT)
        with forger.relay() as relay:
            relay.has_version(length * SHORT)
            start = time.monotonic()
            answer = relay.request("GET", "/patches/nowhere")
            print(f"told after {time.monotonic() - start:.1f} s: {answer}")
            assert answer.status == 404, (answer, relay.relay(), relay.log())
            state = relay.relay()
            assert "longer than" in state["error"], state
            assert WALK_PAGES <= state["objects"] <= WALK_PAGES + 100, state
            # who asks next is told without all of them being read again
            requests = state["upstream_requests"]
            assert relay.request("GET", "/patches/elsewhere").status == answer.status
            assert relay.relay()["upstream_requests"] < requests + 100
            assert relay.request("GET", "/" + forger.newest["key"]).status == 200


def test_history_that_does_not_go_back():
    """Each page has the versions of the one before it, or later ones."""
    for step in (0, 1):
        with Forger() as forger:
            for i in range(300):
                forger.add_page(1 + (9 + (300 - i) * step) * SHORT, changes=lambda version: {"time": 1000 + i})
            forger.lead(1000)
            with forger.relay() as relay:
                relay.has_version(1000)
                assert relay.request("GET", "/patches/nowhere").status == 404, relay.relay()
                assert "does not go back" in relay.relay()["error"], relay.relay()
                assert relay.relay()["objects"] < 50, relay.relay()


def test_heads_without_end():
    """A walk goes on to its end though there is a new head before it has come there, again and again."""
    with Forger() as forger:
        for version in range(1, 16001, SHORT):
            forger.add_page(version)
        forger.lead(16000)
        over = threading.Event()

        def lead_on():
            version = 16001
            while not over.wait(0.01):
                forger.add_page(version)
                forger.lead(version)
                version += SHORT

        thread = threading.Thread(target=lead_on)
        with forger.relay() as relay:
            relay.has_version(16000)
            thread.start()
            try:
                for i in range(5):
                    assert relay.request("GET", f"/patches/nowhere-{i}").status == 404, relay.relay()
            finally:
                over.set()
                thread.join()


def test_more_than_is_remembered():
    """Objects that were forgotten are learned of again, the oldest and the newest."""
    body = b"some patch"
    pages = 1100

    def two_objects(version):
        # a list of hashes has at least one, though there is only one chunk
        hashes = hashlib.sha256(body).digest()
        return {"patch": {"key": f"patches/{version}", "bytes": len(body), "chunk_bytes": 4096,
                          "list": {"key": f"chunks/{version}", "bytes": len(hashes), "sha256": sha(hashes)}}}

    with Forger() as forger:
        for page in range(pages):
            forger.add_page(1 + page * LONG, LONG, two_objects)
        newest = pages * LONG
        forger.lead(newest)
        os.makedirs(os.path.join(forger.directory, "chunks"), exist_ok=True)
        for version in (1, newest // 2, newest):
            forger.write(f"patches/{version}", body)
            forger.write(f"chunks/{version}", hashlib.sha256(body).digest())
        with forger.relay("--cache-bytes", "4M") as relay:
            relay.has_version(newest)
            for version in (newest, 1, newest // 2, newest, 1):
                answer = relay.request("GET", f"/patches/{version}")
                assert answer.status == 200 and answer.body == body, (version, answer)
                assert relay.relay()["objects"] <= ITEMS_MOST + 4 * LONG, relay.relay()
            assert relay.request("GET", "/patches/0").status == 404
            print(f"{memory_of(relay) >> 10} MiB at most for {2 * newest} objects")


# ---- waiting again and again ----


class Brief:
    """A server of a run's store that lets nobody wait for long, and a proxy that counts who tries. Ends with `with`."""

    def __init__(self, run):
        self.server = serving.Server("--watch-seconds", "1", directory=run.origin.directory)
        self.proxy = FaultProxy(self.server.url, seed=1).__enter__()
        self.proxy.set_faults([{"fault": "delay", "seconds": 0, "path": "/v1/watch"}])
        self.url = self.proxy.url

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.proxy.__exit__(*error)
        self.server.__exit__(*error)

    def has_watches(self, count):
        def asked():
            return sum(rule["matched"] for rule in self.proxy.faults.rules_in_force())

        end = asked() + count
        assert wait_for(lambda: asked() >= end)


def test_relay_watches_again():
    with Run() as run:
        run.publish()
        with Brief(run) as brief, Relay(brief.url) as relay:
            relay.has_version(1)
            brief.has_watches(2)
            relay.has_version(run.publish())
            brief.has_watches(2)


def test_follower_watches_again():
    """One that would look by itself only in ten minutes."""
    with Run() as run:
        run.publish()
        path = os.path.join(run.root, "followed.safetensors")
        with Brief(run) as brief:
            follower = subprocess.Popen([WEFT, "follow", brief.url, path, "-q", "--poll", "600"],
                                        env=run.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            try:
                for _ in range(2):
                    brief.has_watches(2)
                    model = run.model(run.published)
                    run.publish()
                    assert wait_for(lambda: same_bytes(path, model))
            finally:
                follower.terminate()
                follower.wait(serving.PATIENCE)


if __name__ == "__main__":
    serving.main()
