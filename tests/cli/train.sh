# SPDX-License-Identifier: Apache-2.0
#
# train.sh: what the tests of `weft train` share. Sourced, not run. Besides sync.sh it gives a model that
# takes milliseconds, and what to compare runs by.
. "$(dirname "${BASH_SOURCE[0]}")/sync.sh"

tiny=(--hidden 32 --heads 2 --kv-heads 2 --feed-forward 64 --context 32 --chain-steps 5 --chain-period 2
    --prompts 8 --group 4 --slots 4 --rate 1e-3 --warmup-success 0 --evaluate 0 --evaluate-prompts 16
    --threads 1 --patience 600s)

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
    begin "$name" train "$store" --role rollout --name "$name" --threads 1 --patience 600s "$@"
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

# ---- several trainers ----

# rank NAME STORE K R ARGUMENT...: one of K trainers in the background; all have the directory NAME
rank() {
    local name=$1 store=$2 ranks=$3 number=$4
    shift 4
    begin "$name-$number" train "$store" --role trainer --output "$name" "${tiny[@]}" --trainers "$ranks" \
        --rank "$number" "$@"
}

# files NAME R: the directory of a rank
files() { [ "$2" -eq 0 ] && echo "$1" || echo "$1/rank-$2"; }

# team NAME STORE K WORKERS ARGUMENT...: a whole run
team() {
    local name=$1 store=$2 ranks=$3 workers=$4 members=() made=() i
    shift 4
    for ((i = 0; i < ranks; i++)); do
        rank "$name" "$store" "$ranks" "$i" "$@"
        members+=("$pid")
    done
    for ((i = 0; i < workers; i++)); do
        worker "$name-worker-$i" "$store"
        made+=("$pid")
    done
    for ((i = 0; i < ranks; i++)); do
        ended 0 "${members[$i]}" "$name-$i"
    done
    for ((i = 0; i < workers; i++)); do
        ended 0 "${made[$i]}" "$name-worker-$i"
    done
}

# killed NAME STORE STEPS MORE ARGUMENT...: a whole run of two ranks and a worker. When STEPS have been written down,
# rank 1 is killed, and at MORE rank 0; each comes back at once
killed() {
    local name=$1 store=$2 steps=$3 more=$4 steady first second
    shift 4
    worker "$name-worker" "$store"
    steady=$pid
    rank "$name" "$store" 2 0 "$@"
    first=$pid
    rank "$name" "$store" 2 1 "$@"
    second=$pid
    await 'the first steps' reached "$name/rank-1" "$steps"
    kill -KILL "$second"
    wait "$second" 2> /dev/null
    rank "$name" "$store" 2 1 "$@"
    second=$pid
    await 'more steps' reached "$name" "$more"
    kill -KILL "$first"
    wait "$first" 2> /dev/null
    rank "$name" "$store" 2 0 "$@"
    ended 0 "$pid" "$name-0"
    ended 0 "$second" "$name-1"
    ended 0 "$steady" "$name-worker"
    says "$name-0.err" 'going on with run'
}

# abandoned NAME STORE ARGUMENT...: three ranks and a worker, of which rank 0 is killed and its state removed, and rank 2
# stopped for some rounds; sets `members` and `steady`
abandoned() {
    local name=$1 store=$2 i before
    shift 2
    worker "$name-worker" "$store"
    steady=$pid
    members=()
    for i in 0 1 2; do
        rank "$name" "$store" 3 "$i" "$@"
        members+=("$pid")
    done
    await 'two rounds' reached "$name" 5
    kill -KILL "${members[0]}"
    wait "${members[0]}" 2> /dev/null
    rm -r "$name/state.safetensors" "$name/run.json"
    before=$(steps "$name/rank-1")
    await 'steps without it' reached "$name/rank-1" $((before + 6))
    # one that is only slow, until another has published for it, finds its way back
    kill -STOP "${members[2]}"
    before=$(steps "$name/rank-1")
    await 'steps alone' reached "$name/rank-1" $((before + 6))
    kill -CONT "${members[2]}"
}

# rejoined NAME STORE ARGUMENT...: rank 0 comes back without anything, and all come to one policy
rejoined() {
    local name=$1 store=$2
    shift 2
    rank "$name" "$store" 3 0 "$@" --join
    ended 0 "$pid" "$name-0"
    ended 0 "${members[1]}" "$name-1"
    ended 0 "${members[2]}" "$name-2"
    ended 0 "$steady" "$name-worker"
    rounds "$name" 3 > "$name.rounds" || fail "the ranks of $name do not agree"
    check 'one policy in the end' test "$(digest "$name/model")$(digest "$name/model")" = \
        "$(digest "$name/rank-1/model")$(digest "$name/rank-2/model")"
    check 'a round without it' grep -q '"included":2' "$name/rank-1/metrics.jsonl"
    check 'a round alone' grep -q '"included":1' "$name/rank-1/metrics.jsonl"
    in_order "$store"
}

# rounds NAME K: what all ranks had in common after each round, which must be the same on all of them, as far
# as they took part; and the policies as the store has them, if a third argument names it
rounds() {
    local i lines=()
    for ((i = 0; i < $2; i++)); do
        lines+=("$(files "$1" "$i")/metrics.jsonl")
    done
    /usr/bin/python3 - "${lines[@]}" << 'END'
import json, sys
common = {}
for path in sys.argv[1:]:
    lines = [json.loads(line) for line in open(path)]
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps)), "a step has two lines"
    for line in lines:
        for part in (line[name] for name in ("round_before", "round") if name in line):
            common.setdefault(part["number"], set()).add(part["digest"])
for number, digests in sorted(common.items()):
    assert len(digests) == 1, f"ranks do not agree after round {number}"
    print(number, *digests)
END
}

# agreed NAME K ROUNDS [OTHER]: ranks agree after each of so many rounds, and come to what OTHER.rounds has
agreed() {
    checks=$((checks + 1))
    rounds "$1" "$2" > "$1.rounds" || fail "the ranks of $1 do not agree"
    [ "$(wc -l < "$1.rounds")" -eq "$3" ] || fail "$1 has $(wc -l < "$1.rounds") rounds, not $3"
    [ -z "${4-}" ] || cmp -s "$1.rounds" "$4.rounds" || fail "$1 is not $4: $(diff "$1.rounds" "$4.rounds" | head -4)"
}

# in_order STORE: no policy of an earlier step came after one of a later, and those of a step are the same,
# whoever published them
in_order() {
    checks=$((checks + 1))
    "$weft" log "$1" --json > versions.json || fail "no log of $1"
    /usr/bin/python3 - versions.json << 'END' || fail "the versions of $1 are not in order"
import json, sys
versions = sorted(json.load(open(sys.argv[1]))["versions"], key=lambda version: version["version"])
steps = [int(version["labels"]["step"]) for version in versions]
assert steps == sorted(steps), steps
digests = {step: version["digest"] for step, version in zip(steps, versions)}
assert all(digests[step] == version["digest"] for step, version in zip(steps, versions))
END
}
