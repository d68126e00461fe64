#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# PULSESync over slow links: two network namespaces joined by a pair of interfaces that `tc` shapes in both
# directions, `weft serve` in one, `weft follow` in the other. For each rate it measures a version that comes
# as a patch, the whole model as an anchor, and the plain file by curl: bytes at the worker's interface, all
# protocols included, and seconds from the beginning of publish to the end of commit.
#
# usage: bench/link.sh [--params N | --model DIRECTORY] [--steps N] [--rates "MBIT MBIT…"] [--followers N] [--relay]
#                      [--patches] [--json]
#        bench/link.sh --loco STATE [--rounds N] [--rates "MBIT MBIT…"] [--ways "WAY|WAY…"] [--json]
#
# With --patches only patches come through the link as it is shaped, and whole models before: over a slow one they would
# take hours. With --followers so many share the link, likewise; with --relay they read from a relay at their end of it. The
# model is the trace of `weft bench`, or DIRECTORY/step-0.safetensors to step-N.safetensors.
# With --loco four trainers of the policy in STATE (`weft bench --lm --rates … --save STATE`) meet in the store through the
# link instead: seconds of a round by each way to agree, with and without overlap.
# Needs root, ip, tc and curl; where they or what they do is not to be had, it says so and exits with 0. The
# command is build/weft, or $WEFT.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
weft=${WEFT:-$here/../build/weft}
params=64M
model=
steps=6
rates='200 50'
followers=1
relay=
patches=
json=
state=
rounds=6
ways='diloco|diloco --overlap|pulseloco|pulseloco --overlap|pulseloco --grid 3|pulseloco --grid 3 --overlap'
while [ $# -gt 0 ]; do
    case $1 in
        --params) params=$2 && shift 2 ;;
        --model) model=$2 && shift 2 ;;
        --steps) steps=$2 && shift 2 ;;
        --rates) rates=$2 && shift 2 ;;
        --followers) followers=$2 && shift 2 ;;
        --relay) relay=yes && shift ;;
        --patches) patches=yes && shift ;;
        --loco) state=$(realpath "$2") && rates=50 && shift 2 ;;
        --rounds) rounds=$2 && shift 2 ;;
        --ways) ways=$2 && shift 2 ;;
        --json) json=--json && shift ;;
        *)
            echo "usage: bench/link.sh [--params N | --model DIRECTORY] [--steps N] [--rates \"MBIT MBIT…\"] [--followers N]" \
                "[--relay] [--patches] [--json]" >&2
            echo "       bench/link.sh --loco STATE [--rounds N] [--rates \"MBIT MBIT…\"] [--ways \"WAY|WAY…\"] [--json]" >&2
            exit 2
            ;;
    esac
done

trainer=weft-trainer-$$
worker=weft-worker-$$
address=10.77.0
token=of-this-measurement
pids=()
dir=

# end PID: a process of ours, if it is still there
end() {
    kill "$1" 2> /dev/null || true
    wait "$1" 2> /dev/null || true
}

# end_all: whatever was begun
end_all() {
    local pid
    for pid in "${pids[@]}"; do
        end "$pid"
    done
    pids=()
}

