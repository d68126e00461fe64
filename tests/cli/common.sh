# SPDX-License-Identifier: Apache-2.0
#
# common.sh: what the tests of the command share. Sourced, not run. Gives $weft, an empty directory $dir to
# work in (and moves there), and the functions below. A test ends with `finish`.

weft=${WEFT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/build/weft}
cli=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
failures=0
checks=0
skipped=0
if [ ! -x "$weft" ]; then
    echo "there is no command at $weft; build it, or set WEFT" >&2
    exit 99
fi
dir=$(mktemp -d "${TMPDIR:-/tmp}/weft-cli.XXXXXX")

clean_up() {
    umount "$dir/full" 2> /dev/null
    chmod -R u+rwx "$dir" 2> /dev/null
    rm -rf "$dir"
}
trap clean_up EXIT
cd "$dir" || exit 99

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# expect CODE PATTERN COMMAND...: runs it with stdout in $dir/stdout and stderr in $dir/stderr. The exit code
# must be CODE. PATTERN, an extended regular expression, must match stderr; an empty one means that stderr
# must be empty, and '*' that it does not matter.
expect() {
    local code=$1 pattern=$2 got=0
    shift 2
    checks=$((checks + 1))
    "$@" > stdout 2> stderr < "${stdin:-/dev/null}" || got=$?
    if [ "$got" -ne "$code" ]; then
        fail "$* gave exit code $got, not $code: $(head -c 500 stderr)"
    elif [ -z "$pattern" ] && [ -s stderr ]; then
        fail "$* said: $(head -c 500 stderr)"
    elif [ -n "$pattern" ] && [ "$pattern" != '*' ] && ! grep -Eq -- "$pattern" stderr; then
        fail "$* did not say '$pattern' but: $(head -c 500 stderr)"
    fi
    # whatever went wrong, it is said in one line of our own, and not by a sanitizer
    if [ "$got" -ne 0 ] && ! head -1 stderr | grep -Eq '^([0-9TZ:.-]+ [a-z]+ )?weft'; then
        fail "$* did not begin its message with its name: $(head -c 500 stderr)"
    fi
}

# check TEXT COMMAND...: the command must succeed.
check() {
    local text=$1
    shift
    checks=$((checks + 1))
    "$@" > /dev/null 2>&1 || fail "$text"
}

# find_fault_io: what is preloaded to make calls fail (tests/support/fault_io.c), in $fault_io
find_fault_io() {
    fault_io=${WEFT_BUILD:-$cli/../../build}/tests/fault_io.so
    [ ! -e "$fault_io" ] || return 0
    echo "there is no $fault_io; build it with the tests" >&2
    exit 99
}

# absent FILE...: none of them may exist.
absent() {
    local file
    checks=$((checks + 1))
    for file in "$@"; do
        if [ -e "$file" ]; then
            fail "$file exists"
        fi
    done
}

# entries DIRECTORY COUNT: so many entries, hidden ones too.
entries() {
    local found
    found=$(find "$1" -mindepth 1 -maxdepth 1 | wc -l)
    checks=$((checks + 1))
    if [ "$found" -ne "$2" ]; then
        fail "$1 has $found entries, not $2: $(ls -A "$1")"
    fi
}

# skip TEXT: something could not be tested here. CTest is told so in the end, also if the rest was.
skip() {
    echo "SKIPPED: $*"
    skipped=$((skipped + 1))
}

finish() {
    echo "$checks checks, $failures failed"
    [ "$failures" -eq 0 ] || exit 1
    [ "$skipped" -eq 0 ] || exit 77
    exit 0
}
