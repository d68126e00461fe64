# SPDX-License-Identifier: Apache-2.0
"""A run without torch: numpy arrays in one process are published, and followed into numpy arrays in another."""

import multiprocessing
import tempfile
from typing import Any, Dict

import numpy
import weft

VERSIONS = 5


def zeros() -> "Dict[str, numpy.ndarray[Any, Any]]":
    return {"layer.weight": numpy.zeros((512, 256), "float16"), "layer.bias": numpy.zeros(512, "float32")}


def follow(store: str, key: str) -> None:
    weights = zeros()
    with weft.Subscriber(store, weights, trust=key, name="worker-0", report_seconds=0.1) as subscriber:
        for update in subscriber.follow(timeout=100):
            update.commit()
            assert weft.digest(weights) == subscriber.info.digest
            print(f"follower:  version {update.version}, labels {update.labels}")
            if update.version == VERSIONS:
                break


if __name__ == "__main__":
    random = numpy.random.default_rng(7)
    with tempfile.TemporaryDirectory() as place:
        key = weft.Key.generate()
        key.write(place + "/run.key")
        context = multiprocessing.get_context("spawn")
        worker = context.Process(target=follow, args=(place + "/store", place + "/run.key.pub"), daemon=True)
        model = zeros()
        with weft.Publisher(place + "/store", model, key=key) as publisher:
            worker.start()
            for step in range(VERSIONS):
                for tensor in model.values():
                    tensor[random.random(tensor.shape) < 0.01] += 1  # in place: the publisher reads this memory
                made = publisher.publish(step=step)
                print(f"publisher: version {made.version}, {made.changed} of {made.total} changed, {made.bytes} bytes")
            worker.join()
        assert worker.exitcode == 0
        assert weft.fleet(place + "/store").followers[0].version == VERSIONS
        assert [entry.labels["step"] for entry in weft.log(place + "/store", trust=key)] == ["4", "3", "2", "1", "0"]
