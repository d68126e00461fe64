#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden stores: what publishers, followers, trainers and ranks that meet leave in a store.

    WEFT=build/weft WEFT_BUILD=build /usr/bin/python3 -B tests/golden/make_stores.py

They pin reading for ever, as the golden patches do: every later weft reads these stores, and goes on with them.
So this script is run by hand when a case is added, and leaves every case alone that is there already. A case is
added by adding it here; none is taken away while the version of the formats is 1.

    stores/<case>/store     the objects
    stores/<case>/...       what lies beside: keys, a publisher's cache, a replica, the files of a trainer
    stores/manifest.json    what was put into each: for each version its digest, its labels, and a hash of its files
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy

HERE = pathlib.Path(__file__).resolve().parent
STORES = HERE / "stores"
sys.path.insert(0, str(HERE.parent / "python"))

import random_checkpoints as checkpoints
import weft_format
import weft_store

WEFT = os.environ.get("WEFT", str(HERE.parents[1] / "build" / "weft"))
KINDS = {"a": ("BF16", (24, 20)), "b": ("BF16", (33,)), "c": ("F32", (7, 3)), "d": ("I64", ())}
TINY = ["--hidden", "16", "--layers", "1", "--heads", "1", "--kv-heads", "1", "--feed-forward", "16", "--context", "32",
        "--chain-steps", "5", "--chain-period", "2", "--prompts", "4", "--group", "4", "--slots", "2", "--rate", "1e-3",
        "--warmup-success", "0", "--evaluate", "0", "--evaluate-prompts", "16", "--threads", "1"]


def hash_of(contents):
    """Of the files of a checkpoint, by name."""
    text = hashlib.sha256()
    for name, data in sorted(contents.items()):
        text.update(f"{name} {len(data)}\n".encode() + data)
    return text.hexdigest()


class Case:
    """A store that is being made, and what the manifest says of it."""

    def __init__(self, place, name):
        self.place, self.store, self.versions = place, place / "store", []
        self.scratch = place.parent  # for what is no part of the case
        self.random = numpy.random.default_rng(int.from_bytes(name.encode(), "big"))
        self.environment = dict(os.environ, XDG_CACHE_HOME=str(self.scratch / "home"))

    def weft(self, *arguments, code=0):
        ran = subprocess.run([WEFT, *map(str, arguments)], capture_output=True, text=True, env=self.environment)
        assert ran.returncode == code, f"{ran.args}: {ran.returncode}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def start(self, *arguments):
        return subprocess.Popen([WEFT, *map(str, arguments)], env=self.environment, stdout=subprocess.DEVNULL)

    def write(self, state, shards=1, metadata=None):
        path = self.scratch / ("step" if shards > 1 else "step.safetensors")
        if path.is_dir():
            shutil.rmtree(path)
        names = sorted(state)
        if shards > 1:
            parts = [{name: state[name] for name in names[number::shards]} for number in range(shards)]
            checkpoints.write_sharded(parts, path)
        else:
            checkpoints.write_single(state, path, metadata)
        return path

    def publish(self, path, labels, *options, writer="writer"):
        given = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
        self.weft("publish", self.store, path, "--cache", self.scratch / writer, "-q", *given, *options)
        self.note(path, labels)

    def note(self, path, labels):
        files = weft_format.read_checkpoint(path)
        digest = weft_format.state_digest(files.tensors()).hex()
        self.versions.append({"version": len(self.versions) + 1, "digest": digest, "labels": labels,
                              "files": hash_of(files.contents())})

    def changed(self, state, density=0.03):
        return checkpoints.changed_state(self.random, state, density)


def make_long(case):
    """Four writers, anchors, and what is not kept collected; beside it the cache of the last writer, and a replica that
    is behind."""
    state = checkpoints.random_state(case.random, KINDS)
    for version in range(1, 31):
        options = ("--anchor-ratio", "3", "--keep-anchors", "2", "--profile", "fast" if version % 2 else "small")
        case.publish(case.write(state), {"step": str(version)}, *options, writer=f"writer-{version // 8}")
        if version == 24:
            case.weft("pull", case.store, case.place / "replica.safetensors")
        state = case.changed(state)
    case.weft("gc", case.store, "--grace", "0s")
    shutil.copytree(case.scratch / "writer-3", case.place / "cache")


