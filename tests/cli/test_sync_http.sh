#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# publish, pull, follow, log and gc through `weft serve`: the same bytes, tokens, TLS, outages, and servers
# that are not what they should be.
. "$(dirname "$0")/sync.sh"

# The first server goes away for a while, and nobody else is given its port meanwhile.
PYTHONPATH=$cli/../python /usr/bin/python3 -B -c 'import signal, serving
held = serving.hold_port()
print("127.0.0.1:%d" % held.getsockname()[1], flush=True)
signal.pause()' > held &
children+=("$!")
await 'a port' test -s held

# ---- plain ----
serve plain store --listen "$(cat held)"
server=$pid
begin follower follow "$url" out --until 5 --json
follower=$pid
for step in 0 1 2 3 4; do
    expect 0 '' "$weft" publish "$url" "$(model "$step")" --label "step=$step"
done
ended 0 "$follower" follower
check 'followed' cmp out "$(model 4)"
expect 0 '' "$weft" pull "$url" pulled --verify full
check 'pulled' cmp pulled "$(model 4)"
expect 0 '' "$weft" pull "$url" pulled --version 2
check 'version 2' cmp pulled "$(model 1)"
expect 0 '' "$weft" log "$url" -n 3
says stdout 'the newest 3 versions, every link checked'
expect 0 '' "$weft" publish "$url" "$(model 5)" --anchor now --keep-anchors 1
before=$(find store -type f | wc -l)
expect 0 '' "$weft" gc "$url" --grace 0
says stdout 'versions since 6 are kept'
check 'removed through the server' test "$(find store -type f | wc -l)" -lt "$before"
# the directory behind it is the same store
expect 0 '' "$weft" publish store "$(model 6)"
expect 0 '' "$weft" pull "$url" out
check 'published beside the server' cmp out "$(model 6)"

# ---- below the place that is served, where nobody waits for versions and followers ask for them ----
begin below follow "${url}runs/7" below.model --until 3 --poll 0.1
below=$pid
for step in 0 1 2; do
    expect 0 '' "$weft" publish "${url}runs/7" "$(model "$step")"
    await "version $((step + 1)) below" grep -q "^version $((step + 1))" below.out
done
ended 0 "$below" below
check 'followed below' cmp below.model "$(model 2)"

# ---- a signal while the store is watched ----
begin watching follow "$url" out
await 'a watcher' grep -q already watching.err
sleep 0.3
kill -TERM "$pid"
ended 143 "$pid" watching

# ---- an outage ----
begin patient follow "$url" out --until 8 --retries 0
patient=$pid
await 'a follower' grep -q already patient.err
kill -TERM "$server"
wait "$server"
await 'told' grep -q 'trying again' patient.err
expect 4 'is the server running there' "$weft" pull "$url" pulled --retries 0
expect 4 'is the server running there' "$weft" publish "$url" "$(model 0)" --retries 0
expect 4 'is the server running there' "$weft" follow "$url" pulled --retries 0 --max-failures 2
serve again store --listen "$(cat held)"
server=$pid
await 'back' grep -q 'back again' patient.err
expect 0 '' "$weft" publish "$url" "$(model 0)"
ended 0 "$patient" patient
check 'after an outage' cmp out "$(model 0)"

# ---- not a store ----
serve empty nothing
expect 1 'nothing (was|is) published' "$weft" pull "$url" new
expect 1 'nothing (was|is) published' "$weft" log "$url"
absent new

# ---- tokens and TLS ----
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 2 \
    -subj /CN=127.0.0.1 -addext 'subjectAltName=IP:127.0.0.1' 2> /dev/null
(umask 077 && openssl rand -hex 32 > writer && openssl rand -hex 32 > reader && echo wrong > wrong)
serve secure vault --tls-cert cert.pem --tls-key key.pem --write-token-file writer \
    --read-token-file reader
expect 4 'certificate' "$weft" publish "$url" "$(model 0)" --token-file writer
expect 4 'token' "$weft" publish "$url" "$(model 0)" --ca-file cert.pem
expect 4 'token' "$weft" publish "$url" "$(model 0)" --ca-file cert.pem --token-file wrong
expect 4 '(token|may not)' "$weft" publish "$url" "$(model 0)" --ca-file cert.pem --token-file reader
expect 0 '' "$weft" publish "$url" "$(model 0)" --ca-file cert.pem --token-file writer
expect 0 '' env WEFT_TOKEN="$(cat writer)" "$weft" publish "$url" "$(model 1)" --ca-file cert.pem
expect 0 '' "$weft" pull "$url" private --ca-file cert.pem --token-file reader
expect 0 '' env SSL_CERT_FILE=cert.pem "$weft" pull "$url" private --token-file reader
expect 4 'certificate' "$weft" pull "$url" private --token-file reader
expect 2 'cannot read certificates from nowhere.pem' env SSL_CERT_FILE=nowhere.pem "$weft" pull "$url" private --token-file reader
check 'through TLS' cmp private "$(model 1)"
expect 4 'token' "$weft" pull "$url" private --ca-file cert.pem
expect 4 'token' "$weft" follow "$url" private --ca-file cert.pem --token-file wrong
expect 4 'certificate' "$weft" follow "$url" private --token-file reader --retries 0
expect 4 '(token|may not)' "$weft" gc "$url" --ca-file cert.pem --token-file wrong

# token files
expect 1 'cannot open the token file' "$weft" pull "$url" private --token-file missing
: > void
chmod 600 void
expect 2 'holds no token' "$weft" pull "$url" private --token-file void
printf 'two words\n' > void
expect 2 'is not a token' "$weft" pull "$url" private --token-file void
expect 2 'is not a token' env WEFT_TOKEN=$'a\nb' "$weft" pull "$url" private
expect 2 'longer than a token' "$weft" pull "$url" private --token-file "$(model 0)"
chmod 644 reader
expect 0 'others can read the token file reader; run chmod 600' "$weft" pull "$url" private --ca-file cert.pem \
    --token-file reader
expect 0 '' "$weft" pull -q "$url" private --ca-file cert.pem --token-file reader
finish
