#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Does `weft plan` foretell how long versions take? A real store, relay and 32 followers on both sides of a link that tc
# shapes (bench/link.sh), and a plan for the same fleet with the same bytes; seconds from the beginning of publish to the
# commit, median over followers and versions. The link is slow, so that it decides, and not how many followers share
# the processors of one machine.
#
# usage: bench/plan.sh [--followers N] [--rates "MBIT MBIT…"] [--steps N]
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-build/weft}
followers=32
rates='1 2'
steps=4
while [ $# -gt 0 ]; do
    case $1 in
        --followers) followers=$2 ;;
        --rates) rates=$2 ;;
        --steps) steps=$2 ;;
        *) echo "usage: bench/plan.sh [--followers N] [--rates \"MBIT MBIT…\"] [--steps N]" >&2 && exit 2 ;;
    esac
    shift 2
done
room=$(mktemp -d "${TMPDIR:-/tmp}/weft-plan.XXXXXX")
trap 'rm -rf "$room"' EXIT
"$weft" bench --make "$room" --params 8M --steps "$steps" --quiet
"$weft" diff "$room/step-0.safetensors" "$room/step-1.safetensors" -o "$room/patch" --quiet
for way in relay direct; do
    bench/link.sh --model "$room" --steps "$steps" --rates "$rates" --followers "$followers" --json \
        $([ "$way" = direct ] || echo --relay) | WEFT=$weft /usr/bin/python3 -c '
import json, os, subprocess, sys
way, followers, patch = sys.argv[1:]
results = json.load(sys.stdin)
for row in results.get("rows", []):
    if row["kind"] != "patch" or not row["megabits"]:
        continue
    rate, size, seconds = row["megabits"], row["wire_bytes"], row["seconds"]
    plan = json.loads(subprocess.run(
        [os.environ["WEFT"], "plan", "--params", "8M", "--payload", patch,
         "--region", f"here:{followers}:{rate}Mbit:0ms", "--relays", str(int(way == "relay")),
         "--step-time", "60s", "--versions", "6", "--json"], check=True, stdout=subprocess.PIPE).stdout)["weft"]
    foretold = plan["commit_seconds_median"]
    print(f"{way:6}  {followers} followers  {rate:4} Mbit/s  {size:9,.0f} bytes a version  "
          f"measured {seconds:6.2f} s  foretold {foretold:6.2f} s  ratio {foretold / seconds:.2f}")
' "$way" "$followers" "$(stat -c %s "$room/patch")"
done
