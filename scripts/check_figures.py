#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Does every command that stands beside a figure still run?

check_figures.py [TEXT...]     all of them, or those that contain one of the texts
check_figures.py --list        what would be run

It reads README.md, doc/RESULTS.md and doc/BENCHMARKS.md, takes each command that they name, in code blocks and in lines
of text, and runs it in a short form (QUICK=1, or the options of the table below). A command that the table does not
know fails the check, and so does an entry of the table that no document names any more. It wants a built tree; what
needs build/engines is passed over, with a word, where that is not there. All of it takes some minutes.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", "doc/RESULTS.md", "doc/BENCHMARKS.md"]
PATIENCE = 1500  # seconds
COMMAND = re.compile(r"(make |weft |build/weft |bench/|scripts/)")
# Not beside a figure: the tests run them, or they are a form to fill in.
PLAIN = [r"make (test|bench|figures|soak)", r"weft (publish|follow|train)( .*)?", r"weft bench --help", r"weft plan",
         r"bench/update\.sh.*",
         r"weft bench --base OLD --new NEW"]
ENGINES = SOURCE / os.environ.get("WEFT_ENGINES", "build/engines")

# What a document says, as a pattern; what is run for it. ROOM is a directory that is removed.
SHORT = {
    r"build/weft bench": "build/weft bench --params 4M --repeat 1",
    r"build/weft bench --density": "build/weft bench --density --params 1M --repeat 1",
    r"bench/anchor\.py build/engines/model/model\.safetensors":
        "ENGINES build/engines/venv/bin/python -B bench/anchor.py build/engines/model/model.safetensors",
    r"build/weft bench --sync": "build/weft bench --sync --quick --directory ROOM",
    r"build/weft bench --fleet": "build/weft bench --fleet --quick --directory ROOM",
    r"build/weft bench --fleet --followers .*":
        "build/weft bench --fleet --quick --followers 16 --relays 2 --versions 4 --params 200K --directory ROOM",
    r"weft bench --correction": "build/weft bench --correction --quick",
    r"weft bench --loco": "build/weft bench --loco --params 1M",
    r"bench/link\.sh( --model)?": "bench/link.sh --params 1M --steps 1 --rates 200",
    r"bench/link\.sh --loco .*":
        "build/weft bench --lm --rates 1e-3 --quick --steps 1 --save ROOM/policy.safetensors --quiet && "
        "bench/link.sh --loco ROOM/policy.safetensors --rounds 4 --rates 400 --ways 'diloco|diloco --overlap'",
    r"weft plan .*": None,  # as it stands
    r"make demo": "build/weft demo --quick --output ROOM/demo.html",
    r"make demo-llm": "ENGINES scripts/demo_llm.sh --steps 2",
    r"make tour": "scripts/tour.sh",
    r"scripts/record\.py": "scripts/record.py doc/images/session.cast ROOM/session.svg",
    r"weft stats": "build/weft stats ROOM/made/base.safetensors ROOM/made/new.safetensors",
    r"weft bench --lm": "build/weft bench --lm --quick",
    r"weft bench --lm --learn --seed N \[--staleness 1\]":
        "build/weft bench --lm --learn --seed 1 --staleness 1 --steps 4",
    r"weft bench --lm --rates 1e-6": "build/weft bench --lm --rates 1e-6 --params 0.1M --steps 4",
    r"weft bench --lm --kv --repeat 3": "build/weft bench --lm --kv --quick",
    r"weft bench --lm --sparse rkv:28:tis .*":
        "build/weft bench --lm --sparse rkv:28:tis --steps 2 --seed 11 --directory ROOM",
    r"weft bench --lm --sparse rkv:36:tis .*":
        "build/weft bench --lm --sparse rkv:36:tis --steps 1 --seed 1 --directory ROOM",
    r"weft bench --lm --sparse snapkv:28\+common0\.8:tis .*":
        "build/weft bench --lm --sparse snapkv:28+common0.8:tis --steps 1 --seed 1 --directory ROOM",
    r"weft bench --lm --sparse rkv:60:tis .*":
        "build/weft bench --lm --sparse rkv:60:tis --long --steps 1 --seed 11 --directory ROOM",
    r"weft bench --lm --sparse snapkv:44:tis .*":
        "build/weft bench --lm --sparse snapkv:44:tis --long --steps 1 --seed 11 --directory ROOM",
    r"weft bench --lm --sparse snapkv:60:tis .*":
        "build/weft bench --lm --sparse snapkv:60:tis --long --chain 250 --steps 1 --seed 11 --quick --directory ROOM",
    r"weft bench --loco --study pulseloco .*":
        "build/weft bench --lm --rates 1e-6 --steps 1 --quick --save ROOM/policy && "
        "build/weft bench --loco --study pulseloco --state ROOM/policy --rate 1e-6 --steps 16",
    r"make study-sparsity": "make QUICK=1 study-sparsity",
    r"make study-loco": "make QUICK=1 study-loco",
    r"make study-sparse-rl": "make QUICK=1 study-sparse-rl",
    r"make study-sparse-frontier": "make QUICK=1 study-sparse-frontier",
    r"make study-staleness": "make QUICK=1 study-staleness",
    r"make study": "ENGINES make QUICK=1 study",
}


