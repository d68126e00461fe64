#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A second reader of what a run of training keeps in a store, written from doc/FORMAT.md alone (section 34).

    weft_train.py STORE    print the run and the slots that are there
"""

import hashlib
import math
import pathlib
import re
import struct
import sys

import weft_store
from weft_format import FormatError, require
from weft_store import check_hexadecimal, count, is_follower_name, member, number, parse_json, text

MAXIMUM_RUN = 1 << 16
MAXIMUM_OBJECT = 16 << 20
MAXIMUM_SEQUENCES = 65536
MAXIMUM_STALENESS = 64
MAXIMUM_RANKS = 4096
MAXIMUM_LOCAL_STEPS = 1000
MAXIMUM_WINDOW = 1 << 20
TOKEN_BEGIN, TOKEN_EQUALS, TOKEN_PLUS, TOKEN_END = 10, 11, 12, 13


def parse_run(data):
    require(len(data) <= MAXIMUM_RUN, "a run that is too large")
    run = parse_json(data, "train")
    check_hexadecimal(text(run, "name"), 16)
    for name in ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"):
        count(member(run, "config", dict), name, least=1)
    task = member(run, "task", dict)
    require(text(task, "kind") in ("chain", "addition"), "a task that is none")
    for name in ("steps", "period", "digits"):
        count(task, name)
    for name in ("seed", "steps"):
        count(run, name)
    for name in ("prompts", "group", "slots"):
        count(run, name, least=1)
    require(run["prompts"] * run["group"] <= MAXIMUM_SEQUENCES, "a batch that is too large")
    require(run["prompts"] % run["slots"] == 0, "slots of different sizes")
    number(run, "temperature", least=0.01, most=100)
    kv = member(run, "kv", dict)
    require(text(kv, "policy") in ("none", "streaming", "h2o", "snapkv", "rkv"), "a KV policy that is none")
    require(text(kv, "pooled") in ("max", "mean"), "a way to pool that is none")
    for name in ("budget", "interval", "sinks", "window", "pooling"):
        count(kv, name, most=1 << 24)
    number(kv, "lambda", least=0, most=1)
    number(kv, "similarity", least=-1, most=1)
    for name in ("share", "common"):
        if name in kv:
            number(kv, name, least=0, most=1)
    require(isinstance(kv.get("keep_prompt", False), bool), "keep_prompt that is neither true nor false")
    count(run, "staleness", most=MAXIMUM_STALENESS)
    team = member(run, "team", dict)
    require(text(team, "outer") in ("alone", "pulseloco", "diloco", "ddp"), "a way to agree that is none")
    count(team, "trainers", least=1, most=MAXIMUM_RANKS)
    count(team, "local_steps", least=1, most=MAXIMUM_LOCAL_STEPS)
    require(run["steps"] % team["local_steps"] == 0, "steps that are not whole rounds")
    window = (run["staleness"] + 1) * team["local_steps"] * team["trainers"] * run["slots"]
    require(window <= MAXIMUM_WINDOW, "too many slots at a time")
    number(team, "rate", most=1000)
    number(team, "momentum", most=1)
    count(team, "significant", most=23)
    if "grid" in team:
        count(team, "grid", most=8)
    require(isinstance(team.get("overlap", False), bool), "overlap that is neither true nor false")
    require(text(run, "sync") in ("patch", "full"), "a way to sync that is none")
    require(text(run, "arithmetic") in ("fused", "plain"), "an arithmetic that is none")
    return run


def sizes(task):
    """Tokens of a prompt, and of a response at most."""
    if task["kind"] == "chain":
        return 3 + task["period"], task["steps"]
    return 3 + 2 * task["digits"], task["digits"] + 2


def answer(task, prompt):
    """The right response."""
    if task["kind"] == "chain":
        digit, digits = prompt[1], []
        for step in range(task["steps"]):
            digit = (digit + prompt[2 + step % task["period"]]) % 10
            digits.append(digit)
        return digits
    read = lambda digits: int("".join(map(str, digits)))
    total = read(prompt[1 : 1 + task["digits"]]) + read(prompt[2 + task["digits"] : -1])
    return [int(digit) for digit in reversed(str(total))] + [TOKEN_END]


def reward(task, prompt, response):
    right = answer(task, prompt)
    if task["kind"] == "chain":
        return float(len(response) == len(right) and response[-1] == right[-1])
    return float(response == right)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        require(self.at + size <= len(self.data), "an object that breaks off")
        self.at += size
        return self.data[self.at - size : self.at]

    def unpack(self, form, many=None):
        values = struct.unpack(f"<{'' if many is None else many}{form}", self.take(
            struct.calcsize(f"<{'' if many is None else many}{form}")))
        return values[0] if many is None else list(values)


def check_sequence(run, tokens, logp, claimed):
    task, config = run["task"], run["config"]
    prompt, most = sizes(task)
    require(prompt < len(tokens) <= prompt + most, "a sequence of another length than the task's")
    require(tokens[0] == TOKEN_BEGIN and tokens[prompt - 1] == TOKEN_EQUALS, "a prompt that is none")
    require(all(token < config["vocab_size"] for token in tokens), "a token outside of the vocabulary")
    require(all(value == 0 for value in logp[:prompt]), "log-probabilities in a prompt")
    require(all(math.isfinite(value) and value <= 0.001 for value in logp[prompt:]), "no log-probabilities")
    require(claimed == reward(task, tokens[:prompt], tokens[prompt:]), "a reward that is not deserved")


def parse_rollouts(data, run, batch, slot):
    """The object of a slot, with its sequences as (tokens, log-probabilities, reward)."""
    require(41 < len(data) <= MAXIMUM_OBJECT and data[:8] == b"weftroll", "not trajectories")
    require(hashlib.sha256(data[:-32]).digest() == data[-32:], "the checksum of trajectories")
    reader = Reader(data[8:-32])
    require(reader.unpack("I") == 2, "another format than 2")
    found = {"run": reader.take(16).hex(), "batch": reader.unpack("Q"), "slot": reader.unpack("I"),
             "step": reader.unpack("Q"), "version": reader.unpack("Q"), "digest": reader.take(16).hex()}
    for name in ("generate", "pull", "pause", "put"):
        found[name] = reader.unpack("d")
        require(0 <= found[name] <= 1e9, "seconds that are none")
    found["received"] = reader.unpack("Q")
    for name in ("held", "full", "peak_bytes", "dense_bytes"):
        found[name] = reader.unpack("Q")
        require(found[name] <= 1 << 46, "caches that are too large")
    require(found["held"] <= found["full"], "caches that held more than there was")
    sequences, total = reader.unpack("I"), reader.unpack("I")
    found["worker"] = reader.take(reader.unpack("B")).decode("ascii", "replace")
    require(is_follower_name(found["worker"]), "a worker without a name")
    require((found["run"], found["batch"], found["slot"]) == (run["name"], batch, slot), "another place")
    require(sequences == run["prompts"] // run["slots"] * run["group"], "not the sequences of a slot")
    lengths = reader.unpack("H", sequences)
    require(sum(lengths) == total, "tokens that are not in sequences")
    tokens, logp = reader.unpack("H", total), reader.unpack("f", total)
    rewards = reader.unpack("f", sequences)
    require(reader.at == len(reader.data), "more than trajectories")
    found["sequences"], at = [], 0
    for length, claimed in zip(lengths, rewards):
        one = (tokens[at : at + length], logp[at : at + length], claimed)
        check_sequence(run, *one)
        found["sequences"].append(one)
        at += length
    return found


def read_slots(place):
    """All slots of a store that is a directory, by batch and slot."""
    store = weft_store.Directory(place)
    run = parse_run(store.get("train/run"))
    slots = {}
    for path in sorted((pathlib.Path(place) / "train" / "rollouts").glob("*-*")):
        require(re.fullmatch("(0|[1-9][0-9]*)-(0|[1-9][0-9]*)", path.name), "a slot without numbers")
        batch, slot = map(int, path.name.split("-"))
        slots[batch, slot] = parse_rollouts(path.read_bytes(), run, batch, slot)
    return run, slots


def main(arguments):
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    run, slots = read_slots(arguments[0])
    print(run["name"], run["steps"], run["task"])
    for (batch, slot), found in slots.items():
        print(batch, slot, found["step"], found["worker"], sum(one[2] for one in found["sequences"]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FormatError as refusal:
        print(f"weft_train.py: {refusal}", file=sys.stderr)
        sys.exit(3)
