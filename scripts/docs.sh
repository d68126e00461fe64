#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the documents of the Python package into build/docs: the pages of doc/python, and a reference made of the
# docstrings. Warnings are errors. Sphinx and its reader of Markdown are Debian's; they are installed if they are
# missing, 39 MB, and nothing else needs them.
set -eu
cd "$(dirname "$0")/.."
packages=(python3-sphinx python3-myst-parser)

if ! /usr/bin/python3 -c 'import sphinx, myst_parser, numpy' 2> /dev/null; then
    if ! command -v apt-get > /dev/null; then
        echo "docs: not a Debian system; the documents need what Debian calls ${packages[*]} python3-numpy" >&2
        exit 1
    fi
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        as_root=(sudo -n)
    fi
    echo "docs: installing ${packages[*]}"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${packages[@]}"
fi
/usr/bin/python3 -B -m sphinx -q -W --keep-going -E -b html doc/python build/docs
echo "docs: build/docs/index.html"
