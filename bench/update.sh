#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs `build/weft bench` and puts its table, with the processor it ran on, between the two bench marks of
# README.md. Run it on a quiet machine: memcpy is the first to show another load.
set -euo pipefail
cd "$(dirname "$0")/.."

table=$(mktemp)
text=$(mktemp)
trap 'rm -f "$table" "$text"' EXIT

build/weft bench --quiet "$@" > "$table"
processor=$(lscpu | sed -n 's/^Model name: *//p' | head -n 1)
family=$(lscpu | sed -n 's/^CPU family: *//p' | head -n 1)
model=$(lscpu | sed -n 's/^Model: *//p' | head -n 1)
{
    echo "\`build/weft bench\` on $(nproc) cores of $processor (family $family, model $model):"
    echo
    echo '```'
    sed 's/ *$//' "$table"
    echo '```'
} > "$text"
sed -i -e '/^<!-- bench -->$/,/^<!-- end of bench -->$/{//!d}' -e "/^<!-- bench -->\$/r $text" README.md
echo "README.md has the new table"
