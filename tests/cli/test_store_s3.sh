#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The S3 store against a real service (tests/support/s3_service.sh): all checks of a store, with the bucket in the
# path and in the host, and over TLS; large objects; what people read when something is wrong; publish, pull, follow
# and gc; several publishers at once; and the same through a proxy that breaks connections.
. "$(dirname "$0")/sync.sh"
. "$cli/../support/s3_service.sh"
build=${WEFT_BUILD:-$(dirname "$weft")}
conformance=$build/tests/test_store_conformance
tool=$build/tests/store_tool
trap 'stop_s3; end_children' EXIT
begin_s3
check 'another bucket' s3_bucket dotted.bucket-2

# ---- all checks ----
# conform URL VARIABLE=VALUE...
conform() {
    local url=$1
    shift
    checks=$((checks + 1))
    env WEFT_STORE_CONDITIONAL="$s3_heeds" WEFT_STORE_GAPS=$((1 - s3_heeds)) WEFT_STORE_URL="$url" "$@" timeout 800 "$conformance" > conformance.log 2>&1 || {
        cat conformance.log
        fail "$url $*"
    }
}
# round_object URL VARIABLE=VALUE...: one object there and back
round_object() {
    local url=$1
    shift
    head -c 100000 /dev/urandom > object
    stdin=object expect 0 '' env "$@" "$tool" put "$url" a/key
    expect 0 '' env "$@" "$tool" get "$url" a/key
    check "an object of $url" cmp stdout object
    expect 0 '' env "$@" "$tool" list "$url"
    says stdout a/key
}
conform s3://bucket/
round_object s3://bucket/deep/down/ AWS_ENDPOINT_URL=http://nowhere.invalid AWS_ENDPOINT_URL_S3="$s3_url/"
# names under localhost are loopback addresses; a session token is signed with the rest, and Swift checks that
# (SeaweedFS takes only tokens that it has issued)
session=()
[ "$s3_service" != swift ] || session=(AWS_SESSION_TOKEN=some+token/==)
conform s3://bucket/virtual AWS_ENDPOINT_URL="http://localhost:$s3_port" WEFT_S3_ADDRESSING=virtual "${session[@]}" \
    WEFT_TEST_STRIDE=10

# ---- TLS, where bodies are sent unhashed ----
# tls_front: nginx before the service, with a certificate for 127.0.0.1 in cert.pem
tls_front() {
    local attempt wait
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 2 \
        -subj /CN=127.0.0.1 -addext 'subjectAltName=IP:127.0.0.1' 2> /dev/null
    for attempt in 1 2 3; do
        tls_port=$(free_ports 1)
        cat > nginx.conf << END
daemon off;
user root;
pid $dir/nginx.pid;
error_log $dir/error.log;
events { worker_connections 512; }
http {
    access_log $dir/access.log;
    client_body_temp_path $dir/body;
    proxy_temp_path $dir/temp; fastcgi_temp_path $dir/temp; uwsgi_temp_path $dir/temp; scgi_temp_path $dir/temp;
    client_max_body_size 0;
    server {
        listen 127.0.0.1:$tls_port ssl http2;
        ssl_certificate $dir/cert.pem;
        ssl_certificate_key $dir/key.pem;
        location / {
            proxy_pass $s3_url;
            proxy_set_header Host \$http_host;
            proxy_http_version 1.1;
        }
    }
}
END
        "$nginx" -p "$dir" -c "$dir/nginx.conf" 2> nginx.log &
        front=$!
        for ((wait = 0; wait < 600; wait++)); do
            ports_answer "$tls_port" && return 0
            kill -0 "$front" 2> /dev/null || break
            sleep 0.1
        done
        kill "$front" 2> /dev/null
        sleep "0.$attempt"
    done
    return 1
}
nginx=$(command -v nginx || ls /usr/sbin/nginx 2> /dev/null)
front=
if [ -z "$nginx" ]; then
    skip 'nginx is not installed (make deps-test installs it): the S3 store was not tested with TLS'
