# SPDX-License-Identifier: Apache-2.0
"""A live SGLang engine goes from version to version, beside SGLang's own reload of the same checkpoint from disk.

    build/engines/venv/bin/python bench/sglang_engine.py [VERSIONS]      # after scripts/engines.sh; two minutes

SmolLM2-135M in BF16 on processors, 1% of the weights of each tensor moved by one step in each version; the store is a
directory. Times are of whole calls: begin, update, end, with the flush of the cache. The checkpoint that SGLang loads
by its own call is on this machine already, and in the cache of its files.
"""

import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

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


def main() -> None:
    import sglang

    versions = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory(prefix="weft-sglang.") as scratch:
        place = pathlib.Path(scratch)
        os.environ["WEFT_STORE"] = str(place / "store")
        weights = engines.load_weights()
        engine = sglang.Engine(model_path=str(engines.MODEL), **OPTIONS)
        seconds, sizes, own = [], [], []
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
                weft.sglang.update(engine)
                seconds.append(time.perf_counter() - start)
        save_file(weights, place / "model" / "model.safetensors", metadata={"format": "pt"})
        for _ in range(versions):
            start = time.perf_counter()
            done = engine.update_weights_from_disk(str(place / "model"))
            own.append(time.perf_counter() - start)
            assert done[0], done
        engine.shutdown()
    print(f"the first, which loads an anchor: {1e3 * first:.0f} ms")
    for name, times, size in (("weft", seconds, statistics.median(sizes)), ("update_weights_from_disk", own, 269e6)):
        print(
            f"{name}, {versions} versions of {size / 1e6:.2f} MB: median {1e3 * statistics.median(times):.0f} ms, "
            f"longest {1e3 * max(times):.0f} ms"
        )


if __name__ == "__main__":
    main()