def commands(document):
    """In the order of the text, each once."""
    text = (SOURCE / document).read_text()
    blocks = re.compile(r"^```[a-z]*\n(.*?)^```", re.S | re.M)
    found = [line for block in blocks.findall(text) for line in block.splitlines()]
    found += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", blocks.sub("", text))]
    found = [re.split(r"\s+# ", re.sub(r"^\$ ", "", line))[0].strip() for line in found]
    return list(dict.fromkeys(line for line in found if COMMAND.match(line)))


def main(words):
    wanted, strange, known = {}, [], set()
    for document in DOCUMENTS:
        for command in commands(document):
            patterns = [pattern for pattern in SHORT if re.fullmatch(pattern, command)]
            known.update(patterns)
            if patterns:
                short = SHORT[patterns[0]] or re.sub(r"^weft ", "build/weft ", command)
                wanted.setdefault(short, f"{document}: {command}")
            elif not any(re.fullmatch(pattern, command) for pattern in PLAIN):
                strange.append(f"{document}: {command}")
    wrong = [f"this script does not know how to run it shortly: {entry}" for entry in strange]
    wrong += [f"no document names it any more: {pattern}" for pattern in SHORT if pattern not in known]
    listed = "--list" in words
    words = [word for word in words if word != "--list"]
    room = tempfile.mkdtemp(prefix="weft-figures.")
    try:
        if not listed:
            subprocess.run([SOURCE / "build/weft", "bench", "--quiet", "--params", "1M", "--make", f"{room}/made"],
                           check=True)
        for short, source in wanted.items():
            if words and not any(word in short or word in source for word in words):
                continue
            line, needed, rest = short.replace("ROOM", room), *short.partition("ENGINES ")[1:]
            if needed:
                line = rest.replace("ROOM", room)
            if listed or needed and not (ENGINES / "model").exists():
                print(f"{source}\n    {line}" if listed else f"passed over, there is no {ENGINES}: {line}", flush=True)
                continue
            begin = time.monotonic()
            done = subprocess.run(["timeout", str(PATIENCE), "bash", "-c", line], cwd=SOURCE, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, "QUICK": "1"})
            print(f"{time.monotonic() - begin:6.1f} s  {'FAILS' if done.returncode else 'runs '}  {line}",
                  flush=True)
            if done.returncode != 0:
                wrong.append(f"{source}\n    {line}: exit code {done.returncode}\n{done.stdout[-1500:]}")
    finally:
        shutil.rmtree(room)
    for entry in wrong:
        print(entry, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
