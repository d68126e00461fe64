#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The profile smallest between processes: a follower that is killed goes on with one patch, since what it recalls lies
# beside its checkpoint after each commit. One that lost that file takes an anchor, and arrives all the same.
. "$(dirname "$0")/sync.sh"
store=$(place store)

publish() { expect 0 '' "$weft" publish "$store" "$(model "$1")" --profile smallest; }

begin follower follow "$store" out --exec "echo at \$WEFT_VERSION >> seen"
follower=$pid
for step in 0 1 2 3; do
    publish "$step"
    await "version $((step + 1))" grep -q "^at $((step + 1))$" seen
done
kill -KILL "$follower"
ended 137 "$follower" follower
cp out away

publish 4
expect 0 '' "$weft" pull "$store" out --json
says stdout '"anchors": 0,'
says stdout '"patches": 1,'
check 'the killed follower' cmp out "$(model 4)"

expect 0 '' "$weft" pull "$store" away --replace --json
says stdout '"anchors": 1,'
check 'without what it recalls' cmp away "$(model 4)"
finish
