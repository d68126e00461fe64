#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# follow: a line and a command for each version, signals, kills at any time, outages that heal
# and errors that do not.
. "$(dirname "$0")/sync.sh"
store=$(place store)
elsewhere=$(place elsewhere)

expect 2 'keep up to date' "$weft" follow "$store"
expect 2 'number of a version' "$weft" follow "$store" out --until x
expect 2 'length of time' "$weft" follow "$store" out --poll 0
expect 2 'takes a number' "$weft" follow "$store" out --max-failures many

# line FILE VERSION: the line of a version has come
line() { grep -q "\"version\": $2," "$1"; }

# ---- from an empty store on, one version after the other ----
begin follower follow "$store" out --until 5 --json \
    --exec 'echo "$WEFT_VERSION $WEFT_DIGEST $WEFT_OUT $WEFT_STORE $WEFT_LABEL_STEP_NO $WEFT_LABEL_ONCE" >> calls
            cp "$WEFT_OUT" "copy-$WEFT_VERSION"; echo spoken; exit 3'
follower=$pid
for step in 0 1 2 3 4; do
    once=()
    [ "$step" -ne 2 ] || once=(--label once=yes)
    expect 0 '' "$weft" publish "$store" "$(model "$step")" --label "step-no=$step" "${once[@]}"
    await "version $((step + 1))" line follower.out $((step + 1))
done
ended 0 "$follower" follower
check 'the last version' cmp out "$(model 4)"
for step in 0 1 2 3 4; do
    check "what CMD saw of step $step" cmp "copy-$((step + 1))" "$(model "$step")"
    once=
    [ "$step" -ne 2 ] || once=yes
    says calls "^$((step + 1)) $(digest "$(model "$step")") out $store $step $once\$"
done
check 'a call for each version' test "$(wc -l < calls)" -eq 5
check 'a line for each version' test "$(wc -l < follower.out)" -eq 5
silent follower.out spoken
says follower.err '^spoken$'
says follower.err 'exit code 3 for version 1; following on'
check 'lines of JSON' /usr/bin/python3 - follower.out << 'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert [line["version"] for line in lines] == [1, 2, 3, 4, 5]
assert lines[0]["anchor"] and not lines[4]["anchor"]
assert lines[2]["labels"] == {"step-no": "2", "once": "yes"}
for line in lines:
    assert 0 <= line["lag_seconds"] < 300 and line["fetched_bytes"] > 0
    for phase in ("wait", "fetch", "decode", "verify", "commit"):
        assert line[phase + "_seconds"] >= 0
PY

# ---- what opens the store is not handed to CMD, and what others have called a label is none of this version ----
expect 0 '' "$weft" publish plain "$(model 0)" --label step=7 --cache plain-cache -q
secrets=(WEFT_TOKEN AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_SECURITY_TOKEN
    AWS_CONTAINER_AUTHORIZATION_TOKEN)
expect 0 '*' env "${secrets[@]/%/=hidden}" WEFT_TOKENS=mine AWS_REGION=here WEFT_LABEL_OLD=stale WEFT_LABEL_STEP=6 \
    WEFT_VERSION=99 "$weft" follow plain plain-out --until 1 --exec 'env > environment'
silent environment 'hidden|stale'
says environment '^WEFT_TOKENS=mine$'
says environment '^AWS_REGION=here$'
says environment '^WEFT_LABEL_STEP=7$'
says environment '^WEFT_VERSION=1$'
says environment "^PATH=$PATH\$"
check 'each variable once' test -z "$(cut -d= -f1 environment | sort | uniq -d)"

# ---- text, --until that is behind, CMD at the start, --exec-fatal ----
expect 0 'out is at version 5 already' "$weft" follow "$store" out --until 2 --exec 'echo again >> calls'
says calls again
expect 0 '' "$weft" follow "$store" fresh --until 1
says stdout '^version [0-9]+ .* lag .* wait .* fetch .* decode .* verify .* commit '
expect 1 'was ended by signal 9 for version' "$weft" follow "$store" fatal --exec 'kill -9 $$' --exec-fatal
expect 0 '*' "$weft" follow -q "$store" silent --until 5
check 'quiet' test ! -s stdout

