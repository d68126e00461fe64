#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft train --kv --correction`: workers that sample with a compressed cache. Where nothing is evicted, the
# run is the same bit for bit as without; where something is, the metrics say how far the sampler was off.
. "$(dirname "$0")/train.sh"

lines() { /usr/bin/python3 -c "
import json
lines = [json.loads(line) for line in open('$1/metrics.jsonl')]
assert lines
$2"; }

# ---- nothing evicted, with and without a correction ----
run dense s-dense 1 --steps 4
course dense s-dense > dense.course
check 'no mismatch to tell of' lines dense '
assert all(line["mismatch"] is None and line["kv"]["policy"] == "none" for line in lines)
assert all(line["kv"]["retained"] == line["kv"]["full"] > 0 for line in lines)'
run corrected s-corrected 1 --steps 4 --correction paper
alike corrected s-corrected dense
run roomy s-roomy 2 --steps 4 --kv rkv --kv-budget 16 --correction released
alike roomy s-roomy dense
check 'xi is 1' lines roomy '
import math
for line in lines:
    xi = line["mismatch"]["xi"]
    assert max(abs(math.log(xi["min"])), abs(math.log(xi["max"]))) < 1e-4, xi
    assert line["mismatch"]["rejected"] == line["mismatch"]["masked"] == 0, line["mismatch"]'

# ---- something evicted: the same whoever works, and told of ----
long=(--chain-steps 25 --kv snapkv --kv-budget 8 --kv-interval 2 --steps 4)
run sparse s-sparse 1 "${long[@]}" --correction tis
course sparse s-sparse > sparse.course
run pair s-pair 3 "${long[@]}" --correction tis
alike pair s-pair sparse
check 'mismatch and memory' lines sparse '
for line in lines:
    kv, mismatch = line["kv"], line["mismatch"]
    assert (kv["policy"], kv["budget"]) == ("snapkv", 8), kv
    assert kv["retained"] < 0.7 * kv["full"], kv
    assert kv["peak_bytes"] > 0 and kv["dense_bytes"] > 0, kv
    assert mismatch["xi"]["min"] < 0.999 < 1.001 < mismatch["xi"]["max"], mismatch
    assert mismatch["kl"]["k3"] > 0 and 0 < mismatch["ess"] <= 1, mismatch
    assert mismatch["rejected"] == 0 and line["trajectories"]["rejected"] == 0, line'
run naive s-naive 1 "${long[@]}"
check 'a correction that does something' test "$(course naive s-naive | cut -d' ' -f2 | tail -1)" != \
    "$(cut -d' ' -f2 sparse.course | tail -1)"
# Budgets that adapt: the same whoever works; a sharp policy is far from what it samples that way, which is told.
adapting=("${long[@]}" --kv-prompt --kv-share 0.3 --kv-common 0.8 --temperature 0.02)
run adapting s-adapting 1 "${adapting[@]}"
says adapting.err 'far from the policy .* and --correction tis'
course adapting s-adapting > adapting.course
run adapters s-adapters 2 "${adapting[@]}"
alike adapters s-adapters adapting
run late s-late 2 "${long[@]}" --staleness 2 --correction paper
check 'behind, and compressed' lines late 'assert all(line["staleness"]["max"] <= 2 for line in lines)'

# ---- nothing left: the policy stays, the run goes on ----
run rejected s-rejected 1 "${long[@]}" --correction paper --veto 0.9999 --exclude-rejected
says rejected.err 'rejects all 32 trajectories'
check 'a policy that stays' lines rejected '
for line in lines:
    assert line["mismatch"]["rejected"] == line["mismatch"]["vetoed"] == line["mismatch"]["masked"] == 1, line
    assert line["mismatch"]["skipped"] == 2 and line["changed"] == 0 and line["loss"] == 0, line'

# ---- what cannot be ----
trainer_says() {
    local what=$1
    shift
    expect 2 "$what" "$weft" train s-new --role trainer --output new "${tiny[@]}" "$@"
}
trainer_says 'needs a --kv-budget' --kv rkv
trainer_says 'needs a policy' --kv-budget 8
trainer_says 'rkv, not' --kv best --kv-budget 8
trainer_says 'from 1 to' --kv rkv --kv-budget 0
trainer_says 'do not fit a budget' --kv rkv --kv-budget 8 --kv-window 9
trainer_says 'needs a policy' --kv-prompt
trainer_says 'a policy that scores tokens' --kv streaming --kv-budget 8 --kv-common 0.8
trainer_says 'from 0 to 1' --kv rkv --kv-budget 16 --kv-share 2
trainer_says 'magic' --correction magic
trainer_says 'from 0 to 1' --correction paper --veto 2
expect 2 'give the same options' "$weft" train s-sparse --role trainer --output sparse "${tiny[@]}" "${long[@]}" --kv-budget 9
expect 2 'learns all about the run' "$weft" train s-new --role rollout --kv rkv --kv-budget 8
absent s-new
finish
