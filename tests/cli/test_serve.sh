#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft serve` as its user meets it: what it says, what it refuses, curl as a client, TLS, IPv6, its end.
. "$(dirname "$0")/common.sh"
servers=()

end_servers() {
    local pid
    for pid in "${servers[@]}"; do
        kill -KILL "$pid" 2> /dev/null
    done
    clean_up
}
trap end_servers EXIT

# await TEXT COMMAND...: until the command succeeds, for ten minutes: only what never happens is a failure
await() {
    local text=$1 attempt
    shift
    checks=$((checks + 1))
    for ((attempt = 0; attempt < 6000; attempt++)); do
        "$@" > /dev/null 2>&1 && return
        sleep 0.1
    done
    fail "$text: did not happen: $*"
}

# serve NAME ARGUMENT...: starts a server and waits until it answers; its URL is in $url, its pid in $pid, and
# what it says in NAME.log.
serve() {
    local name=$1 attempt
    shift
    rm -f "$name.url"
    "$weft" serve "$@" --url-file "$name.url" 2> "$name.log" < /dev/null &
    pid=$!
    servers+=("$pid")
    for ((attempt = 0; attempt < 6000; attempt++)); do
        if [ -s "$name.url" ]; then
            url=$(cat "$name.url")
            return
        fi
        kill -0 "$pid" 2> /dev/null || break
        sleep 0.1
    done
    fail "the server $name did not start: $(cat "$name.log")"
    finish
}

# stop SIGNAL: ends the server, which must say 0
stop() {
    local got=0
    kill "-$1" "$pid"
    wait "$pid" || got=$?
    checks=$((checks + 1))
    [ "$got" -eq 0 ] || fail "the server ended with $got after $1"
}

# says FILE PATTERN
says() {
    checks=$((checks + 1))
    grep -Eq -- "$2" "$1" || fail "$1 does not say '$2' but: $(head -c 500 "$1")"
}

# silent FILE PATTERN
silent() {
    checks=$((checks + 1))
    if grep -Eq -- "$2" "$1"; then
        fail "$1 says '$2': $(head -c 500 "$1")"
    fi
}

# code CODE ARGUMENT...: curl's answer must have this status code; the body is in body, the fields in fields
code() {
    local wanted=$1 got
    shift
    checks=$((checks + 1))
    got=$(curl -sS --max-time 60 -o body -D fields -w '%{http_code}' "$@" 2> curl.log)
    [ "$got" = "$wanted" ] || fail "curl $* gave $got, not $wanted: $(cat curl.log; head -c 300 body)"
}

# ---- usage ----
expect 0 '' "$weft" serve --help
says stdout 'Who may write'
expect 2 'give the directory' "$weft" serve
expect 2 'too many arguments' "$weft" serve a b
expect 2 'belong together' "$weft" serve d --tls-cert x
expect 2 'exclude' "$weft" serve d --read-only --write-token-file x
expect 2 'max-connections' "$weft" serve d --max-connections 3
expect 2 'max-object' "$weft" serve d --max-object big
expect 2 'idle-seconds' "$weft" serve d --idle-seconds 0
expect 2 'takes a directory' "$weft" serve http://127.0.0.1:1/
expect 2 'give the store to relay' "$weft" serve --cache c
expect 2 'not for --cache' "$weft" serve d --cache c --volatile
expect 2 'not for --cache' "$weft" serve d --cache c --max-object 1M
expect 2 'a name without a port' "$weft" serve d --host name:80
for address in 127.0.0.1:x 127.0.0.1:65536 '[::1' '[::1]x' ::1 127.0.0.1: 127.0.0.1:-1; do
    expect 2 'listen takes' "$weft" serve d --listen "$address"
done
expect 1 'cannot listen on no.such.host.invalid' "$weft" serve d --listen no.such.host.invalid:0
expect 1 'cannot listen on 192.0.2.1:0' "$weft" serve d --listen 192.0.2.1:0
touch file
expect 1 'not a directory' "$weft" serve file
expect 1 'cannot make the directory' "$weft" serve no/such/parent
expect 1 'no/such: No such file' "$weft" serve d --write-token-file no/such
printf '\n \n' > blank
chmod 600 blank
expect 2 'holds no token' "$weft" serve d --write-token-file blank
expect 1 'cannot write the URL' "$weft" serve d --listen 127.0.0.1:0 --url-file no/such/file

