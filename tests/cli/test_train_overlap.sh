#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Several trainers whose payloads travel during the next steps: all ranks come to the same bits in every round,
# ranks that were killed in the middle of an exchange to those of a run that was not disturbed, and the others go
# on without a rank that is gone, which finds its way back.
. "$(dirname "$0")/train.sh"
six=(--steps 6 --local-steps 2 --overlap --staleness 1)

# ---- whole runs ----
team two s-two 2 2 "${six[@]}"
agreed two 2 3
check 'the policy is the consensus' test "$(digest two/model)" = "$(digest two/rank-1/model)"
expect 0 '' "$weft" pull s-two pulled.safetensors
check 'and is what was published' test "$(digest two/model)" = "$(digest pulled.safetensors)"
check 'a policy for each round' test "$("$weft" log s-two --json | grep -c '"step"')" -eq 4
check 'no slots are left' test -z "$(ls s-two/train/rollouts)"
check 'what is told of a round' /usr/bin/python3 -c '
import json
for path in "two/metrics.jsonl", "two/rank-1/metrics.jsonl":
    lines = [json.loads(line) for line in open(path)]
    assert [line["step"] for line in lines] == list(range(6))
    ended = [line.get("round", {}).get("number") for line in lines]
    assert ended == [None, None, None, 0, None, 2], ended
    assert lines[5]["round_before"]["number"] == 1 and not any("round_before" in line for line in lines[:5])
    assert [line["staleness"]["max"] for line in lines] == [0, 1, 2, 3, 2, 3], lines'
team again s-again 2 1 "${six[@]}"
agreed again 2 3 two
team plain s-plain 2 1 --steps 6 --local-steps 2 --staleness 1
agreed plain 2 3
check 'another course' test "$(tail -1 plain.rounds)" != "$(tail -1 two.rounds)"
team grid s-grid 3 2 "${six[@]}" --grid 3
agreed grid 3 3
team dense s-dense 2 1 "${six[@]}" --outer diloco
agreed dense 2 3
team single s-single 1 1 --steps 2 --local-steps 2 --overlap --staleness 1 --outer pulseloco
agreed single 1 1

# ---- ranks that are killed while payloads travel, and come back in time ----
long=(--steps 24 --local-steps 2 --overlap --staleness 1)
team long s-long 2 1 "${long[@]}"
agreed long 2 12
killed killed s-killed 3 7 "${long[@]}"
agreed killed 2 12 long
check 'the same policy' test "$(digest killed/model)" = "$(digest long/model)"

# ---- a rank is slow: others publish the policy of the round that it has not ended. Then its batches are gone, and a worker
# comes that has no older policy to make them with ----
slow=(--steps 24 --local-steps 2 --overlap --staleness 1 --deadline 600s)
# published STORE STEP: the policy of that step, or a later one
published() { [ "$("$weft" log "$1" --json | sed -n 's/.*"step": "\([0-9]*\)".*/\1/p' | sort -n | tail -1)" -ge "$2" ]; }
worker slow-worker s-slow
steady=$pid
rank slow s-slow 2 0 "${slow[@]}"
first=$pid
rank slow s-slow 2 1 "${slow[@]}"
second=$pid
await 'two rounds' reached slow/rank-1 5
kill -STOP "$second"
made=$(steps slow/rank-1)
# if its payload was on its way when it stopped, nothing is published
for ((attempt = 0; attempt < 50; attempt++)); do
    published s-slow $((made - made % 2)) && break
    sleep 0.1
done
kill -KILL "$steady"
wait "$steady" 2> /dev/null
rm -f s-slow/train/rollouts/*-[4-7]
worker slow-other s-slow
steady=$pid
kill -CONT "$second"
ended 0 "$first" slow-0
ended 0 "$second" slow-1
ended 0 "$steady" slow-other
agreed slow 2 12

# who comes when all is done finds the end of the run
rank killed s-killed 2 1 "${long[@]}"
ended 0 "$pid" killed-1
expect 2 'another model, task, seed, batch, team' "$weft" train s-killed --role trainer --output killed "${tiny[@]}" \
    --trainers 2 --rank 0 --steps 24 --local-steps 2 --staleness 1

# ---- the others go on, whoever published; who was stopped, or comes back without anything, joins them ----
late=(--steps 60 --local-steps 2 --deadline 1s --overlap --staleness 1)
abandoned on s-on "${late[@]}"
rejoined on s-on "${late[@]}"

# ---- what cannot be ----
expect 2 'give --staleness 1 or more' "$weft" train s-no --role trainer --output no "${tiny[@]}" --trainers 2 --rank 0 \
    --steps 4 --local-steps 2 --overlap
expect 2 'is of the outer optimizer' "$weft" train s-no --role trainer --output no "${tiny[@]}" --trainers 2 --rank 0 \
    --outer ddp --overlap --staleness 1
expect 2 'is for several trainers' "$weft" train s-no --role trainer --output no "${tiny[@]}" --overlap --staleness 1
finish
