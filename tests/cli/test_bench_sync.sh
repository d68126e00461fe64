#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft bench --sync` in sizes that say nothing about speed: every row is there, the JSON holds what the text
# does, nothing stays behind, and an interruption ends the server too. No time is judged.
. "$(dirname "$0")/common.sh"

mkdir stores
tiny=(--quick --params 200K --versions 8 --tensors 12 --repeat 1 --directory stores)

expect 0 '' "$weft" bench --sync "${tiny[@]}"
for row in '^publish +[0-9,]+ weights' '^  memcpy ' '^  fast ' '^  small ' '^pause ' 'prepare before it' '^scaling ' \
    'factor' '^latency .* 8 versions over HTTP' ' 0 lost' 'per version: publisher' '^bucketing .* in 12 tensors' \
    'shared buckets' 'one by one +24 ' '8 at once +24 ' '^catch-up .* 64 versions missed' 'an anchor has' \
    '^group .* 4 replicas' '^  group ' '^  apart ' '^parts .* 4 processes' 'alone .* together ' '^serial ' \
    '^  publish +1 .*%' '^  prepare +1 ' '^  commit +1 '; do
    check "the row $row: $(cat stdout)" grep -Eq -- "$row" stdout
done
entries stores 0

expect 0 '' "$weft" bench --sync "${tiny[@]}" --json
cat > look.py << 'END'
import json
results = json.load(open("stdout"))
publish, latency, buckets = results["publish"], results["latency"], results["bucketing"]
assert [row["profile"] for row in publish["rows"]] == ["fast", "small"]
assert all(row["seconds"]["best"] > 0 and row["patch_bytes"] > 0 for row in publish["rows"])
assert 0 < publish["changed"] < 0.05 * publish["total"]
assert results["pause"]["commit_seconds"]["best"] > 0
models = results["scaling"]["models"]
assert models[0]["total"] < models[1]["total"] and results["scaling"]["factor"] > 0
assert latency["versions"] == 8 and latency["lost"] == 0
assert latency["follower_bytes_per_version"] > 0
assert 300 < latency["head_bytes_per_version"] < 600 and 200 < latency["page_bytes_per_version"] < 900
assert buckets["tensors"] == 12
ours, single, wide = buckets["rows"]
assert single["requests"] == wide["requests"] == 24 and ours["requests"] < 24
assert ours["bytes"] < single["bytes"]
together, apart = results["group"]["rows"]
assert 3 * together["bytes_per_version"] < apart["bytes_per_version"]
assert together["pause_seconds"]["best"] > 0 and results["group"]["versions"] == 8
catch_up = results["catch_up"]
assert catch_up["missed"] == 64 and len(catch_up["rows"]) == 16
assert all(0 < row["steps"] <= 24 and row["fetched_bytes"] > 0 for row in catch_up["rows"])
assert catch_up["rows"][catch_up["worst_row"]]["replayed_bytes"] > 0
serial = results["serial"]["rows"]
assert [(row["call"], row["threads"]) for row in serial] == [
    (call, threads) for threads in (1, 2) for call in ("publish", "prepare", "commit")]
assert all(row["processor_seconds"] > 0 and 0 <= row["serial_share"] <= 1 for row in serial), serial
parts = results["parts"]
assert parts["processes"] == 4 and [row["profile"] for row in parts["rows"]] == ["fast", "small"]
assert all(row["ratio"] > 0 and row["part_weight_bytes"] < row["alone_weight_bytes"] for row in parts["rows"])
END
check "the JSON: $(cat stdout)" /usr/bin/python3 -B look.py
entries stores 0

expect 0 '' "$weft" bench --sync "${tiny[@]}" --only pause,latency --json
check 'only two parts' /usr/bin/python3 -B -c '
import json
assert {"pause", "latency"} == json.load(open("stdout")).keys() - {"cpu", "threads", "repeat"}'

# interrupted while the server runs: it and its directory go
"$weft" bench --sync "${tiny[@]}" --only latency --versions 10000 > stdout 2> stderr < /dev/null &
bench=$!
server=
for ((attempt = 0; attempt < 6000 && ${#server} == 0; attempt++)); do
    sleep 0.05
    server=$(tr -d '\n' < "/proc/$bench/task/$bench/children" 2> /dev/null)
done
server=${server% }
sleep 0.2
kill -TERM "$bench"
got=0
wait "$bench" || got=$?
checks=$((checks + 1))
[ "$got" -eq 143 ] || fail "interrupted, it ended with $got: $(head -c 500 stderr)"
check 'it says so' grep -q 'interrupted' stderr
checks=$((checks + 1))
if [ -z "$server" ] || kill -0 "$server" 2> /dev/null; then
    fail "the server '$server' was not seen, or is still there"
fi
entries stores 0

expect 2 'goes with --sync' "$weft" bench --quick
expect 2 'go with --sync' "$weft" bench --only pause
expect 2 '--only takes' "$weft" bench --sync --only pause,speed
expect 2 '--only takes' "$weft" bench --sync --only ''
expect 2 'neither goes with' "$weft" bench --sync --make here
expect 2 '--versions takes' "$weft" bench --sync --versions 0
expect 1 'cannot make a directory' "$weft" bench --sync "${tiny[@]}" --directory nowhere
finish
