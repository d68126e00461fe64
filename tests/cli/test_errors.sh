#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Wrong, damaged and missing input: a clear message, the right exit code, and nothing of the user's touched.
. "$(dirname "$0")/common.sh"
/usr/bin/python3 -B "$cli/checkpoints.py" "$dir"

for profile in fast small; do
    expect 0 '' "$weft" diff base.safetensors next.safetensors -o $profile.weft --profile $profile -q
done
expect 0 '' "$weft" diff next.safetensors last.safetensors -o second.weft -q
expect 0 '' "$weft" diff base.safetensors grown.safetensors -o grown.weft -q
cp base.safetensors here.safetensors

# still_here: nothing of what went wrong left a trace
still_here() {
    check 'the checkpoint is unchanged' cmp base.safetensors here.safetensors
    absent out out.safetensors here.safetensors.weft-journal here.safetensors.weft-journal-new
    if ls -A | grep -q '\.tmp$'; then
        fail "temporary files: $(ls -A | grep '\.tmp$')"
    fi
}

# refused CODE PATTERN PATCH: apply in both ways, verify, inspect
refused() {
    expect "$1" "$2" "$weft" apply here.safetensors "$3" -o out
    expect "$1" "$2" "$weft" apply --in-place here.safetensors "$3"
    still_here
}

# ---- labels that nobody could read: overlong forms, what surrogateescape leaves, and more than there is room for ----
for label in $'k=\xff' $'\xc0\x80=v' $'k=\xed\xa0\x80' $'k=\xe2\x80'; do
    expect 2 'not UTF-8' "$weft" diff base.safetensors next.safetensors -o out --label "$label"
    expect 2 'not UTF-8' "$weft" diff base.safetensors next.safetensors -o out --inverse back --label "$label"
    expect 2 'not UTF-8' "$weft" merge fast.weft second.weft --base base.safetensors -o out --label "$label"
    expect 2 'not UTF-8' "$weft" publish store base.safetensors --cache cache --label "$label"
    absent back store/patches store/anchors store/pages
done
still_here
many=()
for ((i = 0; i < 1025; i++)); do
    many+=(--label "k$i=v")
done
expect 1 'too many' "$weft" diff base.safetensors next.safetensors -o out "${many[@]}"
quotes=$(printf '"%.0s' {1..1000})
expect 1 'bytes as JSON' "$weft" publish store base.safetensors --cache cache --label "k=$quotes"
absent store/patches store/anchors store/pages
expect 0 '' "$weft" publish store base.safetensors --cache cache --label "k=${quotes:0:800}" -q
expect 0 '' "$weft" pull store pulled.safetensors -q
expect 2 'name takes' "$weft" pull store pulled.safetensors --name $'a\xff'
rm -r store cache pulled.safetensors .pulled.safetensors.weft-sync

# ---- missing and unreadable ----
expect 1 'no.such' "$weft" diff no.such next.safetensors -o out
expect 1 'no.such' "$weft" diff base.safetensors no.such -o out
expect 1 'no.such' "$weft" digest no.such
expect 1 'nothing was published here yet \(there is no such directory\)' "$weft" log no.such
expect 1 'no.such' "$weft" inspect no.such
expect 1 'no.such' "$weft" verify no.such
expect 1 'no.such' "$weft" stats base.safetensors no.such
expect 1 'no.such' "$weft" apply no.such fast.weft -o out
expect 1 'no.such' "$weft" apply --in-place no.such fast.weft
expect 1 'no.such' "$weft" merge fast.weft no.such -o out
refused 1 'no.such' no.such
refused 1 'directory' sharded
mkdir empty
expect 1 'empty' "$weft" digest empty
if [ "$(id -u)" -eq 0 ]; then
    # root reads everything: ask as somebody else
    if command -v setpriv > /dev/null && cp "$weft" ./weft-copy 2> /dev/null; then
        chmod 755 "$dir" weft-copy
        chmod 000 fast.weft
        as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
        if "${as_nobody[@]}" ./weft-copy --version > /dev/null 2>&1; then
            expect 1 'ermission' "${as_nobody[@]}" ./weft-copy inspect fast.weft
            chmod 000 next.safetensors
            expect 1 'ermission' "${as_nobody[@]}" ./weft-copy digest next.safetensors
            expect 1 'ermission' "${as_nobody[@]}" ./weft-copy diff base.safetensors last.safetensors -o out
            chmod 644 next.safetensors
        else
            skip 'unreadable files: the command cannot be run as nobody here'
        fi
        chmod 644 fast.weft
    else
        skip 'unreadable files: running as root, and setpriv is not there'
    fi
else
    chmod 000 fast.weft
    expect 1 'ermission' "$weft" inspect fast.weft
    chmod 644 fast.weft
    chmod 500 empty
    expect 1 'ermission' "$weft" apply base.safetensors fast.weft -o empty/out
    chmod 700 empty