# ---- what it says, and curl ----
serve plain new-store
says plain.log ' info weft serve: http://127\.0\.0\.1:[0-9]+/ serves new-store \(readable by all, writable by all\)$'
silent plain.log 'warning'
expect 1 'another process listens there; choose another with --listen' \
    "$weft" serve d --listen "127.0.0.1:$(sed 's/.*:\([0-9]*\)\/.*/\1/' plain.url)"

head -c 3000000 /dev/urandom > object
code 201 -T object "${url}patches/1"
check 'the object is there' cmp object new-store/patches/1
code 200 "${url}patches/1"
check 'the object comes back' cmp object body
code 206 -r 1000000-1999999 "${url}patches/1"
tail -c +1000001 object | head -c 1000000 > part
check 'a range comes back' cmp part body
code 206 -r -5 "${url}patches/1"
check 'the end comes back' cmp <(tail -c 5 object) body
code 416 -r 3000000- "${url}patches/1"
says fields '^Content-Range: bytes \*/3000000'
code 412 -T object -H 'If-None-Match: *' "${url}patches/1"
code 204 -T object "${url}patches/1"
code 200 -I "${url}patches/1"
tag=$(tr -d '\r' < fields | sed -n 's/^ETag: //p')
code 304 -H "If-None-Match: $tag" "${url}patches/1"
code 204 -T object -H "If-Match: $tag" "${url}patches/1"
code 412 -T object -H "If-Match: $tag" "${url}patches/1"
code 400 -T object --path-as-is "${url}../object"
code 400 -T object "${url}%2e%2e/object"
head -c 1000 object > small
code 201 -T - -H 'Transfer-Encoding: chunked' "${url}pages/chunked" < small
check 'what was sent in chunks is there' cmp small new-store/pages/chunked
code 204 -X DELETE "${url}patches/1"
code 404 "${url}patches/1"
code 200 "${url}v1/status"
check 'the status is JSON' /usr/bin/python3 -c 'import json; assert json.load(open("body"))["head"] is None'
code 200 "$url"
says body '/v1/status'
code 204 "${url}v1/watch?after=0&seconds=0.1"
stop TERM
says plain.log 'ending'

serve quiet new-store --quiet
code 200 "${url}pages/chunked"
stop INT
checks=$((checks + 1))
[ -s quiet.log ] && fail "--quiet said: $(cat quiet.log)"

# ---- other addresses ----
if [ -e /proc/net/if_inet6 ] && grep -q '^0*1 ' /proc/net/if_inet6; then
    serve six store --listen '[::1]:0'
    says six.log ' info weft serve: http://\[::1\]:[0-9]+/ serves store \(readable by all, writable by all\)$'
    code 201 -g -T small "${url}a"
    code 200 -g "${url}a"
    stop TERM
else
    skip 'IPv6: there is no ::1 here'
fi
echo 'token-of-the-writer' > writer
chmod 600 writer
echo 'token-of-the-reader' > reader
chmod 644 reader

serve open store --listen 0.0.0.0:0
port=$(sed 's/.*:\([0-9]*\)\/.*/\1/' open.url)
says open.log 'warning weft serve: without TLS'
says open.log 'warning weft serve: everybody who reaches this address can read'
says open.log 'read-only\)$'
code 403 -T small "http://127.0.0.1:$port/b"
stop TERM

serve tokens store --listen 0.0.0.0:0 --read-token-file reader --write-token-file writer
port=$(sed 's/.*:\([0-9]*\)\/.*/\1/' tokens.url)
says tokens.log 'warning weft serve: others can read the token file reader; run chmod 600'
silent tokens.log 'token file writer'
silent tokens.log 'token-of'
says tokens.log 'reading needs a token, writing needs a token'
code 401 "http://127.0.0.1:$port/a"
says fields '^WWW-Authenticate: Bearer'
code 403 -T small -H 'Authorization: Bearer token-of-the-reader' "http://127.0.0.1:$port/b"
code 201 -T small -H 'Authorization: Bearer token-of-the-writer' "http://127.0.0.1:$port/b"
code 200 -H 'Authorization: Bearer token-of-the-reader' "http://127.0.0.1:$port/b"
stop TERM

