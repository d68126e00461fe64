#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A tour of the command on checkpoints that it makes itself: what a training step changes, the patch in
# both profiles, apply, verify, merge, an in-place apply that is killed while it writes, and patches that
# are refused; then a trainer that publishes and two workers that follow, one of which is killed. Everything
# that is said here is checked on the way; if something is not so, the tour stops and fails. Every command is
# printed as it could be typed in the tour's directory.
#
# WEFT names the command (default build/weft); PARAMS the size of the model (default 64M, which takes some
# 700 MB of $TMPDIR while the tour runs), SYNC_PARAMS that of the model that is published (default 32M).
set -euo pipefail
cd "$(dirname "$0")/.."

weft=$(realpath "${WEFT:-build/weft}")
params=${PARAMS:-64M}
sync_params=${SYNC_PARAMS:-32M}
kills=6 # after the first one, which is shown in full

directory=$(mktemp -d "${TMPDIR:-/tmp}/weft-tour.XXXXXX")
child='' server='' worker_a='' worker_b=''

# end PROCESS: kills it, if there is one, and waits until it is gone.
end() {
    if [ -n "$1" ]; then
        kill -9 "$1" 2> /dev/null || true
        wait "$1" 2> /dev/null || true
    fi
}

clean_up() {
    local code=$?
    trap - EXIT
    end "$child"
    end "$worker_a"
    end "$worker_b"
    end "$server"
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

# ---- the trainer and its workers ----

# number NAME FILE: the last number of that name in a file of JSON.
number() {
    sed -n "s/.*\"$1\": *\([-0-9.e]*\).*/\1/p" "$2" | tail -n 1
}

# of_version VERSION NAME FILE: the number of that name in the line about a version; nothing if there is none.
of_version() {
    { grep "\"version\": *$1[,}]" "$3" || true; } | sed -n "s/.*\"$2\": *\([-0-9.e]*\).*/\1/p" | tail -n 1
}

# total NAME FILE: the sum of the numbers of that name.
total() {
    sed -n "s/.*\"$1\": *\([-0-9.e]*\).*/\1/p" "$2" | awk '{ sum += $1 } END { printf "%d", sum }'
}

mebibytes() {
    awk -v bytes="$1" 'BEGIN { printf "%.2f MiB", bytes / 1048576 }'
}

milliseconds_of() {
    awk -v seconds="$1" 'BEGIN { if (seconds == "") print "-"; else printf "%.1f ms", 1000 * seconds }'
}

# await_version VERSION NAME: until that worker has told of that version, or a later one.
await_version() {
    local round
    for round in $(seq 600); do
        if [ "$(number version "$2.log")" -ge "$1" ] 2> /dev/null; then
            return
        fi
        sleep 0.05
    done
    wrong "worker $2 is not at version $1 after $((round / 20)) s: $(tail -n 1 "$2.log")"
}

# publish STEP: the version of that step; what it took goes to published.STEP.
publish() {
    show "weft publish $url step-$1.safetensors --sign trainer.key --label step=$1"
    weft publish "$url" "step-$1.safetensors" --sign trainer.key --label "step=$1" --cache cache --json \
        > "published.$1" || wrong "that failed"
    printf 'version %d: %s in %s\n' "$(number version "published.$1")" \
        "$(mebibytes "$(number uploaded_bytes "published.$1")")" \
        "$(milliseconds_of "$(number seconds "published.$1")")"
}

# follow NAME: starts a worker. Sets worker.
follow() {
    weft follow "$url" "$1.safetensors" --trust trainer.key.pub --until 6 --json >> "$1.log" 2>> "$1.talk" &
    worker=$!
}

# The worker must end by itself, at the last version.
expect_end() {
    wait "$1" || wrong "worker $2 failed: $(cat "$2.talk")"
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

title "PULSESync: a trainer publishes five steps over HTTP, two workers follow"
rm -f ./*.safetensors ./*.weft
weft bench --quiet --make . --params "$sync_params" --steps 5
run weft keygen trainer.key
show "weft serve store --listen 127.0.0.1:0 --url-file url &"
weft serve store --listen 127.0.0.1:0 --url-file url 2> server.talk &
server=$!
for _ in $(seq 200); do
    [ ! -s url ] || break
    sleep 0.05
done
[ -s url ] || wrong "the server does not answer: $(cat server.talk)"
url=$(cat url)
show "weft follow $url a.safetensors --trust trainer.key.pub &   # worker a, and the same for b"
follow a
worker_a=$worker
follow b
worker_b=$worker
for step in 0 1 2; do
    publish "$step"
    await_version $((step + 1)) a
    await_version $((step + 1)) b
done
say "Now worker b is killed while version 4 comes in, and misses version 5."
instant=$(random_instant 300)
(sleep "$instant" && kill -9 "$worker_b") &
child=$!
# the shell would tell of the death on stderr
{
    publish 3
    wait "$child" || true
    wait "$worker_b" || true
} 2> /dev/null
child='' worker_b=''
publish 4
await_version 5 a
state=$(digest_of b.safetensors)
for step in 0 1 2 3 4; do
    [ "$state" != "$(digest_of step-$step.safetensors)" ] || break
done
cmp -s b.safetensors "step-$step.safetensors" || wrong "b.safetensors is no version that was published"
right "killed after $instant s, b holds version $((step + 1)), every byte of it"
show "weft follow $url b.safetensors --trust trainer.key.pub &   # b comes back"
mv b.log b.first
follow b
worker_b=$worker
await_version 5 b
right "b has caught up in $(wc -l < b.log) step(s), $(mebibytes "$(total fetched_bytes b.log)") fetched"
publish 5
expect_end "$worker_a" a
expect_end "$worker_b" b
worker_a='' worker_b=''
cat b.log >> b.first
mv b.first b.log

echo
say "Latency: from the start of publish until the weights are in place. Pause: while they are written."
printf '%9s %12s %12s %12s %12s %12s\n' version published "a: latency" pause "b: latency" pause
sent=0
for step in 0 1 2 3 4 5; do
    version=$((step + 1))
    [ "$step" -eq 0 ] || sent=$((sent + $(number uploaded_bytes "published.$step")))
    printf '%9s %12s' "$version" "$(mebibytes "$(number uploaded_bytes "published.$step")")"
    for name in a b; do
        printf ' %12s %12s' "$(milliseconds_of "$(of_version "$version" lag_seconds "$name.log")")" \
            "$(milliseconds_of "$(of_version "$version" commit_seconds "$name.log")")"
    done
    printf '\n'
done
full=$((5 * $(stat -c %s step-5.safetensors)))
right "five steps: $(mebibytes "$sent") sent; five full syncs are $(mebibytes "$full"), $((full / sent)) times that"
for name in step-5 a b; do
    run weft digest "$name.safetensors"
    cmp -s step-5.safetensors "$name.safetensors" || wrong "$name is not what the trainer has"
done
right "trainer and workers are equal, every byte"

printf '\n%sDone in %d s. More: weft help, README.md, doc/ARCHITECTURE.md.%s\n' "$bold" \
    $((SECONDS - started)) "$plain"
