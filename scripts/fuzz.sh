#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh SECONDS: builds the libFuzzer targets and runs each for so long, starting from its seed corpus.
# What the fuzzer learns stays under build/fuzz; an input that breaks something is left there as
# crash-*, and the run fails.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}

cmake --preset fuzz > /dev/null
cmake --build --preset fuzz --parallel "$(nproc)"
status=0
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    mkdir -p "build/fuzz/found/$name"
    echo "== $name, $seconds s"
    "build/fuzz/tests/$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="build/fuzz/$name-" "build/fuzz/found/$name" "tests/fuzz/corpus/$name" || status=1
done
exit $status
