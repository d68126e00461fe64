# SPDX-License-Identifier: Apache-2.0
"""What the tests of frameworks need beside build/engines: scripts/frameworks.sh puts it into
build/engines/frameworks."""

import os
import pathlib
import subprocess
import sys
import unittest

from limit import end_descendants, exit_when_asked, limit

TREE = pathlib.Path(__file__).resolve().parents[2]
PLACE = pathlib.Path(os.environ.get("WEFT_ENGINES") or TREE / "build" / "engines").resolve() / "frameworks"
SKIPPED = 77


def ensure() -> None:
    """Installs it once, and makes it importable here and in processes that are started. Ends this one where it cannot
    be had."""
    done = subprocess.run([str(TREE / "scripts" / "frameworks.sh")], check=False)
    if done.returncode != 0:
        print("frameworks: not here, so this test is skipped", flush=True)
        sys.exit(SKIPPED)
    sys.path.append(str(PLACE))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(PLACE))))


def main() -> None:
    """Runs the tests of a script, and ends it as the runner wants: with a sum."""
    limit()
    exit_when_asked()
    try:
        result = unittest.main(exit=False).result
    finally:
        end_descendants()  # an interrupted test cleans nothing up
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    passed = max(0, result.testsRun - failed - skipped)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    sys.exit(failed > 0)
