# SPDX-License-Identifier: Apache-2.0
"""Real processes around stores, killed and stopped at random instants while others take over.

Publishers alone and in parts, collectors, readers, followers, relays, servers and the ranks of a meeting are
ended by SIGKILL, or stopped by SIGSTOP while another publisher takes over, a collector finds all objects a day
old, or both; then SIGCONT. Half of those that work on a directory are struck at a call that they make there (by
fault_io.so, where there is one), so that short instants come as often as long ones. Stores are directories, some
of them behind `weft serve`. Every version that a
publisher has said it published is kept in a ledger: it must be in `weft log` with that digest, and what is pulled
must be a published version, byte for byte as its digest says, and the newest one in the end.

WEFT names the command, WEFT_BUILD where fault_io.so is. WEFT_SOAK_KILLS and WEFT_SOAK_PAUSES say how many of each (60; with WEFT_SOAK 10000), and
WEFT_SOAK_SEED which instants.
"""

import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

WEFT = os.path.abspath(os.environ.get("WEFT") or "build/weft")
FAULT_IO = os.path.join(os.path.abspath(os.environ.get("WEFT_BUILD") or "build"), "tests", "fault_io.so")
# what is killed here is processes, and not power
MEMORY = os.environ.get("WEFT_TEST_MEMORY") or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
MANY = "10000" if os.environ.get("WEFT_SOAK") else "60"
KILLS = int(os.environ.get("WEFT_SOAK_KILLS") or MANY)
PAUSES = int(os.environ.get("WEFT_SOAK_PAUSES") or MANY)
SEED = int(os.environ.get("WEFT_SOAK_SEED") or random.SystemRandom().randrange(1 << 32))
MODELS = 8
LIFE_VERSIONS = 60  # of a store
CHECK_TURNS = 12  # between looks at all that was promised
RANK_SHARE = 8  # one in so many is of a rank of a meeting
PATIENCE = 120
STALL = 1  # seconds; who waits for longer may wait for a lock of somebody who stands still
DAY = 86400
TINY = (
    "--hidden 32 --heads 2 --kv-heads 2 --feed-forward 64 --context 32 --chain-steps 5 --chain-period 2 --prompts 8 "
    "--group 4 --slots 4 --rate 1e-3 --warmup-success 0 --evaluate 0 --evaluate-prompts 16 --threads 1 --patience 60s"
).split()


class Broken(Exception):
    """Something that was promised does not hold."""


