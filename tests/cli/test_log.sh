#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The log of what runs for long: time and level, JSON, levels; stdout is for results alone.
. "$(dirname "$0")/sync.sh"
time='[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z'

expect 0 '' "$weft" publish store "$(model 0)" --cache cache

# ---- text, which is what serve and follow write if nothing else is said ----
expect 0 '*' "$weft" follow store out --until 1
expect 0 "^$time info weft follow: out is at version 1 already\$" "$weft" follow store out --until 1
expect 0 '^weft follow: out is at version 1 already$' "$weft" follow store out --until 1 --log-format plain
expect 4 "^$time error weft follow: " "$weft" follow http://127.0.0.1:9/x out --until 1 --max-failures 1 --retries 0
expect 0 '' "$weft" follow store out --until 1 --log-level warning
expect 0 '' "$weft" follow store out --until 1 --quiet
expect 0 "^$time debug weft follow: version 1: fetch took [0-9.]+ s, [0-9]+ bytes\$" \
    "$weft" follow store fresh --until 1 --log-level debug
says stdout '^version 1 '
check 'results alone' test "$(wc -l < stdout)" -eq 1
expect 2 "'loud'" "$weft" follow store out --log-level loud
expect 2 "'xml'" "$weft" follow store out --log-format xml

# ---- JSON, also of a warning, of publish, and of what is no UTF-8 ----
echo secret > token
chmod 644 token
serve server store --log-format json --read-token-file token
kill "$pid"
ended 0 "$pid" server
"$weft" publish store "$(printf 'abs\xffent')" --log-format json 2> publish.err
check 'a log of JSON' /usr/bin/python3 - server.err publish.err << 'PY'
import datetime, json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert [line["level"] for line in lines] == ["warning", "info", "info"], lines
for line in lines:
    assert line["process"] == "weft serve" and line["message"], line
    datetime.datetime.strptime(line["time"], "%Y-%m-%dT%H:%M:%S.%fZ")
assert "token" in lines[0]["message"] and not lines[0]["message"].startswith("warning"), lines
assert json.loads(open(sys.argv[2]).read())["level"] == "error"
PY
finish
