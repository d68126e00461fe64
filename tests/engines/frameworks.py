# SPDX-License-Identifier: Apache-2.0
"""What the tests of frameworks need beside build/engines: scripts/frameworks.sh puts it into
build/engines/frameworks."""

import os
import pathlib
import subprocess
import sys

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
