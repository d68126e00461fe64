#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft demo`: a short one comes to its end with a summary and a report; one that is interrupted, terminated or
# killed leaves neither processes nor, but for a kill, files; and it fails as a whole when one of its processes does.
. "$(dirname "$0")/common.sh"

export TMPDIR=$dir/tmp XDG_CACHE_HOME=$dir/cache
mkdir "$TMPDIR"

# Processes that have the demo's directory on their command line. The pattern is in a file: grep has one too.
echo "$TMPDIR/weft-demo." > pattern
left_processes() {
    grep -lsaF -f "$dir/pattern" /proc/[0-9]*/cmdline
}

no_processes() {
    for _ in $(seq 1200); do
        [ -n "$(left_processes)" ] || return 0
        sleep 0.05
    done
    return 1
}

expect_clean() {
    check "$1: the demo has left processes: $(left_processes)" no_processes
    check "$1: the demo has left $(ls -A "$TMPDIR")" rmdir "$TMPDIR"
    mkdir -p "$TMPDIR"
}

# await PATTERN FILE: until a line matches.
await() {
    for _ in $(seq 2400); do
        ! grep -Eq "$1" "$2" 2> /dev/null || return 0
        sleep 0.05
    done
    fail "there is no '$1' in: $(tail -n 5 "$2")"
}

# begin OPTION...: a demo that would run for long. Sets child.
begin() {
    "$weft" demo --quick --steps 5000 "$@" > out 2> err &
    child=$!
    await '^step [0-9]' err
    sleep 0.5 # and some more
}

# end CODE: waits for it.
end() {
    local code=0
    wait "$child" || code=$?
    check "exit code $code, not $1: $(tail -n 3 err)" [ "$code" -eq "$1" ]
}

# ---- to its end ----
expect 0 'report: r.html' "$weft" demo --quick --steps 12 --large 1M --output r.html --keep kept
check "no reward in: $(cat stdout)" grep -Eq '^reward +0\.[0-9]+ -> 0\.[0-9]+ .* of 12 steps' stdout
check "what was saved is not the first line of: $(cat stdout)" \
    [ "$(sed -n '1s/^saved .*, [0-9.]* times fewer bytes .*/yes/p' stdout)" = yes ]
check "no real size in: $(cat stdout)" grep -Eq '^real size .* changed by a step at 1e-06: .* times fewer bytes' stdout
check "no page in: $(cat stderr)" grep -q 'watch it in a browser: http://127' stderr
check "no progress in: $(cat stderr)" grep -Eq '^step 12 +version 13 ' stderr
check "the report is no page" grep -q '^<!doctype html>' r.html
check "12 steps are told of" [ "$(wc -l < kept/metrics.jsonl)" -eq 12 ]
check "nothing but what was asked for: $(ls -A "$TMPDIR")" rmdir "$TMPDIR"
mkdir -p "$TMPDIR"

# ---- the report of a run that is over ----
expect 0 '' "$weft" demo --report kept --output again.html --json --quiet
check "no summary" /usr/bin/python3 -c '
import json, sys
told, lines = json.load(open("stdout")), [json.loads(line) for line in open("kept/metrics.jsonl")]
summary = told["summary"]
assert summary["steps"] == 12 and summary["workers"] == 2, summary
assert abs(summary["bytes"]["sent"] - sum(line["bytes"]["sent"] for line in lines) / 12) < 1, summary
assert summary["rate"] == lines[-1]["rate"] and told["run"]["seed"] == 1 and told["large"] is None, told
'
mkdir few
head -n 1 kept/metrics.jsonl > few/metrics.jsonl
expect 1 'tells of 1 steps' "$weft" demo --report few --output few.html
(cat kept/metrics.jsonl && echo '{"step": "x"}') > few/metrics.jsonl
expect 3 'line 13: this line tells of no step' "$weft" demo --report few --output few.html
cp kept/metrics.jsonl few/metrics.jsonl
echo '{"engine": "vLLM", "batch": {"prompts": 8}, "list": [1]}' > few/run.json
expect 0 '' "$weft" demo --report few --output run.html --json --quiet
check "run.json is not told: $(cat stdout)" /usr/bin/python3 -c '
import json
assert json.load(open("stdout"))["run"] == {"engine": "vLLM", "batch": {"prompts": 8}, "list": None}
'
echo '{"engine": ' > few/run.json
expect 0 'run.json is not shown' "$weft" demo --report few --output run.html
rm few/run.json
expect 1 'metrics.jsonl tells of 0 steps' "$weft" demo --report nowhere --output few.html
absent few.html

# ---- interrupted ----
begin --output c.html
kill -INT "$child"
end 130
expect_clean "Ctrl-C"
check "what was done is not told: $(cat out)" grep -q '^reward ' out
check "there is no report of what was done" [ -s c.html ]
begin --output t.html
kill -TERM "$child"
end 143
expect_clean "SIGTERM"
begin --output h.html
kill -HUP "$child"
end 129
expect_clean "SIGHUP"
XDG_CACHE_HOME=$dir/none "$weft" demo > out 2> err & # in its warm-up, before there is anything to tell of
child=$!
await 'watch it' err
kill -INT "$child"
end 130
absent weft-demo.html
expect_clean "Ctrl-C in the warm-up"

# ---- a process dies ----
begin --output d.html
worker=$(pgrep -P "$child" -f -- '--name worker-1')
kill -KILL "$worker"
end 1
check "who died is not told: $(tail -n 2 err)" grep -Eq 'worker 1 was ended by signal 9' err
absent d.html
expect_clean "a worker died"
begin --output k.html
kill -KILL "$child"
wait "$child" 2> /dev/null
check "a killed demo has left processes: $(left_processes)" no_processes
rm -rf "$TMPDIR"/weft-demo.*

# ---- wrong usage ----
expect 2 '--workers takes a number from 1 to 16' "$weft" demo --workers 17
expect 2 '--sync is patch or full' "$weft" demo --sync all
expect 2 '--large takes 0 or a number' "$weft" demo --large 7
expect 1 'cannot make kept' "$weft" demo --keep kept
expect 1 'cannot write nowhere/r.html' "$weft" demo --output nowhere/r.html
expect 1 'cannot write' "$weft" demo --report kept --output nowhere/r.html
finish
