#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Followers are seen: real ones around a weft serve, of which one is stopped and one is killed; weft fleet,
# the status and weft publish tell of them; a publisher waits for the slow one, and gc keeps what it needs
# until it is no longer heard of.
. "$(dirname "$0")/sync.sh"

# follower NAME VERSION STATE LIVE: weft fleet of $url shows it so
follower() {
    "$weft" fleet "$url" --json > fleet.json 2> fleet.err || return 1
    /usr/bin/python3 - "$@" << 'END'
import json, sys
name, version, state, live = sys.argv[1:]
found = [f for f in json.load(open("fleet.json"))["followers"] if f["name"] == name]
sys.exit(not (len(found) == 1 and found[0]["version"] == int(version)
              and (state == "any" or found[0]["state"] == state) and found[0]["live"] == (live == "live")))
END
}

# shown NAME: the status of $url has it
shown() {
    curl -sS "${url}v1/status" | /usr/bin/python3 -c '
import json, sys
status = json.load(sys.stdin)
sys.exit(sys.argv[1] not in [f["name"] for f in status["followers"] if f["live"]])' "$1"
}

patches() { find run/patches -type f | wc -l; }

serve server run
expect 1 'nothing was published' "$weft" fleet "$url"
expect 0 '' "$weft" publish "$url" "$(model 0)" --anchor never --no-leaps --keep-anchors 1
expect 0 '' "$weft" fleet "$url"
says stdout '^0 live of 0; the newest version is 1$'

begin quick follow "$url" quick.st --name quick
begin slow follow "$url" slow.st --name slow
slow=$pid
begin mute follow "$url" mute.st --no-report
begin lost follow "$url" lost.st --name lost --report-every 1s
lost=$pid
for name in quick slow lost; do
    await "$name is seen" follower "$name" 1 waiting live
    await "$name is in the status" shown "$name"
done
expect 0 '' "$weft" fleet "$url"
says stdout '^name +version +lag +behind +state +pause +heard +error$'
says stdout '^slow +1 +0 .* waiting '
says stdout '^[23] live of 3; the newest version is 1, the slowest follower at 1; all of them read format 2$'
silent stdout mute
for name in quick slow lost; do
    await "$name is in the directory" test -e "run/followers/$name"
done
expect 0 '' "$weft" fleet run --json
check 'the directory tells the same' grep -Eq '"live": [23]' stdout
await 'the metrics count them' sh -c "curl -sS ${url}metrics | grep -q '^weft_serve_followers_live 3$'"

# killed: no longer heard of; it has not said that it ends
kill -KILL "$lost"
await 'a killed follower is not live' follower lost 1 any gone
expect 0 '' "$weft" fleet "$url"
says stdout '^lost .* silent '
expect 0 '' "$weft" fleet "$url" --live
silent stdout '^lost'

# stopped: its lag grows while it is taken for live; back-pressure waits for it, but not for ever
kill -STOP "$slow"
expect 0 '' "$weft" publish "$url" "$(model 1)" --anchor never --no-leaps --keep-anchors 1 --json --max-lag 1
check 'nobody is too far behind yet' grep -q '"overtaken": false' stdout
kill -CONT "$slow"
await 'it goes on' follower slow 2 any live
await 'the other too' follower quick 2 any live

