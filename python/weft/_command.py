# SPDX-License-Identifier: Apache-2.0
"""The command `weft` of an installed wheel: gives the process over to the program that lies in the package."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NoReturn


def main() -> NoReturn:
    program = pathlib.Path(__file__).resolve().parent / "bin" / "weft"
    try:
        os.execv(program, ["weft", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"weft: {program}: {error.strerror}; install the package again, with pip install --force-reinstall weft")
