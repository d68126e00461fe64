#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""doc/python: every block of Python on every page is run, in order; links lead somewhere; README's lines for trainers and
engines are those of the first page; and Sphinx has nothing to complain about, where it is installed.

A page may have comments `<!-- setup … -->` with what a reader knows, such as a model. They are run in their place; if they
import what is not here, the page is skipped. With `--page NAME` this is the process that runs one.

What pages of engines and frameworks show is run by the tests of tests/engines, which have these."""

import json
import os
import re
import subprocess
import sys
import unittest

import package
import serving

PAGES = os.path.join(package.SOURCE, "doc", "python")
VENV = os.path.join(package.SOURCE, "build", "package-venv", "bin", "python")
BLOCK = re.compile(r"^(?:```python\n(?P<shown>.*?)^```$|<!-- setup\n(?P<hidden>.*?)^-->$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
WITH_ENGINES = ("demo-llm.md", "sglang.md", "trl.md", "verl.md")
# What the page on layouts reads.
CONFIG = {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
          "num_key_value_heads": 4, "num_hidden_layers": 48, "vocab_size": 151936, "head_dim": 128,
          "moe_intermediate_size": 768, "num_experts": 128}


def pages():
    return sorted(name for name in os.listdir(PAGES) if name.endswith(".md"))


def read(*path):
    with open(os.path.join(package.SOURCE, *path), encoding="utf-8") as file:
        return file.read()


def has(python, module):
    return subprocess.run([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL).returncode == 0


def run_page(name):
    """Lines of what is run are those of the page, so that a traceback says where."""
    text = read("doc", "python", name)
    space = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        start = block.start("shown" if block["shown"] is not None else "hidden")
        code = "\n" * text.count("\n", 0, start) + (block["shown"] or block["hidden"])
        try:
            exec(compile(code, os.path.join(PAGES, name), "exec"), space)
        except ImportError as error:
            if block["shown"]:
                raise
            serving.skip_all(str(error))


class Documents(package.Case):
    def test_pages(self):
        python = VENV if os.path.exists(VENV) and has(VENV, "torch") else sys.executable
        for name in sorted(set(pages()) - set(WITH_ENGINES)):
            with self.subTest(name):
                self.assertIn("```python", read("doc", "python", name))
                place = self.path(name)
                os.makedirs(os.path.join(place, "Qwen3-30B-A3B"))
                with open(os.path.join(place, "Qwen3-30B-A3B", "config.json"), "w") as file:
                    json.dump(CONFIG, file)
                done = subprocess.run([python, "-B", os.path.abspath(__file__), "--page", name], cwd=place,
                                      capture_output=True, text=True, timeout=2 * serving.PATIENCE)
                if done.returncode == serving.SKIPPED:
                    self.skipTest(f"{name}: {done.stdout}")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_links(self):
        for name in pages():
            for link in LINK.findall(read("doc", "python", name)):
                self.assertTrue(os.path.exists(os.path.join(PAGES, link)), f"{name}: {link}")
            if name != "index.md":
                self.assertIn(f"({name})", read("doc", "python", "index.md"))

    def test_readme(self):
        """What README shows first is what the first page shows, and runs."""
        shown = [block["shown"] for block in BLOCK.finditer(read("doc", "python", "index.md")) if block["shown"]]
        readme = read("README.md")
        self.assertEqual(len(shown), 2)
        for block in shown:
            self.assertTrue(block in readme, block)

    def test_sphinx(self):
        if not has("/usr/bin/python3", "sphinx, myst_parser"):
            self.skipTest("there is no Sphinx; make docs installs it")
        done = subprocess.run(["/usr/bin/python3", "-B", "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html",
                               "-d", self.path("trees"), PAGES, self.path("html")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.path("html/reference.html"), encoding="utf-8") as file:
            self.assertIn("weft.publisher.Publisher.publish", file.read())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--page"]:
        run_page(sys.argv[2])
    else:
        serving.end(unittest.main(exit=False).result)
