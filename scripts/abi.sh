#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# abi.sh [BASE]: what has changed in the binary interface of libweft since the commit BASE (by default the one
# that last changed tests/abi/release), as abidiff of Debian's abigail-tools reports it. Both libraries are built
# with debugging information under build/abi. It exits with 1 if a program of then could not run with the library
# of now.
set -eu

cd "$(dirname "$0")/.."
base=${1:-$(git log -1 --format=%H -- tests/abi/release)}
work=$PWD/build/abi
mkdir -p "$work"
if ! command -v abidiff > /dev/null; then
    echo "abi.sh needs abidiff: apt-get install abigail-tools" >&2
    exit 77
fi
build_library() { # SOURCE BUILD
    cmake -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS=-g -DBUILD_TESTING=OFF > "$2.log"
    cmake --build "$2" --target weft_shared >> "$2.log"
}
rm -rf "$work/tree"
git worktree prune
git worktree add --quiet --detach "$work/tree" "$base"
trap 'git worktree remove --force "$work/tree"' EXIT
build_library "$work/tree" "$work/before"
build_library "$PWD" "$work/now"
status=0
abidiff --headers-dir1 "$work/tree/include" --headers-dir2 include --drop-private-types \
    "$work/before/libweft.so" "$work/now/libweft.so" || status=$?
# Bit 4 of abidiff's exit code: a change that breaks programs. Bits 1 and 2: it could not compare.
if [ $((status & 8)) -ne 0 ] || [ $((status & 3)) -ne 0 ]; then
    exit 1
fi
echo "programs of $(git rev-parse --short "$base") run with this library"
