#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Token files that change while a server and a follower run: both read them again, and nothing is interrupted.
. "$(dirname "$0")/sync.sh"
umask 077
echo first > client
echo first > server
echo writer > writer
serve served store --read-token-file server --write-token-file writer
begin follower follow "$url" follower.model --token-file client --until 3
follower=$pid
expect 0 '' "$weft" publish "$url" "$(model 0)" --token-file writer
await 'version 1' grep -q '^version 1' follower.out
# the new token is let in, then used, then the old one is taken back
printf 'first\nsecond\n' > server
await 'the server reads again' grep -q 'a file has changed: tokens were read again' served.err
echo second > client
expect 0 '' "$weft" publish "$url" "$(model 1)" --token-file writer
await 'version 2' grep -q '^version 2' follower.out
# a file that is replaced, and one that holds nothing for a moment
echo second > server.new && mv server.new server
changes() { [ "$(grep -c 'tokens were read again' served.err)" -ge 2 ]; }
await 'the server reads what was moved there' changes
expect 4 'does not accept the token|wants a token' "$weft" pull "$url" other --token-file <(echo first)
: > client
sleep 1.2
expect 0 '' "$weft" publish "$url" "$(model 2)" --token-file writer
ended 0 "$follower" follower
check 'followed' cmp follower.model "$(model 2)"
silent follower.err 'denied|failed'
finish