class Tally:
    """What was done, and what came of it; of all threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.kills = collections.Counter()
        self.pauses = collections.Counter()
        self.counters = self.kills, self.pauses
        self.acknowledged = self.missing = self.wrong = 0
        self.texts = []

    def choose(self, dice, meeting):
        """True for a kill, False for a pause, None if there were enough of both. Ranks have a share of their own."""
        with self.lock:
            done = [counter["rank"] if meeting else counter.total() - counter["rank"] for counter in self.counters]
        wanted = [count // RANK_SHARE if meeting else count - count // RANK_SHARE for count in (KILLS, PAUSES)]
        kills, pauses = (max(want - got, 0) for want, got in zip(wanted, done))
        return dice.random() * (kills + pauses) < kills if kills + pauses > 0 else None

    def count(self, kill, kind):
        with self.lock:
            (self.kills if kill else self.pauses)[kind] += 1

    def fail(self, text):
        with self.lock:
            self.texts.append(text)
            print(f"FAILED: {text}", flush=True)


class Process:
    """A command of ours, with what it says in files, so that it never waits for us to read."""

    def __init__(self, environment, place, arguments, armed):
        self.armed = armed  # it strikes by itself
        self.out = tempfile.TemporaryFile(dir=place)
        self.err = tempfile.TemporaryFile(dir=place)
        self.popen = subprocess.Popen(
            [WEFT, *map(str, arguments)],
            env=environment,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
        )

    def said(self, file):
        # the child has the same offset
        return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")

    def wait(self, seconds=PATIENCE):
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        """True if it was alive."""
        if not self.armed:
            self.popen.kill()
        return self.popen.wait() == -signal.SIGKILL

    def stop(self):
        """True if it stands still now, False if it had ended."""
        if not self.armed:
            os.kill(self.popen.pid, signal.SIGSTOP)
        state = os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return state.si_code == os.CLD_STOPPED

    def go_on(self):
        os.kill(self.popen.pid, signal.SIGCONT)

    def close(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self.out.close()
        self.err.close()


class Place:
    """A directory for one thread, its dice, and how long commands take."""

    def __init__(self, tally, number, root):
        self.tally = tally
        self.dice = random.Random(SEED * 100 + number)
        self.root = os.path.join(root, str(number))
        os.makedirs(self.root)
        self.environment = dict(os.environ, HOME=self.root, TMPDIR=self.root)
        for name in ("XDG_CACHE_HOME", "WEFT_TOKEN"):
            self.environment.pop(name, None)
        self.spans = collections.defaultdict(lambda: 0.03)
        self.living = []
        self.stopped = None  # who stands still
        self.alone = True  # nobody else was running since the last pause began

    def start(self, *arguments, faults=None):
        environment = self.environment
        if faults:
            environment = dict(environment, LD_PRELOAD=FAULT_IO, **{f"WEFT_FAULT_{k}": v for k, v in faults.items()})
        process = Process(environment, self.root, arguments, bool(faults) and "AT" in faults)
        self.living.append(process)
        return process

    def drop(self, process):
        process.close()
        self.living.remove(process)

    def wait(self, process):
        code = process.wait(STALL)
        if code is None and self.stopped is not None:
            self.stopped.go_on()
            self.stopped = None
            self.alone = False
        return process.wait() if code is None else code

    def run(self, *arguments, faults=None):
        """What a command says that must work."""
        process = self.start(*arguments, faults=faults)
        code = self.wait(process)
        said, error = process.said(process.out), process.said(process.err)
        self.drop(process)
        if code != 0:
            raise Broken(f"weft {' '.join(map(str, arguments))} ended with {code}: {error[-600:]}")
        return said

    def learn_span(self, kind, alive):
        """Instants are chosen from as long as such a process lives: one in eight should come too late."""
        self.spans[kind] = min(self.spans[kind] * (1.02 if alive else 0.87), 0.6)

    def disturb(self, kind, process, kill, meanwhile):
        """Kills or stops it at a random instant; what happens meanwhile happens in any case."""
        span = kind
        if process.armed:
            span = kind + " call"
        else:
            time.sleep(self.dice.uniform(0, self.spans[kind]))
        if kill:
            self.learn_span(span, alive := process.kill())
            if alive:
                self.tally.count(True, kind)
            meanwhile()
            return
        stopped = process.stop()
        self.learn_span(span, stopped)
        self.stopped = process if stopped else None
        self.alone = True
        try:
            meanwhile()
        finally:
            if stopped:
                self.tally.count(False, kind)
                process.go_on()
            self.stopped = None
            self.alone = True

    def end(self):
        for process in list(self.living):
            self.drop(process)


class World(Place):
    """A store and everybody around it."""

    def __init__(self, tally, number, root, models, digests, served):
        super().__init__(tally, number, root)
        self.models, self.digests, self.served = models, digests, served
        self.life = self.turn = 0
        self.server = self.relay = self.follower = None
        self.begin()

    # ---- lives ----

    def begin(self):
        self.end()
        self.life += 1
        self.work = os.path.join(self.root, f"life-{self.life}")
        os.makedirs(os.path.join(self.work, "caches"))
        self.directory = os.path.join(self.work, "store")
        os.makedirs(self.directory)
        self.ledger = {}  # version: digest
        self.newest = 0
        self.seen = collections.Counter()  # reader: the version that it was last at
        self.server = self.relay = self.follower = None
        self.store = self.directory
        if self.served:
            self.server, self.store = self.serve(self.directory, "--volatile")

    def leave(self):
        self.end()
        shutil.rmtree(self.work, ignore_errors=True)

    def serve(self, *arguments):
        path = os.path.join(self.work, f"url-{self.turn}-{self.dice.random()}")
        process = self.start("serve", *arguments, "--listen", "127.0.0.1:0", "--url-file", path)
        end = time.monotonic() + PATIENCE
        while not os.path.exists(path) and process.popen.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        if not os.path.exists(path):
            raise Broken(f"weft serve does not start: {process.said(process.err)[-600:]}")
        with open(path, encoding="ascii") as file:
            return process, file.read().strip()

    def arm(self, kind, kill, directory=True):
        """Half of the time, where to strike a process that works on the directory."""
        if not directory or not os.path.exists(FAULT_IO) or self.dice.random() < 0.5:
            return None
        at = self.dice.randint(1, max(1, int(1000 * self.spans[kind + " call"])))
        return {"PATH": self.directory, "AT": str(at), "KILL" if kill else "STOP": "1"}

    # ---- publishers ----

    def next_model(self):
        self.turn += 1
        return self.turn % MODELS

    def begin_publish(self, cache, model, *options, store=None, faults=None):
        return self.start(
            "publish", store or self.store, self.models[model], "--json", "--keep-anchors", 1, "--anchor-ratio", 0.3,
            "--retries", 1, *(("--cache", os.path.join(self.work, "caches", cache)) if cache else ()), *options,
            faults=faults,
        )  # fmt: skip

    def end_publish(self, process, model, must):
        """What was printed counts, however the process ended."""
        code = self.wait(process)
        said, error = process.said(process.out), process.said(process.err)
        self.drop(process)
        try:
            result = json.loads(said)
        except ValueError:
            result = None
        if code == 0 and result is None:
            raise Broken(f"publish ended with 0 and said {said[-300:]}")
        if result is not None:
            self.acknowledge(result["version"], result["digest"], model)
        elif must and self.alone:
            raise Broken(f"publish, undisturbed, ended with {code}: {error[-600:]}")

    def acknowledge(self, version, digest, model):
        with self.tally.lock:
            self.tally.acknowledged += 1
        if digest != self.digests[model]:
            raise Broken(f"version {version} was published with the digest {digest}, not {self.digests[model]}")
        other = self.ledger.setdefault(version, digest)
        if other != digest:
            self.missing(version, f"{other} and {digest} were both said to be published")
        self.newest = max(self.newest, version)

    def missing(self, version, text):
        with self.tally.lock:
            self.tally.missing += 1
        raise Broken(f"version {version}: {text}")

    def publish(self, cache, store=None, must=True):
        model = self.next_model()
        self.end_publish(self.begin_publish(cache, model, store=store), model, must)

    # ---- what happens meanwhile ----

    def collect(self):
        """By the directory, where all seems a day old."""
        if self.newest > 0:
            self.run("gc", self.directory, "--grace", 0, faults=self.old())

    def old(self):
        return {"PATH": self.directory, "AGE": str(DAY)} if os.path.exists(FAULT_IO) else None

    def others(self, store=None, must=True):
        """Another publisher, a collector, or both. They must succeed, unless somebody else is running."""
        chosen = self.dice.randrange(4)
        if chosen != 0:
            self.publish("other", store, must)
        if chosen in (0, 2) and store is None:
            self.collect()
        if chosen == 3:
            self.publish("third", store, must)

    # ---- subjects ----

    def disturb_publisher(self, kill):
        model = self.next_model()
        faults = self.arm("publisher", kill, not self.served)
        process = self.begin_publish(self.dice.choice(("own", "own", "other two")), model, faults=faults)
        self.disturb("publisher", process, kill, self.others)
        self.end_publish(process, model, False)

    def disturb_parts(self, kill):
        model = self.next_model()
        label = ("--label", f"step={self.turn}")
        victim = self.dice.randrange(2)
        faults = [self.arm("part", kill, not self.served) if i == victim else None for i in range(2)]
        parts = [self.begin_publish(None, model, "--part", f"{i}/2", *label, faults=faults[i]) for i in range(2)]
        self.disturb("part", parts[victim], kill, lambda: self.others(must=False))
        # the other one would wait for a minute, and so would one whose leader was overtaken
        for part in parts:
            if part.wait(0.5 if kill else 5) is None:
                part.armed = False
                if part.kill():
                    self.tally.count(True, "part")
        for part in parts:
            self.end_publish(part, model, False)

    def disturb_collector(self, kill):
        faults = (self.old() or {}) | (self.arm("collector", kill) or {})
        process = self.start("gc", self.directory, "--grace", 0, faults=faults)
        self.disturb("collector", process, kill, self.others)
        process.wait()
        self.drop(process)

    def disturb_reader(self, kill):
        out = os.path.join(self.work, "pulled")
        process = self.start("pull", self.store, out)
        self.disturb("reader", process, kill, self.others)
        process.wait()
        self.drop(process)
        self.pull("reader", self.store, out)

    def disturb_follower(self, kill):
        if self.follower is None:
            self.follower = self.start(
                "follow", self.store, os.path.join(self.work, "followed"), "--json", "--poll", 0.02
            )
        self.publish("own")
        self.disturb("follower", self.follower, kill, self.others)
        if kill:
            self.check_follower()

    def disturb_relay(self, kill):
        cache = os.path.join(self.work, "relay")
        if self.relay is None:
            self.relay, self.relay_url = self.serve(self.store, "--cache", cache)
        out = os.path.join(self.work, "relayed")
        reader = self.start("pull", self.relay_url, out, "--retries", 0)
        self.disturb("relay", self.relay, kill, self.others)
        reader.wait()
        self.drop(reader)
        if kill:
            self.drop(self.relay)
            self.relay, self.relay_url = self.serve(self.store, "--cache", cache)
        end = time.monotonic() + PATIENCE
        while self.seen["relayed reader"] < self.newest:
            self.pull_relayed(out, time.monotonic() > end)

    def pull_relayed(self, out, late):
        """What is collected without any grace is gone before a relay has heard of what replaced it: until then
        it has the head of a version that nobody can get."""
        try:
            self.pull("relayed reader", self.relay_url, out)
        except Broken as broken:
            if late or "no way leads" not in str(broken):
                raise
        if late and self.seen["relayed reader"] < self.newest:
            raise Broken(f"the relay is at version {self.seen['relayed reader']}, not {self.newest}")
        time.sleep(0.02)

    def disturb_server(self, kill):
        """A publisher's requests are on their way while others come by the directory."""
        if self.server is None:
            return
        model = self.next_model()
        process = self.begin_publish("own", model)
        self.disturb("server", self.server, kill, lambda: self.others(self.directory))
        if kill:
            self.drop(self.server)
            self.server, self.store = self.serve(self.directory, "--volatile")
            for name in "relay", "follower":
                if getattr(self, name) is not None:
                    self.drop(getattr(self, name))
                    setattr(self, name, None)
        self.end_publish(process, model, False)

    # ---- looking ----

    def versions(self):
        listed = json.loads(self.run("log", self.store, "--json"))["versions"]
        return {entry["version"]: entry for entry in listed}

    def pull(self, name, store, path):
        """What is there then is a published version, and not one before the last."""
        version = json.loads(self.run("pull", store, path, "--json"))["version"]
        self.check_bytes(name, path, version, self.versions())
        if version < self.seen[name]:
            raise Broken(f"the {name} was at version {self.seen[name]} and is at {version}")
        self.seen[name] = version

    def check_bytes(self, name, path, version, versions):
        digest = self.run("digest", path).split()[0]
        published = versions.get(version, {"digest": "nothing"})["digest"]
        if digest != published:
            with self.tally.lock:
                self.tally.wrong += 1
            raise Broken(f"the {name} holds {digest} as version {version}, and the history has {published}")

    def check_follower(self):
        """Ends it."""
        said = self.follower.said(self.follower.out).splitlines()
        self.drop(self.follower)
        self.follower = None
        numbers = [json.loads(line)["version"] for line in said if line.endswith("}")]
        if numbers != sorted(numbers) or (numbers and numbers[0] < self.seen["follower"]):
            raise Broken(f"the follower was at version {self.seen['follower']} and went to {numbers}")
        self.seen["follower"] = numbers[-1] if numbers else self.seen["follower"]

    def check(self):
        if not self.ledger:
            return
        versions = self.versions()
        for version, digest in self.ledger.items():
            there = versions.get(version, {"digest": "nothing"})["digest"]
            if there != digest:
                self.missing(version, f"{digest} was said to be published, and the history has {there}")
        kept = [version for version, entry in versions.items() if entry["kept"]]
        for version in {max(kept), self.dice.choice(kept)}:
            path = os.path.join(self.work, f"fresh-{version}")
            self.run("pull", self.store, path, "--version", version)
            self.check_bytes("newcomer", path, version, versions)
            os.remove(path)
        self.publish("own")
        if self.follower is not None:
            end = time.monotonic() + PATIENCE
            while f'"version":{self.newest}' not in self.follower.said(self.follower.out).replace(" ", ""):
                if time.monotonic() > end or self.follower.popen.poll() is not None:
                    raise Broken(f"the follower does not get to version {self.newest}")
                time.sleep(0.01)

    def disturb_someone(self, kill):
        subjects = [self.disturb_publisher] * 6 + [self.disturb_parts, self.disturb_collector, self.disturb_reader]
        subjects += [self.disturb_follower, self.disturb_relay] + [self.disturb_server] * 2
        self.dice.choice(subjects if self.newest > 0 else [self.disturb_publisher])(kill)

    def torment(self):
        turns = 0
        while (kill := self.tally.choose(self.dice, False)) is not None and len(self.tally.texts) < 20:
            try:
                self.disturb_someone(kill)
                turns += 1
                if turns % CHECK_TURNS == 0:
                    self.check()
                if self.newest > LIFE_VERSIONS:
                    self.check()
                    self.leave()
                    self.begin()
            except Broken as broken:
                self.tally.fail(f"{'served' if self.served else 'directory'}, turn {self.turn}: {broken}")
                self.leave()
                self.begin()
        try:
            self.check()
        except Broken as broken:
            self.tally.fail(str(broken))
        self.leave()


