#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the build into a fresh prefix and builds a program against it, outside of the tree and by
# pkg-config alone: with the shared library, with the static one, and as C++ reads the headers.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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

echo "== static"
mv "$library"/libweft.so* "$work/"
"$CC" -std=c11 "${warnings[@]}" "${flags[@]}" program.c -o static "${static[@]}"
./static

echo "== headers in C++, each alone"
for header in "$prefix"/include/weft/*.h; do
    echo "#include <weft/$(basename "$header")>" | g++ "${warnings[@]}" "${flags[@]}" -fsyntax-only -x c++ -
done

echo "== only weft_ names leave the library"
foreign=$(nm --dynamic --defined-only --format=posix "$work"/libweft.so | awk '$1 !~ /^weft_/ { print $1 }')
if [ -n "$foreign" ]; then
    echo "$foreign" >&2
    exit 1
fi

echo "== the command"
if [ -n "$WEFT" ]; then
    "$prefix/bin/weft" --version
fi
