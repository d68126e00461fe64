#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what tests/engines/requirements-frameworks.txt names into build/engines/frameworks, for the Python of
# build/engines/venv (scripts/engines.sh makes that): verl, which is not to meddle with what the engines have, PEFT, and
# what a server of SGLang imports; 90 MB to fetch, 280 MB on the disk. Does nothing when all is there. Exits with 77
# where it cannot be had. WEFT_ENGINES names another directory than build/engines.
set -u
cd "$(dirname "$0")/.."
engines=${WEFT_ENGINES:-build/engines}
list=tests/engines/requirements-frameworks.txt
place=$engines/frameworks

if cmp -s "$list" "$place/requirements.txt"; then
    exit 0
fi
echo "frameworks: installing what $list names into $place"
rm -rf "$place" "$place.new"
if ! "$engines/venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --only-binary :all: \
    --target "$place.new" --requirement "$list"; then
    echo "frameworks: that failed; the tests that need it will be skipped" >&2
    rm -rf "$place.new"
    exit 77
fi
cp "$list" "$place.new/requirements.txt"
mv "$place.new" "$place"
