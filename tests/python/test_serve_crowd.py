#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""More followers than a server has places for those who wait: the others poll, more and more rarely, and none of them
has failed."""
import json
import os
import resource
import subprocess

from relaying import WEFT, Run, same_bytes
from serving import Server, main, wait_for

FOLLOWERS = 6


def status_of(server):
    return json.loads(server.request("GET", "/v1/status").body)


def test_who_finds_no_place_polls():
    with Run(origin=("--max-watchers", "1")) as run:
        run.publish()
        outs = [os.path.join(run.root, f"out-{i}.safetensors") for i in range(FOLLOWERS)]
        followers = [subprocess.Popen([WEFT, "follow", run.origin.url, out, "--until", "4", "--name", f"f{i}",
                                       "--max-failures", "1", "--report-every", "1s"], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=run.environment)
                     for i, out in enumerate(outs)]
        seen = []
        for _ in range(3):
            # until it was too crowded for some
            refused = status_of(run.origin)["requests"]["GET"].get("503", 0)
            assert wait_for(lambda: status_of(run.origin)["requests"]["GET"].get("503", 0) >= refused + FOLLOWERS - 1)
            seen.append(status_of(run.origin)["fleet"])
            run.publish()
        for follower, out in zip(followers, outs):
            said = follower.communicate(timeout=200)[1].decode()
            assert follower.returncode == 0 and "Sanitizer" not in said, said
            assert same_bytes(out, run.model(run.published - 1))
        seen.append(status_of(run.origin)["fleet"])
        assert all(fleet["failed"] == 0 for fleet in seen), seen
        status = status_of(run.origin)
        assert not any(entry.get("error") for entry in status["followers"]), status["followers"]


def test_sizes_follow_the_limit_of_open_files():
    with Server() as server:
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[1], (soft, hard)
        text = server.request("GET", "/metrics").body.decode()
        values = dict(line.split() for line in text.splitlines() if not line.startswith("#") and "{" not in line)
        most = int(values["weft_serve_connections_limit"])
        room = 16384 if hard == resource.RLIM_INFINITY else (hard - 64) // 2
        assert most == min(16384, room), (most, hard)
        assert int(values["weft_serve_watchers_limit"]) == most // 4 * 3


main()
