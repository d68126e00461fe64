#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Who is believed: keys, signed heads, heads that somebody puts back, and publishers that take over from each
# other.
. "$(dirname "$0")/sync.sh"
store=$(place store)

# ---- keygen ----
expect 2 'where to write' "$weft" keygen
expect 0 '' "$weft" keygen key
check 'the secret half is private' test "$(stat -c %a key)" = 600
public=$(openssl pkey -pubin -in key.pub -outform DER | tail -c 32 | od -An -tx1 | tr -d ' \n')
says stdout "^public key +$public\$"
check 'the halves belong together' cmp <(openssl pkey -in key -pubout) key.pub
cp key key.copy
expect 2 'key exists; a key is never overwritten' "$weft" keygen key
check 'it was not' cmp key key.copy
rm key
expect 2 'key.pub exists' "$weft" keygen key
absent key
mv key.copy key
expect 1 'cannot create' "$weft" keygen missing/key
expect 0 '' "$weft" keygen other --json
check 'as JSON' test "$(field stdout secret_file)" = other

# ---- keys that cannot be used ----
expect 2 'key.pub is a public key, which cannot sign' "$weft" publish "$store" "$(model 0)" --sign key.pub
expect 1 'weft keygen makes one' "$weft" publish "$store" "$(model 0)" --sign missing
expect 3 'is not an Ed25519 key' "$weft" publish "$store" "$(model 0)" --sign "$(model 0)"
openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa 2> /dev/null
expect 3 'is not an Ed25519 key' "$weft" publish "$store" "$(model 0)" --sign rsa
vacant "$store"
openssl genpkey -algorithm ED25519 -out made 2> /dev/null
chmod 600 made
expect 0 '' "$weft" publish "$(place elsewhere)" "$(model 0)" --sign made
for mode in 640 604; do
    chmod "$mode" made
    expect 0 'warning: others can read the secret key made; run chmod 600 on it' \
        "$weft" publish "$(place elsewhere)" "$(model 0)" --sign made
done
expect 0 '' "$weft" publish "$(place elsewhere)" "$(model 0)" --sign made -q
chmod 644 key.pub

# ---- signed, and not ----
expect 0 '' "$weft" publish "$store" "$(model 0)" --sign key
expect 0 '' "$weft" publish "$store" "$(model 1)" --sign key
expect 0 '' "$weft" pull "$store" out --trust key.pub
check 'with the right key' cmp out "$(model 1)"
expect 0 '' "$weft" pull "$store" secret --trust key
expect 0 '' "$weft" pull "$store" trusting
check 'without a key' cmp trusting "$(model 1)"
expect 3 'sign' "$weft" pull "$store" wrong --trust other.pub
absent wrong
expect 3 'sign' "$weft" follow "$store" wrong --trust other.pub
expect 3 'sign' "$weft" log "$store" --trust other.pub
expect 3 'sign' "$weft" gc "$store" --trust other.pub
expect 1 'weft keygen makes one' "$weft" pull "$store" wrong --trust missing.pub
expect 0 '' "$weft" log "$store" --trust key.pub
says stdout '2 versions, every link checked, signed by the key that is trusted'
expect 0 '' "$weft" gc "$store" --trust key.pub

# ---- one key for two runs: the other's head is signed, too ----
twin=$(place twin)
expect 0 '' "$weft" publish "$twin" "$(model 3)" --sign key --json
run=$(field stdout run)
expect 0 '' "$weft" pull "$twin" its --trust key.pub --run "$run"
for verb in 'pull "$store" shown' 'follow "$store" shown' 'log "$store"' 'gc "$store"'; do
    eval "set -- $verb"
    expect 3 "trusted for run $run only" "$weft" "$@" --trust key.pub --run "$run"
done
absent shown
expect 2 'give the key too' "$weft" pull "$twin" shown --run "$run"
expect 2 'not the name of a run' "$weft" pull "$twin" shown --trust key.pub --run Run-7

