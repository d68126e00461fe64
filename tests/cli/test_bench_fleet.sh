#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft bench --fleet` in sizes that say nothing about speed: nothing is lost or wrong, the origin sends each
# relay everything once and hardly more, and a relay fetches once what all ask for at the same moment. Nothing
# stays behind. No time is judged.
. "$(dirname "$0")/common.sh"

mkdir stores

expect 0 '' "$weft" bench --fleet --quick --processes 2 --directory stores --json
cat > look.py << 'END'
import json
results = json.load(open("stdout"))
assert (results["followers"], results["relays"], results["versions"]) == (8, 2, 12)
fleet = results["fleet"]
assert fleet["lost"] == 0 and fleet["alive"] == 8 and results["processes"] == 2, results
assert 0 < fleet["changed"] < 0.05 * fleet["total"]
once = fleet["patch_bytes"] + fleet["page_bytes"] + fleet["head_bytes"]
assert fleet["patch_bytes"] > 0.5 * once
# each follower has all patches, so each relay had them
assert 2 * fleet["patch_bytes"] < fleet["origin_bytes"] <= 1.05 * 2 * once, fleet
assert abs(fleet["origin_share"] - fleet["origin_bytes"] / (2 * once)) < 1e-9
assert [entry["server"] for entry in fleet["memory"]] == ["origin", "relay", "relay"]
assert all(entry["early_bytes"] > 0 and entry["late_bytes"] > 0 for entry in fleet["memory"])
assert fleet["seconds"]["median"] > 0 and fleet["versions_per_second"] > 0
for way in ("direct", "relayed"):
    line = results["relay"][way]
    assert line["versions"] == 6 and line["lost"] == 0 and line["seconds"]["median"] > 0
assert [entry["room"] for entry in results["asked"]] == ["patches", "anchors"]
for entry in results["asked"]:
    assert entry["origin_requests"] == 1 and entry["origin_bytes"] == entry["bytes"] > 0, entry
END
check "the JSON: $(cat stdout)" /usr/bin/python3 -B look.py
entries stores 0

# what a page shows is made of the same numbers
cp stdout fleet.json
expect 0 '' /usr/bin/python3 -B "$cli/../../bench/tables.py" fleet fleet.json
check "the table: $(cat stdout)" grep -Eq '^\| 8 followers behind 2 relays \|' stdout

expect 0 '' "$weft" bench --fleet --params 200K --followers 3 --relays 1 --versions 3 --directory stores
for row in '^fleet +3 followers behind 1 relay, [0-9,]+ weights' '3 versions$' ' 0 lost$' 'the origin sent' '0 of them are processes; the origin takes 3 for alive' \
    'resident after 1 versions? and at the end: origin .*; relay ' '^relay +one follower, 2 versions each' \
    '^ask +3 at the same moment' 'of anchors, .* asked 1 time and sent'; do
    check "the row $row: $(cat stdout)" grep -Eq -- "$row" stdout
done
entries stores 0

# interrupted while servers run: they and their directory go
"$weft" bench --fleet --params 200K --versions 10000 --followers 4 --directory stores > stdout 2> stderr < /dev/null &
bench=$!
servers=
for ((attempt = 0; attempt < 6000 && $(wc -w <<< "$servers") < 3; attempt++)); do
    sleep 0.05
    servers=$(cat "/proc/$bench/task/$bench/children" 2> /dev/null)
done
sleep 0.2
kill -TERM "$bench"
got=0
wait "$bench" || got=$?
checks=$((checks + 1))
[ "$got" -eq 143 ] || fail "interrupted, it ended with $got: $(head -c 500 stderr)"
check 'it says so' grep -q 'interrupted' stderr
checks=$((checks + 1))
[ "$(wc -w <<< "$servers")" -eq 3 ] || fail "these servers were seen: $servers"
for server in $servers; do
    checks=$((checks + 1))
    ! kill -0 "$server" 2> /dev/null || fail "the server $server is still there"
done
entries stores 0

expect 2 'go with --fleet' "$weft" bench --followers 3
expect 2 'go with --fleet' "$weft" bench --sync --relays 3
expect 2 'go with --fleet' "$weft" bench --processes 3
expect 2 'go with --sync' "$weft" bench --fleet --only latency
expect 2 'exclude each other' "$weft" bench --fleet --sync
expect 2 '--relays takes' "$weft" bench --fleet --relays 0
expect 2 '--followers takes' "$weft" bench --fleet --followers 0
expect 2 'neither goes with' "$weft" bench --fleet --make here
expect 1 'cannot make a directory' "$weft" bench --fleet --directory nowhere
finish
