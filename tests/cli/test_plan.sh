#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft plan`: it knows models by name, by config.json and by checkpoint; reproduces the link that the paper needs; is the
# same for the same seed; is soon done with ten thousand workers; and foretells what a real fleet of 32 followers fetches.
# No time is judged.
. "$(dirname "$0")/common.sh"

# at FIELD...: of the JSON in stdout
at() {
    /usr/bin/python3 -c 'import json, sys
value = json.load(open("stdout"))
for name in sys.argv[1:]: value = value[name]
print(value)' "$@"
}

# near WHAT FOUND EXPECTED SHARE
near() {
    check "$1: $2, and not about $3" /usr/bin/python3 -c 'import sys
found, expected, share = map(float, sys.argv[1:])
sys.exit(not abs(found - expected) <= share * expected)' "$2" "$3" "$4"
}

# ---- the paper's payloads: 20 against 0.2 Gbit/s for 90% with 7.6B parameters and 50 s of work ----
expect 0 '' "$weft" plan --params 7.6B --payload 140MiB --json
near 'full sync needs' "$(at full bits_per_second_for_90_percent)" 20e9 0.15
near 'weft needs' "$(at weft bits_per_second_for_90_percent)" 0.2e9 0.15
# the same by the simulation
expect 0 '' "$weft" plan --params 7.6B --region one:1:20Gbit --local 20Gbit --uplink 20Gbit --relays 0 --json
near 'utilisation of full sync at 20 Gbit/s' "$(at full utilisation)" 0.9 0.05

# a day of whole models for two regions that keep up differently: what is passed over counts for each by itself
expect 0 '' "$weft" plan --params 7.6B --region us:32:10Gbit --region eu:64:1Gbit:80ms --json
near 'a day of full sync' "$(at full bytes_per_day)" "$(/usr/bin/python3 -c 'print(2 * 15.2e9 * 86400 / 50)')" 0.01

# ---- models ----
expect 0 '' "$weft" plan --model qwen2.5-7b
check "the model: $(cat stdout)" grep -q '^Qwen2.5-7B: 7,615,616,512 parameters' stdout
cat > config.json << 'END'
{"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
 "intermediate_size": 18944, "tie_word_embeddings": false}
END
expect 0 '' "$weft" plan --model config.json --json
near 'parameters by config.json' "$(at parameters)" 7615616512 0.001
echo '{"hidden_size": -1, "vocab_size": "many"}' > config.json
expect 1 'has no sizes of a transformer' "$weft" plan --model config.json
expect 1 'is neither a model that weft knows nor a file' "$weft" plan --model nothing
head -c 1100000 /dev/zero > config.json
expect 1 'cannot read config.json: File too large' "$weft" plan --model config.json
mkdir directory.json
expect 1 'cannot read directory.json: Is a directory' "$weft" plan --model directory.json
expect 0 '' "$weft" plan --model '?'
check "no list of models: $(cat stdout)" grep -qx Qwen3-8B stdout
"$weft" bench --quiet --make made --params 2M
expect 0 '' "$weft" plan --model made/base.safetensors --rate 1e-6 --json
# the step of the trace is 0.2 times the rate, and not 0.24
near 'density by the law' "$(at density value)" 0.0125 0.25
check "no bounds" /usr/bin/python3 -c 'import json
d = json.load(open("stdout"))["density"]
assert d["low"] < d["value"] < d["high"] and "exponents of the checkpoint" in d["basis"], d'

# ---- a hundred thousand workers below a deep tree of relays take seconds ----
expect 0 '' "$weft" plan --params 1B --region a:100000:1Gbit --versions 1 --fan-out 2 --json
check "the tree: $(cat stdout)" test "$(at weft commits) $(at weft relays)" = '100000 115535'

# ---- ten thousand workers of 1T parameters, with all that happens to them ----
many=(plan --params 1T --region us:5000:100Gbit --region eu:5000:10Gbit:0.08s --relays 4 --uplink 200Gbit --local 25Gbit
    --step-time 300s --versions 12 --leave 0.02 --away 4 --join 0.002 --faults 0.01 --json)
expect 0 '' "$weft" "${many[@]}"
cp stdout first
expect 0 '' "$weft" "${many[@]}"
check "the same seed gives other numbers" cmp -s first stdout
check "the fleet: $(cat stdout)" /usr/bin/python3 -c 'import json
ours = json.load(open("stdout"))["weft"]
assert ours["relays"] > 150 and ours["commits"] > 90000, ours
assert ours["anchors_fetched"] > 50 and ours["leaps_fetched"] > 50 and ours["cuts"] > 500, ours
assert 0 < ours["commit_seconds_median"] <= ours["commit_seconds_p99"] <= ours["commit_seconds_worst"], ours'
expect 0 '' "$weft" "${many[@]}" --seed 2
check "another seed gives the same numbers" bash -c '! cmp -s first stdout'

# ---- a real fleet: bytes and requests of the store within a quarter ----
mkdir stores
expect 0 '' "$weft" bench --fleet --quick --followers 32 --relays 2 --versions 6 --params 1M --directory stores --json
read -r total changed bytes requests < <(/usr/bin/python3 -c 'import json
fleet = json.load(open("stdout"))["fleet"]
print(fleet["total"], fleet["changed"], fleet["origin_bytes"] / 6, fleet["origin_requests"] / 6)')
expect 0 '' "$weft" plan --params "$total" --density "$(/usr/bin/python3 -c "print($changed / $total)")" \
    --region here:32:10Gbit --relays 2 --versions 6 --step-time 1s --json
near 'bytes of the store' "$(at weft store_bytes_per_version)" "$bytes" 0.25
near 'requests to the store' "$(at weft store_requests_per_version)" "$requests" 0.25

# ---- a table to paste ----
expect 0 '' "$weft" plan --model Qwen3-8B --masters bf16 --price-gb 0.02
check "no cost in: $(cat stdout)" grep -Eq '^\| cost per day, USD \| [0-9.]+ \| [0-9.]+ \|' stdout

# ---- wrong usage ----
expect 2 'give a --model or --params' "$weft" plan
expect 2 '--density takes a share' "$weft" plan --params 1B --density 2
expect 2 '--region takes NAME:WORKERS:RATE' "$weft" plan --params 1B --region eu:64
expect 2 'too many to simulate' "$weft" plan --params 1B --region a:1000000:1Gbit --versions 1000
expect 2 '--uplink takes a rate' "$weft" plan --params 1B --uplink fast
expect 2 'shares from 0 to 1' "$weft" plan --params 1B --leave 2
finish
