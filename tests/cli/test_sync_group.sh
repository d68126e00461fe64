#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# follow --group: a leader without ranks follows alone, is the only one, and leaves a mirror that the next one
# goes on with.
. "$(dirname "$0")/sync.sh"
store=$(place store)
group=$dir/group

expect 2 'belong together' "$weft" follow "$store" --group "$group"
expect 2 'belong together' "$weft" follow "$store" out --members 2
expect 2 'needs no OUT' "$weft" follow "$store" out --group "$group" --members 2
expect 2 'a number from 1 to' "$weft" follow "$store" --group "$group" --members 0
expect 2 'are about OUT' "$weft" follow "$store" --group "$group" --members 2 --durable

line() { grep -q "\"version\": $2," "$1"; }

begin leader follow "$store" --group "$group" --members 2 --json
leader=$pid
for step in 0 1 2; do
    expect 0 '' "$weft" publish "$store" "$(model "$step")"
    await "version $((step + 1))" line leader.out $((step + 1))
done
check 'the mirror' cmp "$group/mirror" "$(model 2)"
check 'nobody else may look' test "$(stat -c %a "$group")" = 700
expect 1 'another process leads' "$weft" follow "$store" --group "$group" --members 2 --max-failures 1
kill -KILL "$leader"
ended 137 "$leader" leader

expect 0 '' "$weft" publish "$store" "$(model 3)"
expect 0 '' "$weft" follow "$store" --group "$group" --members 2 --until 4
says stdout '^version 4 +0 of 2 ranks '
silent stdout 'version 1 '
check 'the mirror again' cmp "$group/mirror" "$(model 3)"
expect 2 'has 2 members, not 3' "$weft" follow "$store" --group "$group" --members 3
finish
