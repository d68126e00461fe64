# SPDX-License-Identifier: Apache-2.0
#
# swift_s3.sh: a real S3 service for tests: OpenStack Swift with its S3 interface, from Debian's packages, on
# ports and in a directory of the test's own. Sourced, not run.
#
#     swift_is_installed         true if all of it is there
#     start_swift DIRECTORY      starts it; false if it does not come up, with the reason in DIRECTORY/*.log
#     stop_swift                 ends exactly what was started
#     swift_bucket NAME          makes a bucket
#     swift_names BUCKET         the names of what is in one; "BUCKET+segments" holds the parts of large objects
#
# $swift_url is its address, $swift_port its port, $swift_pids what runs. Access key test:tester, secret testing,
# region us-east-1; buckets as paths, and as hosts under "localhost". A listing gives seven keys at a time, so
# that few objects are enough to need several.
. "$(dirname "${BASH_SOURCE[0]}")/ports.sh"
swift_pids=
swift_devices=

swift_is_installed() {
    local program
    for program in swift-proxy-server swift-account-server swift-container-server swift-object-server memcached; do
        command -v "$program" > /dev/null || return 1
    done
}

stop_swift() {
    local pid
    for pid in $swift_pids; do
        kill "$pid" 2> /dev/null
    done
    for pid in $swift_pids; do
        wait "$pid" 2> /dev/null
    done
    swift_pids=
    [ -z "$swift_devices" ] || rm -rf "$swift_devices"
    swift_devices=
}

# swift_memory: makes a directory in memory, if there is room for what tests put there and files can have
# attributes. The service syncs whatever it is given, and a disk takes milliseconds for that; what outlasts a
# power cut is not what it is used for here.
swift_memory() {
    local place
    [ "$(df --output=avail -B 1G /dev/shm 2> /dev/null | tail -n 1)" -ge 4 ] 2> /dev/null || return 1
    place=$(mktemp -d /dev/shm/weft-swift.XXXXXX) || return 1
    if ! /usr/bin/python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.weft", b"x")' "$place" 2> /dev/null; then
        rmdir "$place"
        return 1
    fi
    echo "$place"
}

# swift_common DIRECTORY PORT: what the configurations of all servers begin with
swift_common() {
    cat << END
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = $2
swift_dir = $1
devices = $swift_devices
mount_check = false
user = $(id -un)
workers = 0
log_address = $1/no-log
END
}

# swift_rings DIRECTORY NAME:PORT...: where each server of the storage is found
swift_rings() {
    /usr/bin/python3 -c '
import sys
from swift.common.ring import RingBuilder
for name, port in (argument.split(":") for argument in sys.argv[2:]):
    builder = RingBuilder(4, 1, 0)
    place = {"ip": "127.0.0.1", "port": int(port), "replication_ip": "127.0.0.1", "replication_port": int(port)}
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "device": "disk", "weight": 1, "meta": "", **place})
    builder.rebalance()
    builder.get_ring().save(f"{sys.argv[1]}/{name}.ring.gz")' "$@" > "$1/rings.log" 2>&1
}

# swift_storage DIRECTORY NAME PORT: a server of the storage behind the proxy
swift_storage() {
    {
        swift_common "$1" "$3"
        cat << END
[pipeline:main]
pipeline = $2-server
[app:$2-server]
use = egg:swift#$2
END
    } > "$1/$2.conf"
}

# swift_proxy DIRECTORY PORT MEMCACHED-PORT
swift_proxy() {
    {
        swift_common "$1" "$2"
        cat << END
[pipeline:main]
pipeline = catch_errors cache s3api tempauth bulk slo copy proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:$3
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
location = us-east-1
storage_domain = localhost
max_bucket_listing = 7
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
[filter:copy]
use = egg:swift#copy
END
    } > "$1/proxy.conf"
}

start_swift_once() {
    local here=$1 ports name wait pid
    rm -rf "$here" && mkdir -p "$here" || return 1
    swift_devices=$(swift_memory) || swift_devices=$here/devices
    mkdir -p "$swift_devices/disk" || return 1
    read -r -a ports <<< "$(free_ports 5)"
    printf '[swift-hash]\nswift_hash_path_suffix = x\nswift_hash_path_prefix = y\n' > "$here/swift.conf"
    swift_rings "$here" "account:${ports[0]}" "container:${ports[1]}" "object:${ports[2]}" || return 1
    swift_storage "$here" account "${ports[0]}"
    swift_storage "$here" container "${ports[1]}"
    swift_storage "$here" object "${ports[2]}"
    swift_proxy "$here" "${ports[3]}" "${ports[4]}"
    memcached -u "$(id -un)" -l 127.0.0.1 -p "${ports[4]}" -U 0 -m 16 > "$here/memcached.log" 2>&1 &
    swift_pids=$!
    for name in account container object proxy; do
        "swift-$name-server" "$here/$name.conf" > "$here/$name.log" 2>&1 &
        swift_pids="$swift_pids $!"
    done
    swift_port=${ports[3]}
    swift_url=http://127.0.0.1:$swift_port
    for ((wait = 0; wait < 1200; wait++)); do
        ports_answer "${ports[@]}" && return 0
        for pid in $swift_pids; do
            kill -0 "$pid" 2> /dev/null || return 1
        done
        sleep 0.1
    done
    return 1
}

# Somebody may take a port between the question and the answer: then others are asked for.
start_swift() {
    local attempt
    for attempt in 1 2 3; do
        start_swift_once "$1" && return 0
        stop_swift
        sleep "0.$attempt"
    done
    return 1
}

# swift_native METHOD PATH: by the service's other interface, so that S3 is not checked by itself
swift_native() {
    local token
    token=$(curl -s --noproxy '*' -i -H 'X-Storage-User: test:tester' -H 'X-Storage-Pass: testing' \
        "$swift_url/auth/v1.0" | tr -d '\r' | sed -n 's/^X-Auth-Token: //p')
    curl -s --noproxy '*' --fail -X "$1" -H "X-Auth-Token: $token" "$swift_url/v1/AUTH_test/$2"
}

swift_bucket() { swift_native PUT "$1"; }
swift_names() { swift_native GET "${1/+/%2B}"; }
