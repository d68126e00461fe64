#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft bench --correction`: rows in text and JSON, the same results at every processor level, and options
# that do not go together. No time is judged.
. "$(dirname "$0")/common.sh"

expect 0 '' "$weft" bench --correction --quick --repeat 1
for row in memcpy none paper released tis 'tis, sequence' mis icepop objective 'paper\+objective'; do
    check "$row: $(cat stdout)" grep -Eq "^$row +[0-9.]+ +[0-9.]+ " stdout
done

for level in portable avx2 avx512; do
    WEFT_CPU=$level expect 0 '' "$weft" bench --correction --quick --repeat 1 --seed 7 --json
    cp stdout "$level.json"
done
cat > look.py << 'END'
import json
results = [json.load(open(name + ".json")) for name in ("portable", "avx2", "avx512")]
found = [[(row["name"], row["masked"], row["rejected"]) for row in result["rows"]] for result in results]
assert found[0] == found[1] == found[2]
rows = {row["name"]: row for row in results[0]["rows"]}
assert len(rows) == 10 and all(row["tokens_per_second"] > 0 for row in rows.values())
assert rows["none"]["masked"] == 0 and 0 < rows["mis"]["masked"] < results[0]["tokens"] // 10
assert rows["released"]["masked"] > 0 and rows["icepop"]["masked"] == 0
END
check "the JSON: $(cat portable.json)" /usr/bin/python3 look.py

expect 2 'quick, --seed and --repeat only' "$weft" bench --correction --lm
expect 2 'quick, --seed and --repeat only' "$weft" bench --correction --params 1M
finish
