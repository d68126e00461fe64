#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the build into a fresh prefix and builds programs against it, outside of the tree and by
# pkg-config alone: with the shared library, with the static one, and as C++ reads the headers. The examples
# of the documentation are built as they say, and run; what the guide shows of them is what they are.
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
prefix=$work/prefix
cmake --install "$WEFT_BUILD" --prefix "$prefix" > "$work/install.log"
cp "$WEFT_SOURCE/tests/install/program.c" "$work/program.c"
cd "$work"

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name weft.pc)")
export PKG_CONFIG_PATH
library=$(pkg-config --variable=libdir weft)
read -ra flags <<< "$(pkg-config --cflags weft)"
read -ra shared <<< "$(pkg-config --libs weft)"
read -ra static <<< "$(pkg-config --libs --static weft)"
warnings=(-Wall -Wextra -Wpedantic -Werror)

echo "== shared"
"$CC" -std=c11 "${warnings[@]}" "${flags[@]}" program.c -o shared "${shared[@]}"
LD_LIBRARY_PATH=$library ./shared
ldd_output=$(LD_LIBRARY_PATH=$library ldd ./shared)
case $ldd_output in
    *"$library"/libweft.so.*) ;;
    *) echo "the program does not use the installed libweft.so" >&2; exit 1 ;;
esac

echo "== the examples: a trainer and a worker that follows it"
for example in trainer worker patch; do
    "$CC" -Wall -Wextra -Werror "${flags[@]}" "$WEFT_SOURCE/doc/examples/$example.c" -o "$example" "${shared[@]}"
done
export LD_LIBRARY_PATH=$library
./worker store 5 > worker.log &
worker=$!
./trainer store 5 > trainer.log
wait "$worker"
worker=
cat trainer.log worker.log
trained=$(awk 'END { print $2, $3 }' trainer.log)
followed=$(awk 'END { print $2, $3 }' worker.log)
if [ "$trained" != "$followed" ] || [ "${trained%% *}" != 5 ]; then
    echo "the worker is at $followed, the trainer at $trained" >&2
    exit 1
fi
if [ -x "$prefix/bin/weft" ]; then
    "$prefix/bin/weft" bench --quiet --make . --params 1M --steps 1
    ./patch step-0.safetensors step-1.safetensors
fi
unset LD_LIBRARY_PATH

echo "== the examples: what the guide shows of them"
/usr/bin/python3 - "$WEFT_SOURCE" << 'END'
import pathlib, re, sys
source = pathlib.Path(sys.argv[1])
examples = [path.read_text() for path in sorted((source / "doc/examples").glob("*.c"))]
blocks = re.findall(r"^```c\n(.*?)^```$", (source / "doc/GUIDE.md").read_text(), re.MULTILINE | re.DOTALL)
for block in blocks:
    if not any(block in example for example in examples):
        sys.exit(f"the guide shows what is in no example:\n{block}")
print(f"{len(blocks)} blocks")
END

echo "== the Python package, as the guide shows it"
package=$(dirname "$(find "$prefix" -type d -path '*-packages/weft')")
/usr/bin/python3 - "$WEFT_SOURCE" > example.py << 'END'
import pathlib, re, sys
blocks = re.findall(r"^```python\n(.*?)^```$", (pathlib.Path(sys.argv[1]) / "doc/GUIDE.md").read_text(), re.MULTILINE | re.DOTALL)
assert len(blocks) == 1
print(blocks[0])
END
if ! PYTHONPATH=$package /usr/bin/python3 -B example.py > example.log 2>&1; then
    cat example.log >&2
    exit 1
fi
cat example.log

echo "== static"
mv "$library"/libweft.so* "$work/"
"$CC" -std=c11 "${warnings[@]}" "${flags[@]}" program.c -o static "${static[@]}"
./static

echo "== headers in C++, each alone"
for header in "$prefix"/include/weft/*.h; do
    echo "#include <weft/$(basename "$header")>" | g++ "${warnings[@]}" "${flags[@]}" -fsyntax-only -x c++ -
done

# The name of a version is an absolute symbol.
echo "== only weft_ names leave the library"
foreign=$(nm --dynamic --defined-only --format=posix "$work"/libweft.so | awk '$1 !~ /^weft_/ && $2 != "A" { print $1 }')
if [ -n "$foreign" ]; then
    echo "$foreign" >&2
    exit 1
fi

echo "== the command"
if [ -n "$WEFT" ]; then
    "$prefix/bin/weft" --version
fi
