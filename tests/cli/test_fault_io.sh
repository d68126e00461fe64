#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Local input and output that fails, and kills at chosen calls, by tests/support/fault_io.c. Each call that
# the command makes on its output's directory fails once, and is once the last thing that the process does.
. "$(dirname "$0")/common.sh"

find_fault_io

/usr/bin/python3 -B "$cli/checkpoints.py" "$dir"
mkdir place
"$weft" diff base.safetensors next.safetensors -o 1.weft -q > /dev/null || exit 99
"$weft" diff base.safetensors grown.safetensors -o grow.weft -q > /dev/null || exit 99

# faulty NAME=VALUE... COMMAND...: runs it with WEFT_FAULT_NAME=VALUE... on files in place/.
faulty() {
    local settings=()
    while [[ $1 == *=* ]]; do
        settings+=("WEFT_FAULT_$1")
        shift
    done
    rm -f strikes
    env LD_PRELOAD="$fault_io" WEFT_FAULT_PATH="$dir/place" WEFT_FAULT_LOG="$dir/strikes" \
        "${settings[@]}" "$@"
}

# refill: what stands at the outputs before a run.
refill() {
    rm -rf place
    mkdir place
    cp base.safetensors place/work.safetensors
    echo precious > place/out
}

# same FILE EXPECTED WHAT
same() {
    check "$3: $1 is not $2" cmp "$1" "$2"
}

# ---- errors ----
# fail_each ERRNO PATTERN WANTED COMMAND...: fails each call in turn, until none is left to fail. Each
# failure is exit code 1 with a message, leaves both files as they were, and nothing else. WANTED is where
# the result is in the end: FILE:CONTENT.
fail_each() {
    local errno=$1 pattern=$2 wanted=$3 n
    shift 3
    for ((n = 1; n < 200; n++)); do
        refill
        faulty "AT=$n" "ERRNO=$errno" "$@" > stdout 2> stderr
        local code=$?
        if [ ! -e strikes ]; then
            break
        fi
        checks=$((checks + 1))
        local what
        what="$errno at call $n ($(cat strikes)) of $*"
        [ "$code" -eq 1 ] || fail "$what: exit code $code"
        grep -Eq "^weft.*($pattern)" stderr || fail "$what: said $(cat stderr)"
        [ "$(wc -l < stderr)" -eq 1 ] || fail "$what: said $(cat stderr)"
        same place/out <(echo precious) "$what"
        same place/work.safetensors base.safetensors "$what"
        entries place 2
    done
    [ "$n" -gt 2 ] && [ "$n" -lt 200 ] || fail "$* failed at $((n - 1)) calls"
    [ "$code" -eq 0 ] || fail "$* without faults: exit code $code: $(cat stderr)"
    same "${wanted%:*}" "${wanted#*:}" "$*"
}

fail_each ENOSPC 'No space' place/out:1.weft \
    "$weft" diff -q base.safetensors next.safetensors -o place/out
fail_each EIO 'Input/output error' place/out:next.safetensors \
    "$weft" apply -q base.safetensors 1.weft -o place/out
fail_each ENOSPC 'No space' place/work.safetensors:next.safetensors \
    "$weft" apply -q --in-place place/work.safetensors 1.weft

# a disk that is full stays full
refill
faulty AT=1+ CALL=write,allocate ERRNO=ENOSPC "$weft" apply -q base.safetensors 1.weft -o place/out 2> stderr
[ $? -eq 1 ] || fail 'a full disk is not a failure'
same place/out <(echo precious) 'a full disk'
# calls elsewhere do not count
expect 0 '*' faulty AT=1+ "$weft" apply -q base.safetensors 1.weft -o elsewhere
absent strikes
# the same dice, the same strikes
for round in 1 2; do
    refill
    faulty PROBABILITY=0.5 SEED=7 "$weft" diff -q base.safetensors next.safetensors -o place/out 2> /dev/null
    mv strikes strikes-$round 2> /dev/null || : > strikes-$round
    sed -i 's/\.[0-9a-f]*\.tmp$//' strikes-$round
