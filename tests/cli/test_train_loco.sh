#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Several trainers that meet in a store: all ranks come to the same bits in every round, a run that was
# interrupted to those of one that was not, and the others go on without a rank that is gone.
. "$(dirname "$0")/train.sh"
six=(--steps 6 --local-steps 2)

# ---- gradients need all ranks: without one there is an end to waiting; seen to below ----
worker waiting-worker s-waiting --patience 30s
waiting_worker=$pid
rank waiting s-waiting 2 0 --steps 3 --outer ddp --patience 30s --deadline 1s
waiting=$pid

# ---- two, three and four, each way to agree ----
team two s-two 2 2 "${six[@]}"
agreed two 2 3
check 'a policy for each round' test "$("$weft" log s-two --json | grep -c '"step"')" -eq 4
check 'the policy is the consensus' test "$(digest two/model)" = "$(digest two/rank-1/model)"
expect 0 '' "$weft" pull s-two pulled.safetensors
check 'and is what was published' test "$(digest two/model)" = "$(digest pulled.safetensors)"
check 'no slots are left' test -z "$(ls s-two/train/rollouts)"
check 'what is told of a round' /usr/bin/python3 -c '
import json
for path in "two/metrics.jsonl", "two/rank-1/metrics.jsonl":
    lines = [json.loads(line) for line in open(path)]
    assert [line["step"] for line in lines] == list(range(6))
    for line in lines:
        assert line["staleness"]["max"] == line["step"] % 2
        assert ("round" in line) == (line["step"] % 2 == 1)
    for part in (line["round"] for line in lines if "round" in line):
        assert part["included"] == 2 and 0 < part["fired"] <= part["elements"] and part["residual"] > 0
        assert part["dense"] == 4 * part["elements"] and part["ddp"] == 2 * part["dense"] == 2 * part["ring"]
        assert 0 < part["sent"]["payload"] and 0 < part["received"]["payload"]
