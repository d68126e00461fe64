#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# All tests in all builds that matter, then one line that sums them up. A build that fails counts as one
# failed test, and the rest still runs, so that one broken room does not hide the state of the others.
set -u
cd "$(dirname "$0")/.."

jobs=$(nproc)
passed=0
failed=0

# run_build PRESET
run_build() {
    echo "== build: $1"
    if cmake --preset "$1" > /dev/null &&
        cmake --build --preset "$1" --parallel "$jobs"; then
        return 0
    fi
    echo "== build $1 failed"
    failed=$((failed + 1))
    return 1
}

# run_tests DIRECTORY CTEST-OPTION...: adds what CTest counted, from its summary line
# "99% tests passed, 1 tests failed out of 100".
run_tests() {
    local directory=$1
    shift
    local log summary
    log=$(mktemp)
    echo "== tests: $directory $*"
    ctest --test-dir "$directory" --output-on-failure --parallel "$jobs" --no-tests=error "$@" 2>&1 | tee "$log"
    local status=${PIPESTATUS[0]}
    summary=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\1 \2/p' "$log")
    rm -f "$log"
    if [ -z "$summary" ]; then
        failed=$((failed + 1))
        return
    fi
    local bad=${summary% *} all=${summary#* }
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    fi
    failed=$((failed + bad))
    passed=$((passed + all - bad))
}

run_build release && run_tests build
# what only measures, or mostly waits for another's server, is left to the release
waiting='^cli_test_(bench_.*|store_s3)$'
run_build asan &&
    run_tests build/asan --label-regex '^(unit|fuzz|cli)$' --label-exclude '^slow$' --exclude-regex "$waiting"
# tests of code that runs on one thread tell a thread sanitizer nothing
single='^test_(base_(bf16|bytes)|lm_(kernels|gradients)|tensor_(table|safetensors|layout|view)|patch_(codings|format|kernels|rans))$'
# and it gives up processes that have forked with threads and then start some, as this one's parts do
forking='^test_sync_parts$'
run_build tsan &&
    run_tests build/tsan --label-regex '^unit$' --label-exclude '^slow$' --exclude-regex "$single|$forking"
run_build clang

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