def make_leaps(case):
    """66 versions from one anchor: pages behind pages, and leaps of three levels; beside it the writer's cache."""
    state = checkpoints.random_state(case.random, KINDS)
    for version in range(1, 67):
        path = case.write(state, metadata={"number": str(version)})
        case.publish(path, {"step": str(version)}, "--anchor", "never")
        state = case.changed(state)
    case.weft("gc", case.store, "--grace", "0s")
    shutil.copytree(case.scratch / "writer", case.place / "cache")


def make_young(case):
    """Shards, tensors that come and go, labels of all kinds; nothing was collected. Followers have told of themselves,
    one of them of an error."""
    state = checkpoints.random_state(case.random, KINDS)
    labels = [{}, {"step": "1", "naïve": "日本語"}, {"empty": "", "a": "b=c", "tab": "\t \"quoted\" \\"}, {}, {"step": "4"}]
    for number, given in enumerate(labels):
        case.publish(case.write(state, shards=2), given, *(["--cut", "a:0:4"] if number else []))
        state = case.changed(state, 0.6 if number == 2 else 0.03)
        state |= checkpoints.random_state(case.random, {f"new.{number}.重み": ("F16", (3, 5))})
        state.pop(f"new.{number - 2}.重み".encode(), None)
    case.weft("pull", case.store, case.scratch / "one", "--name", "one")
    case.weft("pull", case.store, case.scratch / "two", "--name", "two.x_y-Z", "--version", "3")
    patches = {path: path.read_bytes() for path in (case.store / "patches").iterdir()}
    for path in patches:
        path.write_bytes(b"damaged")
    case.weft("pull", case.store, case.scratch / "three", "--name", "three", "--retries", "0", code=3)
    for path, data in patches.items():
        path.write_bytes(data)


def make_signed(case):
    """Two writers with one key, and its public half."""
    case.weft("keygen", case.place / "key")
    state = checkpoints.random_state(case.random, KINDS)
    for version in range(1, 7):
        options = ("--sign", case.place / "key")
        case.publish(case.write(state), {"step": str(version)}, *options, writer=f"writer-{version // 4}")
        state = case.changed(state)


def make_packed(case):
    """Heads, pages and nodes of format 2, signed, by two writers: full pages and others, leaps of two levels, an anchor
    between them. Nothing was collected."""
    case.weft("keygen", case.place / "key")
    state = checkpoints.random_state(case.random, KINDS)
    for version in range(1, 24):
        options = ("--sign", case.place / "key", "--anchor", "now" if version == 19 else "never")
        case.publish(case.write(state), {"step": str(version)}, *options, writer=f"writer-{version // 21}")
        state = case.changed(state)


def make_recalled(case):
    """The profile smallest: 14 versions after an anchor, and three after another; beside it the writer's cache, and a
    replica that is behind, each with what it recalls."""
    state = checkpoints.random_state(case.random, {"a": ("BF16", (96, 64)), "b": ("F16", (70,)), "c": ("F32", (7, 3))})
    for version in range(1, 19):
        options = ("--profile", "smallest", "--anchor", "now" if version == 15 else "never")
        case.publish(case.write(state), {"step": str(version)}, *options)
        if version < 12:
            case.weft("pull", case.store, case.place / "replica.safetensors")
        state = case.changed(state, 0.01)
    shutil.copytree(case.scratch / "writer", case.place / "cache")


def make_parts(case):
    """Three processes that publish each version together: patches and anchors in pieces, and their talk."""
    state = checkpoints.random_state(case.random, {f"t{number}": ("BF16", (16, 64)) for number in range(4)})
    for version in range(1, 6):
        path = case.write(state)
        labels = {"step": str(version)}
        options = ["--cut", "t*:0:1", "--label", f"step={version}", "-q"]
        parts = [case.start("publish", case.store, path, "--part", f"{part}/3", *options) for part in range(3)]
        assert [part.wait() for part in parts] == [0, 0, 0]
        case.note(path, labels)
        state = case.changed(state)


