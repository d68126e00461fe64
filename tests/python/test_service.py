# SPDX-License-Identifier: Apache-2.0
"""What runs for long tells how it is: metrics of follow and publish, as promtool reads them, and messages to the
supervisor over a real socket."""

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import serving

WEFT = serving.WEFT


class Scene:
    """A directory with models, a store, and processes that end with it."""

    def __enter__(self):
        self.directory = tempfile.mkdtemp(prefix="weft-service-")
        self.processes = []
        self.run("bench", "--make", "m", "--params", "100K", "--steps", "2")
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.directory)

    def run(self, *arguments, code=0):
        result = subprocess.run([WEFT, *arguments], cwd=self.directory, capture_output=True, text=True)
        assert result.returncode == code and "Sanitizer" not in result.stderr, (arguments, result)
        return result

    def publish(self, step, *arguments, code=0):
        return self.run("publish", "store", f"m/step-{step}.safetensors", "--cache", "cache", *arguments, code=code)

    def start(self, *arguments, **environment):
        with open(self.path("stderr"), "w") as log:
            process = subprocess.Popen([WEFT, *arguments], cwd=self.directory, stdout=subprocess.DEVNULL, stderr=log,
                                       env={**os.environ, **environment})
        self.processes.append(process)
        return process

    def path(self, name):
        return os.path.join(self.directory, name)

    def read(self, name):
        try:
            with open(self.path(name)) as file:
                return file.read()
        except FileNotFoundError:
            return ""


def until(find):
    """What a condition gives once it gives something."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        found = find()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("this did not come to pass")


def figures(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def check_by_promtool(text):
    if shutil.which("promtool") is None:
        raise unittest.SkipTest("promtool is not installed (make deps installs it): it did not check the metrics")
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0 and not checked.stdout and not checked.stderr, checked


def fetch(url, method="GET"):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_metrics_of_a_follower():
    with Scene() as scene:
        scene.publish(0)
        process = scene.start("follow", "store", "out", "--metrics", "127.0.0.1:0", "--metrics-file", "follow.prom",
                              "--exec", "test $WEFT_VERSION != 2")
        url = until(lambda: re.search(r"metrics are at (http://127\.0\.0\.1:\d+/metrics)", scene.read("stderr")))[1]
        before = time.time()
        until(lambda: figures(fetch(url)[1]).get("weft_follow_version") == "1")
        scene.publish(1)
        until(lambda: figures(fetch(url)[1]).get("weft_follow_exec_failures_total") == "1")
        now = figures(fetch(url)[1])
        assert now["weft_follow_version"] == now["weft_follow_newest_version"] == "2" and now["weft_follow_lag"] == "0", now
        assert now["weft_follow_patches_total"] == now["weft_follow_anchors_total"] == "1", now
        assert now["weft_follow_failures_total"] == now["weft_follow_failures_in_a_row"] == "0", now
        assert float(now["weft_follow_fetched_bytes_total"]) > 1000 and float(now["weft_follow_requests_total"]) > 1, now
        assert float(now["weft_follow_last_success_timestamp_seconds"]) >= before - 1, now
        assert 0 < float(now["weft_follow_pause_seconds"]) < 300 and float(now["weft_follow_lag_seconds"]) < 300, now
        assert float(now['weft_follow_phase_seconds_total{phase="commit"}']) > 0, now
        # the file is what the address shows, and nothing lies beside it
        until(lambda: figures(scene.read("follow.prom")).get("weft_follow_exec_failures_total") == "1")
        assert not os.path.exists(scene.path("follow.prom.tmp"))
        assert fetch(url.replace("/metrics", "/other"))[0] == 404 and fetch(url, "DELETE")[0] == 405
        text = fetch(url)[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
        check_by_promtool(text)


def test_an_outage_shows_in_the_metrics():
    with Scene() as scene:
        scene.publish(0)
        server = scene.start("serve", "store", "--listen", "127.0.0.1:0", "--url-file", "url")
        place = until(lambda: scene.read("url").strip())
        scene.start("follow", place, "out", "--metrics-file", "follow.prom", "--retries", "0")

        def find(name):
            return float(figures(scene.read("follow.prom")).get(name, "nan"))

        until(lambda: find("weft_follow_version") == 1)
        server.kill()
        server.wait()
        until(lambda: find("weft_follow_failures_in_a_row") >= 2)
        scene.start("serve", "store", "--listen", place.split("/")[2])
        until(lambda: find("weft_follow_failures_in_a_row") == 0)
        assert find("weft_follow_failures_total") >= 2


def test_metrics_of_a_publish():
    with Scene() as scene:
        scene.publish(0, "--metrics-file", "publish.prom")
        first = figures(scene.read("publish.prom"))
        assert first["weft_publish_version"] == "1" and first["weft_publish_last_run_success"] == "1", first
        assert float(first["weft_publish_uploaded_bytes"]) > 1000, first
        text = scene.read("publish.prom")
        scene.run("publish", "store", "absent.safetensors", "--metrics-file", "publish.prom", code=1)
        second = figures(scene.read("publish.prom"))
        assert second["weft_publish_last_run_success"] == "0" and "weft_publish_version" not in second, second
        assert float(second["weft_publish_last_run_timestamp_seconds"]) >= \
            float(first["weft_publish_last_run_timestamp_seconds"])
        # a file that cannot be written is told, and is no reason not to publish
        assert "cannot write the metrics" in scene.publish(1, "--metrics-file", "no/where.prom").stderr
        scene.run("publish", "store", "m/step-2.safetensors", "--metrics", "here", code=2)
        check_by_promtool(text)


class Supervisor:
    """The socket of NOTIFY_SOCKET, and what came there."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.messages = []

    def wait_for(self, wanted, count=1):
        end = time.monotonic() + 300
        while sum(bool(re.match(wanted, message)) for message in self.messages) < count:
            assert select.select([self.socket], [], [], max(0, end - time.monotonic()))[0], (wanted, self.messages)
            self.messages.append(self.socket.recv(4096).decode())


