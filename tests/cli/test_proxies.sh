#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Stores behind a forward proxy, over http and https, and past it where no_proxy says so; and IPv6 addresses.
. "$(dirname "$0")/sync.sh"
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY no_proxy NO_PROXY
: > proxy.log
/usr/bin/python3 -B "$cli/../support/forward_proxy.py" proxy proxy.log > proxy.out 2> proxy.err < /dev/null &
children+=("$!")
await 'the proxy' test -s proxy
read -r proxy < proxy

# through LINES COMMAND...: the command works, and LINES says whether the proxy heard of it
through() {
    local heard=$1
    shift
    : > proxy.log
    expect 0 '' "$@"
    "$heard" proxy.log "${url#*://}|${url%/}"
}
serve plain store
through silent "$weft" publish "$url" "$(model 0)"
through says env http_proxy="$proxy" "$weft" publish "$url" "$(model 1)"
through silent env http_proxy="$proxy" no_proxy=127.0.0.1 "$weft" publish "$url" "$(model 2)"
through silent env http_proxy="$proxy" NO_PROXY='example.com, 127.0.0.1' "$weft" pull "$url" pulled
check 'pulled' cmp pulled "$(model 2)"
expect 4 'remote failed|cannot connect|onnect' env http_proxy=http://127.0.0.1:1 "$weft" pull "$url" other --retries 0

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 2 \
    -subj /CN=127.0.0.1 -addext 'subjectAltName=IP:127.0.0.1' 2> /dev/null
serve secure store --tls-cert cert.pem --tls-key key.pem
url=${url%/}
through says env HTTPS_PROXY="$proxy" "$weft" pull "$url" secure.model --ca-file cert.pem
says proxy.log '^CONNECT 127.0.0.1:'
through silent env https_proxy="$proxy" no_proxy='*' "$weft" pull "$url" secure.model --ca-file cert.pem

if [ -s /proc/net/if_inet6 ] && grep -q ' lo$' /proc/net/if_inet6; then
    serve six other-store --listen '[::1]:0'
    says six.url '^http://\[::1\]:[0-9]+/$'
    expect 0 '' "$weft" publish "$url" "$(model 3)"
    expect 0 '' "$weft" pull "$url" six.model
    check 'over IPv6' cmp six.model "$(model 3)"
else
    skip 'there is no IPv6 on the loopback here'
fi
finish
