#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The sweeps of pauses (tests/unit/test_pauses_*.c) through `weft serve`: some of their cases, and with WEFT_SOAK all
# of them. (Those on S3 are in test_sync_s3_slow.sh.)
. "$(dirname "$0")/sync.sh"
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY WEFT_TEST_RELAY WEFT_TEST_READ_STORE
export WEFT_TEST_STRIDE=18
[ -z "$WEFT_SOAK" ] || WEFT_TEST_STRIDE=1

serve server store --volatile
for suite in publish others; do
    checks=$((checks + 1))
    WEFT_TEST_STORE=$url "$build/tests/test_pauses_$suite" > "$suite.log" 2>&1 ||
        fail "$suite through serve: $(tail -c 3000 "$suite.log")"
    grep -E ' cases, | more failed ' "$suite.log" | sed "s/^/$suite: /"
done
finish
