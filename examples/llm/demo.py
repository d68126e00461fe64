# SPDX-License-Identifier: Apache-2.0
"""`make demo-llm`: a language model learns by reinforcement, and a live inference engine follows it bit for bit.

TRL's GRPOTrainer trains SmolLM2-135M on sums, with FP32 masters. Its rollouts come from a vLLM server behind a slow
link. After each step what changed of the BF16 weights goes there through weft. At the end vLLM's own weight checker
says what is in the engine's memory, and that is compared with the trainer's weights.

| file | what lives there |
|---|---|
| `demo.py` | options, the run, what is shown |
| `learner.py` | model, task, trainer; a line of metrics for each step |
| `engine.py` | the vLLM server |
| `link.py`, `processes.py` | the shaped link; processes that end with the demo |
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator

TREE = pathlib.Path(__file__).resolve().parents[2]
ENGINES = pathlib.Path(os.environ.get("WEFT_ENGINES", TREE / "build/engines")).resolve()
WEFT = TREE / "build/weft"
MODEL = "SmolLM2-135M-Instruct"

sys.path[:0] = [str(TREE / "python")]
os.environ["PYTHONPATH"] = str(TREE / "python")  # of the engine, whose plug-in is this tree's too
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded: threads that wait leave their core to others

from link import Link  # noqa: E402
from processes import Failure, Process  # noqa: E402

EXAMPLES = """examples:
  make demo-llm                                   the set-up, if it is missing, and then the demo
  scripts/demo_llm.sh --steps 5 --keep run        a short one, whose store, metrics and logs stay in run
  scripts/demo_llm.sh --sync full --steps 5       whole models instead of what changed, to compare
  scripts/demo_llm.sh --link 0 --json             over loopback; the results as JSON
  make demo-llm OPTIONS='--learning-rate 3e-6'    options by way of make

