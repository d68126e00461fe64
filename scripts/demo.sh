#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A tour of the command on checkpoints that it makes itself: what a training step changes, the patch in
# both profiles, apply, verify, merge, an in-place apply that is killed while it writes, and patches that
# are refused. Everything that is said here is checked on the way; if something is not so, the tour stops
# and fails. Every command is printed as it could be typed in the tour's directory.
#
# WEFT names the command (default build/weft); PARAMS the size of the model (default 64M, which takes some
# 700 MB of $TMPDIR while the tour runs).
set -euo pipefail
cd "$(dirname "$0")/.."

weft=$(realpath "${WEFT:-build/weft}")
params=${PARAMS:-64M}
kills=6 # after the first one, which is shown in full

directory=$(mktemp -d "${TMPDIR:-/tmp}/weft-demo.XXXXXX")
child=

clean_up() {
    local code=$?
    trap - EXIT
    if [ -n "$child" ]; then
        kill -9 "$child" 2> /dev/null || true
        wait "$child" 2> /dev/null || true
    fi
    rm -rf "$directory"
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

bold='' dim='' green='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
fi

# ---- how things are said ----

section=0
title() {
    section=$((section + 1))
    printf '\n%s%d. %s%s\n\n' "$bold" "$section" "$1" "$plain"
}

say() {
    printf '%s%s%s\n' "$dim" "$1" "$plain"
}

show() {
    printf '%s$ %s%s\n' "$bold" "$1" "$plain"
}

right() {
    printf '%s✓ %s%s\n' "$green" "$1" "$plain"
}

wrong() {
    printf '%s✗ %s%s\n' "$red" "$1" "$plain"
    exit 1
}

# run COMMAND...: prints a command, runs it, and stops the tour if it fails.
run() {
    show "$*"
    "$@" 2>&1 || wrong "that failed with exit code $?"
}

# refuse CODE COMMAND...: prints a command and runs it; it must end with that exit code.
refuse() {
    local wanted=$1 code=0
    shift
    show "$*"
    "$@" 2>&1 || code=$?
    [ "$code" -eq "$wanted" ] || wrong "exit code $code, not $wanted"
    right "refused, exit code $code"
}

digest_of() {
    weft digest --json "$1" 2> /dev/null | sed -n 's/.*"digest": *"\([0-9a-f]*\)".*/\1/p' | head -n 1
}

# How many bytes of two files differ.
differing() {
    { cmp -l "$1" "$2" || true; } | wc -l
}

# ---- the kill ----

# How long an undisturbed in-place apply takes, in milliseconds.
measure_apply() {
    local start end
    cp step-0.safetensors worker.safetensors
    start=$(date +%s%N)
    weft apply --quiet --in-place worker.safetensors 1.weft
    end=$(date +%s%N)
    echo $(((end - start) / 1000000))
}

random_instant() {
    local milliseconds=$((RANDOM % $1 + 1))
    printf '%d.%03d' $((milliseconds / 1000)) $((milliseconds % 1000))
}

# kill_apply SECONDS: starts an in-place apply and kills it after so long. False if it was done by then.
kill_apply() {
    local code=0
    weft apply --quiet --in-place worker.safetensors 1.weft &
    child=$!
    sleep "$1"
    kill -9 "$child" 2> /dev/null || true
    { wait "$child" || code=$?; } 2> /dev/null
    child=
    [ "$code" -eq 137 ]
}

# Starts from the old state and kills at random instants until one falls into the work. Sets instant,
# left (what lies beside the file), and the bytes in which the file differs from both states.
kill_once() {
    local round
    for round in $(seq 50); do
        cp step-0.safetensors worker.safetensors
        instant=$(random_instant "$1")
        if kill_apply "$instant"; then
            from_old=$(differing step-0.safetensors worker.safetensors)
            from_new=$(differing step-1.safetensors worker.safetensors)
            left=nothing
            [ ! -e worker.safetensors.weft-journal-new ] || left="unfinished journal"
            [ ! -e worker.safetensors.weft-journal ] || left="whole journal"
            return
        fi
    done
    wrong "$round in-place applies ended before they could be killed"
}

# The same until a kill falls between the first and the last changed weight, where the file is neither
# state. After fifteen that did not, the last one will do.
kill_between() {
    local round
    for round in $(seq 15); do
        kill_once "$1"
        if [ "$from_old" -gt 0 ] && [ "$from_new" -gt 0 ]; then
            return
        fi
        settle
    done
    kill_once "$1"
}

# Asks for the digest, which settles what the kill left, and compares. Sets settled to old or new.
settle() {
    local digest
    digest=$(digest_of worker.safetensors)
    case $digest in
        "$old_digest") settled=old ;;
        "$new_digest") settled=new ;;
        *) wrong "the file is at $digest, which is neither the old nor the new state" ;;
    esac
    cmp -s "worker.safetensors" "$([ $settled = old ] && echo step-0 || echo step-1).safetensors" ||
        wrong "the digest is that of the $settled state, the bytes are not"
    if compgen -G 'worker.safetensors.weft-journal*' > /dev/null; then
        wrong "a journal is still there"
    fi
}

# ---- the tour ----

