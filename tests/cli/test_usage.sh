#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What a user types and how the command takes it: help, wrong usage, and where words go.
. "$(dirname "$0")/common.sh"
/usr/bin/python3 -B "$cli/checkpoints.py" "$dir"

# help goes to stdout, names the verb's arguments, gives examples, and fits a terminal
verbs='diff apply merge convert inspect digest verify stats publish pull follow log fleet gc repair keygen serve train demo bench'
for verb in $verbs; do
    for call in "$verb --help" "help $verb"; do
        # shellcheck disable=SC2086
        expect 0 '' "$weft" $call
        check "$call: usage" grep -q "^Usage: weft $verb" stdout
        check "$call: an example" grep -q "^  .*weft $verb" stdout
        check "$call: --json" grep -q -- '--json' stdout
        check "$call: exit codes" grep -q 'Exit codes: 0 ' stdout
        check "$call: lines that fit" awk 'length($0) > 100 { exit 1 }' stdout
        check "$call: examples that were not broken" \
            awk '/^Examples?:/ { inside = 1; next } /^$/ { inside = 0 } inside && !/^  / { exit 1 }' stdout
    done
done
for call in --help -h help; do
    expect 0 '' "$weft" "$call"
    for verb in $verbs; do
        check "$call lists $verb" grep -Eq "^  $verb( |$)" stdout
    done
done
expect 0 '' "$weft" --version
check 'the version' grep -Eq '^weft [0-9]+\.[0-9]+\.[0-9]+$' stdout
expect 0 '' "$weft" diff --version

# wrong usage is exit code 2, and says where to look
"$weft" > stdout 2> stderr
[ $? -eq 2 ] || fail 'no verb at all'
expect 2 "no verb 'frobnicate'" "$weft" frobnicate
check 'no suggestion from afar' bash -c '! grep -q "did you mean" stderr'
expect 2 "did you mean 'inspect'" "$weft" inspct
expect 2 'no verb' "$weft" help frobnicate
expect 2 'weft diff' "$weft" diff
expect 2 'weft diff' "$weft" diff base.safetensors
expect 2 '-o PATCH' "$weft" diff base.safetensors next.safetensors
expect 2 'weft diff' "$weft" diff base.safetensors next.safetensors other.safetensors -o p
expect 2 'fast or small' "$weft" diff base.safetensors next.safetensors -o p --profile tiny
expect 2 'unrecognized option' "$weft" diff --no-such-option
expect 2 'threads' "$weft" digest base.safetensors -j 0
expect 2 'threads' "$weft" digest base.safetensors --threads many
expect 2 'cut' "$weft" diff base.safetensors next.safetensors -o p --cut nonsense
expect 2 'KEY=VALUE' "$weft" diff base.safetensors next.safetensors -o p --label nonsense
expect 2 'checkpoint and at least one patch' "$weft" apply base.safetensors -o out
expect 2 'say where' "$weft" apply base.safetensors p
expect 2 'either' "$weft" apply --in-place base.safetensors p -o out
expect 2 'stdout' "$weft" apply base.safetensors p -o -
expect 2 'recover' "$weft" apply base.safetensors --recover
expect 2 'oldest first' "$weft" merge -o p
expect 2 '-o PATCH' "$weft" merge a b
expect 2 'needs the first patch' "$weft" merge a b -o c --profile small
expect 2 'give' "$weft" digest
expect 2 'give' "$weft" inspect
expect 2 'give' "$weft" stats base.safetensors
absent p out c

# what asks for the impossible
expect 2 'cut' "$weft" diff base.safetensors next.safetensors -o p --cut embed:0:7
expect 2 'cut' "$weft" diff base.safetensors next.safetensors -o p --cut embed:5:2
expect 2 'bucket' "$weft" diff base.safetensors next.safetensors -o p --bucket-size 1K
cp base.safetensors copy.safetensors
expect 2 'also an input' "$weft" diff base.safetensors next.safetensors -o base.safetensors
absent p
check 'the input is as it was' cmp base.safetensors copy.safetensors

# --quiet is quiet; results of verbs that look are printed all the same
expect 0 '' "$weft" diff base.safetensors next.safetensors -o p -q
[ -s stdout ] && fail 'diff -q spoke'
expect 0 '' "$weft" digest base.safetensors -q
[ -s stdout ] || fail 'digest -q said nothing'

# no progress bar where nobody looks
expect 0 '' "$weft" diff base.safetensors next.safetensors -o p
expect 0 '*' "$weft" diff base.safetensors next.safetensors -o p --progress
finish