# one that says that it is live for an hour: it can be waited for, whatever the machine does
curl -sS "${url}followers/slow" | sed 's/"name":"slow"/"name":"steady"/; s/"interval":[0-9.]*/"interval":1200/' > steady
curl -sS -T steady "${url}followers/steady"
await 'the steady one is seen' follower steady 2 any live
expect 0 '' "$weft" publish "$url" "$(model 2)" --anchor never --no-leaps --keep-anchors 1 --max-lag 1
says stdout '^[23] followers are live, the slowest at version 2$'
expect 0 '' "$weft" publish "$url" "$(model 3)" --anchor now --no-leaps --keep-anchors 1 --max-lag 1 --max-lag-wait 0.2s
says stdout '^waited .* for followers, and went on without those that are too far behind$'
begin waiting publish "$url" "$(model 4)" --anchor never --no-leaps --keep-anchors 1 --max-lag 1 --max-lag-wait 10m
waiting=$pid
sleep 0.5
check 'it waits' kill -0 "$waiting"
sed 's/"version":2/"version":4/' steady | curl -sS -T - "${url}followers/steady"
ended 0 "$waiting" waiting
says waiting.out '^published version 5'
begin stopped publish "$url" "$(model 5)" --anchor never --no-leaps --keep-anchors 1 --max-lag 1 --max-lag-wait 10m
curl -sS -T steady "${url}followers/steady"
sleep 0.5
kill -TERM "$pid"
ended 143 "$pid" stopped

# gc: the steady one is at version 2, and needs the patches of 3 and 4 below the anchor of 4
await 'it is seen where it was' follower steady 2 any live
before=$(patches)
expect 0 '' "$weft" gc "$url" --grace 0s --keep-followers
says stdout 'and the patches since 2 for a follower that is there$'
check 'only what leads to version 2 is gone' test "$(patches)" -eq $((before - 1))
await 'it is in the directory' grep -q '"version":2' run/followers/steady
expect 0 '' "$weft" gc run --grace 0s --keep-followers --json
check 'also of the directory' grep -q '"follower": 2' stdout
sed 's/"state":"[a-z]*"/"state":"ended"/' steady | curl -sS -T - "${url}followers/steady"
await 'it has ended' follower steady 2 ended gone
await 'the slow one is further' sh -c "! '$weft' fleet '$url' --live | grep -Eq '^slow +[123] '"
expect 0 '' "$weft" gc "$url" --grace 0s --keep-followers
check 'nobody needs the others' test "$(patches)" -eq $((before - 3))
for child in "${children[@]:1}"; do
    kill -TERM "$child" 2> /dev/null
done
await 'the quick one says that it ends' follower quick "$(field fleet.json newest)" ended gone

# with a read token reports are taken, by a server that takes nothing else; or by none
umask 077
echo secret > reader
serve private run --read-token-file reader --read-only
expect 0 '' "$weft" pull "$url" private.st --token-file reader --name puller --json
await 'with a token' env WEFT_TOKEN=secret "$weft" fleet "$url"
await 'it was seen' grep -qs '"state":"ended"' run/followers/puller
expect 0 '' "$weft" fleet run
says stdout '^puller .* ended '
check 'and nothing else is taken' \
    sh -c "curl -sS -o /dev/null -w '%{http_code}' -H 'Authorization: Bearer secret' -T reader ${url}x | grep -q 403"
check 'without a token nothing is' \
    sh -c "curl -sS -o /dev/null -w '%{http_code}' -T steady ${url}followers/steady | grep -q 401"
serve closed run --no-reports
expect 0 '' "$weft" pull "$url" closed.st --name nobody
absent run/followers/nobody

# a plain web server has no listing, and a follower of it is none the worse
/usr/bin/python3 -u -m http.server --bind 127.0.0.1 -d run 0 > plain.out 2>&1 &
children+=("$!")
await 'a plain server' grep -q 'port [0-9]' plain.out
plain="http://127.0.0.1:$(sed -n 's/.*port \([0-9]*\).*/\1/p' plain.out | head -1)/"
expect 0 '' "$weft" pull "$plain" plain.st --name plain
check 'it is what was published' cmp plain.st "$(model 4)"
expect 1 'cannot tell who follows' "$weft" fleet "$plain"
expect 1 'cannot tell who follows' "$weft" gc "$plain" --keep-followers

# usage
expect 2 '1 to 64 of' "$weft" follow "$url" out --name ../x
expect 2 'takes a number of versions' "$weft" publish "$url" "$(model 0)" --max-lag 0
expect 2 'give a store' "$weft" fleet
finish
