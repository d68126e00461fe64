# SPDX-License-Identifier: Apache-2.0
"""The rooms of the tree: which includes which, as doc/ARCHITECTURE.md says, without cycles between folders, and no
folder that has grown too large to be looked through."""

import collections
import os
import re

import serving

SOURCE = os.environ.get("WEFT_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TREES = ("include", "lib", "programs", "train", "lm")
MOST_FILES = 25

# the rooms whose private headers each may include
ROOMS = {
    "lib/base": set(),
    "lib/code": {"lib/base"},
    "lib/tensor": {"lib/base"},
    "lib/patch": {"lib/base", "lib/code", "lib/tensor"},
    "lib/foreign": {"lib/base", "lib/tensor", "lib/patch"},
    "lib/store": {"lib/base", "lib/tensor"},
    "lib/sync": {"lib/base", "lib/tensor", "lib/patch", "lib/store"},
    "lib/relay": {"lib/base", "lib/store", "lib/sync"},
    "lib/loco": {"lib/base", "lib/code", "lib/tensor", "lib/store"},
    "lib/rollout": {"lib/base"},
    "lm": {"lib/base", "lib/tensor"},
    "train": {"lib/base", "lib/tensor", "lib/store", "lib/sync", "lm"},
    "programs": {"lib/base", "lib/tensor", "lib/store", "lib/sync", "lm", "train"},
}
# the private headers of the library that programs/ may include: serve sends files by descriptor and checks reports
PROGRAMS = re.compile(r"lib/(base/.*|store/directory|sync/format/report|sync/fleet/fleet|tensor/json)\.h$")


def sources():
    for tree in TREES:
        for place, folders, files in os.walk(os.path.join(SOURCE, tree)):
            folders.sort()
            for name in sorted(files):
                if name.endswith((".c", ".h")):
                    yield os.path.relpath(os.path.join(place, name), SOURCE)


def room_of(path):
    parts = path.split(os.sep)
    return os.path.join(*parts[:2]) if parts[0] == "lib" else parts[0]


def includes(path):
    """Those in quotes, as paths from the top. Generated ones are not there."""
    with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
        names = re.findall(r'^\s*#\s*include "([^"]+)"', file.read(), re.M)
    for name in names:
        found = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if os.path.exists(os.path.join(SOURCE, found)):
            yield found


def test_rooms_include_what_is_below_them():
    wrong = []
    for path in sources():
        room = room_of(path)
        for included in includes(path):
            other = room_of(included)
            if room == "include" or other in (room, "include"):
                continue
            if other not in ROOMS[room] or (room == "programs" and other.startswith("lib/")
                                            and not PROGRAMS.match(included)):
                wrong.append(f"{path} includes {included}")
    assert not wrong, wrong


def test_only_the_laboratory_includes_the_laboratory():
    """A build without it (-DWEFT_LAB=OFF) has the rest of the command."""
    laboratory = ("lm/", "train/", "programs/lab/")
    wrong = [f"{path} includes {included}" for path in sources() if not path.startswith(laboratory)
             for included in includes(path) if included.startswith(laboratory)]
    assert not wrong, wrong


def test_folders_have_no_cycles():
    below = collections.defaultdict(set)
    for path in sources():
        for included in includes(path):
            if os.path.dirname(path) != os.path.dirname(included):
                below[os.path.dirname(path)].add(os.path.dirname(included))
    done, way = set(), []

    def visit(folder):
        assert folder not in way, " -> ".join(way[way.index(folder):] + [folder])
        if folder not in done:
            way.append(folder)
            for other in sorted(below[folder]):
                visit(other)
            done.add(way.pop())

    for folder in sorted(below):
        visit(folder)


def test_folders_are_small():
    counts = collections.Counter(os.path.dirname(path) for path in sources())
    large = {folder: count for folder, count in counts.items() if count > MOST_FILES}
    assert not large, large


if __name__ == "__main__":
    serving.main()