# ---- signals ----
for signal in INT TERM; do
    # the background makes its own in its own time
    rm -f signal.err
    # a background job of a shell ignores SIGINT
    /usr/bin/python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$weft" follow "$store" out > signal.out 2> signal.err &
    pid=$!
    children+=("$pid")
    await 'a follower' grep -q already signal.err
    kill "-$signal" "$pid"
    ended $((128 + $(kill -l "$signal"))) "$pid" signal
    says signal.err interrupted
done
# a hangup too, unless it is to be ignored, as under nohup
rm -f signal.err
begin signal follow "$store" out
await 'a follower' grep -q already signal.err
kill -HUP "$pid"
ended 129 "$pid" signal
trap '' HUP
begin nohup follow "$store" out
trap - HUP
await 'a follower' grep -q already nohup.err
kill -HUP "$pid"
kill -TERM "$pid"
ended 143 "$pid" nohup
# while CMD runs, it is told too
begin busy follow "$store" out --exec 'echo $$ > shell.pid; exec sleep 1000'
await 'CMD' test -s shell.pid
kill -TERM "$pid"
ended 143 "$pid" busy
await 'CMD has ended' test ! -e "/proc/$(cat shell.pid)/exe"

# ---- two on one OUT ----
begin first follow "$store" out
first=$pid
await 'the first' grep -q already first.err
expect 1 '(in use|busy|another process|locked)' "$weft" pull "$store" out
expect 1 '*' "$weft" follow "$store" out --max-failures 3
kill -KILL "$first"
wait "$first" 2> /dev/null
begin second follow "$store" out --until 6
expect 0 '' "$weft" publish "$store" "$(model 5)"
ended 0 "$pid" second
check 'after the first was killed' cmp out "$(model 5)"

# ---- killed again and again while versions come ----
(
    for round in 1 2 3 4; do
        for step in 0 1 2 3 4 5 6; do
            "$weft" publish -q "$store" "$(model "$step")" || echo failed >> publishing
        done
    done
) &
publisher=$!
children+=("$publisher")
kills=0
while kill -0 "$publisher" 2> /dev/null; do
    begin killed follow "$store" victim
    sleep "0.0$((RANDOM % 10))"
    kill -KILL "$pid"
    wait "$pid" 2> /dev/null
    kills=$((kills + 1))
    if [ -e victim ] && [ ! -e .victim.weft-journal ]; then
        "$weft" digest victim > victim.digest 2> victim.err || grep -q recover victim.err || fail "$(cat victim.err)"
    fi
done
wait "$publisher"
absent publishing
echo "$kills kills"
expect 0 '*' "$weft" pull "$store" victim --verify full
check 'after all kills' cmp victim "$(model 6)"
check 'no draft is left' test -z "$(find . -maxdepth 1 -name '.victim*' ! -name .victim.weft-sync)"

# ---- what heals ----
newest=$("$weft" log "$store" -n 1 --json | /usr/bin/python3 -c 'import json, sys
print(json.load(sys.stdin)["versions"][0]["version"])')
move_store "$store/pages" pages
begin patient follow "$store" patient
await 'told once' grep -q 'trying again' patient.err
check 'told only once' test "$(grep -c 'trying again' patient.err)" -eq 1
move_store pages "$store/pages"
await 'back' grep -q 'back again' patient.err
await 'and there' cmp patient "$(model 6)"
kill -TERM "$pid"
ended 143 "$pid" patient
move_store "$store/pages" pages
expect 1 'pages/' "$weft" follow "$store" other --max-failures 2
move_store pages "$store/pages"
absent other

# a follower whose file somebody has changed goes round by an anchor
"$weft" pull -q "$store" out
begin healing follow "$store" out --until $((newest + 1)) --json
healing=$pid
await 'at the newest' grep -q already healing.err
printf 'drift' | dd of=out bs=1 seek=100000 conv=notrunc status=none
expect 0 '' "$weft" publish "$store" "$(model 1)" --anchor now
ended 0 "$healing" healing
check 'after drift' cmp out "$(model 1)"

# ---- what does not heal ----
echo 'my diary' > diary
expect 2 'not a checkpoint' "$weft" follow "$store" diary
"$weft" publish -q "$elsewhere" "$(model 6)"
expect 2 'follows run' "$weft" follow "$elsewhere" out
expect 2 'this build understands' "$weft" follow gopher://x out
check 'OUT was left alone' cmp out "$(model 1)"
finish
