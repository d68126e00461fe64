#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A damaged store, by the command: the way out that the errors name, what repair says, what it mends and what
# it leaves alone. On a directory, since that is what gets damaged; once through weft serve.
. "$(dirname "$0")/sync.sh"
unset WEFT_TEST_STORE

junk() { printf '<html>no such page</html>\n' > "$1"; }
PYTHONPATH=$(cd "$(dirname "$0")/../python" && pwd)
export PYTHONPATH
# newest_page STORE EPOCH: the page that its head names
newest_page() {
    /usr/bin/python3 -B -c 'import sys, weft_store
print(weft_store.parse_head(open(sys.argv[1], "rb").read())["page"]["key"])' "$1/heads/$2"
}

expect 2 'give a store' "$weft" repair
expect 1 'nothing was published here yet' "$weft" repair nowhere
for i in 0 1 2; do
    "$weft" publish -q run "$(model "$i")" --cache here --label "step=$i" || fail "publish $i"
done
expect 0 '' "$weft" repair run --deep
says stdout '^version 3, epoch 1; the history tells of versions since 1; 3 of the 3 that are kept, since 1, can be reached$'

# ---- the newest page ----
page=$(newest_page run 00000001)
"$weft" log run > log.before
cp -r run sound
for damage in overwrite 'truncate -s 50' rm; do
    rm -rf run && cp -r sound run
    $damage "run/$page"
    for verb in log gc; do
        "$weft" $verb run > stdout 2> stderr && fail "$verb over $damage"
        says stderr 'weft repair run '
    done
    # with the cache, with another, and with an anchor: each names the way out (what is missing is waited for)
    ways=('--cache here' '--cache there' '--cache here --anchor now')
    [ "$damage" != rm ] || ways=('--cache here')
    for options in "${ways[@]}"; do
        # shellcheck disable=SC2086
        "$weft" publish run "$(model 4)" $options > stdout 2> stderr && fail "publish over $damage"
        says stderr 'weft repair run '
    done
    cp -r run damaged
    expect 3 '1 thing is damaged' "$weft" repair run
    says stdout "^damaged page $page:"
    says stdout 'byte for byte'
    says stderr 'weft repair run --apply'
    check 'a look changes nothing' diff -r run damaged
    rm -rf damaged
    expect 0 '' "$weft" repair run --apply
    says stdout "^mended page $page:"
    expect 0 '' "$weft" log run
    check 'the history is what it was' cmp stdout log.before
    for i in 0 1 2; do
        expect 0 '' "$weft" pull run "out-$i" --version $((i + 1))
        check "version $((i + 1))" cmp "out-$i" "$(model "$i")"
        rm -f "out-$i" ".out-$i.weft-sync"
    done
    expect 0 '' "$weft" publish run "$(model 4)" --cache here
    expect 0 '' "$weft" pull run out
    check 'and on' cmp out "$(model 4)"
    rm -f out .out.weft-sync
done

# with nothing left that repeats it: by the patches, in a new epoch
rm -rf run && cp -r sound run
find run/pages -type f ! -name "$(basename "$page")" -delete
rm "run/$page"
expect 3 'damaged' "$weft" repair run --json
check 'as JSON' test "$(field stdout sound)" = False
check 'the two pages of the history' test "$(field stdout findings_left)" = 2
check 'that can be mended' test "$(field stdout mendable)" = 2
says stdout '"kind": *"page"'
expect 0 '' "$weft" repair run --apply --json
check 'mended' test "$(field stdout mended)" = 2
check 'all is well' test "$(field stdout sound)" = True
check 'all versions' test "$(field stdout reachable)" = 3
expect 0 '' "$weft" pull run out --version 2
check 'version 2' cmp out "$(model 1)"
expect 0 '' "$weft" publish run "$(model 4)" --cache another --json
check 'as a patch' test "$(field stdout anchored)" = False
expect 0 '' "$weft" pull run out
check 'and on' cmp out "$(model 4)"
rm -f out .out.weft-sync

# ---- a head that is none ----
rm -rf run && cp -r sound run
"$weft" pull -q run follower
junk run/heads/00000002
expect 3 'weft repair run ' "$weft" publish run "$(model 4)" --cache here
expect 3 '*' "$weft" pull run follower
expect 3 'damaged' "$weft" repair run
says stdout '^damaged head heads/00000002:'
expect 0 '' "$weft" repair run --apply
expect 0 '' "$weft" publish run "$(model 4)" --cache here
expect 0 '' "$weft" pull run follower
check 'the follower goes on' cmp follower "$(model 4)"
expect 0 '' "$weft" repair run --deep
rm -f follower .follower.weft-sync

