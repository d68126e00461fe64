#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Where results go: files, stdin and stdout, JSON, terminals, full disks.
. "$(dirname "$0")/common.sh"
/usr/bin/python3 -B "$cli/checkpoints.py" "$dir"

json() { /usr/bin/python3 -m json.tool < "$1" > /dev/null; }
# field FILE KEY
field() { /usr/bin/python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }

# ---- round trips ----
expect 0 '' "$weft" diff base.safetensors next.safetensors -o 1.weft --inverse back.weft --label step=1
expect 0 '' "$weft" diff next.safetensors last.safetensors -o 2.weft --profile fast
expect 0 '' "$weft" apply base.safetensors 1.weft -o out.safetensors
check 'forwards' cmp out.safetensors next.safetensors
expect 0 '' "$weft" apply out.safetensors back.weft -o again.safetensors
check 'backwards' cmp again.safetensors base.safetensors
expect 0 '' "$weft" apply base.safetensors 1.weft 2.weft -o out.safetensors
check 'two at once' cmp out.safetensors last.safetensors
expect 0 '' "$weft" merge --base base.safetensors 1.weft 2.weft -o both.weft
expect 0 '' "$weft" apply base.safetensors both.weft -o out.safetensors
check 'merged' cmp out.safetensors last.safetensors
expect 0 '' "$weft" diff base.safetensors grown.safetensors -o grow.weft
expect 0 '' "$weft" apply base.safetensors grow.weft -o out.safetensors
check 'grown' cmp out.safetensors grown.safetensors
cp base.safetensors here.safetensors
expect 0 '' "$weft" apply --in-place here.safetensors grow.weft --durable
check 'grown in place' cmp here.safetensors grown.safetensors
expect 0 '' "$weft" diff sharded next.safetensors -o unshard.weft
expect 0 '' "$weft" apply sharded unshard.weft -o out.safetensors
check 'out of shards' cmp out.safetensors next.safetensors
expect 0 '' "$weft" diff base.safetensors base.safetensors -o none.weft
expect 0 '' "$weft" apply base.safetensors none.weft -o out.safetensors
check 'nothing changed' cmp out.safetensors base.safetensors

# ---- stdin and stdout ----
"$weft" diff base.safetensors next.safetensors -o - --label step=1 2> stderr > piped.weft || fail 'diff -o -'
check 'the same patch through a pipe' cmp piped.weft 1.weft
check 'the report went to stderr' grep -q changed stderr
stdin=1.weft expect 0 '' "$weft" apply base.safetensors - -o out.safetensors
check 'a patch from a file on stdin' cmp out.safetensors next.safetensors
rm out.safetensors
# shellcheck disable=SC2002
cat 1.weft | "$weft" apply base.safetensors - -o out.safetensors > /dev/null || fail 'a patch from a pipe'
check 'a patch from a pipe' cmp out.safetensors next.safetensors
# shellcheck disable=SC2002
cat 1.weft | "$weft" merge --base base.safetensors - 2.weft -o - 2> /dev/null > piped.weft || fail 'merge - -o -'
check 'merged through pipes' cmp piped.weft both.weft
# shellcheck disable=SC2002
cat 1.weft | "$weft" inspect - > /dev/null || fail 'inspect -'
stdin=1.weft expect 2 'only one' "$weft" apply base.safetensors - - -o out
head -c 100 1.weft > part.weft
stdin=part.weft expect 3 'stdin' "$weft" apply base.safetensors - -o out
absent out

# ---- JSON ----
expect 0 '' "$weft" diff base.safetensors next.safetensors -o 1.weft --label step=1 --json
check 'diff --json' json stdout
for key in changed total patch_bytes dense_bytes; do
    check "diff --json has $key" field stdout $key
done
[ "$(field stdout patch_bytes)" = "$(stat -c %s 1.weft)" ] || fail 'patch_bytes is not the size of the patch'
[ "$(field stdout total)" = $((300 * 64 + 64 * 128 + 64 + 1)) ] || fail 'total is not the number of weights'
[ "$(field stdout dense_bytes)" = $((2 * (300 * 64 + 64 * 128) + 4 * 64 + 8)) ] || fail 'dense_bytes is wrong'
expect 0 '' "$weft" apply base.safetensors 1.weft -o out.safetensors --json
check 'apply --json' json stdout
expect 0 '' "$weft" merge --base base.safetensors 1.weft 2.weft -o both.weft --json
check 'merge --json' json stdout
for call in 'inspect 1.weft' 'inspect 1.weft --buckets --tensors --label step' 'inspect base.safetensors' \
    'inspect sharded --tensors' 'digest base.safetensors' 'digest sharded' 'verify base.safetensors' \
    'verify base.safetensors 1.weft' 'stats base.safetensors next.safetensors'; do
    # shellcheck disable=SC2086
    expect 0 '' "$weft" $call --json
    check "$call --json" json stdout