elif tls_front; then
    trap 'kill "$front" 2> /dev/null; stop_s3; end_children' EXIT
    conform s3://bucket/secure AWS_ENDPOINT_URL="https://127.0.0.1:$tls_port" AWS_CA_BUNDLE="$dir/cert.pem" \
        WEFT_TEST_STRIDE=10
    round_object s3://bucket/secure AWS_ENDPOINT_URL="https://127.0.0.1:$tls_port" AWS_CA_BUNDLE=/nowhere \
        WEFT_STORE_CA_FILE="$dir/cert.pem"
    check 'HTTP/2 was spoken' grep -q 'PUT .* HTTP/2.0' access.log
    expect 1 'denied.*not trusted here' env AWS_ENDPOINT_URL="https://127.0.0.1:$tls_port" \
        WEFT_STORE_ATTEMPTS=1 "$tool" get s3://bucket key
else
    cat nginx.log
    fail 'nginx does not start'
fi

s3_names bucket > names
says names '^run-[0-9a-f]+/a/b.c_d~e-f/G9$'
says names '^deep/down/a/key$'
says names '^virtual/run-[0-9a-f]+/feed$'
conditions=silent
[ "$s3_heeds" -eq 0 ] || conditions=says
"$conditions" names weft-conditions # what was put to learn of conditions

# ---- sizes at the borders of parts, none of which is known in advance ----
mebi=$((1 << 20))
for size in 0 1 $((8 * mebi - 1)) $((8 * mebi)) $((8 * mebi + 1)) $((16 * mebi)) $((40 * mebi + 12345)); do
    head -c "$size" /dev/urandom > large
    stdin=large expect 0 '' "$tool" put s3://dotted.bucket-2/sizes "of-$size"
    expect 0 '' "$tool" get s3://dotted.bucket-2/sizes "of-$size"
    check "$size bytes" cmp stdout large
    expect 0 '' "$tool" head s3://dotted.bucket-2/sizes "of-$size"
    parts=$(((size + 8 * mebi - 1) / (8 * mebi)))
    tag='"[0-9a-f]+"'
    [ "$parts" -le 1 ] || tag="\"[0-9a-f]+-$parts\""
    says stdout "^$size $tag\$"
done
parts=0
[ "$s3_service" != swift ] || parts=10
check 'the parts of what is there' test "$(s3_names dotted.bucket-2+segments | grep -c "^sizes/of-.*/[0-9]*$")" -eq "$parts"
s3_names bucket+segments > names
silent names '/broken/' # a put that failed leaves no parts

# ---- what people read ----
export WEFT_STORE_ATTEMPTS=2
expect 1 'not found.*GET .*there is no such object' "$tool" get s3://bucket nothing
expect 1 'not found' "$tool" head s3://bucket nothing
expect 0 '' "$tool" remove s3://bucket nothing
for verb in get put head remove; do
    denied='denied.*(AWS_SECRET_ACCESS_KEY belongs to AWS_ACCESS_KEY_ID.*SignatureDoesNotMatch|AWS_ACCESS_KEY_ID)'
    expect 1 "$denied" env AWS_SECRET_ACCESS_KEY=mistaken "$tool" "$verb" s3://bucket key
    expect 1 'denied.*AWS_ACCESS_KEY_ID' env AWS_ACCESS_KEY_ID=nobody "$tool" "$verb" s3://bucket key
    silent stderr 'testing|mistaken'
done
for verb in get put; do
    expect 1 'invalid argument.*no such bucket; create it.*AWS_ENDPOINT_URL_S3' "$tool" "$verb" s3://no-bucket/x key
done
stdin=large expect 1 'invalid argument.*no such bucket' "$tool" put s3://no-bucket/x key
if [ "$s3_service" = swift ]; then # SeaweedFS is of every region
    expect 1 'set AWS_REGION' env AWS_REGION=eu-west-9 "$tool" get s3://bucket key
