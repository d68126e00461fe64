#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# publish, pull, log and gc: every version back byte for byte, by patches or from an anchor,
# the history, what is removed and what stays, and what is refused.
. "$(dirname "$0")/sync.sh"
store=$(place store)
parts=$(place parts)

# ---- usage ----
for verb in publish pull follow log gc keygen; do
    expect 0 '' "$weft" "$verb" --help
    says stdout 'Examples:'
    says stdout 'Exit codes:'
done
expect 2 'give the store, and the checkpoint to publish' "$weft" publish "$store"
expect 2 'too many arguments' "$weft" publish a b c
expect 2 'KEY=VALUE' "$weft" publish "$store" "$(model 0)" --label step
expect 2 'auto, now or never' "$weft" publish "$store" "$(model 0)" --anchor maybe
expect 2 'above zero' "$weft" publish "$store" "$(model 0)" --anchor-ratio 0
expect 2 'from 1 to 15' "$weft" publish "$store" "$(model 0)" --keep-anchors 16
expect 2 'length of time' "$weft" publish "$store" "$(model 0)" --timeout soon
expect 2 'number of a version' "$weft" pull "$store" out --version 0
expect 2 'takes full' "$weft" pull "$store" out --verify little
expect 2 'such as 30s' "$weft" gc "$store" --grace 1w
expect 2 'this build understands' "$weft" publish gopher://store/run "$(model 0)"
expect 1 'cannot open' "$weft" publish "$store" missing.safetensors
vacant "$store"
expect 1 'nothing (was|is) published' "$weft" pull "$store" out
expect 1 'nothing (was|is) published' "$weft" log "$store"
absent out

# ---- five versions ----
for step in 0 1 2 3 4; do
    expect 0 '' "$weft" publish "$store" "$(model "$step")" --label "step=$step" --label note=a
    says stdout "published version $((step + 1)) \\(epoch "
    says stdout "digest $(digest "$(model "$step")")"
done
says stdout 'weights changed \([0-9.]+%\), .* instead of .* times fewer'
check 'the cache is private' test "$(stat -c %a home/.cache/weft)" = 700
check 'one copy per store' test "$(find home/.cache/weft -name mirror.safetensors | wc -l)" -eq 1

expect 0 '' "$weft" pull "$store" out
check 'byte for byte' cmp out "$(model 4)"
says stdout 'version +5$'
says stdout 'way +1 anchor, 2 patches'
expect 0 '' "$weft" pull "$store" out
says stdout 'was there already'
expect 0 '' "$weft" pull "$store" out --verify full
says stdout 'read again and checked'
for version in 1 3 4; do
    expect 0 '' "$weft" pull "$store" "old-$version" --version "$version"
    says stdout "version +$version \\(the newest is 5\\)"
    check "version $version" cmp "old-$version" "$(model $((version - 1)))"
done
expect 0 '' "$weft" pull "$store" out --version 2 --durable
check 'back to an older version' cmp out "$(model 1)"
expect 0 '' "$weft" pull "$(another_name "$store")" out --json
check 'and forward again' cmp out "$(model 4)"
check 'the digest of --json' test "$(field stdout digest)" = "$(digest "$(model 4)")"
check 'the version of --json' test "$(field stdout version)" = 5
expect 1 'version 9 is not published yet; the newest is 5' "$weft" pull "$store" out --version 9
expect 0 '' "$weft" pull -q "$store" quiet
check 'quiet' test ! -s stdout

# a version without changes, a profile, a bucket, a cut
expect 0 '' "$weft" publish "$store" "$(model 4)" --profile fast --bucket 64K --cut '*:0:1' --json
check 'changed nothing' test "$(field stdout changed)" = 0
check 'the run' test "$(field stdout run | tr -d '\n' | wc -c)" -eq 32

# ---- a copy that is lost, stale or damaged is rebuilt from the store ----
rm -r home/.cache
expect 0 '' "$weft" publish "$store" "$(model 5)" --json
check 'a patch again' test "$(field stdout anchored)" = False
mirror=$(find home/.cache/weft -name mirror.safetensors)
printf 'x' | dd of="$mirror" bs=1 seek=5000 conv=notrunc status=none
expect 0 '' "$weft" publish "$store" "$(model 6)" --json
check 'a patch over a damaged copy' test "$(field stdout anchored)" = False
cp "$mirror" stale
expect 0 '' "$weft" publish "$store/" "$(model 0)"
cp stale "$mirror"
expect 0 '' "$weft" publish "$(another_name "$store")" "$(model 1)" --cache "$dir/elsewhere"
expect 0 '' "$weft" publish "$store" "$(model 2)" --json
check 'a patch over a stale copy' test "$(field stdout anchored)" = False
check 'one directory for one store, however it is called' \
    test "$(find home/.cache/weft -name mirror.safetensors | wc -l)" -eq 1
expect 0 '' "$weft" pull "$store" out
check 'after all of that' cmp out "$(model 2)"
expect 1 'cannot make the directory' "$weft" publish "$store" "$(model 2)" --cache "$(model 0)/sub"
check 'no HOME' env -u HOME "$weft" publish "$store" "$(model 2)" --cache "$dir/elsewhere"
expect 2 'say where with --cache' env -u HOME "$weft" publish "$store" "$(model 2)"

