#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Programs of the last release run with this library: the trainer, the worker and the patch program that were
# its examples are built against its headers, which tests/abi/release keeps, and linked with the library of this
# build. scripts/release.sh renews the folder, and nothing else may change it.
set -eu

work=$(mktemp -d)
worker=
clean_up() {
    if [ -n "$worker" ]; then
        kill "$worker" 2> /dev/null || true
    fi
    rm -rf "$work"
}
trap clean_up EXIT
release=$WEFT_SOURCE/tests/abi/release
cd "$work"
for program in trainer worker patch; do
    "$CC" -Wall -Wextra -Werror -I"$release/include" "$release/$program.c" -o "$program" \
        -L"$WEFT_BUILD" -lweft -Wl,-rpath,"$WEFT_BUILD"
done
./worker store 5 > worker.log &
worker=$!
./trainer store 5 > trainer.log
wait "$worker"
worker=
trained=$(awk 'END { print $2, $3 }' trainer.log)
followed=$(awk 'END { print $2, $3 }' worker.log)
if [ "$trained" != "$followed" ] || [ "${trained%% *}" != 5 ]; then
    echo "the worker of the last release is at $followed, its trainer at $trained" >&2
    exit 1
fi
"$WEFT" bench --quiet --make . --params 1M --steps 1
./patch step-0.safetensors step-1.safetensors > patch.log
grep -q 'changes in' patch.log

# Every symbol of that release is there under its version.
nm -D --defined-only "$WEFT_BUILD/libweft.so" | awk '{ print $3 }' | sort > symbols
missing=$(sort "$release/symbols" | comm -23 - symbols)
if [ -n "$missing" ]; then
    printf 'gone since the last release:\n%s\n' "$missing" >&2
    exit 1
fi
echo "$(wc -l < "$release/symbols") symbols, and programs of $(cat "$release/VERSION")"
