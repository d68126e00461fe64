#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A trainer that is killed between the end of a round and its line of metrics, at that very call (by
# tests/support/fault_io.c): the next life adds the line that was kept, with all that it tells of the round.
. "$(dirname "$0")/train.sh"

find_fault_io

six=(--steps 6 --local-steps 2 --outer pulseloco)

# life NAME LINE: one that is killed when it is about to add its LINE-th line
life() {
    export LD_PRELOAD="$fault_io" WEFT_FAULT_PATH="$dir/kept/metrics.jsonl" WEFT_FAULT_CALL=write WEFT_FAULT_KILL=1 \
        WEFT_FAULT_AT="$2" WEFT_FAULT_LOG="$dir/$1.strikes"
    rank kept s-kept 1 0 "${six[@]}"
    unset LD_PRELOAD WEFT_FAULT_PATH WEFT_FAULT_CALL WEFT_FAULT_KILL WEFT_FAULT_AT WEFT_FAULT_LOG
    ended 137 "$pid" kept-0
    check "$1: killed at the call" test -s "$1.strikes"
}

mkdir kept
: > kept/metrics.jsonl
worker kept-worker s-kept
steady=$pid
# the second line is that of the first round; and the first of the next life is the same line once more
life first 2
check 'a line of the first step only' test "$(steps kept)" -eq 1
life second 3
check 'the line that was kept, and one more' test "$(steps kept)" -eq 3
rank kept s-kept 1 0 "${six[@]}"
ended 0 "$pid" kept-0
ended 0 "$steady" kept-worker
agreed kept 1 3
check 'a line for each step, and all of a round' /usr/bin/python3 -c '
import json
lines = [json.loads(line) for line in open("kept/metrics.jsonl")]
assert [line["step"] for line in lines] == list(range(6)), lines
assert [line["round"]["number"] for line in lines if "round" in line] == [0, 1, 2], lines
for line in lines[1::2]:
    part = line["round"]
    assert part["included"] == 1 and 0 < part["fired"] <= part["elements"] and part["sent"]["payload"] > 0
    assert line["version"] == line["step"] // 2 + 2, line'
finish
