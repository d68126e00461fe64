#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""examples/: each runs by itself, is short, and passes mypy --strict. A current torch is used where build/package-venv has
one (scripts/torch.sh), else that of the system."""

import os
import subprocess
import sys
import unittest

import package
import serving

EXAMPLES = os.path.join(package.SOURCE, "examples")
LLM = os.path.join(EXAMPLES, "llm")  # needs engines: tests/engines/test_demo_llm.py runs it
VENV = os.path.join(package.SOURCE, "build", "package-venv", "bin", "python")
SHARED = ("llama.py",)  # what others import
LINES = 60


def names():
    return sorted(name for name in os.listdir(EXAMPLES) if name.endswith(".py") and name not in SHARED)


def has(python, module):
    found = subprocess.run([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL)
    return found.returncode == 0


def interpreter():
    """One that has torch, if there is one."""
    if os.path.exists(VENV) and has(VENV, "torch"):
        return VENV
    return sys.executable


class Examples(package.Case):
    def run_example(self, name, *arguments):
        environment = dict(os.environ, PYTHONPATH=package.PYTHON, MPLBACKEND="Agg")
        done = subprocess.run([interpreter(), "-B", "-W", "error::SyntaxWarning", os.path.join(EXAMPLES, name), *arguments],
                              cwd=self.place, env=environment, capture_output=True, text=True, timeout=2 * serving.PATIENCE)
        self.assertEqual(done.returncode, 0, f"{name}: {done.stdout}{done.stderr}")
        self.assertEqual(done.stderr, "", name)
        return done.stdout

    def test_run(self):
        """Whoever adds an example need not come here."""
        for name in names():
            with self.subTest(name), open(os.path.join(EXAMPLES, name)) as file:
                if name != "tour.py":
                    text = file.read()
                    if "import torch" in text and not has(interpreter(), "torch"):
                        self.skipTest("there is no torch")
                    if "fully_shard" in text and not has(interpreter(), "torch.distributed.fsdp as fsdp; fsdp.fully_shard"):
                        self.skipTest("this torch has no fully_shard")
                    self.run_example(name)

    def test_tour(self):
        """It is a notebook in the percent format. The plot is made where there is matplotlib."""
        with open(os.path.join(EXAMPLES, "tour.py")) as file:
            cells = [line for line in file.read().splitlines() if line.startswith("# %%")]
        self.assertTrue({"# %%", "# %% [markdown]"} == set(cells) and len(cells) > 6, cells)
        plot = self.path("sparsity.png")
        self.run_example("tour.py", plot)
        if not has(interpreter(), "matplotlib"):
            self.skipTest("there is no matplotlib")
        with open(plot, "rb") as file:
            self.assertEqual(file.read(4), b"\x89PNG")

    def test_short(self):
        for name in names():
            with open(os.path.join(EXAMPLES, name)) as file:
                self.assertLess(len(file.readlines()), LINES, name)

    def test_types(self):
        """torch is passed over, so its classes are of any type."""
        if not os.path.exists(VENV) or not has(VENV, "mypy"):
            self.skipTest("there is no mypy")
        paths = [os.path.join(EXAMPLES, name) for name in (*names(), *SHARED)]
        paths += [os.path.join(LLM, name) for name in sorted(os.listdir(LLM)) if name.endswith(".py")]
        checked = subprocess.run(
            [VENV, "-m", "mypy", "--config-file", os.path.join(package.SOURCE, "pyproject.toml"), "--follow-imports", "silent",
             "--ignore-missing-imports", "--allow-subclassing-any",
             "--cache-dir", os.path.join(package.BUILD, "mypy-examples"), *paths],
            env=dict(os.environ, MYPYPATH=f"{package.PYTHON}:{LLM}"), capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
