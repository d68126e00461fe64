#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""picture.py: makes the pictures of the README again: doc/images/status.png, the status page, and with the word
`report` doc/images/report.png, the beginning of the demo's report.

What they show is real: a server, a publisher that signs, and four followers, of which one was killed and one is
stopped for a while; and a demo, or a report that one has left before, if its file is named. It needs build/weft (or
WEFT) and Debian's chromium, and takes half a minute for the one and as long as a demo for the other.
"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
IMAGES = os.path.join(SOURCE, "doc", "images")
sys.path.insert(0, os.path.join(SOURCE, "tests", "python"))
import chromium  # noqa: E402
import serving  # noqa: E402

VERSIONS = 140
MODELS = 12


class Run:
    def __init__(self, root):
        self.root = root
        self.environment = dict(os.environ, HOME=root)
        self.dice = random.Random(7)
        self.at = 0
        self.version = 0
        self.weft("bench", "--make", self.path("m"), "--params", "8M", "--steps", str(MODELS - 1))
        self.weft("keygen", self.path("key"))

    def path(self, name):
        return os.path.join(self.root, name)

    def weft(self, *arguments):
        subprocess.run([serving.WEFT, *arguments], env=self.environment, check=True, capture_output=True)

    def model(self):
        """There and back again."""
        place = self.at % (2 * MODELS - 2)
        return min(place, 2 * MODELS - 2 - place)

    def publish(self, store):
        """Steps of the trainer: now and then it makes two, or four, before it publishes."""
        self.version += 1
        model = self.model()
        while self.model() == model:
            self.at += self.dice.choice([1] * 12 + [2, 2, 4])
        anchor = "now" if self.version in (52, 111) else "never"
        self.weft("publish", store, self.path(f"m/step-{self.model()}.safetensors"), "--sign", self.path("key"),
                  "--label", f"step={40 * self.version}", "--label", "policy=grpo", "--anchor", anchor)

    def follow(self, url, name):
        return subprocess.Popen([serving.WEFT, "follow", url, self.path(name), "--name", name, "--report-every", "10s"],
                                env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)


def take(run, server, followers, path):
    for _ in range(VERSIONS - 9):
        run.publish(server.url)
    followers["rollout-gpu-3"].kill()
    for _ in range(6):
        run.publish(server.url)
        time.sleep(0.3)
    time.sleep(1)
    followers["rollout-gpu-2"].send_signal(signal.SIGSTOP)
    with chromium.Browser() as browser, chromium.Page(browser, 1120) as page:
        page.visit(server.url)
        for _ in range(3):
            time.sleep(6)
            run.publish(server.url)
        assert page.wait(f"document.getElementById('version').textContent === '{VERSIONS}'")
        assert page.wait("document.querySelectorAll('#followers tr.gone').length === 1"), "no follower has gone"
        time.sleep(1.5)
        page.screenshot(path)
    print(f"{path}: {os.path.getsize(path)} bytes")


def take_report(report, path):
    with chromium.Browser() as browser, chromium.Page(browser, 1120) as page:
        page.visit("file://" + os.path.abspath(report))
        assert page.wait("document.querySelectorAll('#charts svg path[data-series]').length >= 20")
        time.sleep(0.5)
        page.screenshot(path, 868)
    print(f"{path}: {os.path.getsize(path)} bytes")


def picture_report(arguments):
    path = os.path.join(IMAGES, "report.png")
    if arguments:
        take_report(arguments[0], path)
        return
    with tempfile.TemporaryDirectory(prefix="weft-picture.") as root:
        report = os.path.join(root, "report.html")
        subprocess.run([serving.WEFT, "demo", "--output", report], check=True)
        take_report(report, path)


def picture_status():
    with tempfile.TemporaryDirectory(prefix="weft-picture.") as root:
        run = Run(root)
        with serving.Server(directory=run.path("run-7")) as server:
            followers = {name: run.follow(server.url, name) for name in
                         ("rollout-gpu-0", "rollout-gpu-1", "rollout-gpu-2", "rollout-gpu-3")}
            try:
                take(run, server, followers, os.path.join(IMAGES, "status.png"))
            finally:
                for follower in followers.values():
                    follower.kill()
                    follower.wait()


if sys.argv[1:2] == ["report"]:
    picture_report(sys.argv[2:])
else:
    picture_status()
