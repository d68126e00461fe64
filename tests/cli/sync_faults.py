# SPDX-License-Identifier: Apache-2.0
"""Publishers and followers over a store, as real processes on bad days.

Each is killed with SIGKILL at random instants, and at the calls that it makes on its files (by fault_io.so):
at every fourth one, from a random one on, and with WEFT_SOAK at each; these calls fail with a full disk or a
broken one; a follower is stopped for many
versions and goes on; the clock jumps by a day. Whatever happens, OUT holds a published version, byte for byte
as the digest says, and the newest one after the next undisturbed publish and pull.

The store is a directory, unless WEFT_TEST_STORE has the URL of another, below which it lies then: there, faults
of local files and jumps of the clock are left out, and a clock that is wrong is an error that says so.

WEFT names the command, WEFT_BUILD where fault_io.so is. WEFT_SOAK, if set, asks for thousands of kills (or for
as many as it says).
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

WEFT = os.path.abspath(os.environ.get("WEFT") or "build/weft")
FAULT_IO = os.path.join(os.environ.get("WEFT_BUILD") or "build", "tests", "fault_io.so")
PLACES = os.environ.get("WEFT_TEST_STORE", "")
KILLS = 40
SOAK_KILLS = 3000
STRIDE = 4
MODELS = 8
PATIENCE = 60


def fail(text):
    sys.exit(f"FAILED: {text}")


class Scene:
    """Models, the store, the publisher's cache and a replica, in a directory of their own."""

    def __init__(self, root):
        self.root = root
        self.models = os.path.join(root, "models")
        self.work = os.path.join(root, "work")
        self.environment = dict(os.environ, HOME=root, TMPDIR=root)
        for name in ("XDG_CACHE_HOME", "WEFT_TOKEN"):
            self.environment.pop(name, None)
        self.run("bench", "--make", self.models, "--params", "60K", "--steps", str(MODELS - 1))
        self.digests = [self.digest(self.model(i)) for i in range(MODELS)]
        self.turn = 0
        self.life = 0
        self.clear()

    def clear(self):
        self.life += 1
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(os.path.join(self.work, "out"))
        self.published = set()

    def keep(self):
        """What restore goes back to."""
        self.kept = self.turn, self.published.copy()
        shutil.copytree(self.work, self.work + ".kept", symlinks=True)

    def restore(self):
        shutil.rmtree(self.work)
        shutil.copytree(self.work + ".kept", self.work, symlinks=True)
        self.turn, self.published = self.kept[0], self.kept[1].copy()

    def model(self, number):
        return os.path.join(self.models, f"step-{number}.safetensors")

    @property
    def store(self):
        if PLACES:
            return f"{PLACES}/{os.path.basename(self.root)}/{self.life}"
        return os.path.join(self.work, "store")

    @property
    def cache(self):
        return os.path.join(self.work, "cache")

    @property
    def out(self):
        return os.path.join(self.work, "out", "model.safetensors")

    # ---- processes ----

    def start(self, *arguments, faults=None):
        environment = dict(self.environment)
        if faults:
            environment.update(LD_PRELOAD=FAULT_IO, **{f"WEFT_FAULT_{k}": v for k, v in faults.items()})
        return subprocess.Popen([WEFT, *arguments], env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, process, what):
        try:
            output, error = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            fail(f"{what} hangs")
        if "Sanitizer" in error or process.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
            fail(f"{what}: {error}")
        return process.returncode, output, error

    def run(self, *arguments, faults=None, codes=(0,)):
        code, output, error = self.end(self.start(*arguments, faults=faults), arguments)
        if code not in codes:
            fail(f"weft {' '.join(arguments)} gave {code}: {error}")
        return output

    # ---- what is there ----

    def digest(self, path):
        return json.loads(self.run("digest", path, "--json"))["digest"]

    def publish_arguments(self, number, *more):
        # whoever publishes may be seen by others even if it is killed before it can say so
        self.published.add(self.digests[number])
        return ["publish", self.store, self.model(number), "--cache", self.cache, "--anchor-ratio", "0.5", "-q",
                *more]

    def next_model(self):
        self.turn = (self.turn + 1) % MODELS
        return self.turn

    def out_digest(self):
        """Of the real bytes, after what a killed process left was finished or undone; None: nothing there."""
        if not os.path.exists(self.out):
            return None
        self.run("apply", "--in-place", self.out, "--recover", "-q")
        return self.digest(self.out)

    def check_out(self, what):
        digest = self.out_digest()
        if digest is not None and digest not in self.published:
            fail(f"{what}: OUT holds {digest}, which was never published")

    def settle(self, what):
        """An undisturbed publish and pull: everybody is at the newest version, and so is a newcomer."""
        number = self.next_model()
        self.run(*self.publish_arguments(number))
        self.run("pull", self.store, self.out, "-q")
        if self.out_digest() != self.digests[number]:
            fail(f"{what}: OUT is not at the newest version")
        fresh = os.path.join(self.work, "fresh.safetensors")
        self.run("pull", self.store, fresh, "-q")
        if self.digest(fresh) != self.digests[number]:
            fail(f"{what}: a newcomer is not at the newest version")
        for name in os.listdir(self.work):
            if "fresh" in name:
                os.remove(os.path.join(self.work, name))