done
cp base.safetensors here.safetensors
expect 0 '' "$weft" apply --in-place here.safetensors --recover --json
check 'recover --json' json stdout
expect 3 '*' "$weft" verify other.safetensors 1.weft --json
check 'verify --json of a foreign checkpoint' json stdout
# a name from a hostile file reaches neither the terminal nor the JSON as it is
/usr/bin/python3 - << 'END'
import json, struct
text = json.dumps({"\x1b[31mred\n": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
open("evil.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + b"x")
END
expect 0 '' "$weft" inspect evil.safetensors --tensors
check 'no escape sequences' bash -c "! grep -q $'\x1b' stdout"
expect 0 '' "$weft" inspect evil.safetensors --tensors --json
check 'evil --json' json stdout

# ---- terminals ----
if command -v script > /dev/null; then
    script -qec "$weft diff base.safetensors next.safetensors -o -" typescript > /dev/null 2>&1 < /dev/null
    [ $? -eq 2 ] || fail 'a patch was written to a terminal'
    check 'it says why' grep -q 'terminal' typescript
    check 'and writes nothing of it' bash -c "! grep -q WEFT typescript"
    script -qec "$weft diff base.safetensors next.safetensors -o /dev/tty" typescript > /dev/null 2>&1 < /dev/null
    [ $? -eq 2 ] || fail 'a patch was written to /dev/tty'
    script -qec "$weft apply base.safetensors 1.weft -o /dev/tty" typescript > /dev/null 2>&1 < /dev/null
    [ $? -eq 2 ] || fail 'a checkpoint was written to /dev/tty'
    script -qec "timeout 100 $weft inspect -" typescript > /dev/null 2>&1 < /dev/null
    [ $? -eq 2 ] || fail 'a patch was read from a terminal'
else
    skip 'terminals: script(1) is not there'
fi

# ---- a message is one write: others may write to the same stderr ----
check 'one write for a line' /usr/bin/python3 -c '
import os, subprocess, sys
reading, writing = os.pipe2(os.O_DIRECT)  # keeps writes apart
process = subprocess.Popen([sys.argv[1], "digest", "absent"], stderr=writing)
line = os.read(reading, 65536)
os.close(reading)
process.wait(60)
assert line.startswith(b"weft digest: ") and line.endswith(b"\n"), line' "$weft"

# ---- full disks ----
expect 1 'No space' "$weft" diff base.safetensors next.safetensors -o /dev/full
expect 1 'No space' bash -c "'$weft' diff base.safetensors next.safetensors -o - > /dev/full"
expect 1 'No space' "$weft" merge --base base.safetensors 1.weft 2.weft -o /dev/full
"$weft" digest base.safetensors > /dev/full 2> stderr
[ $? -eq 1 ] || fail 'a digest that could not be printed counts as printed'
check 'it says so' grep -q 'No space' stderr
"$weft" inspect 1.weft --json > /dev/full 2> stderr
[ $? -eq 1 ] || fail 'JSON that could not be printed counts as printed'
mkdir full
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=128k none full 2> /dev/null; then
    cp base.safetensors full/base.safetensors
    head -c 40000 /dev/zero > full/filler
    cp 1.weft 1-full.weft
    expect 1 'No space|free' "$weft" apply base.safetensors 1.weft -o full/out.safetensors
    absent full/out.safetensors
    entries full 2
    # in place there is room for the weights, but the journal needs some too
    cat /dev/zero > full/filler 2> /dev/null
    expect 1 'No space' "$weft" apply --in-place full/base.safetensors 1.weft
    check 'the checkpoint on the full disk is unchanged' cmp full/base.safetensors base.safetensors
    entries full 2
    expect 1 'No space' "$weft" diff base.safetensors other.safetensors -o full/p.weft
    entries full 2
    expect 1 'No space|free' "$weft" apply --in-place full/base.safetensors grow.weft
    check 'still unchanged' cmp full/base.safetensors base.safetensors
    entries full 2
    rm full/filler
    expect 0 '' "$weft" apply --in-place full/base.safetensors 1.weft
    check 'with room again it works' cmp full/base.safetensors next.safetensors
    umount full
else
    skip 'full disks: mounting a small tmpfs needs root'
fi

# ---- outputs in the way ----
mkdir directory
expect 1 'directory' "$weft" diff base.safetensors next.safetensors -o directory
expect 1 '*' "$weft" diff base.safetensors next.safetensors -o no/such/place
echo precious > precious
expect 3 '*' "$weft" apply other.safetensors 1.weft -o precious
check 'what stood at the output stays' grep -q precious precious
expect 3 '*' "$weft" diff base.safetensors bad-hole.safetensors -o precious
check 'what stood at the output stays' grep -q precious precious
expect 0 '' "$weft" diff base.safetensors next.safetensors -o precious --label step=1
check 'or is replaced' cmp precious 1.weft
if ls -A | grep -q '\.tmp$'; then
    fail "temporary files: $(ls -A | grep '\.tmp$')"
fi
finish
