# SPDX-License-Identifier: Apache-2.0
#
# train.sh: what the tests of `weft train` share. Sourced, not run. Besides sync.sh it gives a model that
# takes milliseconds, and what to compare runs by.
. "$(dirname "${BASH_SOURCE[0]}")/sync.sh"

tiny=(--hidden 32 --heads 2 --kv-heads 2 --feed-forward 64 --context 32 --chain-steps 5 --chain-period 2
    --prompts 8 --group 4 --slots 4 --rate 1e-3 --warmup-success 0 --evaluate 0 --evaluate-prompts 16
    --threads 1 --patience 60s)

# trainer NAME STORE ARGUMENT...: one of the tiny model in the background, its directory NAME
trainer() {
    local name=$1 store=$2
    shift 2
    begin "$name" train "$store" --role trainer --output "$name" "${tiny[@]}" "$@"
}

# worker NAME STORE ARGUMENT...
worker() {
    local name=$1 store=$2
    shift 2
    begin "$name" train "$store" --role rollout --name "$name" --threads 1 --patience 60s "$@"
}

# run NAME STORE WORKERS ARGUMENT...: a whole run
run() {
    local name=$1 store=$2 workers=$3 made=() i
    shift 3
    trainer "$name" "$store" "$@"
    local learner=$pid
    for ((i = 0; i < workers; i++)); do
        worker "$name-worker-$i" "$store"
        made+=("$pid")
    done
    ended 0 "$learner" "$name"
    for ((i = 0; i < workers; i++)); do
        ended 0 "${made[$i]}" "$name-worker-$i"
    done
}

# course NAME STORE: the weights of each step as the store has them, and its reward; of several versions of
# a step all must be the same
course() {
    "$weft" log "$2" --json > "$1.log" || fail "no log of $2"
    /usr/bin/python3 - "$1.log" "$1/metrics.jsonl" << 'END'
import json, sys
steps = {}
for version in json.load(open(sys.argv[1]))["versions"]:
    steps.setdefault(int(version["labels"]["step"]), set()).add(version["digest"])
lines = [json.loads(line) for line in open(sys.argv[2])]
assert [line["step"] for line in lines] == list(range(len(lines))), "a step has no line, or two"
for step, digests in sorted(steps.items()):
    line = lines[step - 1] if step > 0 else {}
    print(step, *sorted(digests), line.get("reward"), line.get("loss"), line.get("changed"))
END
}

# alike NAME STORE OTHER: the course of a run is that of OTHER.course
alike() {
    checks=$((checks + 1))
    course "$1" "$2" > "$1.course" || fail "the metrics of $1"
    cmp -s "$1.course" "$3.course" || fail "$1 is not $3: $(diff "$1.course" "$3.course" | head -4)"
}

# steps NAME: that have been written down
steps() { wc -l < "$1/metrics.jsonl" 2> /dev/null || echo 0; }
reached() { [ "$(steps "$1")" -ge "$2" ]; }