started=$SECONDS
mkdir "$directory/bin"
ln -s "$weft" "$directory/bin/weft"
export PATH=$directory/bin:$PATH
cd "$directory"

printf '%sweft: exact sparse patches between model checkpoints%s\n' "$bold" "$plain"
say "$(weft --version); $(nproc) processors; working in $directory"

title "Three checkpoints, as a trainer leaves them after two optimizer steps"
say "Synthetic, from a fixed seed; weft bench --help has the formula. BF16, learning rate 1e-6."
run weft bench --make . --params "$params" --steps 2
run ls -l --block-size=M step-0.safetensors step-1.safetensors step-2.safetensors

title "What changed in a step, where, and how many bits that is"
run weft stats step-0.safetensors step-1.safetensors --top 3

title "The patch: small for slow links, fast for fast ones"
run weft diff step-0.safetensors step-1.safetensors -o 1.weft --label step=1
echo
run weft diff step-0.safetensors step-1.safetensors -o 1-fast.weft --profile fast
full=$(stat -c %s step-1.safetensors)
small=$(stat -c %s 1.weft)
fast=$(stat -c %s 1-fast.weft)
if [ "$small" -ge "$fast" ] || [ $((fast * 20)) -ge "$full" ]; then
    wrong "the patches are not small"
fi
right "full file $full bytes; fast $fast, 1/$((full / fast)) of it; small $small, 1/$((full / small))"

title "Apply gives back the new file, every byte of it"
run weft apply step-0.safetensors 1.weft -o made.safetensors
run cmp made.safetensors step-1.safetensors
run weft apply step-0.safetensors 1-fast.weft -o made-fast.safetensors
run cmp made-fast.safetensors step-1.safetensors
right "byte for byte the file that was diffed"
rm made.safetensors made-fast.safetensors

title "Verify: is this checkpoint the patch's base, its result, or neither?"
run weft verify step-1.safetensors 1.weft
echo
refuse 3 weft apply step-2.safetensors 1.weft -o wrong.safetensors
[ ! -e wrong.safetensors ] || wrong "something was written"

title "Merge: a worker that missed a step fetches one patch"
run weft diff step-1.safetensors step-2.safetensors -o 2.weft --label step=2 --quiet
run weft merge --base step-0.safetensors 1.weft 2.weft -o 1-2.weft
run weft apply step-0.safetensors 1-2.weft -o caught-up.safetensors
run cmp caught-up.safetensors step-2.safetensors
right "the same bytes as step by step, in a patch smaller than the two"
[ "$(stat -c %s 1-2.weft)" -lt $((small + $(stat -c %s 2.weft))) ] || wrong "it is not smaller"
rm caught-up.safetensors step-2.safetensors

title "In place, killed at a random instant"
old_digest=$(digest_of step-0.safetensors)
new_digest=$(digest_of step-1.safetensors)
milliseconds=$(measure_apply)
say "Undisturbed it takes $milliseconds ms. All changes are written to a journal beside the file before"
say "the first weight is touched. Killed without a whole journal, the file is at the old state; with one,"
say "the next command completes the new state."
kill_between "$milliseconds"
show "cp step-0.safetensors worker.safetensors"
show "weft apply --in-place worker.safetensors 1.weft & sleep $instant; kill -9 \$!"
show "ls worker.safetensors*"
ls worker.safetensors*
if [ "$from_old" -gt 0 ] && [ "$from_new" -gt 0 ]; then
    echo "the file is in between: $from_old bytes differ from the old state, $from_new from the new one"
else
    echo "$from_old bytes differ from the old state, $from_new from the new one"
fi
run weft digest worker.safetensors
settle
right "the $settled state, exactly"
echo
say "Again, $kills times, at any instant:"
printf '%10s  %-20s %16s %16s   %s\n' "killed" "left beside" "differ from old" "from new" "next command"
for _ in $(seq "$kills"); do
    kill_once "$milliseconds"
    settle
    printf '%8s s  %-20s %16s %16s   %s state\n' "$instant" "$left" "$from_old" "$from_new" "$settled"
done
right "always the old or the new state, never between"

title "One wrong bit in a patch of $small bytes: refused before anything is touched"
cp step-0.safetensors worker.safetensors
# Anywhere behind the preamble, where a length beyond the reader's limit would be exit code 1.
offset=$((64 + (RANDOM * 32768 + RANDOM) % (small - 64)))
byte=$(od -An -tu1 -j "$offset" -N 1 1.weft | tr -d ' ')
flipped=$(printf '\\x%02x' $((byte ^ (1 << RANDOM % 8))))
run cp 1.weft damaged.weft
show "printf '$flipped' | dd of=damaged.weft bs=1 seek=$offset conv=notrunc status=none"
# shellcheck disable=SC2059 # the format is the byte
printf "$flipped" | dd of=damaged.weft bs=1 seek="$offset" conv=notrunc status=none
refuse 3 weft apply --in-place worker.safetensors damaged.weft
run cmp worker.safetensors step-0.safetensors
right "the checkpoint is untouched"

printf '\n%sDone in %d s. More: weft help, README.md, doc/ARCHITECTURE.md.%s\n' "$bold" \
    $((SECONDS - started)) "$plain"
