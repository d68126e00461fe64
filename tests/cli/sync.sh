# SPDX-License-Identifier: Apache-2.0
#
# sync.sh: what the tests of publish, pull and follow share. Sourced, not run. Besides common.sh it gives a
# HOME of its own, models m/step-0.safetensors to m/step-6.safetensors, and the functions below.
#
# Stores are directories, unless WEFT_TEST_STORE has the URL of another store: then they lie below that one.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export HOME=$dir/home
unset XDG_CACHE_HOME WEFT_TOKEN
children=()
build=${WEFT_BUILD:-$(dirname "$weft")}
tool=$build/tests/store_tool

end_children() {
    local child
    for child in "${children[@]}"; do
        kill -KILL "$child" 2> /dev/null
    done
    clean_up
}
trap end_children EXIT

"$weft" bench --make m --params 200K --steps 6 > /dev/null || exit 99
model() { echo "m/step-$1.safetensors"; }

# begin NAME ARGUMENT...: the command in the background, with its pid in $pid and its words in NAME.out and
# NAME.err
begin() {
    local name=$1
    shift
    "$weft" "$@" > "$name.out" 2> "$name.err" < /dev/null &
    pid=$!
    children+=("$pid")
}

# ended CODE PID NAME: the process must end with this exit code
ended() {
    local got=0
    checks=$((checks + 1))
    wait "$2" || got=$?
    [ "$got" -eq "$1" ] || fail "$3 ended with $got, not $1: $(tail -c 800 "$3.err")"
}

# await TEXT COMMAND...: until the command succeeds, for ten minutes: only what never happens is a failure
await() {
    local text=$1 attempt
    shift
    checks=$((checks + 1))
    for ((attempt = 0; attempt < 12000; attempt++)); do
        "$@" > /dev/null 2>&1 && return
        sleep 0.05
    done
    fail "$text: did not happen: $*"
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

# serve NAME ARGUMENT...: a server that answers, at a port that the kernel chooses unless --listen is given: tests run
# side by side. Its URL is in $url, its pid in $pid. Without a server there is nothing to test.
serve() {
    local name=$1 listen=()
    shift
    [[ " $* " == *' --listen '* ]] || listen=(--listen 127.0.0.1:0)
    rm -f "$name.url"
    begin "$name" serve "$@" "${listen[@]}" --url-file "$name.url"
    while [ ! -s "$name.url" ]; do
        if ! kill -0 "$pid" 2> /dev/null; then
            fail "the server $name has ended: $(tail -c 800 "$name.err")"
            finish
        fi
        sleep 0.05
    done
    url=$(cat "$name.url")
}

# field FILE NAME: a member of a JSON object
field() {
    /usr/bin/python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"
}

digest() { "$weft" digest "$1" | cut -d' ' -f1; }

# ---- stores ----

# place NAME: a store of this test
place() {
    echo "${WEFT_TEST_STORE:+$WEFT_TEST_STORE/$(basename "$dir")/}$1"
}

# another_name STORE: the same one, by a URL that is written otherwise
another_name() {
    case $1 in
    *://*) echo "$1/" ;;
    *) echo "file://$dir/$1" ;;
    esac
}

objects() { "$tool" list "$1"; }

# vacant STORE: nothing may lie there
vacant() {
    checks=$((checks + 1))
    [ -z "$(objects "$1")" ] || fail "there is something in $1: $(objects "$1")"
    case $1 in
    *://*) ;;
    *) absent "$1" ;;
    esac
}

# copy_store FROM TO, move_store FROM TO: all objects, to a place where then nothing else is
copy_store() { "$tool" clear "$2" && "$tool" copy "$1" "$2"; }
move_store() { copy_store "$1" "$2" && "$tool" clear "$1"; }

# change_object STORE KEY COMMAND...: by a command that is given a file
change_object() {
    local store=$1 key=$2
    shift 2
    "$tool" get "$store" "$key" > changed && "$@" changed && "$tool" put "$store" "$key" < changed
}

overwrite() { printf 'X' | dd of="$1" bs=1 seek=200 conv=notrunc status=none; }
