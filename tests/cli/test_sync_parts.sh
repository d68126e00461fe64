#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft publish --part I/N`: processes that publish one checkpoint together. Followers get its bytes, and so does a
# second reader that knows nothing of parts but what the page on the format says.
. "$(dirname "$0")/common.sh"

expect 0 '' "$weft" bench --make trace --params 300K --steps 2
publish_together() { # CKPT
    local pids=() index
    for index in 0 1 2; do
        "$weft" publish store "$1" --part "$index/3" --bucket 64KiB --label "of=$1" > "out-$index" 2> "err-$index" &
        pids+=($!)
    done
    for index in 0 1 2; do
        checks=$((checks + 1))
        wait "${pids[index]}" || fail "part $index of $1: $(cat "err-$index")"
    done
}
for step in 0 1 2; do
    publish_together "trace/step-$step.safetensors"
    for index in 0 1 2; do
        check "part $index tells of version $((step + 1)): $(cat "out-$index")" \
            grep -q "published version $((step + 1)) " "out-$index"
    done
    expect 0 '' "$weft" pull store got.safetensors
    check "version $((step + 1)) is the checkpoint" cmp -s got.safetensors "trace/step-$step.safetensors"
done
check 'a patch, not the whole again' grep -q 'weights changed' out-0
for version in 1 2 3; do
    expect 0 '' /usr/bin/python3 -B "$WEFT_SOURCE/tests/python/weft_store.py" pull store "$version" other.safetensors
    check "the second reader, version $version" cmp -s other.safetensors "trace/step-$((version - 1)).safetensors"
done
# one process goes on where three have ended
expect 0 '' "$weft" publish store trace/step-0.safetensors --cache cache
check 'the next version' grep -q 'published version 4 ' stdout
expect 0 '' "$weft" pull store got.safetensors
check 'what it published' cmp -s got.safetensors trace/step-0.safetensors

expect 2 '--part takes' "$weft" publish store trace/step-0.safetensors --part 3/3
expect 2 '--part takes' "$weft" publish store trace/step-0.safetensors --part 1
expect 2 'step=43' "$weft" publish store trace/step-0.safetensors --part 0/2
expect 2 'does not go with' "$weft" publish store trace/step-0.safetensors --part 0/2 --cache cache
finish
