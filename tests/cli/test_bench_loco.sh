#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft bench --loco`: rows in text and JSON, the same payloads at every processor level and with any number of
# threads, and their sizes. No time is judged.
. "$(dirname "$0")/common.sh"

expect 0 '' "$weft" bench --loco -q --params 200K --repeat 1
for row in lossless '8 bits' open raw; do
    check "$row: $(cat stdout)" grep -Eq "^$row +[0-9]+ +[0-9.]+% +[0-9.]+ " stdout
done

for level in portable avx2 avx512; do
    WEFT_CPU=$level expect 0 '' "$weft" bench --loco -q --params 300K --repeat 2 --json
    cp stdout "$level.json"
done
cat > look.py << 'END'
import json
results = [json.load(open(name + ".json")) for name in ("portable", "avx2", "avx512")]
found = [[(row["name"], row["fired"], row["payload_bytes"]) for row in result["rows"]] for result in results]
assert found[0] == found[1] == found[2]
rows = {}
for row in results[0]["rows"]:
    same = rows.setdefault(row["name"], row)
    assert (same["fired"], same["payload_bytes"]) == (row["fired"], row["payload_bytes"])
assert list(rows) == ["lossless", "8 bits", "open", "raw"]
for name, most in ("lossless", 3.0), ("8 bits", 1.9):
    assert 0.03 < rows[name]["density"] < 0.06
    assert rows[name]["bytes_per_fired_first"] <= most and rows[name]["bytes_per_fired"] <= most
assert rows["raw"]["density"] == 1 and 4 < rows["raw"]["bytes_per_fired"] < 4.01
assert rows["open"]["density"] == 1 and rows["open"]["bytes_per_fired"] < 2
END
check "the JSON: $(cat portable.json)" /usr/bin/python3 look.py

# ---- several trainers in one process ----
expect 0 '' "$weft" bench --lm --rates 1e-3 --quick --steps 1 --save policy.safetensors --quiet --json
for way in pulseloco diloco forgetful rounded nearest ddp; do
    expect 0 '' "$weft" bench --loco --study "$way" --state policy.safetensors --rate 1e-5 --steps 4 --local-steps 2 \
        --trainers 2 --quiet --json
    cp stdout "$way.json"
done
cat > study.py << 'END'
import json
ways = {way: json.load(open(way + ".json")) for way in ("pulseloco", "diloco", "forgetful", "rounded", "nearest", "ddp")}
for way, result in ways.items():
    rounds = 4 if way == "ddp" else 2
    assert result["way"] == way and len(result["rounds"]) == rounds and result["parameters"] == 100160
    part = result["bytes"]
    assert part["dense"] == part["ring"] == 400640 and part["ddp"] * rounds == 4 * 400640
    assert part["received"] == part["sent"]
assert 0 < ways["pulseloco"]["bytes"]["sent"] < ways["diloco"]["bytes"]["sent"]
assert ways["diloco"]["bytes"]["sent"] > 400640 and ways["diloco"]["fired"] == 1
assert len({json.dumps(result["rounds"][-1]) for result in ways.values()}) == 6
END
check "the study: $(head -c 300 pulseloco.json)" /usr/bin/python3 study.py

# ---- rounds that overlap with the next steps; and trainers that are processes, which come to the same bits ----
small=(--state policy.safetensors --rate 1e-4 --steps 6 --local-steps 2 --trainers 2 --quiet --json)
for setting in '' --overlap; do
    expect 0 '' "$weft" bench --loco --study pulseloco --grid 3 "${small[@]}" $setting
    cp stdout "one$setting.json"
    "$weft" bench --loco --study pulseloco --grid 3 "${small[@]}" $setting --meet "store$setting" --rank 1 \
        > "second$setting.json" 2> second.err < /dev/null &
    second=$!
    expect 0 '' "$weft" bench --loco --study pulseloco --grid 3 "${small[@]}" $setting --meet "store$setting" --rank 0
    cp stdout "first$setting.json"
    check "the other trainer: $(cat second.err)" wait "$second"
done
check 'the same bits as processes, and others with overlap' /usr/bin/python3 -c '
import json
one, over = [[json.load(open(name + setting + ".json")) for name in ("one", "first", "second")]
             for setting in ("", "--overlap")]
for found, overlap in (one, False), (over, True):
    assert len({result["digest"] for result in found}) == 1 and len({result["changed"] for result in found}) == 1
    assert all(result["overlap"] == overlap and result["grid"] == 3 for result in found)
    assert all(0 < result["wait_per_round"] < result["seconds_per_round"] for result in found)
assert one[0]["digest"] != over[0]["digest"]'
expect 2 'only rounds of pulseloco and diloco overlap' "$weft" bench --loco --study rounded --overlap \
    --state policy.safetensors
expect 2 'overlap goes with --study' "$weft" bench --loco --overlap
expect 2 'go together' "$weft" bench --loco --study diloco --state policy.safetensors --meet store
expect 2 'is no place in a meeting' "$weft" bench --loco --study diloco "${small[@]}" --meet store --rank 2
expect 2 'study goes with --loco' "$weft" bench --study diloco --state policy.safetensors
expect 2 'significant goes with --study' "$weft" bench --loco --significant 8
expect 2 'needs a --state' "$weft" bench --loco --study diloco
expect 2 'study is pulseloco' "$weft" bench --loco --study alone --state policy.safetensors
expect 1 'No such file' "$weft" bench --loco --study diloco --state absent.safetensors
expect 2 'params, --lr, --seed and --repeat' "$weft" bench --loco --lm
expect 2 'params, --lr, --seed and --repeat' "$weft" bench --loco --sync
finish
