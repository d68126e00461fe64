#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The command of aarch64 under qemu beside that of this machine: the same patches to the byte at every level, the same
# digests, each applies and pulls what the other made, and the golden patches make their results.
. "$(dirname "$0")/../cli/common.sh"
native=$WEFT_NATIVE
if [ ! -x "$native" ]; then
    echo "there is no command of this machine at $native" >&2
    exit 99
fi
export HOME=$dir

# ---- a trace of small steps, and one in which nearly all weights change ----
expect 0 '' "$native" bench --make trace --params 300K --steps 2 --quiet
expect 0 '' "$native" bench --make dense --params 100K --lr 1e-2 --quiet
mv dense/base.safetensors trace/dense-0.safetensors
mv dense/new.safetensors trace/dense-1.safetensors

for name in step dense; do
    old=trace/$name-0.safetensors new=trace/$name-1.safetensors
    expect 0 '' "$native" digest "$new"
    cp stdout digest
    for level in portable neon; do
        WEFT_CPU=$level expect 0 '' "$weft" digest "$new"
        check "the digest of $name by $level" cmp stdout digest
    done
    for profile in fast small; do
        expect 0 '' "$native" diff --quiet --profile "$profile" "$old" "$new" -o native.weft
        for level in portable neon; do
            WEFT_CPU=$level expect 0 '' "$weft" diff --quiet --profile "$profile" "$old" "$new" -o other.weft
            check "the patch of $name, $profile, by $level" cmp native.weft other.weft
            WEFT_CPU=$level expect 0 '' "$weft" apply --quiet "$old" native.weft -o applied.safetensors
            check "what $level makes of the patch of $name, $profile" cmp applied.safetensors "$new"
        done
    done
done

# ---- one publishes, the other pulls ----
# hand_over FROM TO DIRECTORY
hand_over() {
    local store=$3/store pulled=$3/model.safetensors
    mkdir "$3"
    for step in 0 1 2; do
        expect 0 '' "$1" publish --quiet "$store" "trace/step-$step.safetensors"
        expect 0 '' "$2" pull --quiet "$store" "$pulled"
        check "version $step of $1, by $2" cmp "$pulled" "trace/step-$step.safetensors"
    done
    expect 0 '' "$2" verify "$pulled"
    expect 0 '' "$1" log "$store"
}
hand_over "$weft" "$native" there
hand_over "$native" "$weft" back

# ---- files of all time ----
check 'the golden patches' /usr/bin/python3 -B "$cli/../python/test_golden.py" \
    GoldenTest.test_patches_make_their_results

finish
