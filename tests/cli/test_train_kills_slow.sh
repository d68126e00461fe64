#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft train` while workers are killed every second for a whole run, and the trainer now and then: a
# synchronous run has the same weights and rewards, an asynchronous one the same reward within noise, and no
# trajectory is used twice.
. "$(dirname "$0")/train.sh"

# torment NAME STORE ARGUMENT...: a whole run with two workers that never live long
torment() {
    local name=$1 store=$2 learner turn=0 victims=()
    shift 2
    trainer "$name" "$store" "$@"
    learner=$pid
    while kill -0 "$learner" 2> /dev/null && [ "$turn" -lt 200 ]; do
        worker "$name-$((turn % 3))" "$store"
        victims+=("$pid")
        if [ "${#victims[@]}" -gt 2 ]; then
            kill -KILL "${victims[0]}" 2> /dev/null
            wait "${victims[0]}" 2> /dev/null
            victims=("${victims[@]:1}")
        fi
        turn=$((turn + 1))
        if [ $((turn % 7)) -eq 0 ] && [ "$turn" -lt 30 ]; then
            kill -KILL "$learner" 2> /dev/null
            wait "$learner" 2> /dev/null
            trainer "$name" "$store" "$@"
            learner=$pid
        fi
        sleep 0.5
    done
    ended 0 "$learner" "$name"
    for pid in "${victims[@]}"; do
        kill -KILL "$pid" 2> /dev/null
    done
    echo "$name: $turn workers"
}

# ---- synchronous ----
run calm s-calm 2 --steps 90
course calm s-calm > calm.course
torment sync s-sync --steps 90
alike sync s-sync calm

# ---- asynchronous, of a policy that can do something ----
able=(--hidden 64 --heads 4 --kv-heads 4 --feed-forward 172 --rate 1e-4 --warmup-success 0.4 --prompts 16 --group 8
    --steps 40 --staleness 1 --evaluate-prompts 512)
run quiet s-quiet 2 "${able[@]}"
torment async s-async "${able[@]}"
checks=$((checks + 1))
/usr/bin/python3 - << 'END' || fail 'the asynchronous run'
import json
def rewards(name):
    lines = [json.loads(line) for line in open(f"{name}/metrics.jsonl")]
    assert [line["step"] for line in lines] == list(range(40))
    assert all(line["trajectories"]["used"] == 128 for line in lines)
    assert all(line["staleness"]["max"] <= 1 for line in lines)
    return [line["reward"] for line in lines]
quiet, tormented = rewards("quiet"), rewards("async")
mean = lambda values: sum(values) / len(values)
print("mean reward", mean(quiet), mean(tormented), "of the last 20", mean(quiet[-20:]), mean(tormented[-20:]))
# 20 batches of 128 responses: one deviation of the difference is about 0.014
assert abs(mean(quiet[-20:]) - mean(tormented[-20:])) < 0.1
END
finish
