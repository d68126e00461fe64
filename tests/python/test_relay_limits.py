# SPDX-License-Identifier: Apache-2.0
"""Relays whose directory is not theirs, whose disk or descriptors run out, and whose upstream names things that
cannot be: nothing of others is removed, heads go on, and nobody waits for ever."""
import hashlib
import json
import os
import resource
import socket
import subprocess
import time
import unittest

import serving
import weft_store
from relaying import DOWN, QUICK, Relay, Run
from serving import wait_for, write_whole

CHUNK = 4096


# ---- the directory ----


def refuses(run, upstream, cache, *words):
    """A relay with that cache does not start, and says why."""
    result = run.weft("serve", upstream, "--cache", cache, "--cache-bytes", "1K", "--listen", "127.0.0.1:0",
                      codes=(1, 2, 3, 4, 5, 6))
    for word in words:
        assert word in result.stderr, result.stderr


def files_below(directory):
    return sorted(os.path.join(place, name) for place, _, names in os.walk(directory) for name in names)


def test_directory_of_others():
    with Run() as run:
        run.publish()
        home = os.path.join(run.root, "home")
        for name in ("thesis", "photos/a", "patches/mine"):
            write_whole(os.path.join(home, name), bytes(200000))
        before = files_below(home)
        refuses(run, run.origin.url, home, "not empty", "choose")
        assert files_below(home) == before
        # what somebody puts beside a cache is not the cache's to count or to remove
        cache = os.path.join(run.root, "cache")
        with Relay(run.origin.url, cache=cache) as relay:
            run.pull(relay.url)
        write_whole(os.path.join(cache, "photos/a"), bytes(200000))
        with Relay(run.origin.url, "--cache-bytes", "100K", cache=cache) as relay:
            run.pull(relay.url, "second")
            assert relay.relay()["cached_bytes"] <= 100 << 10, relay.relay()
        assert os.path.getsize(os.path.join(cache, "photos/a")) == 200000


def test_store_as_its_own_cache():
    with Run() as run:
        run.publish()
        run.publish()
        store = run.origin.directory
        before = files_below(store)
        link = os.path.join(run.root, "link")
        os.symlink(store, link)
        # not even if it looks like a cache
        marker = os.path.join(store, ".relay-lock")
        for cache in (store, link, os.path.join(store, "cache"), os.path.dirname(store)):
            refuses(run, store, cache, "choose")
            refuses(run, "file://" + store, cache, "choose")
        open(marker, "w").close()
        refuses(run, store, link, "apart")
        refuses(run, "file://" + store, os.path.join(store, "cache"), "apart")
        os.remove(marker)
        assert files_below(store) == before
        run.pull(run.origin.url)


# ---- the disk ----


def fill(path):
    """To the last byte."""
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass


def test_heads_on_a_full_disk():
    """What cannot be written down is known all the same, and is written when there is room again."""
    with Run("2M", steps=2) as run:
        run.publish()
        full = os.path.join(run.root, "full")
        os.mkdir(full)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", full], capture_output=True).returncode:
            raise unittest.SkipTest("no tmpfs can be mounted here")
        cache, other = os.path.join(full, "cache"), os.path.join(full, "other")
        mark = os.path.join(cache, ".relay-mark")
        try:
            with Relay(run.origin.url, cache=cache) as relay:
                relay.has_version(1)
                fill(other)
                relay.has_version(run.publish())
                assert relay.relay()["disk_full"] and relay.relay()["reached"], relay.relay()
                run.pull(relay.url)
            with Relay(run.origin.url, cache=cache) as relay:
                relay.has_version(2)
                fill(other)
                relay.has_version(run.publish())
                assert relay.request("GET", "/heads/00000001").body == run.content("heads/00000001")
                run.pull(relay.url)
                os.remove(other)
                version = run.publish()
                relay.has_version(version)

                def is_written():
                    with open(mark) as file:
                        return json.load(file)["version"] == version

                assert wait_for(is_written)
                run.pull(relay.url)
        finally:
            subprocess.run(["umount", "-l", full], check=True)


