# SPDX-License-Identifier: Apache-2.0
"""Sphinx: the pages of this folder, and the reference from the docstrings. scripts/docs.sh runs it.

Pages are Markdown that reads well in the repository, and docstrings are plain text. What Sphinx wants beyond that is
added here, on the way in.
"""

import os
import pkgutil
import re
import sys

import sphinx.pycode.parser

SOURCE = os.path.abspath("../..")
sys.path.insert(0, os.path.join(SOURCE, "python"))
import weft  # noqa: E402  (the path is set above)

project = "weft"
copyright = "the authors of weft"
release = version = weft.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "sidebar_width": "220px"}
default_role = "code"
myst_heading_anchors = 3
nitpicky = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_mock_imports = ["transformers", "trl", "verl"]  # frameworks that adapters are made of

# A comment behind a field says what it is: `bytes: int  # uploaded`. Sphinx knows such comments by a colon.
sphinx.pycode.parser.comment_re = re.compile(r"^\s*#:? (?!fmt:|type:|noqa)(.*)\r?\n?$")

_INSIDE = ("context", "library", "tensors")  # what the others are made of


def _add_modules(app, name, source):
    """The reference has every module that users import."""
    if name == "reference":
        modules = [found.name for found in pkgutil.iter_modules(weft.__path__) if not found.name.startswith("_")]
        for module in modules:
            if module not in _INSIDE:
                title = f"weft.{module}"
                source[0] += f"\n{title}\n{'-' * len(title)}\n\n.. automodule:: {title}\n"


def _keep_links_inside(app, name, source):
    """A link that leaves this folder is a path in the repository: the page behind it is not built here."""
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)", r"\1 (`doc/\2`)", source[0])


def _escape(line):
    """Docstrings are plain text: a star is a star, and a name may end in an underscore."""
    if "`" in line or line.startswith((" ", ">>>", "...")):
        return line
    return re.sub(r"(\*|(?<=\w)_(?!\w))", r"\\\1", line)


def _mark_code(app, what, name, object, options, lines):
    """An indented block behind a paragraph is code."""
    made, previous = [], ""
    for index, line in enumerate(lines):
        deeper = line.startswith("    ") and not previous.startswith(" ") and previous != ""
        if deeper and index > 0 and lines[index - 1] == "" and not previous.endswith("::"):
            made += ["::", ""]
        made.append(_escape(line))
        previous = line if line else previous
    lines[:] = made


def setup(app):
    app.connect("source-read", _add_modules)
    app.connect("source-read", _keep_links_inside)
    app.connect("autodoc-process-docstring", _mark_code)
