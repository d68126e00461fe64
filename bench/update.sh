#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Puts measurements between marks of doc/BENCHMARKS.md. Run it on a quiet machine: memcpy is the first to show
# another load.
#
#   bench/update.sh [OPTION…]   the table of `build/weft bench`, with the processor it ran on
#   bench/update.sh density     the sweep of `build/weft bench --density`, and its picture
#   bench/update.sh peers       another run of it, as README.md compares weft with others
#   bench/update.sh sync        the figures of `build/weft bench --sync` and, as root, of bench/link.sh
#   bench/update.sh fleet       the figures of `build/weft bench --fleet`
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

machine() {
    local processor family model
    processor=$(lscpu | sed -n 's/^Model name: *//p' | head -n 1)
    family=$(lscpu | sed -n 's/^CPU family: *//p' | head -n 1)
    model=$(lscpu | sed -n 's/^Model: *//p' | head -n 1)
    echo "$(nproc) cores of $processor (family $family, model $model)"
}

# replace MARK FILE PAGE: what stands between <!-- MARK --> and <!-- end of MARK -->
replace() {
    sed -i -e "/^<!-- $1 -->\$/,/^<!-- end of $1 -->\$/{//!d}" -e "/^<!-- $1 -->\$/r $2" "$3"
    echo "$3 has the new figures of $1"
}

update_peers() {
    build/weft bench --quiet --json > "$work/bench"
    {
        echo "One step of 256M parameters, \`build/weft bench\`, one thread of $(machine):"
        echo
        /usr/bin/python3 -B bench/tables.py peers "$work/bench"
    } > "$work/text"
    replace 'bench peers' "$work/text" README.md
}

update_sync() {
    build/weft bench --sync --quiet --json > "$work/sync"
    bench/link.sh --json > "$work/link"
    {
        echo "\`build/weft bench --sync\` and \`bench/link.sh\`, two threads, on $(machine):"
        echo
        /usr/bin/python3 -B bench/tables.py sync "$work/sync" "$work/link"
    } > "$work/text"
    replace 'bench sync' "$work/text" doc/BENCHMARKS.md
}

update_fleet() {
    build/weft bench --fleet --quiet --json > "$work/fleet"
    {
        echo "\`build/weft bench --fleet\`, everything on $(machine):"
        echo
        /usr/bin/python3 -B bench/tables.py fleet "$work/fleet"
    } > "$work/text"
    replace 'bench fleet' "$work/text" doc/BENCHMARKS.md
}

update_density() {
    build/weft bench --density --quiet --json --plot doc/density.svg > "$work/density"
    {
        echo "\`build/weft bench --density\`, one thread of $(machine):"
        echo
        /usr/bin/python3 -B bench/tables.py density "$work/density"
    } > "$work/text"
    replace 'bench density' "$work/text" doc/BENCHMARKS.md
}

update_table() {
    build/weft bench --quiet "$@" > "$work/table"
    {
        echo "\`build/weft bench\` on $(machine):"
        echo
        echo '```'
        sed 's/ *$//' "$work/table"
        echo '```'
    } > "$work/text"
    replace bench "$work/text" doc/BENCHMARKS.md
}

if [ "${1:-}" = sync ]; then
    update_sync
elif [ "${1:-}" = fleet ]; then
    update_fleet
elif [ "${1:-}" = density ]; then
    update_density
elif [ "${1:-}" = peers ]; then
    update_peers
else
    update_table "$@"
fi
