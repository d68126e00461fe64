# SPDX-License-Identifier: Apache-2.0
"""A live SGLang engine goes from version to version, told to and by itself, beside SGLang's own reload of the same
checkpoint from disk.

    build/engines/venv/bin/python bench/sglang_engine.py [VERSIONS]      # after scripts/engines.sh; three minutes

SmolLM2-135M in BF16 on processors, 1% of the weights of each tensor moved by one step in each version; the store is a
directory. Times are of whole calls: begin, update, end, with the flush of the cache. The checkpoint that SGLang loads
by its own call is on this machine already, and in the cache of its files. Of an engine that follows by itself, its log
has the pause between two steps.
"""

import os
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any, List

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
TREE = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TREE / "python"), str(TREE / "tests" / "engines")]

import engines
import weft
import weft.sglang
from safetensors.torch import save_file

OPTIONS = {"device": "cpu", "dtype": "bfloat16", "attention_backend": "torch_native", "sampling_backend": "pytorch"}
OPTIONS |= {"grammar_backend": "none", "mem_fraction_static": 0.6, "max_total_tokens": 4096, "log_level": "error"}
OPTIONS |= {"max_running_requests": 8, "disable_overlap_schedule": True, "skip_server_warmup": True}


def follow(sglang: Any, place: pathlib.Path, weights: engines.Weights, versions: int) -> List[float]:
    """The milliseconds of pauses of an engine that follows by itself."""
    os.environ.update(WEFT_FOLLOW="1", WEFT_NAME="bench")
    log = place / "log"
    kept = os.dup(2)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    try:
        engine = sglang.Engine(model_path=str(engines.MODEL), **{**OPTIONS, "log_level": "info"})
        with weft.Publisher(place / "store", weights) as publisher:
            for number in range(versions):
                engines.move_weights(weights, versions + number)
                text = f"weft: at version {publisher.publish().version};"
                engines.wait_for(lambda text=text: text in log.read_text(errors="replace"), text)
        engine.shutdown()
    finally:
        os.dup2(kept, 2)
    return [float(found) for found in re.findall(r"weft: at version \d+; pause ([\d.]+) ms", log.read_text())]


def main() -> None:
    import sglang

    versions = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory(prefix="weft-sglang.") as scratch:
        place = pathlib.Path(scratch)
        os.environ["WEFT_STORE"] = str(place / "store")
        weights = engines.load_weights()
        engine = sglang.Engine(model_path=str(engines.MODEL), **OPTIONS)
        seconds, sizes, own, inside, commits = [], [], [], [], []
        shutil.copytree(engines.MODEL, place / "model")
        with weft.Publisher(place / "store", weights) as publisher:
            publisher.publish()
            start = time.perf_counter()
            weft.sglang.update(engine)
            first = time.perf_counter() - start
            for version in range(versions):
                engines.move_weights(weights, version)
                sizes.append(publisher.publish().bytes)
                start = time.perf_counter()
                answer = weft.sglang.update(engine)
                seconds.append(time.perf_counter() - start)
                took, commit = re.findall(r"[\d.]+(?= ms|$)", answer)
                inside.append(float(took))
                commits.append(float(commit))
        save_file(weights, place / "model" / "model.safetensors", metadata={"format": "pt"})
        for _ in range(versions):
            start = time.perf_counter()
            done = engine.update_weights_from_disk(str(place / "model"))
            own.append(time.perf_counter() - start)
            assert done[0], done
        engine.shutdown()
        pauses = follow(sglang, place, weights, versions)
    print(f"the first, which loads an anchor: {1e3 * first:.0f} ms")
    for name, times, size in (("weft", seconds, statistics.median(sizes)), ("update_weights_from_disk", own, 269e6)):
        print(
            f"{name}, {versions} versions of {size / 1e6:.2f} MB: median {1e3 * statistics.median(times):.0f} ms, "
            f"longest {1e3 * max(times):.0f} ms"
        )
    print(
        f"of weft's call: fetching, proving and committing median {statistics.median(inside):.1f} ms, the commit "
        f"{statistics.median(commits):.1f} ms; the rest is SGLang's begin, end and flush"
    )
    print(
        f"following by itself, pause between two steps: median {statistics.median(pauses):.1f} ms, "
        f"longest {max(pauses):.1f} ms"
    )


if __name__ == "__main__":
    main()
