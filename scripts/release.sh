#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# release.sh: keeps what tests/abi compares the next versions with: headers, examples, symbols and the version of
# this tree. It is run once, when a release is made, after `make`; see CONTRIBUTING.md.
set -eu

cd "$(dirname "$0")/.."
kept=tests/abi/release
rm -rf "$kept"
mkdir -p "$kept/include"
cp -r include/weft "$kept/include/weft"
cp doc/examples/*.c "$kept/"
nm -D --defined-only build/libweft.so | awk '/ T / { print $3 }' | sort > "$kept/symbols"
build/weft --version | awk '{ print $2; exit }' > "$kept/VERSION"
echo "kept $(wc -l < "$kept/symbols") symbols of $(cat "$kept/VERSION")"