def test_heads_do_not_go_back():
    """A relay that ended before it had written a head down does not hand out the one before."""
    with Run() as run:
        run.publish()
        cache = os.path.join(run.root, "cache")
        path = os.path.join(cache, "heads/00000001")
        with Relay(run.proxy.url, *QUICK, cache=cache) as relay:
            relay.has_version(1)
            with open(path, "rb") as file:
                old = file.read()
            relay.has_version(run.publish())
            with open(path, "rb") as file:  # before anybody was told
                new = file.read()
            assert new == run.content("heads/00000001")
        run.proxy.set_faults(DOWN)
        write_whole(path, old)
        with Relay(run.proxy.url, *QUICK, cache=cache) as relay:
            assert relay.status()["head"] is None, relay.status()
            assert relay.request("GET", "/heads/00000001").status == 503
        write_whole(path, new)
        with Relay(run.proxy.url, *QUICK, cache=cache) as relay:
            assert relay.request("GET", "/heads/00000001").body == new
            assert wait_for(lambda: relay.relay()["error"] is not None)
            run.proxy.set_faults([])
            assert wait_for(lambda: relay.relay()["reached"])
            assert relay.relay()["error"] is None, relay.relay()
            run.pull(relay.url)


def test_damaged_mark():
    """A relay that does not know what it has seen does not start, and says what to do."""
    with Run() as run:
        run.publish()
        cache = os.path.join(run.root, "cache")
        mark = os.path.join(cache, ".relay-mark")
        with Relay(run.origin.url, cache=cache) as relay:
            relay.has_version(1)
        for content in (b"{", b"x" * 2000, b'{"weft":99,"kind":"watermark"}'):
            write_whole(mark, content)
            refuses(run, run.origin.url, cache, "remove", mark, "relay")
        os.remove(mark)
        with Relay(run.origin.url, cache=cache) as relay:
            relay.has_version(1)


# ---- descriptors ----