fi

# ---- damaged patches: exit code 3 ----
for profile in fast small; do
    size=$(stat -c %s $profile.weft)
    for keep in 0 1 19 20 60 $((size / 2)) $((size - 92)) $((size - 1)); do
        head -c "$keep" $profile.weft > broken
        refused 3 'weft|patch|cut short' broken
        expect 3 '*' "$weft" inspect broken
    done
    { cat $profile.weft; echo; } > broken
    refused 3 'cut short|does not end' broken
    for at in 0 9 12 16 25 $((size / 3)) $((size / 2)) $((size - 200)) $((size - 90)) $((size - 70)) $((size - 1)); do
        cp $profile.weft broken
        printf '\x5a' | dd of=broken bs=1 seek="$at" conv=notrunc status=none
        if ! cmp -s broken $profile.weft; then
            refused 3 '*' broken
            expect 3 '*' "$weft" verify base.safetensors broken
        fi
    done
    # a version of the format that does not exist yet
    cp $profile.weft broken
    printf '\x09' | dd of=broken bs=1 seek=8 conv=notrunc status=none
    refused 3 'version 9' broken
done
refused 3 'not a weft patch' base.safetensors
refused 3 'not a weft patch' "$cli/common.sh"
: > broken
refused 3 'cut short' broken

# ---- the wrong base ----
expect 3 'base mismatch' "$weft" apply other.safetensors fast.weft -o out
expect 3 'base mismatch' "$weft" apply other.safetensors small.weft -o out
expect 3 'base mismatch' "$weft" apply base.safetensors second.weft -o out
check 'the message names both states' grep -Eq '[0-9a-f]{32}.*[0-9a-f]{32}' stderr
expect 3 'already' "$weft" apply --in-place next.safetensors fast.weft
expect 3 'base mismatch' "$weft" apply base.safetensors second.weft fast.weft -o out
expect 3 'order' "$weft" merge --base base.safetensors second.weft fast.weft -o out
expect 3 'base' "$weft" merge --base other.safetensors fast.weft second.weft -o out
expect 2 'base' "$weft" merge small.weft second.weft -o out
expect 1 'adds, removes or replaces' "$weft" merge --base base.safetensors grown.weft second.weft -o out
still_here
# one bit of drift
cp base.safetensors drifted.safetensors
size=$(stat -c %s base.safetensors)
printf '\x00' | dd of=drifted.safetensors bs=1 seek=$((size - 1)) conv=notrunc status=none
cmp -s drifted.safetensors base.safetensors &&
    printf '\x01' | dd of=drifted.safetensors bs=1 seek=$((size - 1)) conv=notrunc status=none
expect 3 'base mismatch' "$weft" apply --in-place drifted.safetensors fast.weft
digest=$("$weft" digest base.safetensors -q | grep -Eo '[0-9a-f]{32}')
expect 0 '' "$weft" verify base.safetensors --digest "$digest"
expect 3 '*' "$weft" verify drifted.safetensors --digest "$digest"
expect 2 'digest' "$weft" verify base.safetensors --digest xyz
expect 0 '' "$weft" verify base.safetensors fast.weft
expect 0 '' "$weft" verify next.safetensors fast.weft
expect 3 '*' "$weft" verify drifted.safetensors fast.weft

# ---- broken checkpoints ----
for file in bad-*.safetensors; do
    # a dtype that is not known may be a new one: the file need not be damaged
    code=3
    [ "$file" = bad-dtype.safetensors ] && code=1
    expect $code "$file" "$weft" digest "$file"
    expect $code "$file" "$weft" diff base.safetensors "$file" -o out
    expect $code "$file" "$weft" diff "$file" base.safetensors -o out
    expect $code "$file" "$weft" verify "$file"
    cp "$file" copy
    expect $code "$file" "$weft" apply --in-place "$file" fast.weft
    check "$file is as it was" cmp "$file" copy
done
cp -r sharded broken-shards
rm broken-shards/model-00002-of-00002.safetensors
expect 1 'model-00002-of-00002' "$weft" digest broken-shards
cp -r sharded escaping
sed -i 's#model-00002-of-00002.safetensors#../base.safetensors#g' escaping/model.safetensors.index.json
expect 3 '*' "$weft" digest escaping
cp -r sharded misplaced
sed -i 's#"norm": "model-00002#"norm": "model-00001#' misplaced/model.safetensors.index.json
expect 3 'norm' "$weft" digest misplaced
still_here

# ---- and the good ones still work ----
expect 0 '' "$weft" apply here.safetensors fast.weft -o out.safetensors
check 'the result' cmp out.safetensors next.safetensors
rm out.safetensors
expect 0 '' "$weft" apply --in-place here.safetensors small.weft second.weft
check 'the result in place' cmp here.safetensors last.safetensors
finish