class Meeting(Place):
    """Trainers that meet in a store. They agree after each round, and what they publish is in order."""

    STEPS, RANKS = 40, 2

    def __init__(self, tally, number, root):
        super().__init__(tally, number, root)
        self.life = 0
        self.spans["rank"] = 0.6

    def rank(self, number):
        return self.start(
            "train", "store", "--role", "trainer", "--output", "out", *TINY, "--trainers", self.RANKS, "--rank", number,
            "--steps", self.STEPS, "--local-steps", 2, "--deadline", "1s",
        )  # fmt: skip

    def check(self):
        common = {}
        for number in range(self.RANKS):
            path = os.path.join(self.root, "out", *([f"rank-{number}"] if number > 0 else []), "metrics.jsonl")
            with open(path, encoding="ascii") as file:
                lines = [json.loads(line) for line in file]
            for line in lines:
                if "round" in line:
                    common.setdefault(line["round"]["number"], set()).add(line["round"]["digest"])
        parted = [number for number, digests in common.items() if len(digests) > 1]
        if parted:
            with self.tally.lock:
                self.tally.wrong += 1
            raise Broken(f"ranks do not agree after rounds {parted}")
        versions = json.loads(self.run("log", "store", "--json"))["versions"]
        versions.sort(key=lambda entry: entry["version"])
        steps = [int(entry["labels"]["step"]) for entry in versions]
        if steps != sorted(steps) or steps[-1] != self.STEPS:
            raise Broken(f"the policies came in the order {steps}")
        self.life += 1
        pulled = f"pulled-{self.life}"
        self.run("pull", "store", pulled)
        if self.run("digest", pulled).split()[0] != versions[-1]["digest"]:
            with self.tally.lock:
                self.tally.wrong += 1
            raise Broken("the last policy is another one when it is pulled")

    def live(self):
        for name in "store", "out":
            shutil.rmtree(os.path.join(self.root, name), ignore_errors=True)
        worker = self.start("train", "store", "--role", "rollout", "--name", "worker", "--threads", 1, "--patience", "60s")
        ranks = [self.rank(number) for number in range(self.RANKS)]
        running = set(range(self.RANKS))
        end = time.monotonic() + 20 * PATIENCE
        while running:
            kill = self.tally.choose(self.dice, True)
            victim = self.dice.choice(sorted(running))
            if kill is None:
                ranks[victim].wait(1)
            else:
                self.disturb("rank", ranks[victim], kill, lambda: time.sleep(self.dice.uniform(0, 0.3)))
            code = ranks[victim].popen.poll()
            if code == 0:
                running.remove(victim)
            elif code is not None:
                error = ranks[victim].said(ranks[victim].err)
                if code != -signal.SIGKILL:
                    raise Broken(f"rank {victim} ended with {code}: {error[-600:]}")
                self.drop(ranks[victim])
                ranks[victim] = self.rank(victim)
            if time.monotonic() > end:
                raise Broken("the meeting does not end")
        if worker.wait() != 0:
            raise Broken(f"the worker ended with {worker.popen.returncode}: {worker.said(worker.err)[-600:]}")
        self.check()

    def torment(self):
        while self.tally.choose(self.dice, True) is not None and len(self.tally.texts) < 20:
            try:
                self.live()
            except Broken as broken:
                self.tally.fail(f"meeting: {broken}")
            self.end()