def test_the_supervisor_of_a_follower_is_told():
    with Scene() as scene:
        scene.publish(0)
        supervisor = Supervisor(scene.path("socket"))
        process = scene.start("follow", "store", "out", "--exec", "env > environment; sleep 1",
                              NOTIFY_SOCKET=scene.path("socket"), WATCHDOG_USEC="400000")
        supervisor.wait_for("READY=1$")
        # while CMD runs, too
        supervisor.wait_for("WATCHDOG=1$", 3)
        supervisor.wait_for("STATUS=at version 1$")
        supervisor.wait_for("WATCHDOG=1$", 12)
        assert supervisor.messages.count("READY=1") == 1
        assert "NOTIFY_SOCKET" not in scene.read("environment") and "PATH=" in scene.read("environment")
        process.send_signal(signal.SIGTERM)
        supervisor.wait_for("STOPPING=1$")
        assert process.wait() == 143


def test_the_supervisor_of_a_server_is_told():
    with Scene() as scene:
        scene.publish(0)
        name = f"weft-test-{os.getpid()}"
        supervisor = Supervisor("\0" + name)
        process = scene.start("serve", "store", "--listen", "127.0.0.1:0", "--url-file", "url", NOTIFY_SOCKET="@" + name,
                              WATCHDOG_USEC="400000")
        supervisor.wait_for("READY=1$")
        assert fetch(scene.read("url").strip() + "v1/status")[0] == 200
        supervisor.wait_for("WATCHDOG=1$", 5)
        supervisor.wait_for("STATUS=version 1, 0 followers live, 0 watching$")
        process.send_signal(signal.SIGTERM)
        supervisor.wait_for("STOPPING=1$")
        assert process.wait() == 0
        # a watchdog of another process is none of ours
        process = scene.start("serve", "store", "--listen", "127.0.0.1:0", NOTIFY_SOCKET="@" + name,
                              WATCHDOG_USEC="400000", WATCHDOG_PID="1")
        supervisor.wait_for("READY=1$", 2)
        process.send_signal(signal.SIGTERM)
        before = len(supervisor.messages)
        supervisor.wait_for("STOPPING=1$", 2)
        assert not [message for message in supervisor.messages[before:] if message == "WATCHDOG=1"]
        assert process.wait() == 0


if __name__ == "__main__":
    serving.main()
