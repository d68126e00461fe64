#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Synchronisation through a relay: the unit tests of live weights, several writers and faults of the store, whose
# replicas then read from a relay; and followers through bad networks before and behind one. All on a directory or
# `weft serve`. The tests are those without a relay; with WEFT_SOAK there are more of them.
# (A relay of a real S3 service is in test_sync_s3_slow.sh; damage and lies that a relay keeps from its readers are in
# tests/python/test_relay_damage.py.)
. "$(dirname "$0")/common.sh"
build=${WEFT_BUILD:-$(dirname "$weft")}
names=()
runs=()

end_runs() {
    local run
    for run in "${runs[@]}"; do
        kill "$run" 2> /dev/null
    done
    clean_up
}

# run NAME COMMAND...: in the background
run() {
    local name=$1
    shift
    names+=("$name")
    timeout 1800 "$@" > "$name.log" 2>&1 &
    runs+=($!)
}

all_ended() {
    local i got
    for i in "${!runs[@]}"; do
        got=0
        checks=$((checks + 1))
        wait "${runs[i]}" || got=$?
        [ "$got" -eq 0 ] || fail "${names[i]} ended with $got: $(grep -v ^fault: "${names[i]}.log" | tail -c 3000)"
        grep -E 'PASSED|^Ran ' "${names[i]}.log" | sed "s/^/${names[i]}: /"
    done
    runs=()
    names=()
}

proxied() { run "$1" /usr/bin/python3 -B "$cli/../python/test_sync_proxy.py"; }

unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY
for variable in $(compgen -e AWS_) WEFT_S3_ADDRESSING; do
    unset "$variable"
done
trap end_runs EXIT
stride=40
suites=live
places=before
if [ -n "$WEFT_SOAK" ]; then
    stride=1
    suites="live faults writers"
    places='before behind'
fi
for suite in $suites; do
    WEFT_TEST_RELAY=1 WEFT_TEST_STRIDE=$stride run "$suite" "$build/tests/test_sync_$suite"
done
for place in $places; do
    WEFT_TEST_RELAY=$place proxied "$place"
done
all_ended

finish
