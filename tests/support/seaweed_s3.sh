# SPDX-License-Identifier: Apache-2.0
#
# seaweed_s3.sh: a real S3 service for tests that heeds conditional puts: SeaweedFS, which scripts/venv.sh installs,
# on ports and in a directory of the test's own. Sourced, not run. In the manner of swift_s3.sh:
#
#     seaweed_is_installed       true if it is there
#     start_seaweed DIRECTORY    starts it; false if it does not come up, with the reason in DIRECTORY/*.log
#     stop_seaweed               ends exactly what was started
#     seaweed_bucket NAME        makes a bucket
#     seaweed_names BUCKET       the names of what is in one, by its other interface, so that S3 is not checked by
#                                itself; "BUCKET+segments" has what is left of uploads in parts that were neither
#                                completed nor taken back
#
# $seaweed_url is its address, $seaweed_port its port, $seaweed_native the address of its other interface,
# $seaweed_pids what runs. Access key test:tester, secret testing, region us-east-1; buckets as paths, and as hosts
# under "localhost".
. "$(dirname "${BASH_SOURCE[0]}")/ports.sh"
seaweed_pids=
seaweed_program=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/build/venv/bin/weed

seaweed_is_installed() { [ -x "$seaweed_program" ]; }

# It is killed: nothing of it is needed again, and asked to end it takes its time.
stop_seaweed() {
    local pid
    for pid in $seaweed_pids; do
        kill -KILL "$pid" 2> /dev/null
        wait "$pid" 2> /dev/null
    done
    seaweed_pids=
}

# seaweed_signed METHOD PATH: a request in the name of somebody without a colon, at which curl ends the access key
seaweed_signed() {
    curl -s --noproxy '*' --fail --max-time 20 -X "$1" --aws-sigv4 aws:amz:us-east-1:s3 --user maker:testing \
        "$seaweed_url/$2"
}

start_seaweed_once() {
    local here=$1 ports wait
    rm -rf "$here" && mkdir -p "$here/data" || return 1
    read -r -a ports <<< "$(free_ports 8)"
    cat > "$here/s3.json" << END
{"identities": [{"name": "tester", "credentials": [{"accessKey": "test:tester", "secretKey": "testing"},
                                                    {"accessKey": "maker", "secretKey": "testing"}],
                 "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
END
    # It talks to nobody else, and makes no bucket that was not asked for.
    HOME=$here TMPDIR=$here GOMEMLIMIT=512MiB "$seaweed_program" server -ip=127.0.0.1 -ip.bind=127.0.0.1 -dir="$here/data" \
        -master.port="${ports[0]}" -master.port.grpc="${ports[1]}" -master.telemetry=false \
        -master.volumeSizeLimitMB=64 -volume.max=200 -volume.port="${ports[2]}" -volume.port.grpc="${ports[3]}" \
        -filer -filer.port="${ports[4]}" -filer.port.grpc="${ports[5]}" -filer.localSocket="$here/filer.sock" \
        -s3 -s3.port="${ports[6]}" -s3.port.grpc="${ports[7]}" -s3.port.iceberg=0 -s3.port.lance=0 -s3.iam=false \
        -s3.config="$here/s3.json" -s3.domainName=localhost -s3.autoCreateBucket=false \
        -s3.localSocket="$here/s3.sock" > "$here/seaweed.log" 2>&1 &
    seaweed_pids=$!
    seaweed_port=${ports[6]}
    seaweed_url=http://127.0.0.1:$seaweed_port
    seaweed_native=http://127.0.0.1:${ports[4]}
    for ((wait = 0; wait < 600; wait++)); do
        seaweed_signed GET '' > /dev/null && return 0
        kill -0 "$seaweed_pids" 2> /dev/null || return 1
        sleep 0.1
    done
    return 1
}

# Somebody may take a port between the question and the answer: then others are asked for.
start_seaweed() {
    local attempt
    for attempt in 1 2 3; do
        start_seaweed_once "$1" && return 0
        stop_seaweed
        sleep "0.$attempt"
    done
    return 1
}

seaweed_bucket() { seaweed_signed PUT "$1"; }

seaweed_names() { /usr/bin/python3 -B "$(dirname "${BASH_SOURCE[0]}")/seaweed_names.py" "$seaweed_native" "$1"; }
