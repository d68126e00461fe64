#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A real S3 service on bad days, by a proxy before it: publish, pull, follow and gc while it is slow, busy, denies,
# truncates, damages and lies (s3_faults.py); with WEFT_SOAK also a publisher and followers through bad networks
# (tests/python/test_sync_proxy.py).
. "$(dirname "$0")/common.sh"
. "$cli/../support/s3_service.sh"
runs=()
end_runs() {
    local run
    for run in "${runs[@]}"; do
        kill "$run" 2> /dev/null
    done
    stop_s3
    clean_up
}
trap end_runs EXIT
begin_s3

WEFT_TEST_STORE=s3://bucket/faults timeout 1800 /usr/bin/python3 -B "$cli/s3_faults.py" > faults.log 2>&1 &
runs+=($!)
if [ -n "$WEFT_SOAK" ]; then
    WEFT_TEST_STORE=s3://bucket/proxy timeout 1800 /usr/bin/python3 -B "$cli/../python/test_sync_proxy.py" \
        > proxy.log 2>&1 &
    runs+=($!)
fi
wait "${runs[0]}" || fail "s3_faults.py: $(tail -c 4000 faults.log)"
if [ ${#runs[@]} -gt 1 ]; then
    wait "${runs[1]}" || fail "test_sync_proxy.py: $(grep -v ^fault proxy.log | tail -c 4000)"
fi
checks=$((checks + ${#runs[@]}))
grep ' s, ' faults.log
runs=()
finish
