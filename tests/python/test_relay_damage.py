# SPDX-License-Identifier: Apache-2.0
"""Relays whose cache was tampered with, whose upstream lies, and whose clients do: nobody ever gets a byte that
the history does not name."""
import http.client
import os
import random
import socket
import threading

import serving
from relaying import QUICK, Relay, Run, at_once
from serving import wait_for, write_whole

MIB = 1 << 20


def flip(path, dice):
    with open(path, "r+b") as file:
        size = os.path.getsize(path)
        place = dice.randrange(size)
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << dice.randrange(8)]))


def truncate(path, dice):
    os.truncate(path, dice.randrange(os.path.getsize(path)))


def lengthen(path, dice):
    with open(path, "ab") as file:
        file.write(dice.randbytes(100))


def replace(path, dice):
    """By another file of the same size, renamed into its place."""
    with open(path + "~new", "wb") as file:
        file.write(dice.randbytes(os.path.getsize(path)))
    os.rename(path + "~new", path)


def disguise(path, dice):
    """Changed in place, with the old times put back."""
    times = os.stat(path)
    flip(path, dice)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def stranger(path):
    """A file that is none of the relay's, beside its cache."""
    return os.path.join(os.path.dirname(path), "..", "..", "stranger")


def link_elsewhere(path, dice):
    os.remove(path)
    os.symlink(os.path.abspath(stranger(path)), path)


def share_elsewhere(path, dice):
    os.remove(path)
    os.link(stranger(path), path)


def turn_to_directory(path, dice):
    remove(path, dice)
    os.mkdir(path)


def remove(path, dice):
    if os.path.isdir(path):
        os.rmdir(path)
    else:
        os.remove(path)


TAMPERINGS = [flip, truncate, lengthen, replace, disguise, link_elsewhere, share_elsewhere, turn_to_directory, remove]


def cached_files(relay):
    found = []
    for room in ("patches", "anchors", "pages", "chunks"):
        directory = relay.cached(room)
        if os.path.isdir(directory):
            found += [f"{room}/{name}" for name in sorted(os.listdir(directory))]
    return found


def check_all(run, relay):
    for key in run.keys("patches") + run.keys("anchors") + run.keys("pages")[-1:]:
        answer = relay.request("GET", "/" + key)
        assert answer.status == 200 and answer.body == run.content(key), (key, answer)


def whole(relay, key):
    """The object, or None if the connection was cut."""
    try:
        return relay.request("GET", "/" + key).body
    except http.client.IncompleteRead:
        return None


def test_tampered_cache():
    """Files change while the relay runs, and between two of its lives."""
    dice = random.Random(5)
    with Run("400K", steps=3) as run:
        for _ in range(3):
            run.publish()
        cache = os.path.join(run.root, "cache")
        with open(os.path.join(run.root, "stranger"), "wb") as file:
            file.write(b"not the relay's")
        for tamper in TAMPERINGS:
            with Relay(run.origin.url, cache=cache) as relay:
                check_all(run, relay)
                before = relay.relay()
                assert wait_for(lambda: len(cached_files(relay)) >= 4 and relay.relay()["under_way"] == 0), \
                    (tamper, cached_files(relay))
                files = cached_files(relay)
                for key in files:
                    tamper(relay.cached(key), dice)
                check_all(run, relay)
                run.pull(relay.url, f"running-{tamper.__name__}")
                state = relay.relay()
                if tamper in (flip, truncate, replace, disguise):
                    assert state["damaged_cached"] - before["damaged_cached"] >= len(files), state
                for key in cached_files(relay):
                    tamper(relay.cached(key), dice)
            with Relay(run.origin.url, cache=cache) as relay:
                run.pull(relay.url, f"restarted-{tamper.__name__}")
                check_all(run, relay)
            with open(os.path.join(run.root, "stranger"), "rb") as file:
                assert file.read() == b"not the relay's", tamper


def test_tampered_heads():
    """A cached head that was changed is not believed, and one that was put back is not gone back to."""
    with Run() as run:
        run.publish()
        cache = os.path.join(run.root, "cache")
        with Relay(run.proxy.url, cache=cache) as relay:
            assert wait_for(lambda: os.path.exists(relay.cached("heads/00000001")))
            with open(relay.cached("heads/00000001"), "rb") as file:
                old = file.read()
            relay.has_version(run.publish())
        path = os.path.join(cache, "heads", "00000001")
        for content in (b"", b"x" * 5000, old[:-10], old.replace(b'"sequence":', b'"sequence":9')):
            write_whole(path, content)
            with Relay(run.proxy.url, cache=cache) as relay:
                relay.has_version(2)
                run.pull(relay.url)


