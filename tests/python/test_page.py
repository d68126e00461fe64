#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The page at / of `weft serve`, in a real browser: it shows what is there, keeps itself up to date while a
publisher publishes and followers report, takes all text for text, talks to its own server only, and says so when
that is gone. Pictures are left in the scratch directory, or in WEFT_PICTURES if that is set."""
import json
import os
import subprocess
import tempfile
import time

import chromium
from chromium import Page
from serving import MEMORY, WEFT, Server, hold_port, main, skip_all

HOSTILE = "<img src=x onerror=\"window.hit=1\"><script>window.hit=2</script>&amp;"


class Scene:
    """A directory with some steps of a small model, and the command to publish them with."""

    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-page.", dir=MEMORY)
        self.root = self.scratch.name
        self.pictures = os.environ.get("WEFT_PICTURES", self.root)
        self.environment = dict(os.environ, HOME=self.root)
        self.environment.pop("WEFT_TOKEN", None)
        self.step = 0
        self.weft("bench", "--make", os.path.join(self.root, "m"), "--params", "200K", "--steps", "5")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.scratch.cleanup()

    def weft(self, *arguments):
        subprocess.run([WEFT, *arguments], env=self.environment, check=True, capture_output=True)

    def publish(self, store, *arguments):
        """The next version; it goes from step to step of the model, and back again."""
        step = min(self.step % 10, 10 - self.step % 10)
        self.weft("publish", store, os.path.join(self.root, f"m/step-{step}.safetensors"), *arguments)
        self.step += 1


class Follower:
    """A real one, which reports every second; ends with `with`."""

    def __init__(self, scene, server, name):
        self.process = subprocess.Popen(
            [WEFT, "follow", server.url, os.path.join(scene.root, name), "--name", name, "--report-every", "1s"],
            env=scene.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        self.process.kill()
        self.process.wait()


def points(page, series):
    return page.evaluate(f"document.querySelectorAll('#plot circle.point.{series}').length")


def check_manners(page, server):
    """Nothing complained, nothing was asked of anybody else, and no text has become anything but text."""
    assert page.complaints() == [], page.complaints()
    foreign = [url for url in page.requests() if not url.startswith((server.url, "data:"))]
    assert foreign == [] and page.requests(), foreign
    assert page.evaluate("window.hit === undefined && document.images.length === 0")
    assert page.evaluate("!/NaN|Infinity/.test(document.getElementById('plot').outerHTML)")


def test_it_shows_and_follows():
    with Scene() as scene, Server() as server:
        for _ in range(5):
            scene.publish(server.directory)
        with Page(BROWSER) as page:
            page.visit(server.url)
            assert page.wait("document.getElementById('version')?.textContent === '5'")
            assert page.wait("document.querySelectorAll('#plot circle.point').length > 0")
            # the first version came as an anchor, and has no patch to plot
            assert points(page, "patch") == 4 and points(page, "density") == 4
            assert page.evaluate("document.querySelectorAll('#plot path.anchor').length") == 1
            assert page.text("#link-text") == "live" and page.text("#store") == "store"
            assert page.text("#reduction").endswith("×") and page.text("#density").endswith("%")
            assert "ago" in page.text("#version-note") and "KiB" in page.text("#patch-note")
            page.evaluate("window.mark = 1")
            for version in (6, 7):
                scene.publish(server.url, "--label", "step=" + str(version))
                assert page.wait(f"document.getElementById('version').textContent === '{version}'")
            scene.publish(server.directory, "--label", "note=" + HOSTILE)
            assert page.wait("document.querySelectorAll('#plot circle.point.patch').length === 7")
            assert page.wait("document.title.startsWith('v8 ')"), page.evaluate("document.title")
            assert page.evaluate("window.mark") == 1, "the page was loaded anew"
            assert page.text("#facts .label") == "note=" + HOSTILE
            assert ("note=" + HOSTILE) in page.text("#readout") and "version 8" in page.text("#readout")
            check_manners(page, server)


def make_report(name, run, version, **members):
    """What a follower tells of itself, as FORMAT.md has it."""
    now = int(time.time() * 1000)
    report = {"weft": 1, "kind": "follower", "name": name, "run": run, "version": version, "digest": "ab" * 16,
              "newest": version, "lag": 0, "time": now, "published": now, "state": "waiting",
              "phases": {"wait": 1, "fetch": 0.5, "decode": 0.25, "verify": 0.125, "commit": 0.0625}, "pause": 0.0625,
              "patches": 3, "anchors": 1, "healed": 0, "fetched_bytes": 4096, "requests": 9, "interval": 600}
    return json.dumps({**report, **members}).encode()


# a follower's row, by its name and its version
HAS_ROW = ("[...document.querySelectorAll('#followers tr')]"
           ".some(row => row.children[0].textContent === '%s' && row.children[2].textContent === '%s')")


def rows(page):
    return page.evaluate("[...document.querySelectorAll('#followers tr')]"
                            ".map(row => [row.className, ...[...row.children].map(cell => cell.textContent)])")


def test_it_shows_followers():
    with Scene() as scene, Server() as server:
        for _ in range(3):
            scene.publish(server.directory)
        run = json.loads(server.request("GET", "/v1/status").body)["head"]["run"]

        def tell(name, version, **members):
            answer = server.request("PUT", "/followers/" + name, make_report(name, run, version, **members))
            assert answer.status in (201, 204), answer

        tell("silent", 3, interval=1)  # and no more
        with Page(BROWSER) as page, Follower(scene, server, "real"):
            page.visit(server.url)
            assert page.wait(HAS_ROW % ("real", "3")), rows(page)
            scene.publish(server.directory)
            assert page.wait(HAS_ROW % ("real", "4")), rows(page)
            tell("slow", 2)
            tell("broken", 1, state="failed", error={"time": int(time.time() * 1000), "text": HOSTILE})
            tell("over", 4, state="ended")
            assert page.wait("document.getElementById('followers-note').textContent === '3 live, 2 gone'"), rows(page)
            table = rows(page)
            assert [row[1] for row in table[:3]] == ["broken", "slow", "real"], table
            assert [row[0] for row in table] == ["wrong", "behind", "", "gone", "gone"], table
            assert [row[4] for row in table[:3]] == ["3", "2", "0"], table
            assert {row[1]: row[2] for row in table[3:]} == {"over": "ended", "silent": "gone"}, table
            assert table[0][2] == "failed" and table[0][-1] == HOSTILE, table
            assert table[1][6] == "63 ms" and table[1][-1] == "", table
            assert page.text("#fleet") == "3" and page.text("#fleet-note") == "up to 3 behind"
            check_manners(page, server)
            for width in (1200, 360):
                page.resize(width, 800)
                page.screenshot(os.path.join(scene.pictures, f"followers-{width}.png"))
                assert page.evaluate("document.documentElement.scrollWidth") <= width, f"too wide for {width}"


def press(page, key):
    for kind in ("keyDown", "keyUp"):
        page.command("Input.dispatchKeyEvent", type=kind, key=key, code=key)


def test_the_plot_can_be_read():
    with Scene() as scene, Server() as server:
        for _ in range(6):
            scene.publish(server.directory)
        scene.step -= 1
        scene.publish(server.directory)  # nothing has changed
        with Page(BROWSER) as page:
            page.visit(server.url)
            assert page.wait("document.querySelectorAll('#plot circle.point').length === 12")
            page.evaluate("document.getElementById('plot').focus()")
            for key, version in (("ArrowLeft", 7), ("ArrowLeft", 6), ("Home", 1), ("ArrowRight", 2), ("End", 7)):
                press(page, key)
                assert page.wait(f"document.querySelector('#readout b').textContent === 'version {version}'"), key
            assert "0% changed" in page.text("#readout"), page.text("#readout")
            press(page, "Home")
            assert "anchor" in page.text("#readout")
            box = page.evaluate("(({x, y, width, height}) => [x, y, width, height])"
                                   "(document.querySelectorAll('circle.point.patch')[2].getBoundingClientRect())")
            page.command("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] / 2, y=box[1] + box[3] / 2)
            assert page.wait("document.querySelector('#readout b').textContent === 'version 4'")
            for width in (1200, 700, 360):
                for scheme in ("light", "dark"):
                    page.resize(width, 800)
                    page.prefer(scheme)
                    page.screenshot(os.path.join(scene.pictures, f"page-{width}-{scheme}.png"))
                assert page.evaluate("document.documentElement.scrollWidth") <= width, f"too wide for {width}"
            check_manners(page, server)


def test_it_says_when_the_server_is_gone():
    with Scene() as scene:
        with hold_port() as held, Server("--listen", f"127.0.0.1:{held.getsockname()[1]}") as server, \
                Page(BROWSER) as page:
            store = os.path.join(scene.root, "kept")
            page.visit(server.url)
            assert page.wait("document.getElementById('empty')?.hidden === false")
            assert "weft publish " + server.url.rstrip("/") in page.text("#empty")
            os.rename(server.directory, store)
            scene.publish(store)
            assert server.stop() == 0
            assert page.wait("document.getElementById('link-text').textContent.startsWith('no answer since ')")
            assert page.evaluate("document.body.className") == "stale"
            with Server("--listen", f"{server.host}:{server.port}", directory=store):
                assert page.wait("document.getElementById('link-text').textContent === 'live'")
                assert page.evaluate("document.body.className") == ""
                assert page.wait("document.getElementById('version').textContent === '1'")
                scene.publish(store)
                assert page.wait("document.querySelectorAll('#plot circle.point.patch').length === 1")
            refused = [entry for entry in page.complaints() if entry.get("source") != "network"]
            assert refused == [], refused


def test_it_shows_a_relay():
    with Scene() as scene, tempfile.TemporaryDirectory(prefix="weft-cache.") as cache:
        store = os.path.join(scene.root, "upstream")
        scene.publish(store)
        scene.publish(store)
        with Server(directory=store) as upstream, Server("--cache", cache, directory=upstream.url) as relay, \
                Page(BROWSER) as page:
            page.visit(relay.url)
            assert page.wait("document.querySelectorAll('#plot circle.point.patch').length === 1")
            facts = page.evaluate("Object.fromEntries([...document.querySelectorAll('#server dt')]"
                                  ".map(name => [name.textContent, name.nextElementSibling.textContent]))")
            assert facts["Relays"] == "http://…" and facts["Upstream"] == "reached", facts
            assert "of" in facts["Cache"] and facts["Writing"] == "refused", facts
            scene.publish(store)
            assert page.wait("document.getElementById('version').textContent === '3'")
            assert upstream.stop() == 0
            assert page.wait("document.querySelector('#facts .bad')?.textContent.startsWith('upstream not reached for ')")
            assert page.text("#link-text") == "live" and page.text("#version") == "3"
            check_manners(page, relay)


def test_it_asks_for_a_token():
    with Scene() as scene:
        tokens = os.path.join(scene.root, "tokens")
        with open(os.open(tokens, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("the-right-one\n")
        with Server("--read-token-file", tokens) as server, Page(BROWSER) as page:
            scene.publish(server.directory)
            assert server.request("GET", "/").status == 401
            page.visit(server.url)
            assert page.wait("document.getElementById('token-form')?.hidden === false")
            assert page.text("#version") == "–" and page.text("#link-text") == "a token is needed"
            for token, place, text in (("a-wrong-one", "link-text", "the token is refused"),
                                       ("the-right-one", "version", "1")):
                page.evaluate(f"document.getElementById('token').value = '{token}';"
                                 "document.querySelector('#token-form button').click()")
                assert page.wait(f"document.getElementById('{place}').textContent === '{text}'"), token
            assert page.evaluate("document.getElementById('token-form').hidden")
            page.visit(server.url)
            assert page.wait("document.getElementById('version')?.textContent === '1'"), "the token was forgotten"
            assert page.evaluate("localStorage.length === 0 && document.cookie === ''")
            assert all("right" not in url for url in page.requests())


if not chromium.is_installed():
    skip_all("chromium is not installed (make deps-test installs it): the page of `weft serve` was not tested")
with chromium.Browser() as BROWSER:
    main()