def ask(relay, key):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((relay.host, relay.port))
    client.sendall(f"GET /{key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client


def count_files(relay):
    return len(os.listdir(f"/proc/{relay.process.pid}/fd"))


def test_two_descriptors_each():
    """A connection that is sent a cached object holds its socket and the file."""
    with Run("6M", steps=1) as run:
        run.publish()
        anchor = run.keys("anchors")[0]
        with Relay(run.origin.url) as relay:
            assert relay.request("GET", "/" + anchor).status == 200
            assert wait_for(lambda: relay.relay()["under_way"] == 0)
            before = count_files(relay)
            clients = [ask(relay, anchor) for _ in range(40)]
            for client in clients:
                assert client.recv(1)
            assert count_files(relay) <= before + 90, (before, count_files(relay))
            for client in clients:
                client.close()


def test_no_descriptors():
    """When they run out, some are told so; what lies in the cache stays there."""
    with Run("6M", steps=1) as run:
        run.publish()
        anchor = run.keys("anchors")[0]
        content = run.content(anchor)
        with Relay(run.origin.url, "--idle-seconds", "60") as relay:
            assert relay.request("GET", "/" + anchor).body == content
            assert wait_for(lambda: os.path.exists(relay.cached(anchor)))
            before = relay.relay()
            limit = count_files(relay) + 30
            resource.prlimit(relay.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
            clients = [ask(relay, anchor) for _ in range(60)]
            assert wait_for(lambda: count_files(relay) >= limit - 1)
            time.sleep(0.5)
            for client in clients:
                client.close()
            assert wait_for(lambda: relay.request("GET", "/" + anchor).body == content)
            after = relay.relay()
            assert os.path.getsize(relay.cached(anchor)) == len(content)
            assert after["fetches"] == before["fetches"] and not after["disk_full"], after


# ---- what the upstream names ----


def sha(data):
    return hashlib.sha256(data).hexdigest()


def named(key, body, list_key, listed):
    return {"key": key, "bytes": len(body), "chunk_bytes": CHUNK,
            "list": {"key": list_key, "bytes": len(listed), "sha256": sha(listed)}}


def rewrite(run, change):
    """A page that `change` has altered, and a head that leads to it."""
    page = weft_store.parse_packed(run.content(run.keys("pages")[-1]), weft_store.MAXIMUM_PAGE, "page")
    head = weft_store.parse_head(run.content("heads/00000001"))
    change(page)
    data = json.dumps(page, separators=(",", ":")).encode() + b"\n"
    write_whole(run.origin.path("pages/evil"), data)
    head["page"] = {"key": "pages/evil", "bytes": len(data), "sha256": sha(data)}
    head["sequence"] += 1
    line = json.dumps(head, separators=(",", ":")).encode()
    write_whole(run.origin.path("heads/00000001"), line + b"\nsha256 " + sha(line).encode() + b"\n")


def answered(relay, key, content):
    """Whole, or told that it cannot be had; in any case told."""
    answer = relay.request("GET", "/" + key)
    assert answer.status in (404, 503) or answer.body == content, (key, answer)
    return answer.status == 200


def hostile(change):
    """A relay of a run whose page was altered. Ends with `with`."""
    run = Run()
    run.publish()
    run.publish()
    rewrite(run, change)
    return run


def body_and_list(count=20):
    body = os.urandom(count * CHUNK)
    return body, b"".join(hashlib.sha256(body[i * CHUNK:(i + 1) * CHUNK]).digest() for i in range(count))


def test_one_list_of_two_objects():
    body, listed = body_and_list()

    def change(page):
        page["records"][1]["patch"] = named("patches/first", body, "chunks/x", listed)
        page["records"][1].pop("retired", None)
        page["anchors"][0]["object"] = named("anchors/second", body, "chunks/x", listed)

    with hostile(change) as run:
        for key, data in (("chunks/x", listed), ("patches/first", body), ("anchors/second", body)):
            write_whole(run.origin.path(key), data)
        with Relay(run.origin.url, *QUICK) as relay:
            assert wait_for(lambda: relay.request("GET", "/pages/evil").status == 200)
            assert any([answered(relay, "patches/first", body), answered(relay, "anchors/second", body)])
            assert wait_for(lambda: relay.status()["connections"] <= 1)


def test_list_that_is_something_else():
    """The list's key is a page's, or the object's own."""
    body, listed = body_and_list()
    for list_key in ("pages/evil", "patches/first", "anchors/second"):
        def change(page):
            page["records"][1]["patch"] = named("patches/first", body, list_key, listed)
            page["records"][1].pop("retired", None)
            page["anchors"][0]["object"] = named("anchors/second", body, "patches/first", listed)

        with hostile(change) as run:
            write_whole(run.origin.path("patches/first"), body)
            write_whole(run.origin.path("anchors/second"), body)
            with Relay(run.origin.url, *QUICK) as relay:
                assert wait_for(lambda: relay.request("GET", "/pages/evil").status == 200)
                answered(relay, "patches/first", body)
                answered(relay, "anchors/second", body)
                assert wait_for(lambda: relay.status()["connections"] <= 1)


def test_list_that_is_an_object_of_chunks():
    """A large object whose first chunk is right was once read as a list of one chunk."""
    size = 4 << 20
    body = os.urandom(CHUNK) + bytes(size - CHUNK)
    first = sha(body[:CHUNK])

    def change(page):
        page["records"][1]["patch"] = {"key": "patches/evil", "bytes": size // 32 * CHUNK, "chunk_bytes": CHUNK,
                                       "list": {"key": "chunks/x", "bytes": size, "sha256": first}}
        page["records"][1].pop("retired", None)
        page["anchors"][0]["object"] = {
            "key": "chunks/x", "bytes": size, "chunk_bytes": CHUNK,
            "list": {"key": "chunks/y", "bytes": size // CHUNK * 32, "sha256": first}}

    with hostile(change) as run:
        write_whole(run.origin.path("chunks/x"), body)
        with Relay(run.origin.url, *QUICK) as relay:
            assert wait_for(lambda: relay.request("GET", "/pages/evil").status == 200)
            assert relay.request("GET", "/chunks/x").status in (404, 503)
            assert relay.request("GET", "/patches/evil").status in (404, 503)
            assert relay.process.poll() is None


def test_objects_out_of_their_rooms():
    body, listed = body_and_list()
    for key in ("photos/a", "followers/a"):
        def change(page):
            page["anchors"][0]["object"] = named(key, body, "chunks/x", listed)

        with hostile(change) as run:
            write_whole(run.origin.path("chunks/x"), listed)
            write_whole(run.origin.path(key), body)
            with Relay(run.origin.url, *QUICK) as relay:
                assert wait_for(lambda: relay.request("GET", "/pages/evil").status == 200)
                assert relay.request("GET", "/" + key).status == 404
                assert not os.path.exists(relay.cached(key))


if __name__ == "__main__":
    serving.main()