def make_listed(case):
    """The hashes of an anchor in a list of their own. The command does that for objects above 16 MiB; here chunks are
    small instead, and put together by hand."""
    case.publish(case.write(checkpoints.random_state(case.random, {"w": ("U8", (70000,))})), {"step": "1"})
    head_path = case.store / "heads/00000001"
    head = json.loads(head_path.read_bytes().split(b"\n")[0])
    page = json.loads((case.store / head["page"]["key"]).read_bytes())
    anchor = page["anchors"][0]["object"]
    data = (case.store / anchor["key"]).read_bytes()
    hashes = b"".join(hashlib.sha256(data[at : at + 4096]).digest() for at in range(0, len(data), 4096))
    key = anchor["key"].replace("anchors", "chunks")
    (case.store / "chunks").mkdir()
    (case.store / key).write_bytes(hashes)
    del anchor["sha256"]
    anchor["chunk_bytes"] = 4096
    anchor["list"] = {"key": key, "bytes": len(hashes), "sha256": weft_store.sha256(hashes)}
    text = json.dumps(page, separators=(",", ":")).encode() + b"\n"
    (case.store / head["page"]["key"]).write_bytes(text)
    head["page"] |= {"bytes": len(text), "sha256": weft_store.sha256(text)}
    text = json.dumps(head, separators=(",", ":")).encode()
    head_path.write_bytes(text + b"\nsha256 " + weft_store.sha256(text).encode() + b"\n")


def make_begun(case):
    """The head of a writer that ended before its first version. Put together by hand."""
    head = {"weft": 1, "kind": "head", "run": "5f0c7a1be24d93886a1d0e3f7c52b94a", "epoch": 1, "sequence": 1,
            "writer": "c3ab8ff13720e8ad"}
    text = json.dumps(head, separators=(",", ":")).encode()
    (case.store / "heads").mkdir(parents=True)
    (case.store / "heads/00000001").write_bytes(text + b"\nsha256 " + weft_store.sha256(text).encode() + b"\n")


def train(case, *options, code=0):
    return case.weft("train", case.store, "--role", "trainer", "--output", case.place / "out", *TINY, *options, code=code)


def worker(case):
    return case.start("train", case.store, "--role", "rollout", "--name", "w.1", "--threads", "1", "-q")


def note_published(case):
    """The versions that a trainer published, as the store holds them."""
    for version in sorted(json.loads(case.weft("log", case.store, "--json"))["versions"], key=lambda v: v["version"]):
        path = case.scratch / "policy.safetensors"
        if version["kept"]:
            case.weft("pull", case.store, path, "--version", version["version"])
            case.note(path, version["labels"])
        else:
            case.versions.append({name: version[name] for name in ("version", "digest", "labels")})


def make_trainer(case):
    """Three steps were done; then the trainer was given more, and a worker has made the next batch. Beside it the
    files of the trainer."""
    helper = worker(case)
    train(case, "--steps", "3")
    assert helper.wait() == 0
    train(case, "--steps", "6", "--patience", "0.1", code=4)
    helper = worker(case)
    while len(list((case.store / "train/rollouts").glob("3-*"))) < 2:
        time.sleep(0.02)
    helper.terminate()
    helper.wait()
    shutil.rmtree(case.place / "out/model", ignore_errors=True)
    note_published(case)


def make_team(case):
    """Two trainers that met in the store, for two rounds of two steps; versions went whole. Beside it the files of
    both."""
    options = ["--steps", "4", "--local-steps", "2", "--trainers", "2", "--sync", "full"]
    helper = worker(case)
    other = case.start("train", case.store, "--role", "trainer", "--output", case.place / "out", *TINY, *options,
                       "--rank", "1", "-q")
    train(case, *options, "--rank", "0")
    assert (helper.wait(), other.wait()) == (0, 0)
    for path in case.place.glob("out/**/model"):
        shutil.rmtree(path)
    note_published(case)


def make_meeting(case):
    """Three rounds of three ranks, of which rank 1 was there in the first and rank 2 never; beside it rank 0's state.
    Payloads of each kind, each the first of a rank that begins with `weights`."""
    import golden_meeting

    golden_meeting.make(case.place)


CASES = {name.removeprefix("make_"): make for name, make in list(globals().items()) if name.startswith("make_")}


def main():
    manifest_path = STORES / "manifest.json"
    manifest = json.loads(manifest_path.read_text()) if manifest_path.exists() else {}
    for name, make in CASES.items():
        if (STORES / name).exists():
            continue
        with tempfile.TemporaryDirectory(prefix="weft-golden-") as scratch:
            place = pathlib.Path(scratch) / name
            place.mkdir()
            case = Case(place, name)
            make(case)
            (case.store / ".lock").unlink(missing_ok=True)
            manifest[name] = {"description": make.__doc__, "versions": case.versions}
            shutil.copytree(place, STORES / name)
            manifest_path.write_text(json.dumps(manifest, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
