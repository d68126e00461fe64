#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# PULSELoCo over real MPI: 2, 3 and 4 ranks, over shared memory and over TCP on loopback, come to the bits that
# one process computes for them all; payloads larger than one call of MPI takes go in several; a rank that is
# killed ends the job with a message.
source "$(dirname "$0")/common.sh"

ranks=${WEFT_BUILD:?}/tests/loco_ranks
if ! command -v mpirun > /dev/null || [ ! -x "$ranks" ]; then
    skip 'the exchange over MPI: there is none here (make deps-test installs openmpi-bin and libopenmpi-dev)'
    finish
fi
# no other interface than the loopback one is used, whatever the machine has
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_pml=ob1
# a sanitizer would report what MPI's own libraries never give back
export ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
run=(timeout 600 mpirun --allow-run-as-root --oversubscribe)

# same COUNT LOG: each line of truth is in the log once for each rank, and there is nothing else
same() {
    local count=$1
    sort "$2" | uniq -c | awk '{print $1, $2, $3}' > got
    sort truth | awk -v n="$count" '{print n, $1, $2}' > wanted
    diff wanted got > /dev/null || fail "$count ranks did not come to the same bits: $(head -c 300 got)"
}

for count in 2 3 4; do
    LOCO_RANKS=$count expect 0 '' "$ranks" 4 200000
    cp stdout truth
    for network in vader tcp; do
        OMPI_MCA_btl=$network,self expect 0 '*' "${run[@]}" -n "$count" "$ranks" 4 200000
        same "$count" stdout
    done
done

# 1000 bytes for four ranks: each gives 250 at a time
LOCO_RANKS=4 expect 0 '' "$ranks" 2 20000
cp stdout truth
expect 0 '*' "${run[@]}" -n 4 "$ranks" 2 20000 1000
same 4 stdout

# the message is mpirun's, not the command's
checks=$((checks + 1))
LOCO_DIE=1:1 "${run[@]}" -n 3 "$ranks" 100 20000 > stdout 2> stderr < /dev/null
[ $? -eq 137 ] && grep -q 'exited on signal 9' stderr || fail "no word of the killed rank: $(head -c 300 stderr)"
[ "$(cut -d' ' -f1 stdout | sort -u | tail -1)" = 1 ] || fail "ranks went on without the one that was killed"

finish