def guard(place):
    try:
        place.torment()
    except BaseException as error:  # a thread that ends by itself would leave the count short
        place.tally.fail(f"{type(place).__name__}: {type(error).__name__}: {error}")
        raise
    finally:
        place.end()


def main():
    print(f"seed {SEED}: {KILLS} kills and {PAUSES} pauses", flush=True)
    begun = time.monotonic()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="weft-soak-", dir=MEMORY) as root:
        models = os.path.join(root, "models")
        subprocess.run(
            [WEFT, "bench", "--make", models, "--params", "4K", "--steps", str(MODELS - 1)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        models = [os.path.join(models, f"step-{i}.safetensors") for i in range(MODELS)]
        digests = [subprocess.check_output([WEFT, "digest", path], text=True).split()[0] for path in models]
        places = [World(tally, i, root, models, digests, i % 2 == 1) for i in range(4)] + [Meeting(tally, 4, root)]
        threads = [threading.Thread(target=guard, args=(place,)) for place in places]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for kind in sorted(tally.kills | tally.pauses):
        print(f"  {kind}: {tally.kills[kind]} kills, {tally.pauses[kind]} pauses")
    print(
        f"{tally.kills.total()} kills, {tally.pauses.total()} pauses, {tally.acknowledged} versions acknowledged, "
        f"{tally.missing} missing, {tally.wrong} wrong digests; {time.monotonic() - begun:.0f} s"
    )
    sys.exit(1 if tally.texts else 0)


if __name__ == "__main__":
    main()
