#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Publishers whose clocks are two hours behind or ahead: what weft gc removes, and when, goes by the clock of the
# store, in a directory and behind a server.
. "$(dirname "$0")/sync.sh"
if nm -D "$weft" 2> /dev/null | grep -Eq '__(a|t|ub)san_'; then
    skip 'clocks: sanitizers do not go with LD_PRELOAD'
    exit 0
fi
if ! command -v faketime > /dev/null; then
    echo 'there is no faketime; make deps-test installs it' >&2
    exit 99
fi
export FAKETIME_DONT_FAKE_MONOTONIC=1

# run_with SHIFT STORE OUT: five versions by a publisher whose clock is wrong by SHIFT
run_with() {
    local shift=$1 store=$2 out=$3 step
    for step in 0 1 2; do
        expect 0 '' faketime -f "$shift" "$weft" publish "$store" "$(model "$step")" --no-leaps
    done
    expect 0 '' faketime -f "$shift" "$weft" publish "$store" "$(model 3)" --no-leaps --anchor now --keep-anchors 1
    expect 0 '' faketime -f "$shift" "$weft" publish "$store" "$(model 4)" --no-leaps
    expect 0 '' "$weft" log "$store" -n 1 --json
    check "a clock at $shift" /usr/bin/python3 -c '
import json, sys, time
published = json.load(open(sys.argv[1]))["versions"][0]["published_milliseconds"] / 1000
assert 3600 < abs(time.time() - published) < 3 * 3600' stdout
    expect 0 '' "$weft" gc "$store" --grace 1h
    says stdout '^removed 0 objects.* [1-9][0-9]* waiting'
    # dates of HTTP are whole seconds, and ages are never more than the truth
    sleep 4
    expect 0 '' "$weft" gc "$store" --grace 1s
    says stdout '^removed .* 0 waiting'
    says stdout '^removed  .*anchors/'
    silent stdout 'how old'
    expect 0 '' "$weft" pull "$store" "$out"
    check "a newcomer after a publisher at $shift" cmp "$out" "$(model 4)"
}

serve origin served
run_with -2h behind behind.out
run_with +2h ahead ahead.out
run_with -2h "${url}behind" served-behind.out
run_with +2h "${url}ahead" served-ahead.out
# whoever collects may be wrong as well
expect 0 '' "$weft" publish behind "$(model 5)" --no-leaps --anchor now --keep-anchors 1
for shift in -2h +2h; do
    expect 0 '' faketime -f "$shift" "$weft" gc behind --grace 1h
    says stdout '^removed 0 objects.* [1-9][0-9]* waiting'
done
kill "$pid"
ended 0 "$pid" origin
finish
