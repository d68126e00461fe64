#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reports of many followers: handed on by a relay in batches, with their age; read by a publisher in one request; and
what strangers may put as a batch."""
import json
import time

from relaying import DOWN, QUICK, Relay, Run
from serving import Server, head_key, main, make_head, wait_for, write_whole
from weft_store import read_batch

MANY = 400
BATCH = "/v1/followers"


def status(server):
    return json.loads(server.request("GET", "/v1/status").body)


def run_of(server):
    return status(server)["head"]["run"]


def report(name, run, **changes):
    body = {"weft": 1, "kind": "follower", "name": name, "run": run, "version": 1, "digest": "ab" * 16, "newest": 1,
            "lag": 0, "time": 1794799232420, "published": 1794799231173, "state": "waiting",
            "phases": {"wait": 1.5, "fetch": 0.25, "decode": 0, "verify": 0, "commit": 0.001}, "pause": 0.001,
            "patches": 2, "anchors": 1, "healed": 0, "fetched_bytes": 1000, "requests": 9, "interval": 1200}
    body.update(changes)
    return body


def put(server, names, run, connection, **changes):
    for name in names:
        body = json.dumps(report(name, run, **changes)).encode()
        answer = server.request("PUT", "/followers/" + name, body, connection=connection)
        assert answer.status == 204, answer


def line(age, body):
    return b'{"age":%s,"report":%s}\n' % (str(age).encode(), json.dumps(body).encode())


def followers(server):
    """As the independent reader has them, which must understand every line."""
    answer = server.request("GET", BATCH)
    assert answer.status == 200 and answer["content-type"] == "application/x-ndjson", answer
    found = read_batch(answer.body)
    assert len(found) == len(answer.body.splitlines()), answer
    return {name: {"age": age, "report": report} for name, (age, report) in found.items()}


def puts(server):
    return sum(status(server)["requests"]["PUT"].values())


def live(server):
    return {follower["name"] for follower in status(server)["followers"] if follower["live"]}


def test_many_go_in_few_requests():
    """With 50 ms to the upstream, all are seen alive, though each reports three times."""
    with Run() as run:
        run.publish()
        run.proxy.set_faults([{"fault": "delay", "method": "PUT", "seconds": 0.05}])
        names = [f"f{i}" for i in range(MANY)]
        with Relay(run.proxy.url) as relay:
            relay.has_version(1)
            before = puts(run.origin)
            connection = relay.connection()
            for _ in range(3):
                put(relay, names, run_of(relay), connection)
            assert wait_for(lambda: status(run.origin)["fleet"]["live"] == MANY), status(run.origin)["fleet"]
            requests = puts(run.origin) - before
            print(f"{3 * MANY} reports went on in {requests} requests")
            assert requests < MANY // 2, requests
            told = followers(run.origin)
            assert set(told) == set(names) and all(0 <= entry["report"]["relayed"] < 200 for entry in told.values())
            connection.close()
        # who publishes asks for all of them at once
        before = status(run.origin)["requests"]
        result = json.loads(run.weft("publish", run.origin.url, run.model(1), "--json", "--max-lag", "5").stdout)
        assert result["fleet"]["live"] == MANY, result["fleet"]
        run.published += 1
        after = status(run.origin)["requests"]
        count = sum(after["GET"].values()) - sum(before["GET"].values())
        print(f"a publish beside {MANY} reports made {count} GETs")
        assert count < 40, (before, after)


def test_an_old_origin_gets_them_one_by_one():
    with Run() as run:
        run.publish()
        run.proxy.set_faults([{"fault": "status", "path": BATCH, "code": 404}])
        with Relay(run.proxy.url) as relay:
            relay.has_version(1)
            put(relay, ["a", "b", "c"], run_of(relay), relay.connection())
            # the first batch may be lost but for one of it: the next reports go as they always did
            assert wait_for(lambda: len(live(run.origin)) > 0)
            put(relay, ["a", "b", "c"], run_of(relay), relay.connection())
            assert wait_for(lambda: live(run.origin) == {"a", "b", "c"}), live(run.origin)
            assert not any("relayed" in entry["report"] for entry in followers(run.origin).values())


def test_a_delay_is_no_death():
    """Those of a relay that cannot be heard stay alive; those that the relay has not heard of do not."""
    with Run() as run:
        run.publish()
        with Relay(run.proxy.url, *QUICK) as relay:
            relay.has_version(1)
            connection, name = relay.connection(), run_of(relay)
            put(relay, ["late"], name, connection, interval=1)
            put(run.origin, ["direct"], name, run.origin.connection(), interval=1)
            assert wait_for(lambda: "late" in live(run.origin))
            run.proxy.set_faults(DOWN)
            assert wait_for(lambda: "direct" not in live(run.origin))
            silence = time.monotonic() + 4  # more than three intervals
            while time.monotonic() < silence:
                put(relay, ["late"], name, connection, interval=1)
                assert "late" in live(run.origin), status(run.origin)["followers"]
                time.sleep(0.2)
            run.proxy.set_faults([])
            # now the relay is heard, and what it says is that it has heard nothing
            put(relay, ["late"], name, connection, interval=1)
            assert wait_for(lambda: "late" not in live(relay))
            assert wait_for(lambda: "late" not in live(run.origin)), status(run.origin)["followers"]


def test_batches_of_strangers():
    with Server() as server:
        run = "0123456789abcdef0123456789abcdef"
        good = line(1.5, report("a", run))
        assert server.request("PUT", BATCH, good).status == 400  # there is no run yet
        write_whole(server.path(head_key(1)), make_head(1, 5, 5))
        assert wait_for(lambda: status(server)["head"])
        assert server.request("PUT", BATCH, good).status == 204
        assert server.request("PUT", BATCH, b"").status == 204
        assert wait_for(lambda: "a" in followers(server))
        told = followers(server)["a"]
        assert told["report"]["relayed"] == 1.5 and told["age"] < 200, told
        # a relay behind a relay: ages add up
        assert server.request("PUT", BATCH, line(2, report("b", run, relayed=3))).status == 204
        assert wait_for(lambda: followers(server).get("b", {}).get("report", {}).get("relayed") == 5)
        # what is no report does not hide the next one
        wrong = [b"\n", b"{}\n", b"x\n", line(-1, report("x", run)), line("1e3", report("x", run)),
                 line("", report("x", run)), line("9" * 30, report("x", run)), line(1, report("../x", run)),
                 line(1, report("x", "ab")), line(1, {}), line(1, report("x", run, interval=0)), b'{"age":1,"report":\n',
                 b'{"age":1,"report":}\n', line(1, report("x", run))[:-2] + b"\n", b"\x00" * 50 + b"\n"]
        for number, body in enumerate(wrong):
            assert server.request("PUT", BATCH, body + line(0, report(f"c{number}", run))).status == 204, body
            assert wait_for(lambda: f"c{number}" in followers(server)), body
        assert "x" not in followers(server)
        assert server.request("PUT", BATCH, good[:-1]).status == 400
        assert server.request("PUT", BATCH, b"a" * 5000 + b"\n" + good).status == 400
        assert server.request("PUT", BATCH, bytes((512 << 10) + 1)).status == 413
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(good), good)
        assert server.request("PUT", BATCH, chunked, {"Transfer-Encoding": "chunked"}).status == 411
        assert server.request("DELETE", BATCH).status == 405
        assert server.request("HEAD", BATCH).status == 200
    with Server("--no-reports") as server:
        assert server.request("PUT", BATCH, good).status == 403


main()
