#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Trainers that mpirun has started come to the bits of those that meet in a store, over shared memory and over
# TCP; one that is killed ends the job with a message, and the run is gone on with.
. "$(dirname "$0")/train.sh"
if ! command -v mpirun > /dev/null || ! ls "$build"/libweft-mpi.so* > /dev/null 2>&1; then
    echo "SKIPPED: there is no MPI here: install openmpi-bin and libopenmpi-dev to test trainers over MPI"
    exit 0
fi
# no other interface than the loopback one is used, whatever the machine has
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_pml=ob1
# ranks that wait let others compute
export OMPI_MCA_mpi_yield_when_idle=1
# a sanitizer would report what MPI's own libraries never give back
export ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
six=(--steps 6 --local-steps 2)

# job NAME STORE K ARGUMENT...: in the background
job() {
    local name=$1 store=$2 ranks=$3
    shift 3
    timeout 120 mpirun --allow-run-as-root --oversubscribe -n "$ranks" "$weft" train "$store" --role trainer \
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

team store s-store 3 2 "${six[@]}"
agreed store 3 3
OMPI_MCA_btl=vader,self whole shared s-shared 3 "${six[@]}"
agreed shared 3 3 store
OMPI_MCA_btl=tcp,self whole tcp s-tcp 3 "${six[@]}" --trainers 3
agreed tcp 3 3 store
whole mean s-mean 2 --steps 3 --outer ddp
agreed mean 2 3
team mean-store s-mean-store 2 1 --steps 3 --outer ddp
agreed mean-store 2 3 mean

# ---- killed: in a round, and right after the others have ended one ----
worker steady s-killed
steady=$pid
for stop in 1 2 5; do
    job killed s-killed 3 "${six[@]}"
    started=$pid
    await "step $stop" reached killed/rank-1 "$stop"
    victim=$(pgrep -P "$(pgrep -P "$started" -x mpirun || echo "$started")" -x weft | tail -1)
    [ -z "$victim" ] || kill -KILL "$victim"
    wait "$started"
    code=$?
    checks=$((checks + 1))
    [ "$code" -eq 0 ] || says killed.err 'exited on signal 9|exit code: 1'
done
job killed s-killed 3 "${six[@]}"
ended 0 "$pid" killed
ended 0 "$steady" steady
agreed killed 3 3 store

expect 2 'leave out --rank' "$weft" train s-no --role trainer --output no "${tiny[@]}" --exchange mpi --rank 0
# the command alone, without the library
cp "$weft" alone
expect 1 'cannot use MPI' ./alone train s-no --role trainer --output no "${tiny[@]}" --exchange mpi
finish
