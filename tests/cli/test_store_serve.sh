#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The promises of a store, kept by `weft serve`: the checks of tests/unit/test_store_conformance.c, through HTTP
# and through HTTPS with tokens.
. "$(dirname "$0")/common.sh"
conformance=${WEFT_BUILD:-$(dirname "$weft")}/tests/test_store_conformance
if [ ! -x "$conformance" ]; then
    fail "there is no $conformance; build the tests"
    finish
fi
server=

end_server() {
    [ -n "$server" ] && kill -KILL "$server" 2> /dev/null
    clean_up
}
trap end_server EXIT

# conforms NAME ARGUMENT...: starts a server with these arguments, and runs the checks with the environment
# that the caller set
conforms() {
    local name=$1 attempt got=0
    shift
    "$weft" serve "$name" --listen 127.0.0.1:0 --url-file "$name.url" "$@" 2> "$name.log" < /dev/null &
    server=$!
    for ((attempt = 0; attempt < 6000; attempt++)); do
        [ -s "$name.url" ] && break
        sleep 0.1
    done
    checks=$((checks + 1))
    if ! WEFT_STORE_URL=$(cat "$name.url")$prefix WEFT_STORE_CONDITIONAL=1 timeout 800 "$conformance" \
        > "$name.out" 2>&1; then
        fail "$name: $(tail -c 3000 "$name.out"; cat "$name.log")"
    fi
    grep -E 'PASSED|FAILED' "$name.out"
    kill -TERM "$server"
    wait "$server" || got=$?
    server=
    checks=$((checks + 1))
    [ "$got" -eq 0 ] || fail "the server $name ended with $got: $(cat "$name.log")"
    if grep -Eq 'Sanitizer|runtime error' "$name.log"; then
        fail "$(cat "$name.log")"
    fi
}

prefix= conforms plain
prefix=runs/7 conforms prefixed

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 2 \
    -subj /CN=127.0.0.1 -addext 'subjectAltName=IP:127.0.0.1' 2> /dev/null
(umask 077 && openssl rand -hex 32 > token && echo another > reader)
prefix= WEFT_STORE_TOKEN=$(cat token) WEFT_STORE_CA_FILE=$dir/cert.pem conforms secure --tls-cert cert.pem \
    --tls-key key.pem --write-token-file token --read-token-file reader
finish
