#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Options from a configuration file and from the environment: what comes before what, and what is wrong in which
# line.
. "$(dirname "$0")/sync.sh"

expect 0 '' "$weft" publish store "$(model 0)" -q --cache cache
expect 0 '' "$weft" publish store "$(model 1)" -q --cache cache
expect 0 '' "$weft" publish other "$(model 2)" -q --cache other-cache

cat > follow.toml << 'END'
# a follower, and a server beside it
[follow]
store = "store"
out = 'out'          # relative to where the command is started
until = 2
no-report = true
json = true
exec = "echo \"at $WEFT_VERSION\" > file-exec"

[serve]
listen = "127.0.0.1:0"
host = ["one.example", "two.example"]
url-file = "url"
max-connections = 64
END

# ---- the file, the environment, the command line ----
expect 0 '*' "$weft" follow --config follow.toml
check 'the store of the file' cmp out "$(model 1)"
says stdout '"version": 2,'
says file-exec '^at 2$'
expect 0 '*' env WEFT_FOLLOW_CONFIG=follow.toml WEFT_FOLLOW_STORE=other WEFT_FOLLOW_UNTIL=1 WEFT_FOLLOW_OUT=second \
    WEFT_FOLLOW_EXEC='echo env > env-exec' WEFT_FOLLOW_JSON=false "$weft" follow
check 'the store of the environment' cmp second "$(model 2)"
says stdout '^version 1 '
says env-exec env
expect 0 '*' env WEFT_FOLLOW_STORE=nowhere WEFT_FOLLOW_OUT=nothing WEFT_FOLLOW_EXEC='echo env > env-exec' \
    WEFT_FOLLOW_POLL=wrong "$weft" follow --config follow.toml other third --until 1 --exec 'echo line > line-exec' --poll 1
check 'the store of the command line' cmp third "$(model 2)"
says line-exec line
absent nowhere nothing

# ---- a list comes from one place; the same file serves another verb ----
begin server serve store --config follow.toml
await 'the server' test -s url
url=$(cat url)
for host in one.example two.example; do
    check "host $host" test "$(curl -sS -o /dev/null -w '%{http_code}' -H "Host: $host" "${url}v1/status")" = 200
done
check 'the limit of the file' grep -q '^weft_serve_connections_limit 64$' <(curl -sS "${url}metrics")
kill "$pid"
ended 0 "$pid" server
rm url
export WEFT_SERVE_HOST='three.example four.example'
begin server serve store --config follow.toml
await 'the server' test -s url
unset WEFT_SERVE_HOST
url=$(cat url)
for pair in one.example:421 three.example:200 four.example:200; do
    check "host $pair" test "$(curl -sS -o /dev/null -w '%{http_code}' -H "Host: ${pair%:*}" "${url}v1/status")" = "${pair#*:}"
done
kill "$pid"
ended 0 "$pid" server

# ---- what is wrong, and where ----
wrong() {
    printf '[follow]\nstore = "store"\n%s\n' "$2" > wrong.toml
    expect 2 "^weft follow: wrong\.toml:$1: $3" "$weft" follow --config wrong.toml
    check 'one line' test "$(wc -l < stderr)" -eq 1
}
wrong 3 'pol = 1' "follow has no option 'pol'"
wrong 4 $'out = "out"\npoll = "never"' '--poll takes a length of time'
wrong 3 'poll = true' 'poll takes a text in quotes or a number'
wrong 3 'no-report = "yes"' 'no-report takes true or false'
wrong 3 'until = [1, 2]' 'until takes one value, not an array'
wrong 3 'out = 7' 'out takes a text in quotes'
wrong 3 'config = "more.toml"' 'a configuration file names no other'
wrong 3 'store = "again"' "'store' is given twice"
wrong 3 'out = out' '.*text stands in quotes'
wrong 4 $'out = "out"\n[follow]' '.*is there twice'
echo 'store = "store"' > wrong.toml
expect 2 "wrong\.toml:1: 'store' stands in no table; put \[follow\] above it" "$weft" follow --config wrong.toml
expect 2 'absent\.toml: cannot open' "$weft" follow --config absent.toml
expect 2 '^weft follow: WEFT_FOLLOW_POLL: --poll takes' env WEFT_FOLLOW_POLL=never "$weft" follow store out
expect 2 'WEFT_FOLLOW_NO_REPORT: no-report is true or false' env WEFT_FOLLOW_NO_REPORT=1x "$weft" follow store out
head -c 70000 /dev/zero | tr '\0' '#' > wrong.toml
expect 2 'more than 65536 bytes' "$weft" follow --config wrong.toml
# other verbs have no settings
expect 2 'config' "$weft" pull store out --config follow.toml
finish