lines = [json.loads(line) for line in open("two/metrics.jsonl")]
assert [line["version"] for line in lines] == [1, 2, 2, 3, 3, 4], lines'
team three s-three 3 2 "${six[@]}" --staleness 1
agreed three 3 3
team four s-four 4 2 --steps 4 --local-steps 2
agreed four 4 2
in_order s-four
expect 0 '' "$weft" keygen team.key
team dense s-dense 2 1 "${six[@]}" --outer diloco --sign team.key
agreed dense 2 3
bytes() { stat -c %s "$1"/loco/*/0/closed; }
check 'what they agreed on is signed' test "$(bytes s-dense)" -eq $(($(bytes s-two) + 64))
check 'another course' test "$(tail -1 dense.rounds)" != "$(tail -1 two.rounds)"
team mean s-mean 2 1 --steps 3 --outer ddp
agreed mean 2 3
team single s-single 1 1 "${six[@]}" --outer pulseloco
agreed single 1 3

# ---- ranks that are killed, and come back in time ----
# of a run that is not over before they are
long=(--steps 24 --local-steps 2)
team long s-long 2 1 "${long[@]}"
agreed long 2 12
killed killed s-killed 1 3 "${long[@]}"
agreed killed 2 12 long

# gradients, too
worker steady-mean s-mean-killed
steady=$pid
rank mean-killed s-mean-killed 2 0 --steps 3 --outer ddp
first=$pid
rank mean-killed s-mean-killed 2 1 --steps 3 --outer ddp
await 'a step' reached mean-killed/rank-1 1
kill -KILL "$pid"
wait "$pid" 2> /dev/null
rank mean-killed s-mean-killed 2 1 --steps 3 --outer ddp
ended 0 "$pid" mean-killed-1
ended 0 "$first" mean-killed-0
ended 0 "$steady" steady-mean
agreed mean-killed 2 3 mean

# ---- the others go on, whoever published; who comes back without anything joins them ----
late=(--steps 60 --local-steps 2 --deadline 1s)
abandoned on s-on "${late[@]}"
expect 2 'the store holds the run' "$weft" train s-on --role trainer --output on "${tiny[@]}" --trainers 3 --rank 0 \
    "${late[@]}"
rejoined on s-on "${late[@]}"
check 'which is told' grep -Eq 'rank 1: step [0-9]+: .*1 of 3 took part' on-1.err

# the last policy is published by who is left
rm -r s-on/heads
rank on s-on 3 1 "${late[@]}"
ended 0 "$pid" on-1
says on-1.err 'rank 0 has not published the policy of step 60'
expect 0 '' "$weft" pull s-on last.safetensors
check 'the policy of the end' test "$(digest on/model)" = "$(digest last.safetensors)"

# ---- one that is stopped at the end of a round, until the round is gone from the store ----
worker far-worker s-far
far_worker=$pid
far=(--steps 100 --local-steps 1 --deadline 4s)
rank far s-far 2 0 "${far[@]}"
first=$pid
rank far s-far 2 1 "${far[@]}"
second=$pid
await 'a few rounds' reached far/rank-1 3
kill -STOP "$first"
before=$(steps far/rank-1)
delivered() { compgen -G "s-far/loco/*/$before/1"; }
await 'its payload' delivered
kill -STOP "$second"
kill -CONT "$first"
await 'many rounds without it' reached far $((before + 50))
kill -CONT "$second"
ended 0 "$first" far-0
ended 0 "$second" far-1
ended 0 "$far_worker" far-worker
says far-1.err 'the others went on without this rank'
rounds far 2 > far.rounds || fail 'the ranks do not agree'
check 'one policy of both' test "$(digest far/model)" = "$(digest far/rank-1/model)"

# ---- what is said on the way ----
check 'whose words they are' grep -q '^weft train: rank 1: run [0-9a-f]* is finished' two-1.err
check 'who took part' grep -Eq 'rank 0: step 6: .* to the other trainers, 2 of 2 took part' two-0.err

# ---- the rank that waited since the beginning ----
ended 4 "$waiting" waiting-0
says waiting-0.err 'round 0 needs 2 ranks, and after [0-9]+ s 1 are there: rank 1 has not come'
ended 4 "$waiting_worker" waiting-worker

# ---- what cannot be ----
no=("$weft" train s-no --role trainer --output no "${tiny[@]}")
expect 2 'Give --rank' "${no[@]}" --trainers 2
expect 2 'no rank 2 of 2' "${no[@]}" --trainers 2 --rank 2
expect 2 'not whole rounds' "${no[@]}" --trainers 2 --rank 0 --steps 7 --local-steps 2
expect 2 'no steps of their own' "${no[@]}" --trainers 2 --rank 0 --outer ddp --local-steps 2
expect 2 'need a way to agree' "${no[@]}" --local-steps 2
expect 2 'is pulseloco, diloco or ddp' "${no[@]}" --outer alone
expect 2 'choose 2 to 23' "${no[@]}" --trainers 2 --rank 0 --significant 1
expect 2 'momentum from 0 to below 1' "${no[@]}" --trainers 2 --rank 0 --outer-momentum 1
expect 2 'trainers takes a number from 1' "${no[@]}" --trainers 0
expect 2 'local-steps takes a number from 1' "${no[@]}" --trainers 2 --rank 0 --local-steps 0
expect 2 'outer-rate is for several trainers' "${no[@]}" --outer-rate 1
expect 2 'deadline is for several trainers' "${no[@]}" --deadline 1s
expect 2 'which ddp has not' "${no[@]}" --trainers 2 --rank 0 --outer ddp --outer-momentum 0
expect 2 "significant is pulseloco's" "${no[@]}" --trainers 2 --rank 0 --outer diloco --significant 8
expect 2 'choose one of them' "${no[@]}" --trainers 2 --rank 0 --join --fresh
expect 4 'rank 0 has not begun' "${no[@]}" --trainers 2 --rank 1 --patience 0.3
expect 2 'give all ranks the same options' "$weft" train s-two --role trainer --output no "${tiny[@]}" "${six[@]}" \
    --trainers 2 --rank 1 --seed 9
finish
