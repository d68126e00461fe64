#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The demo with a language model, examples/llm/demo.py: makes what it needs, if that is missing, and starts it.
# `scripts/demo_llm.sh --help` lists its options.
set -u
tree=$(cd "$(dirname "$0")/.." && pwd)
engines=${WEFT_ENGINES:-$tree/build/engines}

case " $* " in
*" --help "* | *" -h "*) ;;
*)
    if [ ! -x "$tree/build/weft" ]; then
        make -C "$tree" --no-print-directory all >&2 || exit 1
    fi
    if [ ! -x "$engines/venv/bin/python" ] || [ ! -e "$engines/model" ]; then
        "$tree/scripts/engines.sh" >&2 || {
            echo "demo-llm: the set-up could not be made: see above; it takes PyPI and 6 GB of disk" >&2
            exit 1
        }
    fi
    ;;
esac
exec /usr/bin/python3 -B "$tree/examples/llm/demo.py" "$@"
