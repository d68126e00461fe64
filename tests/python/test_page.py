#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The page at / of `weft serve`, in a real browser: it shows what is there, keeps itself up to date while a
publisher publishes and followers report, takes all text for text, talks to its own server only, and says so when
that is gone. Pictures are left in the scratch directory, or in WEFT_PICTURES if that is set."""
import os
import subprocess
import sys
import tempfile

import chromium
from chromium import Browser
from serving import WEFT, Server, main

HOSTILE = "<img src=x onerror=\"window.hit=1\"><script>window.hit=2</script>&amp;"


class Scene:
    """A directory with some steps of a small model, and the command to publish them with."""

    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-page.")
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


def points(browser, series):
    return browser.evaluate(f"document.querySelectorAll('#plot circle.point.{series}').length")


def check_manners(browser, server):
    """Nothing complained, nothing was asked of anybody else, and no text has become anything but text."""
    assert browser.complaints() == [], browser.complaints()
    foreign = [url for url in browser.requests() if not url.startswith((server.url, "data:"))]
    assert foreign == [] and browser.requests(), foreign
    assert browser.evaluate("window.hit === undefined && document.images.length === 0")


def test_it_shows_and_follows():
    with Scene() as scene, Server() as server:
        for _ in range(5):
            scene.publish(server.directory)
        with Browser() as browser:
            browser.visit(server.url)
            assert browser.wait("document.getElementById('version')?.textContent === '5'")
            assert browser.wait("document.querySelectorAll('#plot circle.point').length > 0")
            # the first version came as an anchor, and has no patch to plot
            assert points(browser, "patch") == 4 and points(browser, "density") == 4
            assert browser.evaluate("document.querySelectorAll('#plot path.anchor').length") == 1
            assert browser.text("#link-text") == "live" and browser.text("#store") == "store"
            assert browser.text("#reduction").endswith("×") and browser.text("#density").endswith("%")
            assert "ago" in browser.text("#version-note") and "KiB" in browser.text("#patch-note")
            browser.evaluate("window.mark = 1")
            for version in (6, 7):
                scene.publish(server.url, "--label", "step=" + str(version))
                assert browser.wait(f"document.getElementById('version').textContent === '{version}'")
            scene.publish(server.directory, "--label", "note=" + HOSTILE)
            assert browser.wait("document.querySelectorAll('#plot circle.point.patch').length === 7")
            assert browser.wait("document.title.startsWith('v8 ')"), browser.evaluate("document.title")
            assert browser.evaluate("window.mark") == 1, "the page was loaded anew"
            assert browser.text("#facts .label") == "note=" + HOSTILE
            assert ("note=" + HOSTILE) in browser.text("#readout") and "version 8" in browser.text("#readout")
            check_manners(browser, server)


def press(browser, key):
    for kind in ("keyDown", "keyUp"):
        browser.command("Input.dispatchKeyEvent", type=kind, key=key, code=key)


def test_the_plot_can_be_read():
    with Scene() as scene, Server() as server:
        for _ in range(6):
            scene.publish(server.directory)
        with Browser() as browser:
            browser.visit(server.url)
            assert browser.wait("document.querySelectorAll('#plot circle.point').length === 10")
            browser.evaluate("document.getElementById('plot').focus()")
            for key, version in (("ArrowLeft", 6), ("ArrowLeft", 5), ("Home", 1), ("ArrowRight", 2), ("End", 6)):
                press(browser, key)
                assert browser.wait(f"document.querySelector('#readout b').textContent === 'version {version}'"), key
            press(browser, "Home")
            assert "anchor" in browser.text("#readout")
            box = browser.evaluate("(({x, y, width, height}) => [x, y, width, height])"
                                   "(document.querySelectorAll('circle.point.patch')[2].getBoundingClientRect())")
            browser.command("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] / 2, y=box[1] + box[3] / 2)
            assert browser.wait("document.querySelector('#readout b').textContent === 'version 4'")
            for width in (1200, 700, 360):
                for scheme in ("light", "dark"):
                    browser.resize(width, 800)
                    browser.prefer(scheme)
                    browser.screenshot(os.path.join(scene.pictures, f"page-{width}-{scheme}.png"))
                assert browser.evaluate("document.documentElement.scrollWidth") <= width, f"too wide for {width}"
            check_manners(browser, server)


def test_it_says_when_the_server_is_gone():
    with Scene() as scene:
        with Server() as server, Browser() as browser:
            store = os.path.join(scene.root, "kept")
            browser.visit(server.url)
            assert browser.wait("document.getElementById('empty')?.hidden === false")
            assert "weft publish " + server.url.rstrip("/") in browser.text("#empty")
            os.rename(server.directory, store)
            scene.publish(store)
            assert server.stop() == 0
            assert browser.wait("document.getElementById('link-text').textContent.startsWith('no answer since ')")
            assert browser.evaluate("document.body.className") == "stale"
            with Server("--listen", f"{server.host}:{server.port}", directory=store):
                assert browser.wait("document.getElementById('link-text').textContent === 'live'")
                assert browser.evaluate("document.body.className") == ""
                assert browser.wait("document.getElementById('version').textContent === '1'")
                scene.publish(store)
                assert browser.wait("document.querySelectorAll('#plot circle.point.patch').length === 1")
            refused = [entry for entry in browser.complaints() if entry.get("source") != "network"]
            assert refused == [], refused


def test_it_asks_for_a_token():
    with Scene() as scene:
        tokens = os.path.join(scene.root, "tokens")
        with open(os.open(tokens, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("the-right-one\n")
        with Server("--read-token-file", tokens) as server, Browser() as browser:
            scene.publish(server.directory)
            assert server.request("GET", "/").status == 401
            browser.visit(server.url)
            assert browser.wait("document.getElementById('token-form')?.hidden === false")
            assert browser.text("#version") == "–" and browser.text("#link-text") == "a token is needed"
            for token, place, text in (("a-wrong-one", "link-text", "the token is refused"),
                                       ("the-right-one", "version", "1")):
                browser.evaluate(f"document.getElementById('token').value = '{token}';"
                                 "document.querySelector('#token-form button').click()")
                assert browser.wait(f"document.getElementById('{place}').textContent === '{text}'"), token
            assert browser.evaluate("document.getElementById('token-form').hidden")
            browser.visit(server.url)
            assert browser.wait("document.getElementById('version')?.textContent === '1'"), "the token was forgotten"
            assert browser.evaluate("localStorage.length === 0 && document.cookie === ''")
            assert all("right" not in url for url in browser.requests())


if not chromium.is_installed():
    print("SKIPPED: chromium is not installed; the page of `weft serve` was NOT TESTED. Run `make deps`.")
    sys.exit(0)
main()
