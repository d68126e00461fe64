#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what tests/requirements.txt names into build/venv. Does nothing, and needs no network, when that is there;
# where it cannot be had, the tests that need it say that they were skipped.
set -u
cd "$(dirname "$0")/.."
venv=build/venv

if cmp -s tests/requirements.txt "$venv/requirements.txt"; then
    echo "venv: $venv has what tests/requirements.txt names"
    exit 0
fi
echo "venv: installing what tests/requirements.txt names into $venv"
rm -rf "$venv"
if /usr/bin/python3 -m venv "$venv" \
    && "$venv/bin/pip" --disable-pip-version-check --quiet install --require-hashes --no-deps --only-binary :all: \
        --requirement tests/requirements.txt; then
    cp tests/requirements.txt "$venv/requirements.txt"
else
    echo "venv: that failed; the tests that need it will be skipped" >&2
fi
