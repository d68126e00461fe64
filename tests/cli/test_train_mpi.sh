#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Trainers that mpirun has started come to the bits of those that meet in a store, over shared memory and over
# TCP; one that is killed ends the job with a message, and the run is gone on with.
. "$(dirname "$0")/train.sh"
if ! command -v mpirun > /dev/null || ! ls "$build"/libweft-mpi.so* > /dev/null 2>&1; then
    skip 'trainers over MPI: there is none here (make deps-test installs openmpi-bin and libopenmpi-dev)'
    finish
fi
# no other interface than the loopback one is used, whatever the machine has
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_pml=ob1
# ranks that wait let others compute
export OMPI_MCA_mpi_yield_when_idle=1
# a sanitizer would report what MPI's own libraries never give back
export ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
four=(--steps 4 --local-steps 2)

# job NAME STORE K ARGUMENT...: in the background
job() {
    local name=$1 store=$2 ranks=$3
    shift 3
    timeout -k 5 120 mpirun --allow-run-as-root --oversubscribe -n "$ranks" "$weft" train "$store" --role trainer \
        --output "$name" "${tiny[@]}" --exchange mpi "$@" > "$name.out" 2> "$name.err" < /dev/null &
    pid=$!
    children+=("$pid")
}

# whole NAME STORE K ARGUMENT...
whole() {
    local name=$1 store=$2
    job "$@"
    local started=$pid
    worker "$name-worker" "$store"
    local made=$pid
    ended 0 "$started" "$name"
    ended 0 "$made" "$name-worker"
}

for ranks in 2 3 4; do
    team "store-$ranks" "s-store-$ranks" "$ranks" 1 "${four[@]}"
    agreed "store-$ranks" "$ranks" 2
    for network in vader tcp; do
        OMPI_MCA_btl=$network,self whole "$network-$ranks" "s-$network-$ranks" "$ranks" "${four[@]}"
        agreed "$network-$ranks" "$ranks" 2 "store-$ranks"
    done
done

# payloads that travel during the next steps: a thread beside the trainer's calls MPI
overlap=(--steps 8 --local-steps 2 --overlap --staleness 1)
team store-overlap s-store-overlap 2 1 "${overlap[@]}"
agreed store-overlap 2 4
whole overlap s-overlap 2 "${overlap[@]}"
agreed overlap 2 4 store-overlap
whole mean s-mean 2 --steps 3 --outer ddp
agreed mean 2 3
team mean-store s-mean-store 2 1 --steps 3 --outer ddp
agreed mean-store 2 3 mean

# ---- one stdout for all ranks ----
whole told s-told 2 --steps 3 --outer ddp --json
check 'one document' /usr/bin/python3 -c 'import json; assert json.load(open("told.out"))["steps"] == 3'
whole lines s-lines 2 --steps 3 --outer ddp --metrics -
check 'the lines of rank 0' cmp -s <(wc -l < lines.out) <(wc -l < lines/metrics.jsonl)

# ---- killed, while steps are made: a process that MPI is starting or ending may leave mpirun hanging ----
gone() { ! kill -0 "$1" 2> /dev/null; }
long=(--steps 16 --local-steps 2)
team long s-long 3 2 "${long[@]}"
agreed long 3 8
worker steady s-killed
steady=$pid
for attempt in 1 2 3; do
    before=$(steps killed/rank-1)
    [ "$before" -lt 10 ] || break
    job killed s-killed 3 "${long[@]}"
    started=$pid
    await "steps of job $attempt" reached killed/rank-1 $((before + 1))
    ranks=$(pgrep -P "$(pgrep -P "$started" -x mpirun)" -x weft)
    victim=${ranks##*$'\n'}
    kill -KILL "$victim" 2> /dev/null
    wait "$started" && break
    says killed.err 'exited on signal 9|non-zero'
    # mpirun may end before its ranks have, and who is still there holds the trainer's place
    for rank in $ranks; do
        await "the end of rank $rank" gone "$rank"
    done
done
check 'a job that was killed' test -n "$victim"
job killed s-killed 3 "${long[@]}"
ended 0 "$pid" killed
ended 0 "$steady" steady
agreed killed 3 8 long

expect 2 'leave out --rank' "$weft" train s-no --role trainer --output no "${tiny[@]}" --exchange mpi --rank 0
expect 2 'over MPI all wait' "$weft" train s-no --role trainer --output no "${tiny[@]}" --exchange mpi --join
# the command alone, without the library
cp "$weft" alone
expect 1 'cannot use MPI' ./alone train s-no --role trainer --output no "${tiny[@]}" --exchange mpi
finish