exit codes: 0 done, 1 failed, 2 wrong usage, 3 the engine's weights are not the trainer's, 130 interrupted
"""


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo_llm.sh", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="SmolLM2-135M learns sums by TRL's GRPO, and a live vLLM server follows it by weft.",
    )

    def number(least: float, most: float, kind: Any) -> Any:
        def parse(text: str) -> Any:
            value = kind(text)
            if not least <= value <= most:
                raise ValueError
            return value

        parse.__name__ = f"number from {least:g} to {most:g}"
        return parse

    parser.add_argument("--steps", type=number(2, 10000, int), default=20, metavar="N",
                        help="steps of the trainer (20)")
    parser.add_argument("--learning-rate", type=number(1e-12, 1, float), default=1e-6, metavar="RATE",
                        help="of AdamW (1e-6, as in the papers)")
    parser.add_argument("--sync", choices=("patch", "full"), default="patch",
                        help="patch: send what changed (default); full: send every version whole, to compare")
    parser.add_argument("--link", type=number(0, 100000, float), default=50.0, metavar="MBIT",
                        help="Mbit/s between store and engine (50); 0: as fast as loopback")
    parser.add_argument("--seed", type=number(0, 2**31 - 1, int), default=1, metavar="N",
                        help="of prompts and masters (1)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("weft-demo-llm.html"), metavar="FILE",
                        help="the report (weft-demo-llm.html)")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR",
                        help="leave the run in DIR, which must not exist: store, model, metrics, logs")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args()


_terminal = os.dup(2)  # stderr, also while that is a log


def say(text: str) -> None:
    os.write(_terminal, f"{text}\n".encode())


@contextlib.contextmanager
def quiet(log: pathlib.Path) -> Iterator[None]:
    """What libraries write to stdout and stderr goes to a log."""
    kept = os.dup(1), os.dup(2)
    with open(log, "wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        for number in (1, 2):
            os.dup2(kept[number - 1], number)
            os.close(kept[number - 1])


# ---- what is needed ----


def check_setup(options: argparse.Namespace) -> None:
    """Fails early with what to do; and goes on in the Python that has the engines."""
    python = ENGINES / "venv/bin/python"
    for path in (python, ENGINES / "model/model.safetensors", WEFT):
        if not path.exists():
            raise Failure(f"the set-up is missing: there is no {path}; `make demo-llm` makes it")
    if pathlib.Path(sys.prefix).resolve() != (ENGINES / "venv").resolve():
        os.execv(python, [str(python), "-B", *sys.argv])
    if options.keep is not None and options.keep.exists():
        raise Failure(f"{options.keep} exists; --keep takes a directory that does not")
    folder = options.output.resolve().parent
    if options.output.is_dir() or not os.access(folder, os.W_OK):
        raise Failure(f"the report cannot be written to {options.output}; give another --output")


@contextlib.contextmanager
def open_directory(options: argparse.Namespace) -> Iterator[pathlib.Path]:
    """Where the run lies. It goes when all went well, or when it was interrupted, unless it is to be kept."""
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        place = options.keep.resolve()
    else:
        place = pathlib.Path(tempfile.mkdtemp(prefix="weft-demo-llm."))
    try:
        yield place
    except Exception:
        say(f"store, metrics and logs are in {place}")
        raise
    except BaseException:
        _leave(options, place)
        raise
    _leave(options, place)


def _leave(options: argparse.Namespace, place: pathlib.Path) -> None:
    if options.keep is None:
        shutil.rmtree(place, ignore_errors=True)
    else:
        say(f"store, metrics and logs are in {options.keep}")


# ---- the run ----


class Store(Process):
    """`weft serve` of the run's store, at the trainer's end of the link. The trainer writes to the directory itself."""

    def __init__(self, directory: pathlib.Path, link: Link) -> None:
        (directory / "store").mkdir()
        url = directory / "url"
        super().__init__(
            "weft serve",
            [
                str(WEFT), "serve", str(directory / "store"), "--listen", f"{link.store}:0", "--url-file", str(url),
                "--read-only",
            ],
            directory / "serve.log",
        )
        while not (url.exists() and url.read_text().endswith("\n")):
            self.check()
            time.sleep(0.02)
        self.url = url.read_text().strip()


def describe(options: argparse.Namespace, link: Link) -> Dict[str, Any]:
    """The settings that the report shows."""
    from learner import GROUP, PROMPTS, TOKENS, WARMUP

    versions = {name: importlib.metadata.version(name) for name in ("trl", "vllm", "torch")}
    return {
        "command": shlex.join(["scripts/demo_llm.sh", *sys.argv[1:]]),
        "model": f"{MODEL}, from its Q4_1 form",
        "trainer": f"TRL {versions['trl']} (GRPO), torch {versions['torch']}, FP32 masters",
        "masters": "begin at random places of the cells that BF16 rounds to the model's weights",
        "optimizer": f"AdamW 0.9 0.999, {WARMUP} steps of warm-up, gradient norm at most 1",
        "learning_rate": f"{options.learning_rate:g}",
        "task": "sums of one and two digits; 1 if the answer's first number is right, else 0",
        "batch": f"{PROMPTS} prompts, {GROUP} answers each of at most {TOKENS} tokens",
        "engine": f"vLLM {versions['vllm']}, BF16, one core",
        "link": link.told, "sync": options.sync, "steps": options.steps, "seed": options.seed,
    }


def show_step(options: argparse.Namespace, line: Dict[str, Any]) -> None:
    sent, dense = line["bytes"]["sent"], line["bytes"]["dense"]
    worker = line["workers"][0]
    say(
        f"step {line['step'] + 1:>3}/{options.steps}  version {worker['version']:>3}  reward {line['reward']:.3f}  "
        f"{line['density']['1']:.3%} changed  {sent / 1e6:.3f} of {dense / 1e6:.0f} MB ({dense / sent:,.1f}x)  "
        f"in the engine after {line['seconds']['publish']:.2f} s, pause {1e3 * worker['pause']:.1f} ms  "
        f"{line['seconds']['step']:.1f} s"
    )


def prove(engine: Any, masters: Any) -> Dict[str, Any]:
    """Compares what lies in the engine's memory with the trainer's weights."""
    from engine import hashes_of

    live, wanted = engine.hashes(), hashes_of(dict(masters.named_parameters()))
    differing = sorted(name for name in live.keys() | wanted.keys() if live.get(name) != wanted.get(name))
    return {"version": int(engine.version), "parameters": len(live), "differing": differing}


def train(
    options: argparse.Namespace, directory: pathlib.Path, opened: contextlib.ExitStack, run: Dict[str, Any]
) -> Dict[str, Any]:
    """All of it, with what it opens closed by the caller. `run` gets the settings; the proof is returned."""
    link = opened.enter_context(contextlib.closing(Link(options.link)))
    say(f"link: {link.told}")
    store = opened.enter_context(contextlib.closing(Store(directory, link)))
    say("the model, vLLM and TRL are loading; this takes half a minute or more …")
    import torch
    from learner import Learner, start_model

    torch.set_num_threads(os.cpu_count() or 1)
    zeros = start_model(ENGINES / "model", directory / "model", options.seed)
    say(f"masters: random within their BF16 rounding cells, since the model was quantised; {zeros:.2%} of the weights were\n"
        "zero, where BF16 has no cell, and begin at small values")
    from engine import Engine

    begun = time.monotonic()
    scratch = opened.enter_context(tempfile.TemporaryDirectory(prefix="weft-llm.", ignore_cleanup_errors=True))
    engine = opened.enter_context(
        contextlib.closing(Engine(directory / "model", directory, pathlib.Path(scratch), ENGINES / "cache", link))
    )
    run.update(describe(options, link))
    engine.wait_ready()
    say(f"vLLM answers after {time.monotonic() - begun:.0f} s")
    learner = Learner(
        directory / "model", directory, engine, store.url, steps=options.steps, rate=options.learning_rate,
        whole=options.sync == "full", seed=options.seed, tell=lambda line: show_step(options, line),
    )
    learner.run()
    say("the weights in the engine's memory against the trainer's …")
    return prove(engine, learner.masters)


# ---- what is shown at the end ----


def make_report(options: argparse.Namespace, directory: pathlib.Path, run: Dict[str, Any], quiet: bool = False) -> Any:
    """By `weft demo`, from metrics.jsonl and run.json; None if there are too few steps."""
    metrics = directory / "metrics.jsonl"
    if not metrics.exists() or len(metrics.read_bytes().splitlines()) < 2:
        return None
    (directory / "run.json").write_text(json.dumps(run))
    command = [str(WEFT), "demo", "--report", str(directory), "--output", str(options.output)]
    made = subprocess.run([*command, "--json", "--quiet"], stdout=subprocess.PIPE, check=True)
    if not quiet and not options.json:
        subprocess.run([*command, "--quiet"], check=True)
    return json.loads(made.stdout)


def proof_text(proof: Dict[str, Any]) -> str:
    count, differing = proof["parameters"], proof["differing"]
    if differing:
        return f"{len(differing)} of {count} parameters differ from the trainer's, {differing[0]} among them"
    return (f"version {proof['version']}: each of the engine's {count} parameters has the SHA-256 of the trainer's "
            "weights, by vLLM's weight checker")


def finish(options: argparse.Namespace, directory: pathlib.Path, run: Dict[str, Any], proof: Dict[str, Any]) -> int:
    run["proof"] = proof_text(proof)
    told = make_report(options, directory, run)
    if options.json:
        print(json.dumps({**told, "proof": proof}))
    else:
        print(f"link       {run['link']}{link_times(run, told)}")
        print(f"proof      {run['proof']}")
    say(f"report: {options.output}")
    return 3 if proof["differing"] else 0


def link_times(run: Dict[str, Any], told: Any) -> str:
    """How long a version takes to cross the link at best."""
    if not run["link"].endswith("bit/s"):
        return ""
    rate = float(run["link"].split()[0]) * 1e6 / 8
    sent, dense = (told["summary"]["bytes"][kind] / rate for kind in ("sent", "dense"))
    return f": {sent:.3g} s for what a sync sends, {dense:.3g} s for a whole model"


def main() -> int:
    options = parse_options()
    run: Dict[str, Any] = {}
    try:
        check_setup(options)
        with open_directory(options) as directory:
            try:
                with quiet(directory / "trainer.log"), contextlib.ExitStack() as opened:
                    opened.callback(hold_signals)
                    proof = train(options, directory, opened, run)
                return finish(options, directory, run, proof)
            except KeyboardInterrupt:
                hold_signals()
                if make_report(options, directory, run, quiet=True) is not None:
                    say(f"report of the steps that were done: {options.output}")
                raise
    except Failure as failure:
        say(f"demo-llm: {failure}")
        return 1
    except KeyboardInterrupt as interrupt:
        say("demo-llm: interrupted; all its processes have ended")
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)


def interrupted(number: int, _: Any) -> None:
    raise KeyboardInterrupt(number)


def hold_signals() -> None:
    """From here on processes are ended and files written, which takes seconds and must not be cut short."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    sys.exit(main())