done
check 'some strikes' test -s strikes-1
same strikes-1 strikes-2 'equal seeds'

# ---- kills ----
# kill_each KILL NEW COMMAND...: kills at each call in turn. The next command finds the old state or the new
# one, and tidies up.
kill_each() {
    local kill=$1 new=$2 n old_seen=0 new_seen=0
    shift 2
    for ((n = 1; n < 200; n++)); do
        refill
        (faulty "AT=$n" "KILL=$kill" "$@" > /dev/null 2>&1)
        local code=$?
        if [ ! -e strikes ]; then
            break
        fi
        local what
        what="kill=$kill at call $n ($(cat strikes)) of $*"
        [ "$code" -eq 137 ] || fail "$what: exit code $code"
        expect 0 '*' "$weft" apply -q --in-place place/work.safetensors --recover
        if cmp -s place/work.safetensors base.safetensors; then
            old_seen=$((old_seen + 1))
        elif cmp -s place/work.safetensors "$new"; then
            new_seen=$((new_seen + 1))
        else
            fail "$what: neither the old state nor the new one"
        fi
        entries place 2
    done
    [ "$n" -lt 200 ] || fail "$* has too many calls"
    [ "$old_seen" -gt 0 ] && [ "$code" -eq 0 ] || fail "$*: $old_seen old, $new_seen new, exit code $code"
    same place/work.safetensors "$new" "$*"
    echo "kill=$kill: $old_seen times the old state, $new_seen times the new one"
}

kill_each 1 next.safetensors "$weft" apply -q --in-place place/work.safetensors 1.weft
kill_each 1 next.safetensors "$weft" apply -q --durable --in-place place/work.safetensors 1.weft
kill_each half next.safetensors "$weft" apply -q --in-place place/work.safetensors 1.weft
kill_each half grown.safetensors "$weft" apply -q --in-place place/work.safetensors grow.weft

# ---- the clock ----
now() { faulty CLOCK="$dir/shift" /usr/bin/python3 -c 'import time; print(int(time.time()))'; }
echo -86400 > shift
before=$(date +%s)
shifted=$(now)
after=$(date +%s)
checks=$((checks + 1))
[ "$shifted" -ge $((before - 86401)) ] && [ "$shifted" -le $((after - 86399)) ] ||
    fail "a day back from $before is $shifted"
rm shift
checks=$((checks + 1))
[ "$(now)" -ge "$before" ] || fail 'the clock did not come back'

# ---- pauses, and ages ----
refill
rm -f strikes
env LD_PRELOAD="$fault_io" WEFT_FAULT_PATH="$dir/place" WEFT_FAULT_LOG="$dir/strikes" WEFT_FAULT_AT=2 \
    WEFT_FAULT_STOP=1 "$weft" apply -q --in-place place/work.safetensors 1.weft &
stopped=$!
for ((n = 0; n < 12000; n++)); do
    grep -q '^State:.*stopped' "/proc/$stopped/status" && break
    sleep 0.01
done
check 'it stands still' grep -q '^State:.*stopped' "/proc/$stopped/status"
kill -CONT "$stopped"
check 'it goes on' wait "$stopped"
same place/work.safetensors next.safetensors 'after a pause'
# what no history names goes when it is old
for model in base next; do
    "$weft" publish -q place/store "$model.safetensors" --cache cache > /dev/null || exit 99
done
leftover=place/store/patches/00000001-0000000001-0123456789abcdef
echo leftover > "$leftover"
check 'gc' "$weft" gc -q place/store --grace 0
check 'it is not old' test -e "$leftover"
check 'gc of what is old' faulty AGE=86400 "$weft" gc -q place/store --grace 0
absent "$leftover"
finish