# ---- TLS ----
make_certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1.key" -out "$1.crt" \
        -days 2 -subj /CN=127.0.0.1 -addext 'subjectAltName=IP:127.0.0.1,DNS:localhost' 2> /dev/null
}
make_certificate one
make_certificate other
openssl pkey -in one.key -aes128 -passout pass:x -out locked.key 2> /dev/null
expect 1 'cannot open no.crt' "$weft" serve store --listen 127.0.0.1:0 --tls-cert no.crt --tls-key one.key
expect 1 'cannot open no.key' "$weft" serve store --listen 127.0.0.1:0 --tls-cert one.crt --tls-key no.key
expect 1 'no certificate' "$weft" serve store --listen 127.0.0.1:0 --tls-cert one.key --tls-key one.key
expect 1 'no private key' "$weft" serve store --listen 127.0.0.1:0 --tls-cert one.crt --tls-key one.crt
expect 1 'with a password' "$weft" serve store --listen 127.0.0.1:0 --tls-cert one.crt --tls-key locked.key
expect 1 'is not that of' "$weft" serve store --listen 127.0.0.1:0 --tls-cert one.crt --tls-key other.key
expect 1 'no PEM file' "$weft" serve store --listen 127.0.0.1:0 --tls-cert object --tls-key one.key

chmod 604 one.key
serve tls store --tls-cert one.crt --tls-key one.key
says tls.log 'warning weft serve: others can read the private key one.key; run chmod 640 on it'
says tls.log ' info weft serve: https://127\.0\.0\.1:[0-9]+/ serves store'
code 201 --cacert one.crt -T object "${url}patches/tls"
code 200 --cacert one.crt "${url}patches/tls"
check 'the object comes back through TLS' cmp object body
code 206 --cacert one.crt -r 1000000-1999999 "${url}patches/tls"
check 'a range comes back through TLS' cmp part body
code 204 --cacert one.crt "${url}v1/watch?after=0&seconds=0.1"
checks=$((checks + 1))
curl -sS --cacert other.crt "$url" > /dev/null 2>&1 && fail 'another certificate was trusted'
checks=$((checks + 1))
curl -sS --max-time 20 "http://${url#https://}" > body 2> /dev/null && fail 'plain HTTP was answered on a TLS port'
code 200 --cacert one.crt "${url}v1/status"

# ---- it is renewed, under a connection that goes on; half of a renewal, or one that failed, changes nothing ----
curl -sS --max-time 100 --cacert one.crt "${url}v1/watch?after=0&seconds=60" > /dev/null 2> watch.err &
watcher=$!
watched() { curl -sS --cacert one.crt "${url}metrics" | grep -Eq '^weft_serve_watchers(\{[^}]*\})? 1$'; }
await 'who waits is there' watched
not_after() { curl -sS --cacert "$1" "${url}metrics" | sed -n 's/^weft_serve_certificate_not_after_seconds //p'; }
before=$(not_after one.crt)
cp one.crt first.crt
cp other.crt one.crt
await 'half of it is refused' grep -q 'the certificate could not be read, and the one from before stays' tls.log
says tls.log 'the key in one.key is not that of the certificate in one.crt'
code 200 --cacert first.crt "${url}v1/status"
cp other.key one.key
trusted() { curl -sS --cacert "$1" "${url}v1/status"; }
await 'the new one' trusted other.crt
says tls.log 'a file has changed: the certificate was read again'
checks=$((checks + 1))
trusted first.crt > /dev/null 2>&1 && fail 'the certificate from before is still given'
check 'the one who waits was not cut' kill -0 "$watcher"
openssl req -x509 -key other.key -out expired.crt -days -1 -subj /CN=127.0.0.1 2> /dev/null ||
    openssl x509 -in other.crt -signkey other.key -days -1 -out expired.crt 2> /dev/null
mv expired.crt one.crt
await 'one that has expired is told' grep -q 'warning weft serve: the certificate in one.crt has expired' tls.log
expired=$(curl -ksS "${url}metrics" | sed -n 's/^weft_serve_certificate_not_after_seconds //p')
check "and can be watched: $expired, $before" awk -v a="$expired" -v b="$before" 'BEGIN { exit !(a > 0 && a < b) }'
kill "$watcher"
stop TERM
for log in *.log; do
    silent "$log" 'Sanitizer|runtime error'
done
finish
