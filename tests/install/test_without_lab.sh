#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the command without the laboratory (-DWEFT_LAB=OFF), and looks that no transformer is in it, that its
# verbs work, and that those of the laboratory say why they do not. Only the command is built, and without
# optimization, which is most of a compiler's time.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
launcher=()
if command -v ccache > /dev/null; then
    launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
fi
cmake -S "$WEFT_SOURCE" -B "$work/build" -G Ninja -DWEFT_LAB=OFF -DCMAKE_C_COMPILER="$CC" \
    -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O0 "${launcher[@]}" > "$work/configure.log"
cmake --build "$work/build" --parallel "$(nproc)" --target weft > "$work/build.log" || { tail "$work/build.log" >&2; exit 1; }
bare=$work/build/weft

fail() {
    echo "$1" >&2
    exit 1
}

echo "== symbols"
nm "$WEFT" > "$work/whole"
nm "$bare" > "$work/bare"
laboratory=' [TtDdRrBb] (lm|train|bench|demo)_|verb_(train|demo|bench)'
grep -qE "$laboratory" "$work/whole" || fail "the whole command has no such symbols either: this test looks for the wrong ones"
if grep -E "$laboratory" "$work/bare" >&2; then
    fail "a command without the laboratory has these symbols"
fi

echo "== help"
"$bare" --help > "$work/help"
grep -q '^  diff ' "$work/help" || fail "weft --help does not list diff"
if grep -E '^  (train|demo|bench) ' "$work/help" >&2; then
    fail "weft --help lists what is not there"
fi

echo "== diff and apply"
"$WEFT" bench --quiet --make "$work" --params 1M --steps 1
"$bare" diff --quiet "$work/step-0.safetensors" "$work/step-1.safetensors" -o "$work/1.weft"
"$bare" apply --quiet "$work/step-0.safetensors" "$work/1.weft" -o "$work/made.safetensors"
"$bare" digest "$work/made.safetensors" | cut -d ' ' -f 1 > "$work/made"
"$WEFT" digest "$work/step-1.safetensors" | cut -d ' ' -f 1 > "$work/wanted"
cmp "$work/made" "$work/wanted"

echo "== the verbs of the laboratory"
for call in train 'train store --role trainer' demo bench 'help bench' 'bench --help'; do
    read -ra words <<< "$call"
    code=0
    "$bare" "${words[@]}" > "$work/out" 2> "$work/error" || code=$?
    [ "$code" = 2 ] || fail "weft $call ends with $code"
    grep -q 'this weft was built without the laboratory; build with -DWEFT_LAB=ON' "$work/error" ||
        fail "weft $call says: $(cat "$work/error")"
done
"$bare" bnch 2> "$work/error" && fail "weft bnch ends with 0"
if grep -q 'did you mean' "$work/error"; then
    fail "a verb that is not there is suggested: $(cat "$work/error")"
fi
