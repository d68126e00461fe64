#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything that synchronisation is tested with on directories, on a real S3 service: the unit tests of live
# weights, straight and through a relay, faults of the store, damage, lies, several writers and the fleet; publish,
# pull, follow, log, gc and keys; kills. None of these is written twice: each takes its store from WEFT_TEST_STORE.
# They run side by side, and the longest of them do only every so manieth of their cases; all of them, and the rest,
# if WEFT_SOAK is set.
. "$(dirname "$0")/common.sh"
. "$cli/../support/swift_s3.sh"
build=${WEFT_BUILD:-$(dirname "$weft")}
limit=1800
export WEFT_TEST_STRIDE=60
if [ -n "$WEFT_SOAK" ]; then
    limit=3600
    WEFT_TEST_STRIDE=1
fi
names=()
runs=()

end_runs() {
    local run
    for run in "${runs[@]}"; do
        kill "$run" 2> /dev/null
    done
    stop_swift
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
        if [ "$got" -ne 0 ]; then
            fail "${names[i]} on S3 ended with $got: $(tail -c 3000 "${names[i]}.log")"
        fi
        grep -E 'checks, |PASSED|SKIPPED' "${names[i]}.log" | sed "s/^/${names[i]}: /"
    done
    runs=()
    names=()
}

unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY
for variable in $(compgen -e AWS_) WEFT_S3_ADDRESSING; do
    unset "$variable"
done
if ! swift_is_installed; then
    skip 'Swift or memcached is not installed (make deps installs them): synchronisation was not tested on S3'
    exit 0
fi
trap end_runs EXIT
if ! start_swift "$dir/swift"; then
    tail -n 5 "$dir"/swift/*.log
    skip 'Swift does not start: synchronisation was not tested on S3'
    exit 0
fi
check 'a bucket' swift_bucket bucket
export AWS_ACCESS_KEY_ID=test:tester AWS_SECRET_ACCESS_KEY=testing AWS_ENDPOINT_URL=$swift_url

suites='damage live fleet'
commands=keys
if [ -n "$WEFT_SOAK" ]; then
    suites="$suites faults writers lies"
    commands="$commands publish follow faults"
    WEFT_TEST_RELAY=before on_s3 proxied-relay /usr/bin/python3 -B "$cli/../python/test_sync_proxy.py"
fi
WEFT_TEST_RELAY=1 on_s3 relayed "$build/tests/test_sync_live"
for suite in $suites; do
    on_s3 "$suite" "$build/tests/test_sync_$suite"
done
for suite in $commands; do
    on_s3 "command-$suite" bash "$cli/test_sync_$suite.sh"
done
all_ended
swift_names bucket+segments > parts 2> /dev/null
check 'nobody needed parts here' test ! -s parts
finish