# ---- the log ----
expect 0 '' "$weft" log "$store"
says stdout '^ +1 +1  20[0-9-]+T[0-9:]+Z  [0-9a-f]{12} .* kept +step=0 note=a$'
says stdout '^12 versions, every link checked$'
expect 0 '' "$weft" log "$store" -n 2
says stdout '^the newest 2 versions, every link checked$'
check 'three lines and a header' test "$(wc -l < stdout)" -eq 4
expect 0 '' "$weft" log "$store" --json
check 'the log as JSON' /usr/bin/python3 - stdout << 'PY'
import json, sys
log = json.load(open(sys.argv[1]))
versions = [entry["version"] for entry in log["versions"]]
assert versions == list(range(12, 0, -1)), versions
assert log["whole"] and log["versions"][-1]["labels"] == {"step": "0", "note": "a"}
assert log["versions"][-1]["anchor_bytes"] > 0 and log["versions"][-1]["patch_bytes"] == 0
assert all(entry["kept"] for entry in log["versions"])
PY
copy_store "$store/pages" pages
for page in $(objects "$store/pages"); do
    change_object "$store/pages" "$page" truncate -s 100
done
expect 3 'pages/' "$weft" log "$store"
move_store pages "$store/pages"

# ---- gc ----
expect 0 '' "$weft" publish "$store" "$(model 3)" --anchor now --keep-anchors 2
says stdout 'wrote an anchor'
expect 0 '' "$weft" publish "$store" "$(model 4)" --anchor now --keep-anchors 2
expect 0 '' "$weft" log "$store"
says stdout '^ +12 .* collected'
says stdout '^ +13 .* kept'
expect 0 '' "$weft" gc "$store" --grace 1h
says stdout 'removed 0 objects'
before=$(objects "$store" | wc -l)
expect 0 '' "$weft" gc "$store" --grace 0 --dry-run
says stdout '^would remove .*patches/'
says stdout 'versions since 13 are kept'
check 'a dry run removes nothing' test "$(objects "$store" | wc -l)" -eq "$before"
expect 0 '' "$weft" gc "$store" --grace 0 --json
check 'objects were removed' test "$(field stdout objects)" -gt 5
left=$(objects "$store" | wc -l)
check 'and are gone' test "$left" -lt "$before"
check 'two anchors are left' test "$(objects "$store/anchors" | wc -l)" -eq 2
expect 0 '' "$weft" gc "$store" --grace 0
check 'a second time nothing more is gone' test "$(objects "$store" | wc -l)" -eq "$left"
expect 0 '' "$weft" log "$store"
says stdout '^14 versions, every link checked$'
expect 0 '' "$weft" pull "$store" newcomer
check 'a newcomer after gc' cmp newcomer "$(model 4)"
expect 0 '' "$weft" pull "$store" newcomer --version 13
check 'the oldest version kept' cmp newcomer "$(model 3)"
expect 1 'no longer kept' "$weft" pull "$store" newcomer --version 3
expect 0 '' "$weft" pull "$store" old-1
check 'one who was away since before the floor' cmp old-1 "$(model 4)"
expect 0 '' "$weft" publish "$store" "$(model 5)" --anchor never --json
check 'never an anchor' test "$(field stdout anchor_bytes)" = 0

# ---- shards ----
for step in 0 1 2; do
    check 'shards' /usr/bin/python3 "$cli/shards.py" "$(model "$step")" "shards-$step"
    expect 0 '' "$weft" publish "$parts" "shards-$step"
    expect 0 '' "$weft" pull "$parts" replica
    check "all files of step $step" diff -r "shards-$step" replica
done
expect 0 '' "$weft" pull "$parts" replica --version 1
check 'shards of version 1' diff -r shards-0 replica
mkdir place
echo '{}' > place/config.json
expect 0 '' "$weft" pull "$parts" place
check 'beside other files' cmp place/config.json <(echo '{}')
check 'into a directory that was there' cmp place/model.safetensors.index.json shards-2/model.safetensors.index.json
# headers that change are carried too
/usr/bin/python3 "$cli/shards.py" "$(model 3)" shards-3
sed -i 's/"pt"/"px"/' shards-3/model-00001-of-00002.safetensors
expect 0 '' "$weft" publish "$parts" shards-3
expect 0 '' "$weft" pull "$parts" replica
check 'another header' diff -r shards-3 replica

# ---- what is refused ----
cp "$(model 6)" foreign
"$weft" bench --make other --params 100K --steps 1 > /dev/null
cp other/step-0.safetensors foreign
expect 2 'of no version of this run' "$weft" pull "$store" foreign
check 'a foreign model is left alone' cmp foreign other/step-0.safetensors
absent .foreign.weft-sync
expect 0 '' "$weft" pull "$store" foreign --replace
check 'unless it may be replaced' cmp foreign "$(model 5)"
echo 'my diary' > diary
expect 2 'not a checkpoint' "$weft" pull "$store" diary
check 'a foreign file is left alone' cmp diary <(echo 'my diary')
expect 2 'follows run' "$weft" pull "$parts" foreign
check 'and so is a replica of another run' cmp foreign "$(model 5)"
expect 1 'cannot' "$weft" pull "$store" missing/directory/out

# another model in the same run: a whole version, for those who follow too
expect 0 '' "$weft" publish "$store" other/step-1.safetensors
expect 0 '' "$weft" pull "$store" out
check 'another model' cmp out other/step-1.safetensors

# a store that was removed and begun again is a run of its own
"$tool" clear "$store"
expect 0 '' "$weft" publish "$store" "$(model 0)"
expect 0 '' "$weft" publish "$store" "$(model 1)" --json
check 'a patch in the new run' test "$(field stdout anchored)" = False
expect 0 '' "$weft" pull "$store" fresh
check 'the new run' cmp fresh "$(model 1)"
expect 2 'follows run' "$weft" pull "$store" out
finish
