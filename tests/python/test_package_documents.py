#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""doc/python: every block of Python on every page is run, in order; links lead somewhere, those of README, GUIDE and
BENCHMARKS too; README's lines for trainers and vLLM are those of the pages; and Sphinx has nothing to complain about, where it is installed.

A page may have comments `<!-- setup … -->` with what a reader knows, such as a model. They are run in their place; if they
import what is not here, the page is skipped. With `--pages PLACE...` this is the process that runs them, each in a child
of its own: to load torch takes longer than a page.

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


def run_pages(places):
    """Each in its place, which has the page's name, with what it says in `said`. Prints how each has ended."""
    codes = {}
    for place in places:
        child = os.fork()
        if child == 0:
            os.chdir(place)
            said = os.open("said", os.O_WRONLY | os.O_CREAT)
            os.dup2(said, 1)
            os.dup2(said, 2)
            run_page(os.path.basename(place))
            sys.exit()
        codes[os.path.basename(place)] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps(codes))


class Documents(package.Case):
    def test_pages(self):
        python = VENV if os.path.exists(VENV) and has(VENV, "torch") else sys.executable
        names = sorted(set(pages()) - set(WITH_ENGINES))
        for name in names:
            self.assertIn("```python", read("doc", "python", name))
            os.makedirs(self.path(os.path.join(name, "Qwen3-30B-A3B")))
            with open(self.path(os.path.join(name, "Qwen3-30B-A3B", "config.json")), "w") as file:
                json.dump(CONFIG, file)
        done = subprocess.run([python, "-B", os.path.abspath(__file__), "--pages", *map(self.path, names)],
                              capture_output=True, text=True, timeout=4 * serving.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for name, code in json.loads(done.stdout).items():
            with self.subTest(name), open(self.path(os.path.join(name, "said")), encoding="utf-8") as file:
                said = file.read()
                if code == serving.SKIPPED:
                    self.skipTest(f"{name}: {said}")
                self.assertEqual(code, 0, said)

    def test_links(self):
        for name in pages():
            for link in LINK.findall(read("doc", "python", name)):
                self.assertTrue(os.path.exists(os.path.join(PAGES, link)), f"{name}: {link}")
            if name != "index.md":
                self.assertIn(f"({name})", read("doc", "python", "index.md"))

    def test_readme(self):
        """What README shows of Python is on a page, where it runs; and what it shows of vLLM."""
        readme = read("README.md")
        shown = [block["shown"] for block in BLOCK.finditer(readme)]
        first = [block["shown"] for block in BLOCK.finditer(read("doc", "python", "index.md")) if block["shown"]]
        self.assertEqual(shown, first[:1])
        vllm = re.search(r"^```\n.*?^```$", read("doc", "python", "vllm.md"), re.MULTILINE | re.DOTALL)[0]
        self.assertIn(vllm, readme)

    def test_other_links(self):
        for path in (["README.md"], ["doc", "GUIDE.md"], ["doc", "BENCHMARKS.md"], ["doc", "PLAN.md"], ["bench", "README.md"]):
            for link in LINK.findall(read(*path)):
                self.assertTrue(os.path.exists(os.path.join(package.SOURCE, *path[:-1], link)), f"{path}: {link}")

    def test_sphinx(self):
        if not has("/usr/bin/python3", "sphinx, myst_parser"):
            self.skipTest("there is no Sphinx; make docs installs it")
        done = subprocess.run(["/usr/bin/python3", "-B", "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html",
                               "-d", self.path("trees"), PAGES, self.path("html")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.path("html/reference.html"), encoding="utf-8") as file:
            self.assertIn("weft.publisher.Publisher.publish", file.read())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pages"]:
        run_pages(sys.argv[2:])
    else:
        serving.end(unittest.main(exit=False).result)
