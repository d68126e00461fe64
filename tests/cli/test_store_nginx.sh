#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The HTTP store against a real nginx: all checks of a store over HTTP and HTTPS, and what people read when
# certificates, tokens or addresses are wrong.
. "$(dirname "$0")/common.sh"
. "$cli/../support/ports.sh"
build=${WEFT_BUILD:-$(dirname "$weft")}
conformance=$build/tests/test_store_conformance
tool=$build/tests/store_tool
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY
nginx=$(command -v nginx || ls /usr/sbin/nginx 2> /dev/null)
if [ -z "$nginx" ]; then
    skip 'nginx is not installed (make deps-test installs it): the HTTP store was not tested against a real server'
    finish
fi
server=

stop_server() {
    if [ -n "$server" ]; then
        kill "$server" 2> /dev/null
        wait "$server" 2> /dev/null
    fi
    server=
}
trap 'stop_server; clean_up' EXIT

# ---- certificates ----
quietly() { "$@" > openssl.log 2>&1 || { cat openssl.log; fail "$*"; }; }
# authority NAME
authority() {
    quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 \
        -subj "/CN=$1" -keyout "$1.key" -out "$1.pem"
}
# certificate NAME AUTHORITY SUBJECT-ALTERNATIVE-NAME [openssl ca options]
certificate() {
    local name=$1 authority=$2 host=$3
    shift 3
    quietly openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" \
        -keyout "$name.key" -out "$name.csr"
    mkdir -p "$name.ca" && : > "$name.ca/index.txt" && echo 01 > "$name.ca/serial"
    cat > "$name.cnf" << END
[ca]
default_ca = here
[here]
new_certs_dir = $dir/$name.ca
database = $dir/$name.ca/index.txt
serial = $dir/$name.ca/serial
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = $host
END
    quietly openssl ca -batch -notext -config "$name.cnf" -cert "$authority.pem" -keyfile "$authority.key" \
        -in "$name.csr" -out "$name.pem" "$@"
}
authority good
authority other
certificate valid good IP:127.0.0.1,DNS:localhost -days 10
certificate expired good IP:127.0.0.1 -startdate 20200101000000Z -enddate 20200201000000Z
certificate elsewhere good DNS:elsewhere.example -days 10

# ---- the server ----
tls_server() {
    cat << END
    server {
        listen 127.0.0.1:$1 ssl http2;
        ssl_certificate $dir/$2.pem;
        ssl_certificate_key $dir/$2.key;
        $3
    }
END
}

