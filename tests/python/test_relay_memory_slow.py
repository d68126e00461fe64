#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The memory of a relay: what large objects took on their way is given back, whichever thread fetched them."""
import os

from relaying import Relay, Run
from serving import main


def resident(process):
    with open(f"/proc/{process.pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))


def test_large_objects():
    with Run(parameters="4M", steps=3) as run:
        for _ in range(4):
            run.publish("--anchor", "now")
        room = os.path.join(run.origin.directory, "anchors")
        keys = sorted(os.listdir(room))
        largest = max(os.path.getsize(os.path.join(room, key)) for key in keys)
        # a cache that holds one of them, so that each is fetched again and again
        with Relay(run.origin.url, "--cache-bytes", str(largest * 3 // 2)) as relay:
            relay.has_version(4)
            before = resident(relay.process)
            for _ in range(6):
                for key in keys:  # the history need not name all of them any more
                    assert relay.request("GET", "/anchors/" + key).status in (200, 404)
            after = resident(relay.process)
            assert relay.relay()["fetches"] > 12, relay.relay()
            assert after < before + 2 * largest + (4 << 20), (before, after, largest)


main()