# ---- an older state that somebody puts back ----
copy_store "$store" older
expect 0 '' "$weft" publish "$store" "$(model 2)" --sign key
expect 0 '' "$weft" pull "$store" out --trust key.pub
move_store "$store" newer
copy_store older "$store"
expect 1 'no head as new as one that was seen' "$weft" pull "$store" out --trust key.pub
check 'the replica has not gone back' cmp out "$(model 2)"
begin waiting follow "$store" out --trust key.pub --until 3
await 'told' grep -q 'no head as new' waiting.err
check 'nor has the follower' cmp out "$(model 2)"
move_store newer "$store"
ended 0 "$pid" waiting
expect 0 '' "$weft" pull "$store" out --trust key.pub

# somebody without the key publishes
forged=$(place forged)
copy_store "$store" "$forged"
expect 0 '' "$weft" publish "$forged" "$(model 5)" --cache forger
move_store "$store" real
move_store "$forged" "$store"
expect 3 'sign' "$weft" pull "$store" out --trust key.pub
check 'what is not signed is not taken' cmp out "$(model 2)"
move_store real "$store"
# objects that are exchanged are found by their hashes
broken=$(place broken)
copy_store "$store" "$broken"
for object in $(objects "$broken" | grep -E '^(patches|anchors)/'); do
    change_object "$broken" "$object" overwrite
done
expect 3 '(damaged|hash|missing)' "$weft" pull "$broken" victim --trust key.pub
absent victim

# ---- publishers that take over from each other ----
expect 0 '' "$weft" publish "$store" "$(model 3)" --sign key --cache here --json
first=$(field stdout epoch)
expect 0 '' "$weft" publish "$store" "$(model 4)" --sign key --cache there --json
check 'from the store alone, as a patch' test "$(field stdout anchored)" = False
check 'with an epoch of its own' test "$(field stdout epoch)" -gt "$first"
expect 0 '' "$weft" publish "$store" "$(model 5)" --sign key --cache here --json
check 'and back' test "$(field stdout anchored)" = False
expect 0 '' "$weft" pull "$store" out --trust key.pub
check 'nothing was lost on the way' cmp out "$(model 5)"
expect 0 '' "$weft" pull "$store" out --trust key.pub --version 5
check 'the version of the second' cmp out "$(model 4)"

# who signs goes on only with what the same key has signed, unless told to
expect 3 '(--adopt)' "$weft" publish "$store" "$(model 0)" --sign other --cache there
expect 0 '' "$weft" pull "$store" out --trust key.pub
check 'nothing was published' cmp out "$(model 5)"
unsigned=$(place unsigned)
"$weft" publish -q "$unsigned" "$(model 0)"
expect 3 '(--adopt)' "$weft" publish "$unsigned" "$(model 1)" --sign key
expect 0 '' "$weft" publish "$unsigned" "$(model 1)" --sign key --adopt
expect 0 '' "$weft" pull "$unsigned" adopted --trust key.pub
check 'adopted' cmp adopted "$(model 1)"

# at the same time: each either publishes or is refused, and the store stays good
for round in 1 2 3; do
    begin one publish "$store" "$(model 1)" --sign key --cache here
    one=$pid
    begin two publish "$store" "$(model 2)" --sign key --cache there
    got=0
    wait "$one" || got=$?
    [ "$got" -eq 0 ] || [ "$got" -eq 4 ] || fail "one ended with $got: $(cat one.err)"
    got=0
    wait "$pid" || got=$?
    [ "$got" -eq 0 ] || [ "$got" -eq 4 ] || fail "two ended with $got: $(cat two.err)"
    checks=$((checks + 2))
done
expect 0 '' "$weft" log "$store" --trust key.pub
expect 0 '' "$weft" pull "$store" out --trust key.pub --verify full
expect 0 '' "$weft" publish "$store" "$(model 6)" --sign key --cache here
expect 0 '' "$weft" pull "$store" out --trust key.pub
check 'after the quarrel' cmp out "$(model 6)"
finish
