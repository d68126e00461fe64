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
await 'the run' test -s s-more/train/run
# it waits, or else the run might be over before the worker sleeps
kill -STOP "$learner"
await 'a trainer that sleeps' stopped "$learner"
worker in s-more
in=$pid
await 'who has come' grep -q 'joined run' in.err
kill -STOP "$in"
await 'a worker that sleeps' stopped "$in"
kill -CONT "$learner"
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

# ---- another trainer ----
trainer old s-taken --steps 4
old=$pid
await 'the first version' bash -c 'ls s-taken/heads/*'
trainer young s-taken --steps 4 --fresh
young=$pid
ended 4 "$old" old
says old.err 'another trainer has begun the run'
worker taken s-taken
ended 0 "$pid" taken
ended 0 "$young" young
silent old.err 'is not used'
silent young.err 'is not used'

# ---- another way to learn ----
again() { "$weft" train s-more --role trainer --output more "${tiny[@]}" "$@"; }
expect 2 'learns with rate 0.001' again --steps 12 --rate 2e-3
expect 2 'learns with updates 2' again --steps 12 --updates 1
expect 2 'has made 12 steps already' again --steps 2
check 'nothing was told to workers' grep -q '"steps":12' s-more/train/run
expect 0 '*' again --steps 12 --rate 2e-3 --change
expect 2 'learns with rate 0.002' again --steps 12
expect 0 '*' again --steps 12 --change

# ---- the reference is the run's own ----
run near s-near 1 --steps 2 --kl 0.1
cp -r near near-other
expect 2 'begun without --kl' again --steps 12 --kl 0.1 --change
cp whole/model/model.safetensors near-other/reference/
expect 3 'does not hold the policy that the run began with' \
    "$weft" train s-near --role trainer --output near-other "${tiny[@]}" --steps 4 --kl 0.1
name=$(field near/run.json name)
trainer near s-near --steps 2 --fresh --seed 5
learner=$pid
await 'another run' bash -c "! grep -q $name s-near/train/run"
worker near-worker s-near
ended 0 "$pid" near-worker
ended 0 "$learner" near
expect 2 'begun without --kl' \
    "$weft" train s-near --role trainer --output near "${tiny[@]}" --steps 4 --seed 5 --kl 0.1 --change
finish
