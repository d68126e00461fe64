#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft train` when a run is described anew while somebody takes part in it: begun again with another model,
# given more steps, gone on with by another kind of processor, or taken over by another trainer. Workers
# follow, or say why they cannot; a trainer that was taken over ends, and removes nothing.
. "$(dirname "$0")/train.sh"

# stopped PID: the process does nothing, until it is continued
stopped() { [ "$(cut -d' ' -f3 "/proc/$1/stat")" = T ]; }

# ---- another model ----
trainer first s-model --steps 500
learner=$pid
worker loyal s-model
loyal=$pid
await 'a step' reached first 1
kill -TERM "$learner"
ended 143 "$learner" first
trainer first s-model --steps 4 --fresh --hidden 48
ended 0 "$pid" first
ended 0 "$loyal" loyal
check 'the new run' test "$(steps first)" -eq 4

# ---- more steps, for one who has just come and one who has seen all of it ----
trainer more s-more --steps 4
learner=$pid
worker in s-more
in=$pid
await 'a step' reached more 1
kill -STOP "$in"
await 'a worker that sleeps' stopped "$in"
worker other s-more
ended 0 "$pid" other
ended 0 "$learner" more
worker new s-more
new=$pid
await 'joined' grep -q 'joined run' new.err
kill -STOP "$new"
await 'another worker that sleeps' stopped "$new"
trainer more s-more --steps 8
learner=$pid
await 'more steps' grep -q '"steps":8' s-more/train/run
kill -CONT "$in"
await 'slots of the first' reached more 8
ended 0 "$learner" more
trainer more s-more --steps 12
learner=$pid
await 'still more' grep -q '"steps":12' s-more/train/run
kill -CONT "$new"
ended 0 "$learner" more
ended 0 "$new" new
ended 0 "$in" in
course more s-more > more.course
run whole s-whole 1 --steps 12
alike whole s-whole more

# ---- another kind of processor ----
trainer kind s-kind --steps 500
learner=$pid
worker plain s-kind
plain=$pid
await 'a step' reached kind 1
kill -TERM "$learner"
ended 143 "$learner" kind
if grep -q '"arithmetic":"fused"' s-kind/train/run; then
    WEFT_CPU=portable trainer kind s-kind --steps 500
    learner=$pid
    ended 1 "$plain" plain
    says plain.err 'work on a machine of the same kind'
    kill -TERM "$learner"
    ended 143 "$learner" kind
else
    kill -TERM "$plain"
    ended 143 "$plain" plain
    skip 'another kind of processor: this one has one way only'
fi
finish
