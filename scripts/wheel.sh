#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# wheel.sh [PIP-OPTION...]: builds the wheel of the Python package into build/wheel, or where WEFT_WHEEL_OUTPUT says:
# one for every Python, with the library and the command. If auditwheel is there, the libraries that they need are
# grafted into it, and it runs on any Linux with this libc or a later one; else only where Debian's packages are. Tools
# come from build/package-venv if that exists (scripts/torch.sh), else from PyPI for this once.
set -eu
cd "$(dirname "$0")/.."
out=${WEFT_WHEEL_OUTPUT:-build/wheel}
venv=build/package-venv/bin
options=(--quiet --disable-pip-version-check --no-deps "$@")
if [ -e "$venv/../requirements-package.txt" ]; then
    pip=("$venv/python" -m pip)
    options+=(--no-build-isolation)
    export PATH=$PWD/$venv:$PATH
else
    pip=(/usr/bin/python3 -m pip)
fi
rm -rf "$out"
mkdir -p "$out/plain"
"${pip[@]}" wheel "${options[@]}" --wheel-dir "$out/plain" .
if command -v auditwheel > /dev/null && command -v patchelf > /dev/null; then
    auditwheel repair --wheel-dir "$out" "$out"/plain/*.whl 2> "$out/auditwheel.log" \
        || { cat "$out/auditwheel.log" >&2; exit 1; }
else
    echo "wheel: there is no auditwheel: the wheel needs this system's libraries" >&2
    cp "$out"/plain/*.whl "$out"
fi
for file in "$out"/plain/*.whl "$out"/*.whl; do
    echo "wheel: $file, $(stat --format=%s "$file") bytes"
done
