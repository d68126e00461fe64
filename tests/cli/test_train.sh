#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft train`: one trainer and its workers over a store. Synchronous runs are the same bit for bit however
# weights travel, whoever works, and however often somebody is killed.
. "$(dirname "$0")/train.sh"

# ---- how weights travel, and over what ----
run patch s-patch 2 --steps 6
course patch s-patch > patch.course
check 'a version for each step' test "$(wc -l < patch.course)" -eq 7
check 'weights that move' test "$(awk '{ print $2 }' patch.course | sort -u | wc -l)" -gt 4
run full s-full 1 --steps 6 --sync full
alike full s-full patch
check 'every version whole' test "$(find s-full/anchors -type f | wc -l)" -ge 2
check 'no patches' test -z "$(ls s-full/patches 2> /dev/null)"
serve server s-http
/usr/bin/python3 "$WEFT_SOURCE/tests/support/fault_proxy.py" --upstream "$url" --url-file proxy.url --seed 7 --faults '[
    {"fault": "flip", "method": "GET", "path": "*/train/rollouts/*", "skip": 4, "count": 2},
    {"fault": "cut", "method": "GET", "probability": 0.05},
    {"fault": "lose", "method": "PUT", "path": "*/train/*", "probability": 0.1},
    {"fault": "flip", "method": "GET", "path": "*/train/rollouts/*", "probability": 0.1},
    {"fault": "flip", "method": "GET", "path": "*/patches/*", "probability": 0.1},
    {"fault": "status", "code": 503, "probability": 0.03}]' 2> proxy.log &
children+=("$!")
await 'the proxy' test -s proxy.url
proxied=$(head -1 proxy.url)
run faulty "$proxied" 2 --steps 6
alike faulty s-http patch
check 'faults that struck' grep -q flip proxy.log

# ---- the model that comes out is the last version ----
expect 0 '' "$weft" pull s-patch pulled.safetensors
check 'the model' test "$(digest patch/model)" = "$(digest pulled.safetensors)"
check 'its config' test -s patch/model/config.json
check 'no slots are left' test -z "$(find s-patch/train/rollouts -type f)"

# ---- nobody reads the lines any more: the run goes on, and says so once ----
worker unread-worker s-unread
made=$pid
"$weft" train s-unread --role trainer --output unread "${tiny[@]}" --steps 6 --metrics - > /dev/full 2> unread.err
code=$?
check 'an exit code that tells' test "$code" -eq 1
ended 0 "$made" unread-worker
alike unread s-unread patch
check 'told once' test "$(grep -c 'cannot write the result: No space' unread.err)" -eq 1
says unread.err 'no more lines are printed'

# ---- trainers that are killed, workers that stay ----
worker steady s-killed
steady=$pid
for stop in 1 3 5; do
    trainer killed s-killed --steps 6
    victim=$pid
    await "step $stop" reached killed "$stop"
    kill -KILL "$victim"
    wait "$victim" 2> /dev/null
done
trainer killed s-killed --steps 6
ended 0 "$pid" killed
says killed.err 'going on with run'
ended 0 "$steady" steady
alike killed s-killed patch

# a run that is finished is not begun again; with more steps it goes on
trainer killed s-killed --steps 6
ended 0 "$pid" killed
alike killed s-killed patch
trainer killed s-killed --steps 8
learner=$pid
await 'more steps' grep -q '"steps":8' s-killed/train/run
worker more s-killed
ended 0 "$pid" more
ended 0 "$learner" killed
course killed s-killed > killed.course
check 'two more' test "$(wc -l < killed.course)" -eq 9
check 'the same before' cmp <(head -7 killed.course) patch.course

# ---- anew, in the same place ----
cp patch.course first.course
name=$(field patch/run.json name)
trainer patch s-patch --steps 6 --fresh
learner=$pid
await 'another run' bash -c "! grep -q $name s-patch/train/run"
worker anew s-patch
ended 0 "$pid" anew
ended 0 "$learner" patch
alike patch s-patch first
check 'two versions of each step' test "$("$weft" log s-patch --json | grep -c '"step"')" -eq 14

# ---- asynchronous ----
run late s-late 3 --steps 8 --staleness 2
check 'bounded staleness' /usr/bin/python3 -c '
import json
lines = [json.loads(line) for line in open("late/metrics.jsonl")]
assert len(lines) == 8 and all(line["staleness"]["max"] <= 2 for line in lines)
assert all(line["trajectories"]["used"] == 32 for line in lines)'

# ---- what cannot be ----
expect 2 'cannot be divided' "$weft" train s-new --role trainer --output new "${tiny[@]}" --slots 3
expect 2 'cannot have 5 heads' "$weft" train s-new --role trainer --output new "${tiny[@]}" --heads 5
expect 2 'context of 32' "$weft" train s-new --role trainer --output new "${tiny[@]}" --chain-steps 51
expect 2 'can be guessed' "$weft" train s-new --role trainer --output new "${tiny[@]}" --chain-steps 4
expect 2 'give the same options' "$weft" train s-patch --role trainer --output patch "${tiny[@]}" --seed 2
expect 2 'the store holds the run' "$weft" train s-patch --role trainer --output other "${tiny[@]}"
expect 2 'needs an --output' "$weft" train s-new --role trainer
expect 2 'give a --role' "$weft" train s-new
expect 2 'learns all about the run' "$weft" train s-new --role rollout --steps 5
absent s-new
# another architecture under the same description
cp -r patch foreign
cp late/state.safetensors foreign/state.safetensors
/usr/bin/python3 - foreign/state.safetensors << 'END'
import sys
data = open(sys.argv[1], "rb").read()
assert data.count(b'\\"num_hidden_layers\\": 2') == 1
open(sys.argv[1], "wb").write(data.replace(b'\\"num_hidden_layers\\": 2', b'\\"num_hidden_layers\\": 3'))
END
expect 2 'another architecture' "$weft" train s-patch --role trainer --output foreign "${tiny[@]}" --steps 6

# ---- nobody is there ----
expect 4 'no trainer has begun a run there' "$weft" train s-none --role rollout --patience 0.3
expect 4 'no worker delivers' "$weft" train s-alone --role trainer --output alone "${tiny[@]}" --patience 0.3
expect 0 '*' "$weft" train s-alone --role rollout --max-seconds 1 --name short
says stderr 'the time is over'
# what was made of it is gone on with
worker friend s-alone
friend=$pid
trainer alone s-alone --steps 200
victim=$pid
await 'a step' reached alone 2
expect 1 'another trainer is at work' "$weft" train s-alone --role trainer --output alone "${tiny[@]}" --steps 200
kill -TERM "$friend"
ended 143 "$friend" friend
kill -TERM "$victim"
ended 143 "$victim" alone
finish
