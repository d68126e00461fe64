#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the tests of the Python package use beside what Debian has into build/package-venv: what
# tests/requirements-package.txt names, a current torch from PyPI, tests/requirements-torch.txt, and ModelExpress, which
# needs torch, tests/requirements-modelexpress.txt. Torch comes with CUDA's libraries, 3 GB to fetch and 5.5 GB on the
# disk; WEFT_TORCH=no leaves both out. Does nothing, and needs no network, when all is there. Where it cannot be had, the
# tests run with Debian's numpy and torch, and say what they have skipped.
set -u
cd "$(dirname "$0")/.."
venv=build/package-venv

# install LIST [OPTION...]: once
install() {
    local list=$1 kept=$venv/$(basename "$1") start=$SECONDS
    shift
    if cmp -s "$list" "$kept"; then
        echo "torch: $venv has what $list names"
        return
    fi
    echo "torch: installing what $list names into $venv"
    if "$venv/bin/pip" --disable-pip-version-check --quiet install --only-binary :all: "$@" --requirement "$list"; then
        cp "$list" "$kept"
        echo "torch: took $((SECONDS - start)) s; $venv has $(du -sh "$venv" | cut -f1)"
    else
        echo "torch: that failed; the tests that need it will be skipped" >&2
    fi
}

if [ ! -x "$venv/bin/pip" ] && ! /usr/bin/python3 -m venv "$venv"; then
    echo "torch: no $venv; the tests that need it will be skipped" >&2
    rm -rf "$venv"
    exit 0
fi
install tests/requirements-package.txt
if [ "${WEFT_TORCH:-}" != no ]; then
    install tests/requirements-torch.txt
    install tests/requirements-modelexpress.txt --no-deps
    "$venv/bin/python" tests/support/instructions.py
fi