# ---- patches and anchors: nothing to mend, and the next anchor heals ----
rm -rf run && cp -r sound run
patch=$(cd run && echo patches/*-0000000002-*)
overwrite "run/$patch"
expect 0 '' "$weft" repair run
expect 3 '2 things are damaged' "$weft" repair run --deep
says stdout "^damaged patch $patch:"
says stdout 'versions 2 to 3 cannot be reached'
silent stderr '--apply'
rm "run/$patch"
expect 3 '2 things are damaged' "$weft" repair run
expect 3 '*' "$weft" pull run out
expect 0 '' "$weft" publish run "$(model 4)" --cache third --anchor now
expect 0 '' "$weft" pull run out
check 'the anchor heals' cmp out "$(model 4)"
expect 3 'damaged' "$weft" repair run
says stdout 'versions 2 to 3 cannot be reached'
rm -f out .out.weft-sync

# ---- a signed run ----
"$weft" keygen -q key && "$weft" keygen -q other
for i in 0 1 2; do
    "$weft" publish -q signed "$(model "$i")" --cache signer --sign key || fail "publish $i, signed"
done
page=$(newest_page signed 00000001)
junk signed/heads/00000002
expect 2 'give the secret key' "$weft" repair signed --apply
expect 2 'public key, which cannot sign' "$weft" repair signed --apply --sign key.pub
expect 2 'goes with --sign' "$weft" repair signed --apply --adopt
expect 3 'sign' "$weft" repair signed --apply --sign other
expect 0 '' "$weft" repair signed --apply --sign key
expect 0 '' "$weft" pull signed out --trust key.pub
check 'signed' cmp out "$(model 2)"
find signed/pages -type f ! -name "$(basename "$page")" -delete
rm "signed/$page"
expect 3 '--adopt' "$weft" repair signed --apply --sign key
expect 0 '' "$weft" repair signed --apply --sign key --adopt
expect 0 '' "$weft" publish signed "$(model 3)" --cache signer --sign key
expect 0 '' "$weft" pull signed out --trust key.pub
check 'signed, and on' cmp out "$(model 3)"
expect 0 '' "$weft" log signed --trust key.pub
says stdout '^4 versions'
rm -f out .out.weft-sync

# ---- a head that speaks of more versions than anybody could keep ----
rm -rf run && cp -r sound run
/usr/bin/python3 -B - run "$(newest_page run 00000001)" << 'END'
import hashlib, json, sys, weft_store
root, page = sys.argv[1:]
many = 2**40 + 1
history = weft_store.History(weft_store.Directory(root))
record = history.records[1] | {'version': many}
content = {'weft': 2, 'kind': 'page', 'run': history.head['run'], 'records': [record]}
content |= {'anchors': [history.anchors[-1] | {'version': many}]}
text = json.dumps(content) + '\n'
with open(f'{root}/{page}', 'w') as file:
    file.write(text)
head = history.head
head['newest'] = record
head['page'] |= {'bytes': len(text), 'sha256': hashlib.sha256(text.encode()).hexdigest()}
text = json.dumps(head)
with open(f'{root}/heads/00000001', 'w') as file:
    file.write(f'{text}\nsha256 {hashlib.sha256(text.encode()).hexdigest()}\n')
END
expect 3 'damaged' "$weft" repair run
says stdout '; 1 of the 1099511627777 that are kept, since 1, can be reached$'

# ---- a server that has something under every name ----
/usr/bin/python3 -B -c 'import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else b"junk")
    do_HEAD = do_GET
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()' > endless.out &
children+=($!)
await 'a server for everything' test -s endless.out
expect 1 'something under every name' timeout 60 "$weft" repair "$(cat endless.out)"

# ---- through a server, which lists its rooms to those who may write ----
rm -rf run && cp -r sound run
page=$(newest_page run 00000001)
printf 'secret-of-the-publisher\n' > token && chmod 600 token
serve server run --write-token-file token
junk run/heads/00000002
expect 0 '' "$weft" repair "$url" --apply --token-file token
expect 0 '' "$weft" pull "$url" out
check 'mended through the server' cmp out "$(model 2)"
rm -f out .out.weft-sync
rm "run/$page"
expect 3 'can be mended' "$weft" repair "$url" --token-file token
expect 0 '' "$weft" repair "$url" --apply --token-file token
expect 0 '' "$weft" pull "$url" out
check 'a page made anew through the server' cmp out "$(model 2)"

# ---- through one that lists nothing, as an older server does ----
rm -rf run/* out .out.weft-sync && cp -r sound/. run
page=$(newest_page run 00000001)
/usr/bin/python3 "$WEFT_SOURCE/tests/support/fault_proxy.py" --upstream "$url" --url-file proxy.url --faults \
    '[{"fault": "status", "code": 404, "path": "*/v1/list*"}]' 2> proxy.log &
children+=("$!")
await 'the proxy' test -s proxy.url
proxied=$(head -1 proxy.url)
rm "run/$page"
expect 3 'cannot be listed' "$weft" repair "$proxied" --token-file token
silent stderr '--apply'
expect 3 'cannot be listed' "$weft" repair "$proxied" --apply --token-file token
expect 0 '' "$weft" repair run --apply
expect 0 '' "$weft" pull "$url" out
check 'mended in the directory' cmp out "$(model 2)"
rm -f out .out.weft-sync
find run/pages -type f -delete
expect 3 'damaged' "$weft" repair "$proxied" --apply --unlisted --token-file token
says stdout 'lost: +versions'
expect 0 '' "$weft" publish "$url" "$(model 4)" --cache fourth --token-file token
expect 0 '' "$weft" pull "$url" out
check 'the newest version was not lost' cmp out "$(model 4)"
finish
