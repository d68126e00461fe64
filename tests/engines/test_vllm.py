# SPDX-License-Identifier: Apache-2.0
"""A live vLLM server follows a store: in place from version to version, equal to an engine that is started fresh.

Three engines are started. The first follows by itself over HTTP, through a stream in flight and a store that goes away.
The second is started with the final weights, says what a fresh engine answers, and is then driven by vLLM's own routes,
until it is killed in the middle of following. The third takes its place, compiled.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import sys
import threading
from typing import Any, Dict, List

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import requests
from engines import (
    MODEL, Program, StoreServer, Stream, VLLM, fused_hashes, load_weights, move_weights, place, run, save_model, say,
    wait_for,
)

import weft

LONG = "The history of the town is long. " * 40  # several blocks of the prefix cache


class Scene:
    """What the tests have between them."""

    weights = load_weights()
    answers: List[Any]
    answered: Any

    def open(self, directory: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.directory, self.stack = directory, stack
        self.path = directory / "store"
        self.path.mkdir()
        self.publisher = stack.enter_context(weft.Publisher(self.path, self.weights))
        self.publisher.publish(step=0)
        self.server = self.keep(StoreServer(self.path))
        self.engine = self.keep(VLLM(directory, WEFT_STORE=self.server.url, WEFT_NAME="engine")).ready()

    def keep(self, program: Any) -> Any:
        self.stack.callback(Program.end, program)
        return program

    def publish(self, share: float = 0.01) -> int:
        move_weights(self.weights, seed=self.publisher.version, share=share)
        return self.publisher.publish(step=self.publisher.version).version


scene = Scene()


def equal_to_trainer(engine: VLLM) -> bool:
    return {name.rpartition(":")[2]: value for name, value in engine.hashes().items()} == fused_hashes(scene.weights)


def test_in_place_from_version_to_version() -> None:
    scene.engine.wait_version(1)
    assert equal_to_trainer(scene.engine)
    scene.engine.generate([LONG])
    before = scene.engine.generate()
    for _ in range(3):
        scene.engine.wait_version(scene.publish())
        assert equal_to_trainer(scene.engine)
    assert scene.engine.generate() != before, "1% of the weights changed three times, and no answer did"


def test_a_stream_in_flight_while_weights_change() -> None:
    move_weights(scene.weights, seed=1000)
    stream = Stream(scene.engine, LONG, tokens=180)
    wait_for(lambda: len(stream.times) > 5, "the first tokens of a stream")
    scene.engine.wait_version(scene.publisher.publish(step="in flight").version)
    assert stream.is_alive(), "the stream has ended before the weights changed"
    stream.join(1800)
    assert stream.error is None and len(stream.texts) == 180, (stream.error, len(stream.texts))
    assert equal_to_trainer(scene.engine)
    # nothing that was computed with old weights may be found, not even what the stream has added since: an answer is
    # the same from the cache, twice, and without one
    prompts = [LONG + "".join(stream.texts)[:300]]
    answers = [scene.engine.generate(prompts, tokens=4) for _ in range(3)]
    assert scene.engine.post("reset_prefix_cache").status_code == 200
    assert answers == 3 * [scene.engine.generate(prompts, tokens=4)]


def test_a_version_that_does_not_exist() -> None:
    engine, version = scene.engine, scene.publisher.version
    assert engine.post("update_weights", {"update_info": {}}).status_code == 500, "without start_weight_update"
    for wrong in ({"version": 999}, {"version": -1}, {"version": "new"}, {"speed": 9}):
        assert engine.post("start_weight_update").status_code == 200
        answer = engine.post("update_weights", {"update_info": wrong})
        assert answer.status_code == 500, answer.text
    assert engine.post("start_weight_update").status_code == 200
    answer = engine.post("update_weights", {"update_info": {"version": 999}})
    assert f"version 999 is not published yet; the newest is {version}" in answer.text, answer.text
    assert engine.post("start_draft_weight_update").status_code == 500
    assert engine.post("init_weight_transfer_engine", {"init_info": {"speed": 9}}).status_code == 500
    assert engine.version == str(version) and equal_to_trainer(engine)


def test_figures_in_the_endpoint_and_the_fleet() -> None:
    version = scene.publisher.version
    found = wait_for(lambda: scene.engine.metrics(), "figures")
    assert found["version"] == found["newest"] == version and found["lag"] == 0, found
    assert found["commits_total"] >= version - 1 and found["fetched_bytes_total"] > 0, found
    assert 0 < found["last_commit_seconds"] < found["last_pause_seconds"] < 60, found
    fleet = wait_for(
        lambda: [one for one in weft.fleet(scene.path).followers if one.name == "engine" and one.version == version],
        "the engine's report",
    )
    assert fleet[0].live


def test_a_store_that_goes_away_and_comes_back() -> None:
    scene.server.end()
    version = scene.publish()
    wait_for(lambda: scene.engine.metrics()["failures_total"] > 0, "a failure to be noticed")
    scene.engine.generate(["Water boils at"])
    assert scene.engine.version == str(version - 1), "the engine has a version that it cannot have fetched"
    scene.server = scene.keep(StoreServer(scene.path, scene.server.port))
    scene.engine.wait_version(version)
    assert equal_to_trainer(scene.engine)
    scene.answers = scene.engine.generate()
    scene.answered = scene.engine.generate([LONG])
    scene.engine.end()


def test_equal_to_a_fresh_engine() -> None:
    model = save_model(scene.weights, scene.directory / "final")
    scene.engine = scene.keep(VLLM(scene.directory, model=model)).ready()
    assert equal_to_trainer(scene.engine)
    assert scene.engine.generate() == scene.answers, "tokens or log-probabilities differ from a fresh engine's"
    assert scene.engine.generate([LONG]) == scene.answered, "a prefix of old weights was found"


def test_driven_by_the_official_routes() -> None:
    engine = scene.engine
    assert engine.post("start_weight_update").status_code == 200
    answer = engine.post("update_weights", {"update_info": {}})
    assert answer.status_code == 500 and "no store is followed" in answer.text
    info = {"store": scene.server.url, "follow": False, "name": "driven"}
    answer = engine.post("init_weight_transfer_engine", {"init_info": info})
    assert answer.status_code == 200, answer.text
    first, second = scene.publish(), scene.publish()
    for wanted, given in ((first, {"version": first}), (second, {})):
        assert engine.post("start_weight_update").status_code == 200
        answer = engine.post("update_weights", {"update_info": given})
        assert answer.status_code == 200, answer.text
        assert engine.version == str(wanted)
        assert engine.post("finish_weight_update", {"weight_version": f"step-{wanted}"}).status_code == 200
        assert engine.version == f"step-{wanted}", "the caller's own name for the version"
    assert equal_to_trainer(engine)


def test_killed_and_restarted_in_mid_follow() -> None:
    """And compiled: what is written in place must reach the compiled graph too."""
    info = {"store": scene.server.url, "follow": True, "name": "driven"}
    assert scene.engine.post("init_weight_transfer_engine", {"init_info": info}).status_code == 200
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(1):
            scene.publish(0.001)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        wait_for(lambda: int(scene.engine.metrics()["commits_total"]) >= 4, "some versions to be followed")
        scene.engine.end(signal.SIGKILL)
        say("killed; another one takes its place")
        engine = scene.keep(VLLM(scene.directory, eager=False, WEFT_STORE=scene.server.url, WEFT_NAME="engine"))
        scene.engine = engine.ready()
        reached = int(wait_for(lambda: engine.version if engine.version != "default" else "", "a first version"))
        wait_for(lambda: int(engine.version) > reached + 3, "more versions")
    finally:
        stop.set()
        thread.join()
    engine.wait_version(scene.publisher.version)
    assert equal_to_trainer(engine)


def test_compiled() -> None:
    """Back to the weights that it was started with, it must answer as then."""
    engine, original = scene.engine, load_weights()
    moved: Dict[str, Any] = {name: weight.clone() for name, weight in scene.weights.items()}

    def set_to(weights: Dict[str, Any]) -> List[Any]:
        for name, weight in weights.items():
            scene.weights[name].copy_(weight)
        engine.wait_version(scene.publisher.publish(step="back").version)
        assert equal_to_trainer(engine)
        return engine.generate()

    first = set_to(original)
    second = set_to(moved)
    assert first != second, "what was written did not reach the compiled graph"
    assert set_to(original) == first and set_to(moved) == second


def test_a_speculating_engine_is_refused() -> None:
    options = ["--speculative-config", f'{{"method": "draft_model", "model": "{MODEL}", "num_speculative_tokens": 2}}']
    scene.engine.end()
    engine = scene.keep(VLLM(scene.directory, *options))
    wait_for(lambda: engine.process.poll() is not None, "the engine to refuse")
    assert "weft cannot update this engine in place: it speculates with" in engine.log.read_text()


def main() -> None:
    with place("vllm") as directory, contextlib.ExitStack() as stack:
        scene.open(directory, stack)
        with contextlib.suppress(requests.RequestException):
            run(
                test_in_place_from_version_to_version, test_a_stream_in_flight_while_weights_change,
                test_a_version_that_does_not_exist, test_figures_in_the_endpoint_and_the_fleet,
                test_a_store_that_goes_away_and_comes_back, test_equal_to_a_fresh_engine,
                test_driven_by_the_official_routes, test_killed_and_restarted_in_mid_follow, test_compiled,
                test_a_speculating_engine_is_refused,
            )


if __name__ == "__main__":
    main()