clean_up() {
    end_all
    ip netns del "$worker" 2> /dev/null || true
    ip netns del "$trainer" 2> /dev/null || true
    [ -z "$dir" ] || rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

skip() {
    echo "SKIPPED: bench/link.sh measured nothing: $*" >&2
    [ -z "$json" ] || echo '{"skipped": true}'
    exit 0
}

# ---- the link ----

shape() {
    local name
    for name in "$trainer" "$worker"; do
        ip netns exec "$name" tc qdisc replace dev wire root tbf rate "$1mbit" burst 32kb latency 200ms
    done
}

unshape() {
    local name
    for name in "$trainer" "$worker"; do
        ip netns exec "$name" tc qdisc del dev wire root 2> /dev/null || true
    done
}

make_link() {
    local name number=0
    ip netns add "$trainer" && ip netns add "$worker" || return 1
    ip link add wire netns "$trainer" type veth peer name wire netns "$worker" || return 1
    for name in "$trainer" "$worker"; do
        number=$((number + 1))
        ip netns exec "$name" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 2> /dev/null || true
        # a packet of the kernel's is a packet of the wire, and is counted with its own headers
        ip netns exec "$name" ip link set dev wire gso_max_segs 1 2> /dev/null || true
        ip netns exec "$name" ip address add "$address.$number/24" dev wire || return 1
        ip netns exec "$name" ip link set lo up || return 1
        ip netns exec "$name" ip link set wire up || return 1
    done
    shape 100 && unshape
}

# Bytes that have crossed the worker's end, both ways.
crossed() {
    ip netns exec "$worker" cat /sys/class/net/wire/statistics/{rx,tx}_bytes | awk '{ sum += $1 } END { print sum }'
}

# ---- measuring ----

now() {
    date +%s.%N
}

# sample RATE KIND BYTES BEGIN END
sample() {
    awk -v OFS='\t' -v rate="$1" -v kind="$2" -v bytes="$3" -v begin="$4" -v end="$5" \
        'BEGIN { print rate, kind, bytes, end - begin }' >> "$dir/samples"
}

# await FILE PID: until the file is there and has a line
await() {
    local attempt
    for ((attempt = 0; attempt < 60000; attempt++)); do
        if [ -s "$1" ] && [ "$(wc -l < "$1")" -gt 0 ]; then
            return
        fi
        if ! kill -0 "$2" 2> /dev/null; then
            break
        fi
        sleep 0.01
    done
    echo "bench/link.sh: $1 did not come: $(tail -n 3 "$dir"/*.log)" >&2
    exit 1
}

publish() {
    "$weft" publish "$dir/store" "$dir/model/step-$1.safetensors" --profile small --cache "$dir/cache" --quiet
}

# fetch_plain RATE KIND URL
fetch_plain() {
    local before begin
    before=$(crossed)
    begin=$(now)
    ip netns exec "$worker" curl -fsS -o "$dir/replica/plain" "$3"
    sample "$1" "$2" $(($(crossed) - before)) "$begin" "$(now)"
    rm "$dir/replica/plain"
}

# arrived RATE KIND VERSION: waits for a version at every follower, and counts it, as begun by `measure`
arrived() {
    local name bytes
    for ((name = 1; name <= followers; name++)); do
        await "$dir/stamp.$name.$3" "$follower"
    done
    # what the next wait costs belongs to this version
    sleep 0.3
    bytes=$(($(crossed) - before))
    for ((name = 1; name <= followers; name++)); do
        sample "$1" "$2" "$bytes" "$begin" "$(cat "$dir/stamp.$name.$3")"
    done
}

# serve ARGUMENT...: the store, at the trainer's end; sets `url`
serve() {
    ip netns exec "$trainer" "$weft" serve "$dir/store" --listen "$address.1:0" --url-file "$dir/url" --quiet "$@" \
        2> "$dir/serve.log" < /dev/null &
    pids+=("$!")
    await "$dir/url" "$!"
    url=$(cat "$dir/url")
    url=${url%/}
}

# rounds_by WAY RATE NUMBER: four trainers at the other end, from an empty store on. What they tell is left in loco/NUMBER.
rounds_by() {
    local url rank before members=()
    rm -rf "$dir/store" "$dir/url"
    mkdir -p "$dir/store" "$dir/loco/$3"
    (umask 077 && echo "$token" > "$dir/token")
    serve --write-token-file "$dir/token"
    shape "$2"
    before=$(crossed)
    for rank in 0 1 2 3; do
        # shellcheck disable=SC2086
        WEFT_TOKEN=$token ip netns exec "$worker" "$weft" bench --loco --study $1 --state "$state" --rate 3e-5 --steps $((8 * rounds)) \
            --threads 1 --meet "$url" --rank "$rank" --quiet --json > "$dir/loco/$3/$rank.json" 2> "$dir/rank-$rank.log" \
            < /dev/null &
        members+=("$!")
        pids+=("$!")
    done
    for rank in 0 1 2 3; do
        wait "${members[$rank]}" || { cat "$dir/rank-$rank.log" >&2 && exit 1; }
    done
    printf '{"way": "%s", "megabits": %s, "wire_bytes": %s}\n' "$1" "$2" $(($(crossed) - before)) > "$dir/loco/$3/about.json"
    unshape
    end_all
}

# One rate, or 0 for the bare link: everything from an empty store on.
measure() {
    local rate=$1 whole=$1 follower step before begin url name
    rm -rf "$dir/store" "$dir/cache" "$dir/replica" "$dir/relay" "$dir"/stamp.* "$dir"/url*
    mkdir -p "$dir/store/plain" "$dir/replica"
    ln "$dir/model/step-0.safetensors" "$dir/store/plain/model"
    echo nothing > "$dir/store/plain/nothing"
    serve
    [ -z "$patches" ] || whole=0
    [ "$whole" -eq 0 ] || shape "$whole"

    fetch_plain "$whole" plain-fixed "$url/plain/nothing"
    fetch_plain "$whole" plain "$url/plain/model"

    before=$(crossed)
    begin=$(now)
    publish 0
    sample "$whole" anchor-fixed 0 "$begin" "$(now)"
    if [ -n "$relay" ]; then
        ip netns exec "$worker" "$weft" serve "$url" --cache "$dir/relay" --listen 127.0.0.1:0 --url-file "$dir/url-relay" \
            --quiet 2> "$dir/relay.log" < /dev/null &
        pids+=("$!")
        await "$dir/url-relay" "$!"
        url=$(cat "$dir/url-relay")
    fi
    for ((name = 1; name <= followers; name++)); do
        ip netns exec "$worker" "$weft" follow "${url%/}" "$dir/replica/model-$name.safetensors" --quiet \
            --exec "date +%s.%N > $dir/stamp.$name.\$WEFT_VERSION" > "$dir/follow-$name.log" 2>&1 < /dev/null &
        follower=$!
        pids+=("$follower")
    done
    arrived "$whole" anchor 1
    [ "$rate" -eq "$whole" ] || shape "$rate"

    for ((step = 1; step <= steps; step++)); do
        before=$(crossed)
        begin=$(now)
        publish "$step"
        arrived "$rate" patch $((step + 1))
    done
    end_all
    unshape
    for ((name = 1; name <= followers; name++)); do
        cmp "$dir/replica/model-$name.safetensors" "$dir/model/step-$steps.safetensors"
    done
}

if [ ! -x "$weft" ]; then
    echo "bench/link.sh: there is no command at $weft; build it, or set WEFT" >&2
    exit 1
fi
[ "$followers" -eq 1 ] || patches=yes
[ "$(id -u)" -eq 0 ] || skip 'it needs root, for network namespaces'
for tool in ip tc curl; do
    command -v "$tool" > /dev/null || skip "there is no $tool"
done
dir=$(mktemp -d "${TMPDIR:-/tmp}/weft-link.XXXXXX")
make_link 2> "$dir/link.log" || skip "network namespaces or tc are not permitted here: $(tail -n 1 "$dir/link.log")"

if [ -n "$state" ]; then
    number=0
    for rate in $rates; do
        while read -r way; do
            echo "bench/link.sh: $way, $rate Mbit/s" >&2
            rounds_by "$way" "$rate" "$number"
            number=$((number + 1))
        done < <(tr '|' '\n' <<< "$ways")
    done
    /usr/bin/python3 -B "$here/tables.py" loco "$dir/loco" $json
    exit
fi
if [ -n "$model" ]; then
    mkdir "$dir/model"
    cp "$model"/step-*.safetensors "$dir/model"
else
    "$weft" bench --make "$dir/model" --params "$params" --steps "$steps" --quiet
fi
for rate in 0 $rates; do
    echo "bench/link.sh: ${rate/#0/no} limit$([ "$rate" = 0 ] || echo ' in Mbit/s')" >&2
    measure "$rate"
done
total=$(stat -c %s "$dir/model/step-0.safetensors")
/usr/bin/python3 -B "$here/tables.py" link "$dir/samples" "$total" $json
