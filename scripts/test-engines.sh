#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests of tests/engines, with real inference engines and trainers, one script after another: an engine wants
# the processors for itself. Each script ends with "N passed, N failed, N skipped", and so does this. Where the engines
# cannot be had, every script counts as one that was skipped. Arguments choose scripts: test-engines.sh test_vllm.py
set -u
cd "$(dirname "$0")/.."
engines=${WEFT_ENGINES:-build/engines}
passed=0
failed=0
skipped=0

scripts=("$@")
[ $# -gt 0 ] || scripts=(tests/engines/test_*.py)

scripts/engines.sh
status=$?
if [ "$status" -ne 0 ]; then
    echo "== NOTHING WAS TESTED: the engines could not be installed (scripts/engines.sh)" >&2
    [ "$status" -eq 77 ] || failed=1
    echo "$passed passed, $failed failed, ${#scripts[@]} skipped"
    exit "$failed"
fi

log=$(mktemp)
running=
trap '[ -z "$running" ] || kill "$running" 2> /dev/null; rm -f "$log"' EXIT
trap 'exit 143' TERM
set -m # what runs in the background hears SIGINT too, as tests want it
for script in "${scripts[@]}"; do
    script=tests/engines/$(basename "$script")
    start=$SECONDS
    echo "== $script"
    # by way of a file: a pipe would last until the last process has ended that a script may have left behind
    "$engines/venv/bin/python" -B "$script" > "$log" 2>&1 &
    running=$!
    tail --pid "$running" --lines +1 --follow "$log" &
    wait -f "$running" # a script that is stopped has not ended
    status=$?
    running=
    wait
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    if read -r good _ bad _ left _ <<< "${counts//,/}" && [ -n "$counts" ]; then
        passed=$((passed + good))
        failed=$((failed + bad))
        skipped=$((skipped + left))
    elif [ "$status" -eq 77 ]; then
        skipped=$((skipped + 1))
    else
        echo "== $script ended with $status and without a sum"
        failed=$((failed + 1))
    fi
    echo "== $script took $((SECONDS - start)) s"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
