#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything that synchronisation is tested with on directories, on a real S3 service: the unit tests of live
# weights, straight and through a relay, faults of the store, damage, lies, several writers, pauses and the fleet;
# publish, pull, follow, log, gc and keys; kills. None of these is written twice: each takes its store from WEFT_TEST_STORE.
# They run side by side, and the longest of them do only every so manieth of their cases; all of them, and the rest,
# if WEFT_SOAK is set.
. "$(dirname "$0")/common.sh"
. "$cli/../support/s3_service.sh"
build=${WEFT_BUILD:-$(dirname "$weft")}
limit=1800
export WEFT_TEST_STRIDE=60
pauses_stride=60
if [ -n "$WEFT_SOAK" ]; then
    limit=3600
    WEFT_TEST_STRIDE=1
    pauses_stride=12 # all of these would take hours
fi
names=()
runs=()

end_runs() {
    local run
    for run in "${runs[@]}"; do
        kill "$run" 2> /dev/null
    done
    stop_s3
    clean_up
}

# on_s3 NAME COMMAND...: in the background, with a place of its own
on_s3() {
    local name=$1
    shift
    names+=("$name")
    # timeout ends all that the command has started
    WEFT_TEST_STORE=s3://bucket/$name timeout "$limit" "$@" > "$name.log" 2>&1 &
    runs+=($!)
}

all_ended() {
    local i got
    for i in "${!runs[@]}"; do
        got=0
        checks=$((checks + 1))
        wait "${runs[i]}" || got=$?
        if [ "$got" -eq 77 ]; then
            skip "of ${names[i]} on S3, something"
        elif [ "$got" -ne 0 ]; then
            fail "${names[i]} on S3 ended with $got: $(tail -c 3000 "${names[i]}.log")"
        fi
        grep -E 'checks, |PASSED|SKIPPED' "${names[i]}.log" | sed "s/^/${names[i]}: /"
    done
    runs=()
    names=()
}

trap end_runs EXIT
begin_s3

# What conditions make no difference to runs on one of the services, and what tells writers apart on the one that heeds
# them; with WEFT_SOAK everything runs on both.
if [ -n "$WEFT_SOAK" ]; then
    suites='damage live fleet faults writers lies'
    commands='keys publish follow faults'
    pauses='publish others'
    WEFT_TEST_RELAY=before on_s3 proxied-relay /usr/bin/python3 -B "$cli/../python/test_sync_proxy.py"
elif [ "$s3_heeds" -eq 1 ]; then
    suites='damage live fleet writers'
    commands='keys publish'
    pauses='publish others'
else
    suites=
    commands=
    pauses=publish
    pauses_stride=240
fi
if [ -n "$WEFT_SOAK" ] || [ "$s3_heeds" -eq 0 ]; then
    WEFT_TEST_RELAY=1 on_s3 relayed "$build/tests/test_sync_live"
fi
for suite in $pauses; do
    WEFT_TEST_STRIDE=$pauses_stride on_s3 "pauses-$suite" "$build/tests/test_pauses_$suite"
done
for suite in $suites; do
    on_s3 "$suite" "$build/tests/test_sync_$suite"
done
for suite in $commands; do
    on_s3 "command-$suite" bash "$cli/test_sync_$suite.sh"
done
all_ended
s3_names bucket+segments > parts 2> /dev/null
check 'nobody needed parts here' test ! -s parts
finish
