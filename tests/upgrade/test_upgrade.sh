#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# An upgrade as an operator does it, and the way back: followers, relays, servers and publishers of the last release
# ($WEFT_OLD) and of this one, in every order. As long as nobody says --format, whoever follows arrives at each version
# with its exact bytes. scripts/test-upgrade.sh builds the last release and runs this.
. "$(dirname "$0")/../cli/sync.sh"
new=$weft
old=${WEFT_OLD:?}
"$new" bench --make m --params 200K --steps 24 > /dev/null || exit 99
echo "$("$old" --version) beside $("$new" --version)"

# by COMMAND FUNCTION ARGUMENT...: a function of sync.sh with this command
by() {
    local command=$1
    shift
    weft=$command "$@"
}
# publish COMMAND STEP OPTION...: both keep the same cache, as on a machine that is upgraded in place
publish() {
    local command=$1 step=$2
    shift 2
    expect 0 '' "$command" publish store "$(model "$step")" --cache cache "$@"
}
# arrive STEP: every follower does
arrive() {
    local follower
    for follower in "${followers[@]}"; do
        await "$follower at step $1" cmp "$follower" "$(model "$1")"
    done
}

# ---- everything is old, and one worker is upgraded ----
by "$old" serve origin store
origin=$pid origin_url=$url
by "$old" serve relay "$origin_url" --cache cache-relay
relay=$pid relay_url=$url
by "$old" begin old_follower follow "$relay_url" old.model --name old --report-every 1s
by "$new" begin new_follower follow "$relay_url" new.model --name new --report-every 1s
by "$new" begin direct follow store direct.model --no-report
followers=(old.model new.model direct.model)
for step in 0 1 2; do
    publish "$old" "$step"
    arrive "$step"
done

# ---- relay and server are upgraded, at the same addresses ----
kill "$relay"
wait "$relay"
by "$new" serve relay "$origin_url" --cache cache-relay --listen "$(echo "$relay_url" | cut -d/ -f3)"
publish "$old" 3
arrive 3
kill "$origin"
wait "$origin"
by "$new" serve origin store --listen "$(echo "$origin_url" | cut -d/ -f3)"
publish "$old" 4
arrive 4

# ---- the publisher is upgraded: nothing changes for those that follow ----
for step in 5 6 7 8 9 10 11 12 13; do
    publish "$new" "$step" --json
    check "step $step in the run's own format" test "$(field stdout format)" = 1
    arrive "$step"
done
publish "$new" 14 --profile smallest
publish "$new" 15 --profile fast --anchor now
arrive 15
rm -f fresh
expect 0 '' "$old" pull store fresh
check 'from nothing' cmp fresh "$(model 15)"
expect 0 '' "$old" pull store fresh --version 9 --replace
check 'an older version' cmp fresh "$(model 8)"

# ---- and taken back: the last release goes on with what this one wrote, here or from another machine ----
publish "$old" 16
arrive 16
expect 0 '' "$old" publish store "$(model 20)" --cache elsewhere
arrive 20
publish "$new" 17
arrive 17

# ---- who cannot read what is to come is told of before ----
reads() { "$new" fleet store --json | /usr/bin/python3 -c 'import json, sys
print(" ".join(sorted("%s=%d" % (f["name"], f["reads"]) for f in json.load(sys.stdin)["followers"] if f["live"])))'; }
await 'reports' test "$(reads)" = 'new=2 old=1'
check 'what all can read' test "$("$new" fleet store --json | /usr/bin/python3 -c 'import json, sys
print(json.load(sys.stdin)["reads"])')" = 1
expect 0 '' "$new" fleet store
says stdout '1 of them cannot read format 2, such as old'

# ---- the operator says so: whoever was left out stops, and says why ----
expect 0 'followers that cannot read format 2' "$new" publish store "$(model 18)" --cache cache --format 2
followers=(new.model direct.model)
arrive 18
await 'an error that says so' grep -q 'was written by a later weft' old_follower.err
check 'the old one keeps what it has' cmp old.model "$(model 17)"
expect 0 '*' "$new" publish store "$(model 19)" --cache cache --json
check 'from now on' test "$(field stdout format)" = 2
arrive 19
expect 2 'does not go back' "$new" publish store "$(model 20)" --cache cache --format 1
expect 3 'later weft' "$old" publish store "$(model 20)" --cache elsewhere

# ---- the worker that was forgotten is upgraded, where it stands ----
kill "${children[2]}" 2> /dev/null
expect 0 '' "$new" pull store old.model
check 'caught up' cmp old.model "$(model 19)"
finish
