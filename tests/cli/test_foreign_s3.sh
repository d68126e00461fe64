#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Deltas of other systems in a bucket, as ModelExpress, Stitch and SkyRL keep them there: listed, fetched version by
# version and put on, by pull, follow and convert; and what people read when something is wrong.
. "$(dirname "$0")/sync.sh"
. "$cli/../support/s3_service.sh"
tool=${WEFT_BUILD:-$(dirname "$weft")}/tests/store_tool
trap 'stop_s3; end_children' EXIT
begin_s3
export TMPDIR=$dir/scratch
mkdir "$TMPDIR"

# made WRITER VERSIONS: a base and deltas of it in $dir/WRITER, and what they lead to in $dir/WRITER.safetensors
made() {
    /usr/bin/python3 -B - "$cli/../python" "$dir" "$1" "$2" << 'END'
import os, sys
sys.path.insert(0, sys.argv[1])
import numpy, weft_foreign
root, name, versions = sys.argv[2], sys.argv[3], int(sys.argv[4])
random = numpy.random.default_rng(91)
state = weft_foreign.random_state(random, {"a": ("BF16", (300, 70)), "b": ("F32", (65,)), "c": ("I64", (3,))})
weft_foreign.write_state(os.path.join(root, f"{name}-base.safetensors"), state)
os.mkdir(os.path.join(root, name))
for version in range(1, versions + 1):
    after = weft_foreign.changed_state(random, state, 0.05)
    getattr(weft_foreign, f"write_{name}")(os.path.join(root, name), version, version - 1, state, after, files=2)
    state = after
weft_foreign.write_state(os.path.join(root, f"{name}.safetensors"), state)
END
}
# same A B: both checkpoints are in the same state
same() { [ "$("$weft" digest "$1" --json | sed 's/.*"digest"[^"]*"\([0-9a-f]*\).*/\1/')" = \
    "$("$weft" digest "$2" --json | sed 's/.*"digest"[^"]*"\([0-9a-f]*\).*/\1/')" ]; }

for name in slime skyrl; do
    check "$name is made" made "$name" 4
    expect 0 '' "$tool" copy "$dir/$name" "s3://bucket/deep/$name"
    cp "$name-base.safetensors" "$name-out.safetensors"
    expect 0 '' "$weft" pull "$name:s3://bucket/deep/$name" "$name-out.safetensors"
    says stdout '^version 4 '
    check "$name by pull" same "$name-out.safetensors" "$name.safetensors"
    cp "$name-base.safetensors" "$name-followed.safetensors"
    expect 0 '' "$weft" follow "$name:s3://bucket/deep/$name" "$name-followed.safetensors" --until 4
    check "$name by follow" same "$name-followed.safetensors" "$name.safetensors"
    expect 0 '' "$weft" convert "$name:s3://bucket/deep/$name" "store:$dir/$name-run" --base "$name-base.safetensors" \
        --mirror "$name-mirror.safetensors"
    expect 0 '' "$weft" convert "store:$dir/$name-run" "$name:$dir/$name-back" --mirror "$name-far.safetensors"
    check "$name over the bridge" same "$name-far.safetensors" "$name.safetensors"
done
check 'nothing of what was fetched is left' test -z "$(ls -A "$TMPDIR")"

# ---- a version that comes, and one whose payload does not ----
mv slime/weight_v000004 later
for file in model.safetensors.index.json model-00000-of-00002.safetensors model-00001-of-00002.safetensors; do
    expect 0 '' "$tool" remove s3://bucket/deep/slime "weight_v000004/$file"
done
cp slime-base.safetensors out.safetensors
expect 0 '' "$weft" pull slime:s3://bucket/deep/slime out.safetensors
says stdout '^version 3 '
stdin=later/model.safetensors.index.json expect 0 '' "$tool" put s3://bucket/deep/slime \
    weight_v000004/model.safetensors.index.json
expect 1 'weight_v000004/model-0000.-of-00002.safetensors' "$weft" pull slime:s3://bucket/deep/slime out.safetensors
for file in model-00000-of-00002.safetensors model-00001-of-00002.safetensors; do
    stdin=later/$file expect 0 '' "$tool" put s3://bucket/deep/slime "weight_v000004/$file"
done
expect 0 '' "$weft" pull slime:s3://bucket/deep/slime out.safetensors
says stdout '^version 4 '
check 'the version that came later' same out.safetensors slime.safetensors

# ---- what cannot be ----
expect 1 'Copy it to a file system' "$weft" pull arc2:s3://bucket/deep out.safetensors
expect 1 'places in a bucket are read and not written' "$weft" convert slime.safetensors slime:s3://bucket/out \
    --base slime-base.safetensors
expect 1 'nowhere.*cannot make a directory' env TMPDIR="$dir/nowhere" "$weft" pull slime:s3://bucket/deep/slime \
    out.safetensors
expect 0 'has no version yet' "$weft" pull slime:s3://bucket/empty out.safetensors
expect 4 'AWS_SECRET_ACCESS_KEY' env AWS_SECRET_ACCESS_KEY=wrong "$weft" pull slime:s3://bucket/deep/slime out.safetensors
finish
