#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft bench --lm` on its smallest models: rows in text and JSON, and options that do not go together. No
# time is judged.
. "$(dirname "$0")/common.sh"

expect 0 '' "$weft" bench --lm --quick --repeat 1 --quiet
check "two rows: $(cat stdout)" grep -Eq '^ +100,160 +64 +2 +[0-9]+ ' stdout
check "two rows: $(cat stdout)" grep -Eq '^ +595,840 +128 +3 +[0-9]+ ' stdout

expect 0 '' "$weft" bench --lm --quick --repeat 1 --quiet --json
cat > look.py << 'END'
import json
results = json.load(open("stdout"))
assert results["peak_gflops"] > 0 and results["threads"] > 0
assert [row["parameters"] for row in results["rows"]] == [100160, 595840]
for row in results["rows"]:
    for key in ("training", "generation", "policy_step"):
        assert row[key + "_tokens_per_second"] > 0 and row[key + "_gflops"] > 0
END
check "the JSON: $(cat stdout)" /usr/bin/python3 look.py

expect 2 'go with --lm' "$weft" bench --learn
expect 2 'makes its own models' "$weft" bench --lm --params 1M
expect 2 'go with --lm' "$weft" bench --rates 1e-6
expect 2 'exclude each other' "$weft" bench --lm --learn --rates 1e-6
expect 2 'staleness go with --learn' "$weft" bench --lm --rate 1e-4
expect 2 'takes a number from 0 to 8' "$weft" bench --lm --learn --staleness 9
expect 2 'state goes with --rates' "$weft" bench --lm --state file
for list in 1e-6, ,1e-6 1e-6,none 2 0 1e-6,-1 "$(seq -s , 1 17 | sed 's/[0-9]*/1e-6/g')"; do
    expect 2 'rates takes 1 to 16 learning rates' "$weft" bench --lm --rates "$list"
done
expect 1 'No such file' "$weft" bench --lm --rates 1e-6 --state absent.safetensors
expect 2 'quick goes with' "$weft" bench --quick
finish