# ---- random kills ----

def kill_later(process, seconds):
    """True if it still lived."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        return True


def random_kills(scene, dice, kills):
    scene.clear()
    scene.settle("at the start")
    began = time.monotonic()
    scene.settle("measured")
    span = (time.monotonic() - began) / 5
    tally = {"publishers": 0, "pulls": 0, "followers": 0, "too late": 0}
    while sum(tally.values()) < kills or tally["too late"] > sum(tally.values()) * 3 / 4:
        kind = dice.choice(("publishers", "pulls", "followers"))
        if kind == "publishers":
            process = scene.start(*scene.publish_arguments(scene.next_model()))
        else:
            scene.run(*scene.publish_arguments(scene.next_model()))
            process = scene.start("pull" if kind == "pulls" else "follow", scene.store, scene.out, "-q")
        killed = kill_later(process, dice.random() * span)
        # however the pace of the machine changes, about half of them come in time
        span *= 1.05 if killed else 0.95
        scene.end(process, kind)
        tally[kind if killed else "too late"] += 1
        scene.check_out(f"after a kill of {kind}")
        if dice.random() < 0.2:
            scene.settle(f"after a kill of {kind}")
        if sum(tally.values()) > 50 * kills:
            fail(f"the kills come too late: {tally}")
    scene.settle("in the end")
    print(f"random kills: {tally}", flush=True)


# ---- each call in turn ----

def each_call(scene, numbers, what, place, arguments, faults):
    """Strikes at the n-th call on files in `place`, for the numbers n until there are no more calls."""
    log = os.path.join(scene.root, "strikes")
    old_seen = new_seen = 0
    for n in numbers:
        scene.restore()
        number = scene.next_model()
        if what == "publish":
            command = scene.publish_arguments(number)
        else:
            scene.run(*scene.publish_arguments(number))
            command = ["pull", scene.store, scene.out, "-q"]
        if os.path.exists(log):
            os.remove(log)
        process = scene.start(*command, *arguments, faults={"PATH": os.path.join(scene.work, place), "AT": str(n),
                                                            "LOG": log, **faults})
        code, _, error = scene.end(process, command)
        if not os.path.exists(log):
            if code != 0:
                fail(f"{what} without faults gave {code}: {error}")
            break
        with open(log) as file:
            text = f"{what}, {faults} at call {n} ({file.read().strip()})"
        if "KILL" in faults and code != -signal.SIGKILL:
            fail(f"{text}: not killed but {code}")
        if "KILL" not in faults and code not in (0, 1, 4):
            fail(f"{text}: exit {code}: {error}")
        if "KILL" not in faults and code != 0 and not error.startswith("weft"):
            fail(f"{text}: said {error}")
        scene.check_out(text)
        if what == "publish":
            scene.run("pull", scene.store, scene.out, "-q")
            scene.check_out(text)
        at_new = scene.out_digest() == scene.digests[number]
        if "KILL" not in faults and what == "publish" and (code == 0) != at_new:
            fail(f"{text}: exit {code}, and the version is {'' if at_new else 'not '}there")
        new_seen += at_new
        old_seen += not at_new
        scene.settle(text)
    else:
        fail(f"{what} makes too many calls")
    print(f"{what} in {place}, {faults}: fewer than {n} calls, {old_seen} times old, {new_seen} times new", flush=True)
    if old_seen + new_seen < 2:
        fail(f"{what} makes no calls in {place}")


def all_calls(scene, first, stride):
    kill, full, broken = {"KILL": "1"}, {"ERRNO": "ENOSPC"}, {"ERRNO": "EIO"}
    cases = [
        ("publish", ".", [], kill),
        ("publish", "store", [], full),
        ("publish", "cache", [], broken),
        ("pull", "out", [], kill),
        ("pull", "out", ["--durable"], kill),
        ("pull", "out", [], full),
        ("pull", "out", [], broken),
    ]
    scene.clear()
    scene.settle("before")
    scene.keep()
    for case in cases:
        each_call(scene, range(first, 300, stride), *case)


# ---- a follower beside a publisher ----

def follower_lines(scene, *arguments, faults=None):
    """A follower whose CMD tells what it finds in OUT."""
    script = f"printf '%s %s\\n' \"$WEFT_DIGEST\" \"$('{WEFT}' digest \"$WEFT_OUT\" --json | tr -d ' \\n')\" >> " \
             f"'{scene.work}/seen'"
    return scene.start("follow", scene.store, scene.out, "-q", "--exec", script, *arguments, faults=faults)


def check_seen(scene, least):
    with open(os.path.join(scene.work, "seen")) as file:
        lines = file.read().splitlines()
    for line in lines:
        promised, found = line.split(" ", 1)
        if json.loads(found)["digest"] != promised or promised not in scene.published:
            fail(f"a follower's command saw {line}")
    if len(lines) < least:
        fail(f"a follower saw {len(lines)} versions only")


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            fail(f"{what} did not happen")
        time.sleep(0.02)


def seen_last(scene, digest):
    path = os.path.join(scene.work, "seen")
    if not os.path.exists(path):
        return False
    with open(path) as file:
        lines = file.read().splitlines()
    return bool(lines) and lines[-1].startswith(digest)


def stopped_follower(scene):
    scene.clear()
    process = follower_lines(scene)
    try:
        for i in range(30):
            number = scene.next_model()
            scene.run(*scene.publish_arguments(number))
            if i == 5:
                wait_until(lambda: os.path.exists(os.path.join(scene.work, "seen")), "the first version")
                process.send_signal(signal.SIGSTOP)
            if i == 27:
                process.send_signal(signal.SIGCONT)
        wait_until(lambda: seen_last(scene, scene.digests[number]), "the newest version")
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        scene.end(process, "a stopped follower")
    check_seen(scene, 2)
    scene.settle("after a stop")
    print("a stopped follower goes on", flush=True)


def jumping_clock(scene):
    scene.clear()
    shift = os.path.join(scene.root, "shift")
    faults = {"CLOCK": shift}

    def jump(seconds):
        with open(shift + ".new", "w") as file:
            file.write(f"{seconds}\n")
        os.rename(shift + ".new", shift)

    jump(0)
    process = follower_lines(scene, faults=faults)
    try:
        for i, seconds in enumerate([0, 86400, -86400, 86400, 0, -86400, -86400, 86400, 0, 0] * 2):
            jump(seconds)
            number = scene.next_model()
            scene.run(*scene.publish_arguments(number), faults=faults)
            if i % 3 == 2:
                jump(-seconds)
                scene.run("gc", scene.store, "--grace", "10s", "-q", faults=faults)
            wait_until(lambda: seen_last(scene, scene.digests[number]), "a version under a jumping clock")
    finally:
        process.terminate()
        scene.end(process, "a follower under a jumping clock")
        os.remove(shift)
    check_seen(scene, 20)
    scene.settle("after the clock jumped")
    print("the clock may jump", flush=True)


def wrong_clock(scene):
    """Where requests are signed with the time, the service refuses them."""
    scene.clear()
    scene.settle("before the clock is wrong")
    shift = os.path.join(scene.root, "shift")
    with open(shift, "w") as file:
        file.write("86400\n")
    for command in (scene.publish_arguments(scene.next_model()), ["pull", scene.store, scene.out, "-q"]):
        code, _, error = scene.end(scene.start(*command, faults={"CLOCK": shift}), command)
        if code != 4 or "clock differs too much" not in error:
            fail(f"{command[0]} with a wrong clock gave {code}: {error}")
    scene.check_out("with a wrong clock")
    scene.settle("after the clock was wrong")
    print("a wrong clock is told", flush=True)


def main():
    soak = os.environ.get("WEFT_SOAK", "")
    kills = KILLS if not soak else max(SOAK_KILLS, int(soak) if soak.isdigit() else 0)
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="weft-sync-faults.") as root:
        scene = Scene(root)
        dice = random.Random(seed)
        random_kills(scene, dice, kills)
        stopped_follower(scene)
        if os.environ.get("WEFT_SANITIZE"):
            return  # the rest preloads fault_io.c, beside which no sanitizer works
        assert os.path.exists(FAULT_IO), "build it with the tests"
        if PLACES:
            wrong_clock(scene)
        else:
            all_calls(scene, 1 if soak else dice.randint(1, STRIDE), 1 if soak else STRIDE)
            jumping_clock(scene)


main()
