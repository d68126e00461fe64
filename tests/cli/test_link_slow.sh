#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# bench/link.sh with a tiny model, where it may have its network namespaces: it measures, the result has every
# row, a patch takes fewer bytes than the model, and nothing stays behind. No time is judged.
. "$(dirname "$0")/common.sh"
source=${WEFT_SOURCE:-$(cd "$cli/../.." && pwd)}
export WEFT=$weft TMPDIR=$dir/scratch
mkdir scratch

ip netns list 2> /dev/null | sort > before
checks=$((checks + 1))
bash "$source/bench/link.sh" --params 1M --steps 2 --rates 400 --json > stdout 2> stderr < /dev/null ||
    fail "bench/link.sh: $(tail -n 5 stderr)"
if grep -q '^SKIPPED' stderr; then
    skip "$(grep '^SKIPPED' stderr | head -n 1)"
    check 'the JSON of a skip' /usr/bin/python3 -B -c 'import json; assert json.load(open("stdout"))["skipped"]'
    finish
fi
cat > look.py << 'END'
import json
rows = {(row["megabits"], row["kind"]): row for row in json.load(open("stdout"))["rows"]}
assert rows.keys() == {(rate, kind) for rate in (0, 400) for kind in ("patch", "anchor", "plain")}
assert all(row["seconds"] > 0 and row["wire_bytes"] > 0 for row in rows.values())
assert rows[400, "plain"]["wire_bytes"] > 2000000
assert rows[400, "patch"]["wire_bytes"] * 20 < rows[400, "anchor"]["wire_bytes"]
END
check "the JSON: $(head -c 2000 stdout)" /usr/bin/python3 -B look.py
# trainers that meet through it
"$weft" bench --lm --rates 1e-3 --quick --steps 1 --save policy.safetensors --quiet > /dev/null || fail 'no policy'
checks=$((checks + 1))
bash "$source/bench/link.sh" --loco policy.safetensors --rounds 4 --rates 400 --ways 'diloco|pulseloco --grid 3 --overlap' \
    --json > stdout 2> stderr < /dev/null || fail "bench/link.sh --loco: $(tail -n 5 stderr)"
cat > look.py << 'END'
import json
first, second = json.load(open("stdout"))["rows"]
assert (first["way"], second["way"]) == ("diloco", "pulseloco --grid 3 --overlap")
for row in first, second:
    assert row["megabits"] == 400 and 0 < row["wait"] < row["seconds"]
    assert row["wire_bytes"] > 12 * row["sent"] > 0
assert first["sent"] > 2 * second["sent"]
END
check "the JSON of trainers: $(head -c 2000 stdout)" /usr/bin/python3 -B look.py
ip netns list 2> /dev/null | sort | comm -13 before - | grep -E "^weft-(trainer|worker)-" > after
checks=$((checks + 1))
# another run of this script may have its own at the same time: ours are told by the process that made them
while read -r name _; do
    [ -e "/proc/${name##*-}" ] || fail "the namespace $name is left over"
done < after
entries scratch 0
finish
