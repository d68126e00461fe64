#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The tour of scripts/tour.sh checks all that it says. Here it must come to its end, and whether it does or is
# interrupted, leave neither files nor processes.
. "$(dirname "$0")/common.sh"

tour=$WEFT_SOURCE/scripts/tour.sh
export PARAMS=16M SYNC_PARAMS=8M TMPDIR=$dir/tour NO_COLOR=1
mkdir "$TMPDIR"

# Processes that work in a directory of a tour, whether it is still there or not.
left_processes() {
    find /proc -maxdepth 2 -name cwd -lname "$TMPDIR/*" 2> /dev/null
}

no_processes() {
    for _ in $(seq 1200); do
        [ -n "$(left_processes)" ] || return 0
        sleep 0.05
    done
    return 1
}

expect_clean() {
    check "$1: the tour has left $(ls -A "$TMPDIR")" rmdir "$TMPDIR"
    check "$1: the tour has left processes: $(left_processes)" no_processes
    mkdir -p "$TMPDIR"
}

code=0
bash "$tour" > tour.log 2>&1 || code=$?
check "the tour gave exit code $code: $(tail -n 5 tour.log)" [ "$code" -eq 0 ]
expect_clean "at its end"

bash "$tour" > tour.log 2>&1 &
child=$!
for _ in $(seq 12000); do
    ! grep -q "weft publish" tour.log || break
    sleep 0.05
done
check "the tour does not come to its publisher: $(tail -n 5 tour.log)" grep -q "weft publish" tour.log
kill -TERM "$child"
code=0
wait "$child" || code=$?
check "interrupted, the tour gave exit code $code" [ "$code" -eq 143 ]
expect_clean "interrupted"
finish