write_configuration() {
    local objects='location / { dav_methods PUT DELETE; create_full_put_path on; }'
    local guarded="location / {
            if (\$http_authorization != \"Bearer right\") { return 401; }
            dav_methods PUT DELETE; create_full_put_path on;
        }
        location /moved/ { return 302 http://elsewhere.example/new/; }
        location /fixed/ { dav_methods off; }
        location /small/ { dav_methods PUT; create_full_put_path on; client_max_body_size 1k; }
        location /packed/ { default_type text/plain; add_header Content-Encoding gzip; return 200 x; }"
    cat > nginx.conf << END
daemon off;
user root;
worker_processes 2;
pid $dir/nginx.pid;
error_log $dir/error.log;
events { worker_connections 512; }
http {
    access_log $dir/access.log;
    root $dir/root;
    client_body_temp_path $dir/body;
    proxy_temp_path $dir/temp; fastcgi_temp_path $dir/temp; uwsgi_temp_path $dir/temp; scgi_temp_path $dir/temp;
    client_max_body_size 0;
    server { listen 127.0.0.1:${ports[0]}; $objects }
    server { listen 127.0.0.1:${ports[1]}; $guarded }
$(tls_server "${ports[2]}" valid "$guarded")
$(tls_server "${ports[3]}" expired "$objects")
$(tls_server "${ports[4]}" elsewhere "$objects")
}
END
}

# Somebody may take a port between the question and the answer: then others are asked for.
start_server() {
    local attempt wait
    mkdir -p root
    for attempt in 1 2 3 4 5; do
        read -r -a ports <<< "$(free_ports 5)"
        write_configuration
        "$nginx" -p "$dir" -c "$dir/nginx.conf" 2> nginx.log &
        server=$!
        for ((wait = 0; wait < 600; wait++)); do
            if curl -s --noproxy '*' -o /dev/null "http://127.0.0.1:${ports[0]}/"; then
                return 0
            fi
            kill -0 "$server" 2> /dev/null || break
            sleep 0.1
        done
        stop_server
        sleep "0.$attempt"
    done
    cat nginx.log error.log
    fail 'nginx does not start'
    finish
}
start_server
plain=http://127.0.0.1:${ports[0]}
guarded=http://127.0.0.1:${ports[1]}
secure=https://127.0.0.1:${ports[2]}

# ---- all checks ----
conform() {
    checks=$((checks + 1))
    env WEFT_STORE_CONDITIONAL=0 "$@" "$conformance" > conformance.log 2>&1 || {
        cat conformance.log
        fail "$*"
    }
}
conform WEFT_STORE_URL="$plain"
conform WEFT_STORE_URL="$plain/deep/down/"
conform WEFT_STORE_URL="$guarded" WEFT_STORE_TOKEN=right
conform WEFT_STORE_URL="$secure" WEFT_STORE_TOKEN=right WEFT_STORE_CA_FILE=good.pem
entries body 0
check 'HTTP/2 was spoken over TLS' grep -q 'HTTP/2.0' access.log
check 'the program says who it is' grep -q '"weft/[0-9.]*"' access.log

# ---- what people read ----
export WEFT_STORE_ATTEMPTS=2
expect 1 'not found.*GET .*there is no such object' "$tool" get "$plain" nothing
expect 1 'denied.*certificate has expired' env WEFT_STORE_CA_FILE=good.pem \
    "$tool" get "https://127.0.0.1:${ports[3]}" key
expect 1 'denied.*not trusted here.*--ca-file' env WEFT_STORE_CA_FILE=other.pem "$tool" get "$secure" key
expect 1 'denied.*not trusted here.*--ca-file' "$tool" get "$secure" key
expect 1 'denied.*for another host' env WEFT_STORE_CA_FILE=good.pem \
    "$tool" get "https://127.0.0.1:${ports[4]}" key
expect 1 'denied.*wants a token.*--token-file or WEFT_TOKEN' "$tool" get "$guarded" key
expect 1 'denied.*does not accept the token.*--token-file' env WEFT_STORE_TOKEN=wrong "$tool" get "$guarded" key
expect 1 'denied' env WEFT_STORE_TOKEN=wrong "$tool" put "$guarded" key
expect 1 'denied' env WEFT_STORE_TOKEN=wrong "$tool" remove "$guarded" key
expect 1 'cannot read the certificates of nowhere.pem' env WEFT_STORE_CA_FILE=nowhere.pem \
    "$tool" get "$secure" key
expect 1 'cannot read certificates from .*nginx.conf' env WEFT_STORE_CA_FILE=nginx.conf "$tool" get "$secure" key
expect 1 'remote failed.*refused.*2 attempts' "$tool" get "http://127.0.0.1:1" key
expect 1 'remote failed.*2 attempts' "$tool" get "https://127.0.0.1:${ports[0]}" key
expect 1 'remote failed.*answers 400' "$tool" get "http://127.0.0.1:${ports[2]}" key
expect 1 'remote failed.*points to http://elsewhere.example/new/' "$tool" get "$guarded/moved" key
expect 1 'unsupported.*dav_methods' "$tool" put "$guarded/fixed" key
expect 1 'unsupported.*dav_methods' "$tool" remove "$guarded/fixed" key
head -c 5000 /dev/urandom > large
stdin=large expect 1 'limit exceeded.*client_max_body_size' "$tool" put "$guarded/small" key
stdin=large expect 0 '' "$tool" put "$plain/small" key
expect 0 '' "$tool" get "$plain/small" key
check 'what was put is got' cmp stdout large
expect 1 'compresses' "$tool" get "$guarded/packed" key
expect 1 'unsupported.*weft serve' "$tool" watch "$plain"
expect 1 'understands a path, file://, http://, https:// and s3://' "$tool" get ftp://127.0.0.1/ key
expect 1 'user or password.*token' "$tool" get "http://me:secret@127.0.0.1:${ports[0]}" key
checks=$((checks + 1))
if grep -q secret stderr; then
    fail 'a password was printed'
fi

# ---- a server that goes away ----
stop_server
expect 1 'remote failed.*refused' "$tool" get "$plain" key
finish
