#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft bench --lm` on its smallest models: rows in text and JSON, and options that do not go together. No
# time is judged.
. "$(dirname "$0")/common.sh"

expect 0 '' "$weft" bench --lm --quick --repeat 1 --quiet
check "two rows: $(cat stdout)" grep -Eq '^ +100,160 +64 +2 +[0-9]+ ' stdout
check "two rows: $(cat stdout)" grep -Eq '^ +218,048 +64 +5 +[0-9]+ ' stdout

expect 0 '' "$weft" bench --lm --quick --repeat 1 --quiet --json
cat > look.py << 'END'
import json
results = json.load(open("stdout"))
assert results["peak_gflops"] > 0 and results["threads"] > 0
assert [row["parameters"] for row in results["rows"]] == [100160, 218048]
for row in results["rows"]:
    for key in ("training", "generation", "policy_step"):
        assert row[key + "_tokens_per_second"] > 0 and row[key + "_gflops"] > 0
END
check "the JSON: $(cat stdout)" /usr/bin/python3 look.py

expect 0 '' "$weft" bench --lm --kv --quick --repeat 1 --quiet
check "a row for each policy: $(cat stdout)" test "$(grep -Ec '^(none|streaming|h2o|snapkv|rkv) ' stdout)" = 5

expect 0 '' "$weft" bench --lm --kv --quick --repeat 1 --quiet --json
cat > look.py << 'END'
import json
(model,) = json.load(open("stdout"))["models"]
none, *others = model["rows"]
assert none["policy"] == "none" and none["tokens_held"] == none["tokens_full"] and none["evictions"] == 0
assert none["sequences_at_once"] == model["rollouts"] // 2
for row in others:
    assert row["sequences_at_once"] == model["rollouts"] and row["rollouts_per_second"] > 0
    assert row["tokens_held"] < row["tokens_full"] == none["tokens_full"] and row["evictions"] > 0
assert len(others) == 4 and all(row["peak_bytes"] <= model["kv_bytes"] for row in model["rows"])
END
check "the JSON: $(cat stdout)" /usr/bin/python3 look.py

expect 2 'go with --lm' "$weft" bench --kv
expect 2 'exclude each other' "$weft" bench --lm --learn --kv
expect 2 'go with --lm' "$weft" bench --learn
expect 2 'makes its own models' "$weft" bench --lm --params 1M
expect 2 'go with --lm' "$weft" bench --rates 1e-6
expect 2 'exclude each other' "$weft" bench --lm --learn --rates 1e-6
expect 2 'rate goes with --learn, --sparse' "$weft" bench --lm --rate 1e-4
expect 2 'takes a number from 0 to 8' "$weft" bench --lm --learn --staleness 9
expect 2 'state goes with --rates' "$weft" bench --lm --state file
for list in 1e-6, ,1e-6 1e-6,none 2 0 1e-6,-1 "$(seq -s , 1 17 | sed 's/[0-9]*/1e-6/g')"; do
    expect 2 'rates takes 1 to 16 learning rates' "$weft" bench --lm --rates "$list"
done
expect 1 'No such file' "$weft" bench --lm --rates 1e-6 --state absent.safetensors
expect 2 'quick goes with' "$weft" bench --quick

# A policy that is hardly warm: the same from its state as in the run that made it.
expect 0 '' "$weft" bench --lm --rates 1e-6,1e-3 --quick --steps 3 --save policy.safetensors --quiet --json
cp stdout made
expect 0 '' "$weft" bench --lm --rates 1e-3 --steps 3 --state policy.safetensors --quiet --json
cat > look.py << 'END'
import json
made, read = json.load(open("made")), json.load(open("stdout"))
assert made["parameters"] == read["parameters"] == 100160
assert made["warm_up_steps"] == 20 and read["warm_up_steps"] == 0
low, high = made["rates"]
[again] = read["rates"]
assert all(high[key] == again[key] for key in ("density", "density_by_step", "law"))
for one in made["rates"]:
    assert one["density"]["2"]["windows"] == 2 and one["density"]["4"] is None
    assert len(one["density_by_step"]) == 23
    changes, expected = (sum(entry[key] for entry in one["law"]) for key in ("changes", "expected"))
    assert sum(entry["weights"] for entry in one["law"]) == 3 * 100160
    assert abs(changes - 3 * 100160 * one["density"]["1"]["mean"]) < 0.01
    assert abs(changes / expected - 1) < 0.15, (changes, expected)
    assert all(-30 < entry["exponent"] < 3 and entry["changes"] <= entry["weights"] for entry in one["law"])
    assert one["bytes"]["dense"] == 200320 and one["bytes"]["sent"] > one["bytes"]["patch"] > 0
assert low["density"]["1"]["mean"] < 0.1 < high["density"]["1"]["mean"]
END
check "the rates: $(cat stdout)" /usr/bin/python3 look.py
expect 0 '' "$weft" bench --lm --rates 1e-3 --steps 1 --state policy.safetensors --quiet
check "the law in a line: $(cat stdout)" grep -Eq '^law .* farthest off is 2\^-[0-9]+ at 1\.0e-03, [-+][0-9.]+%$' stdout

# One arm of the study of compressed caches, twice from the same policy.
for arm in none rkv rkv:8 rkv:8:tis:1 best:8:tis rkv:0:tis rkv:8:magic rkv:8:tis+vote; do
    expect 2 'sparse' "$weft" bench --lm --sparse "$arm" --quick
done
expect 2 'at temperature 0' "$weft" bench --lm --sparse rkv:8:tis+temperature0 --quick
expect 2 'go with --lm' "$weft" bench --sparse dense
expect 2 'and --long with --sparse' "$weft" bench --lm --chain 20
arm() {
    expect 0 '' "$weft" bench --lm --sparse "$@" --quick --chain 20 --steps 3 --directory warm --quiet --json
}
arm snapkv:16:tis+veto
cp stdout made
arm snapkv:16:tis+veto
cp stdout again
arm dense
cp stdout dense
arm snapkv:16:tis+temperature1.5
cp stdout warmer
arm rkv:16:paper --long
cat > look.py << 'END'
import json
made, again, dense, warmer, shared = (json.load(open(name)) for name in ("made", "again", "dense", "warmer", "stdout"))
for one in (made, again, dense):
    del one["seconds"]
assert made == again and made["length"] == 29 and len(made["series"]) == 1
assert made["before"]["dense"] == dense["before"]["dense"] and dense["before"]["sparse"] == dense["before"]["dense"]
assert dense["series"][0]["distance"] < 1e-4 and dense["kv"]["held"] == dense["kv"]["full"]
assert made["series"][0]["distance"] > 1e-4 and made["kv"]["held"] < made["kv"]["full"]
assert set(made["deployed"]) == set(dense["deployed"]) and len(made["deployed"]) == 2
assert warmer["before"] == made["before"] and warmer["series"] != made["series"]
assert shared["parameters"] > made["parameters"] and 4 * shared["kv"]["dense_bytes"] == 3 * made["kv"]["dense_bytes"]
END
check "the arms: $(cat stdout)" /usr/bin/python3 look.py
finish
