#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the tests of the Python package use beside what Debian has into build/package-venv: what
# tests/requirements-package.txt names, and a current torch from PyPI, tests/requirements-torch.txt. That comes with
# CUDA's libraries, 3 GB to fetch and 5.5 GB on the disk; WEFT_TORCH=no leaves it out. Does nothing, and needs no
# network, when all is there. Where it cannot be had, the tests run with Debian's numpy and torch, and say what they
# have skipped.
set -u
cd "$(dirname "$0")/.."
venv=build/package-venv

# install LIST: once
install() {
    local kept=$venv/$(basename "$1")
    if cmp -s "$1" "$kept"; then
        echo "torch: $venv has what $1 names"
        return
    fi
    local start=$SECONDS
    echo "torch: installing what $1 names into $venv"
    if "$venv/bin/pip" --disable-pip-version-check --quiet install --only-binary :all: --requirement "$1"; then
        cp "$1" "$kept"
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
fi