fi
expect 1 'set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY' env -u AWS_ACCESS_KEY_ID "$tool" get s3://bucket key
expect 1 'set AWS_ACCESS_KEY_ID' env AWS_SECRET_ACCESS_KEY= "$tool" get s3://bucket key
expect 1 'names no bucket' "$tool" get s3://test:testing@bucket/x key
silent stderr testing
expect 1 'cannot be part of the host 127.0.0.1' env WEFT_S3_ADDRESSING=virtual "$tool" get s3://bucket key
expect 1 'neither "path" nor "virtual"' env WEFT_S3_ADDRESSING=both "$tool" get s3://bucket key
expect 1 'cannot read the certificates of nowhere.pem' env AWS_CA_BUNDLE=nowhere.pem "$tool" get s3://bucket key
expect 1 'remote failed.*refused' env AWS_ENDPOINT_URL=http://127.0.0.1:1 "$tool" get s3://bucket key
expect 1 'unsupported.*poll' "$tool" watch s3://bucket

# ---- the command ----
"$weft" pull --help > help
says help 's3://BUCKET/PREFIX'
says help AWS_ACCESS_KEY_ID
# round_trip STORE NAME [OPTION...]: every version, with a follower on the way, and the log
round_trip() {
    local store=$1 name=$2 step follower
    shift 2
    begin "$name" follow "$store" "$name.model" --until 5 --poll 0.1 "$@"
    follower=$pid
    for step in 0 1 2 3 4; do
        expect 0 '' "$weft" publish "$store" "$(model "$step")" --label "step=$step" "$@"
    done
    await "$name follows" grep -q '^version 5' "$name.out"
    grep -q '^version 5' "$name.out" || kill "$follower"
    ended 0 "$follower" "$name"
    check "$name followed" cmp "$name.model" "$(model 4)"
    expect 0 '' "$weft" pull "$store" "$name.pulled" --verify full "$@"
    check "$name pulled" cmp "$name.pulled" "$(model 4)"
    expect 0 '' "$weft" pull "$store" "$name.pulled" --version 2 "$@"
    check "$name went back" cmp "$name.pulled" "$(model 1)"
    expect 0 '' "$weft" log "$store" -n 3 "$@"
    says stdout 'the newest 3 versions, every link checked'
}
round_trip s3://bucket/run plain
expect 0 '' "$weft" publish s3://bucket/run "$(model 5)" --anchor now --keep-anchors 1
s3_names bucket | grep -c '^run/' > before
expect 0 '' "$weft" gc s3://bucket/run --grace 0
says stdout 'versions since 6 are kept'
s3_names bucket | grep -c '^run/' > after
check 'removed' test "$(cat after)" -lt "$(cat before)"
expect 0 '' "$weft" pull s3://bucket/run newcomer
check 'a newcomer' cmp newcomer "$(model 5)"
expect 4 'AWS_ACCESS_KEY_ID' env AWS_SECRET_ACCESS_KEY=wrong "$weft" pull s3://bucket/run other
expect 4 'AWS_ACCESS_KEY_ID' env AWS_SECRET_ACCESS_KEY=wrong "$weft" publish s3://bucket/run "$(model 0)"
expect 2 'no such bucket' "$weft" pull s3://no-bucket/run other
absent other

# ---- through a bad network ----
# Faults that end, so that whoever tries again gets through. The Host that was signed passes the proxy unchanged.
faults='[{"fault": "cut", "probability": 0.15, "count": 30}, {"fault": "cut", "where": "request", "probability": 0.1,
    "count": 20}, {"fault": "lose", "probability": 0.1, "count": 20}, {"fault": "status", "code": 503, "probability": 0.1,
    "count": 20}, {"fault": "status", "code": 500, "probability": 0.05, "count": 10}]'
/usr/bin/python3 -B "$cli/../support/fault_proxy.py" --upstream "$s3_url" --url-file proxy.url --seed 5 \
    --faults "$faults" > proxy.out 2> proxy.log < /dev/null &
proxy=$!
children+=("$proxy")
await 'the proxy' test -s proxy.url
read -r AWS_ENDPOINT_URL < proxy.url
export AWS_ENDPOINT_URL WEFT_STORE_ATTEMPTS=20
round_trip s3://bucket/faulty faulty --retries 20
head -c $((40 * mebi + 777)) /dev/urandom > large
stdin=large expect 0 '' "$tool" put s3://bucket/faulty large
expect 0 '' "$tool" get s3://bucket/faulty large
check 'a large object through faults' cmp stdout large
check 'faults struck' test "$(grep -c '^fault:' proxy.log)" -gt 10
kill "$proxy"
wait "$proxy" 2> /dev/null
finish