def test_damaged_on_the_way():
    """Chunks that come wrong are fetched again, alone; followers see nothing of it."""
    with Run("2M", steps=2) as run:
        run.publish()
        for fault in ({"fault": "flip"}, {"fault": "truncate"}, {"fault": "wrong", "other": "/heads/00000001"},
                      {"fault": "cut"}, {"fault": "cut", "after": MIB + 7}, {"fault": "repeat"}):
            run.proxy.set_faults([dict(fault, path="/anchors/*", count=1)])
            with Relay(run.proxy.url) as relay:
                run.pull(relay.url, f"out-{run.proxy.counts()}")
                check_all(run, relay)
                if fault["fault"] == "flip":
                    state = relay.relay()
                    assert state["damaged"] == 1, state
                    # the object, and one chunk again
                    sizes = sum(os.path.getsize(run.origin.path(key)) for key in run.keys("anchors"))
                    assert state["upstream_bytes"] < sizes + 2 * MIB, state


def test_wrong_upstream():
    """An object that stays wrong is never handed on, whole or in part."""
    with Run("2M", steps=2) as run:
        run.publish()
        anchor = run.keys("anchors")[0]
        content = run.content(anchor)
        wrong = bytearray(content)
        wrong[MIB + 77] ^= 1  # in the second chunk
        write_whole(run.origin.path(anchor), bytes(wrong))
        with Relay(run.origin.url) as relay:
            with relay.socket() as client:
                client.sendall(f"GET /{anchor} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                data = serving.read_all(client)
            head, _, body = data.partition(b"\r\n\r\n")
            assert serving.status_of(data) in (200, 404), head
            if serving.status_of(data) == 200:  # the first chunk is right; then the connection is cut
                assert len(body) < len(content) and body == content[:len(body)], len(body)
            part = relay.request("GET", "/" + anchor, fields={"Range": f"bytes={MIB}-{MIB + 99}"})
            assert part.status == 404 and b"no such object" in part.body, part
            assert relay.relay()["damaged"] >= 3
            run.pull(relay.url, codes=(1, 3, 4))
            # once it is right again, it can be had, and what was right before was kept
            write_whole(run.origin.path(anchor), content)
            assert wait_for(lambda: whole(relay, anchor) == content)
            run.pull(relay.url)


def test_wrong_patch_is_gone_round():
    """As without a relay: another way is taken where there is one."""
    with Run("400K", steps=3) as run:
        run.publish()
        run.pull(run.origin.url)
        run.publish("--anchor-ratio", "0.0001")
        patch = run.keys("patches")[-1]
        write_whole(run.origin.path(patch), bytes(os.path.getsize(run.origin.path(patch))))
        with Relay(run.origin.url) as relay:
            run.pull(relay.url)


def test_wrong_pages():
    with Run() as run:
        run.publish()
        run.publish()
        pages = run.keys("pages")
        content = run.content(pages[-1])
        write_whole(run.origin.path(pages[-1]), content[:-2] + b" \n")
        with Relay(run.origin.url) as relay:
            assert relay.request("GET", "/" + pages[-1]).status == 404
            run.pull(relay.url, codes=(1, 3, 4))
            write_whole(run.origin.path(pages[-1]), content)
            assert wait_for(lambda: relay.request("GET", "/" + pages[-1]).body == content)
            run.pull(relay.url)


def test_forged_heads():
    with Run() as run:
        key = os.path.join(run.root, "run")
        run.weft("keygen", key)
        other = os.path.join(run.root, "other")
        run.weft("keygen", other)
        secret, public = key, key + ".pub"
        run.publish("--sign", secret)
        path = run.origin.path("heads/00000001")
        with open(path, "rb") as file:
            signed = file.read()
        with Relay(run.origin.url, "--trust", public) as relay:
            relay.has_version(1)
            # a head that nobody signed, of a version above
            write_whole(path, serving.make_head(1, 99, 7))
            assert wait_for(lambda: relay.relay()["refused_heads"] > 0)
            # and one that was altered, with its hash made right
            forged = signed.split(b"\n")[0].replace(b'"sequence":', b'"sequence":9')
            digest = serving.hashlib.sha256(forged).hexdigest().encode()
            write_whole(path, forged + b"\nsha256 " + digest + b"\n" + signed.split(b"\n")[2] + b"\n")
            seen = relay.relay()["refused_heads"]
            assert wait_for(lambda: relay.relay()["refused_heads"] > seen)
            assert relay.request("GET", "/heads/00000001").body == signed
            run.pull(relay.url, "out", "--trust", public)
            # what waits at the origin is told of the forged head for ever, and by looking it is found out
            write_whole(path, signed)
            relay.has_version(run.publish("--sign", secret))
            run.pull(relay.url, "out", "--trust", public)
        with Relay(run.origin.url, "--trust", other + ".pub", *QUICK, closed=True) as relay:
            assert relay.request("GET", "/heads/00000001").status in (404, 503)
            assert "signed" in relay.relay()["error"]


def test_heads_never_go_back():
    with Run() as run:
        run.publish()
        old = run.content("heads/00000001")
        cache = os.path.join(run.root, "cache")
        with Relay(run.origin.url, cache=cache) as relay:
            relay.has_version(run.publish())
            newest = run.content("heads/00000001")
            write_whole(run.origin.path("heads/00000001"), old)
            assert relay.request("GET", "/heads/00000001").body == newest
        # not in the next life either
        with Relay(run.origin.url, cache=cache) as relay:
            assert relay.request("GET", "/heads/00000001").body == newest
        # another run is none of this cache's
        write_whole(run.origin.path("heads/00000001"), serving.make_head(1, 99, 7))
        with Relay(run.origin.url, *QUICK, cache=cache, closed=True) as relay:
            assert wait_for(lambda: relay.relay()["refused_heads"] > 0)
            assert relay.request("GET", "/heads/00000001").body == newest
            assert "run" in relay.relay()["error"], relay.relay()


def test_clients_that_leave():
    """Clients that go in the middle of an object leave nothing behind, and do not disturb others."""
    with Run("2M", steps=1) as run:
        run.publish()
        anchor = run.keys("anchors")[0]
        content = run.content(anchor)
        run.proxy.set_faults([{"fault": "stall", "seconds": 0.5, "after": MIB + 9, "path": "/anchors/*"}])
        with Relay(run.proxy.url) as relay:
            relay.has_version(1)
            stop = threading.Event()

            def leave(_):
                while not stop.is_set():
                    with relay.socket() as client:
                        client.sendall(f"GET /{anchor} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                        client.recv(1000)

            leavers = [threading.Thread(target=leave, args=(i,)) for i in range(8)]
            for thread in leavers:
                thread.start()
            answers = at_once(8, lambda i: relay.request("GET", "/" + anchor).body == content)
            stop.set()
            for thread in leavers:
                thread.join()
            assert answers == [True] * 8
            assert wait_for(lambda: relay.status()["connections"] <= 1)


def test_strangers():
    """Paths that lead to the relay's own files, requests that are none, and clients that do not read, while an
    object is on its way: nobody gets what is not an object, and others are served meanwhile."""
    dice = random.Random(7)
    with Run("2M", steps=1) as run:
        run.publish()
        anchor = run.keys("anchors")[0]
        content = run.content(anchor)
        with Relay(run.origin.url, "--idle-seconds", "3") as relay:
            relay.has_version(1)
            slow = []
            for _ in range(20):
                client = socket.socket()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect((relay.host, relay.port))
                client.sendall(f"GET /{anchor} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                slow.append(client)
            idle = [relay.socket() for _ in range(50)]
            for key in (".relay-mark", ".relay-lock", ".drafts", ".drafts/" + anchor.replace("/", "@"), "../x",
                        "heads/../.relay-mark", "%2erelay-mark", "heads", "anchors", "heads/1", "heads/-1",
                        "heads/00000000", "heads/99999999999999999999", "heads/0000000%31x"):
                answer = relay.request("GET", "/" + key)
                assert answer.status in (400, 404) and b"watermark" not in answer.body, (key, answer)
            words = [b"GET ", b"PUT ", b"/" + anchor.encode(), b" HTTP/1.1", b"\r\n", b"Host: localhost", b"\r\n\r\n",
                     b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Range: bytes=0-", b"\x00", b"\xff", b":"]
            at_once(60, lambda i: relay.raw(b"".join(dice.choices(words, k=dice.randrange(1, 12)))))
            assert at_once(8, lambda i: relay.request("GET", "/" + anchor).body == content) == [True] * 8
            assert wait_for(lambda: relay.status()["connections"] <= 2)  # they had their time
            for client in slow + idle:
                client.close()
            run.pull(relay.url)


if __name__ == "__main__":
    serving.main()
