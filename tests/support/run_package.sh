#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a test of the Python package: with build/package-venv, which has a current torch, where scripts/torch.sh has made
# it; else with Debian's Python, which skips and counts what it has no packages for.
set -eu
python=$WEFT_SOURCE/build/package-venv/bin/python
if [ ! -e "$WEFT_SOURCE/build/package-venv/requirements-package.txt" ]; then
    python=/usr/bin/python3
fi
exec "$python" -B "$@"
