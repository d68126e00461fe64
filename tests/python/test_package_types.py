#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""mypy --strict over the package, with what build/package-venv has (scripts/torch.sh)."""

import os
import subprocess
import unittest

import package
import serving

VENV = os.path.join(package.SOURCE, "build", "package-venv")
PYTHON = os.path.join(VENV, "bin", "python")


class Types(unittest.TestCase):
    def test_strict(self):
        checked = subprocess.run([PYTHON, "-m", "mypy", "--config-file", os.path.join(package.SOURCE, "pyproject.toml"),
                                  "--cache-dir", os.path.join(package.BUILD, "mypy"), "-p", "weft"],
                                 cwd=package.PYTHON, capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    if not os.path.exists(os.path.join(VENV, "requirements-package.txt")):
        serving.skip_all("there is no build/package-venv; scripts/torch.sh makes it")
    serving.end(unittest.main(exit=False).result)
