# SPDX-License-Identifier: Apache-2.0
"""A live vLLM server follows a store: in place from version to version, equal to an engine that is started fresh.

Three engines are started. The first follows by itself over HTTP, through a stream in flight and a store that goes away.
The second is started with the final weights, says what a fresh engine answers, and is then driven by vLLM's own routes,
until it is killed in the middle of following. The third takes its place, compiled.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from engines import (
    COMMAND, MODEL, Program, StoreServer, VLLM, change_beneath_stream, free_port, fused_hashes, load_weights,
    move_weights, place, run, save_model, say, wait_for,
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

    def move(self, share: float = 0.01) -> None:
        move_weights(self.weights, seed=self.publisher.version, share=share)

    def publish_moved(self) -> int:
        return self.publisher.publish(step=self.publisher.version).version

    def publish(self, share: float = 0.01) -> int:
        self.move(share)
        return self.publish_moved()


scene = Scene()


def equal_to(engine: VLLM, weights: Dict[str, Any]) -> bool:
    return {name.rpartition(":")[2]: value for name, value in engine.hashes().items()} == fused_hashes(weights)


def equal_to_trainer(engine: VLLM) -> bool:
    return equal_to(engine, scene.weights)


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
    stream = change_beneath_stream(scene.engine, scene.move, scene.publish_moved, LONG)
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
    found = scene.engine.wait_figures(version)
    assert found["version"] == found["newest"] == version and found["lag"] == 0, found
    assert found["commits_total"] >= version - 1 and found["fetched_bytes_total"] > 0, found
    assert 0 < found["last_commit_seconds"] < found["last_pause_seconds"], found
    fleet = wait_for(
        lambda: [one for one in weft.fleet(scene.path).followers if one.name == "engine" and one.version == version],
        "the engine's report",
    )
    assert fleet[0].live


def test_a_store_that_goes_away_and_comes_back() -> None:
    failures = scene.engine.metrics()["failures_total"]
    scene.server.end()
    version = scene.publish()
    wait_for(lambda: scene.engine.metrics()["failures_total"] > failures, "a failure to be noticed")
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


def test_stores_that_cannot_be_followed() -> None:
    """What is wrong with a store is in an answer, soon, and the engine serves on and follows what it followed."""
    engine, directory, weights = scene.engine, scene.directory, scene.weights
    before = engine.hashes()

    def refused(route: str, body: Any, *texts: str) -> None:
        start = time.monotonic()
        answer = engine.post(route, body)
        assert answer.status_code == 500 and all(text in answer.text for text in texts), (body, answer.text)
        say(f"{time.monotonic() - start:.1f} s, {body}: {answer.json()['error']['message']}")
        engine.generate(["Water boils at"], tokens=2)

    def update(version: Any, *texts: str) -> None:
        assert engine.post("start_weight_update").status_code == 200
        refused("update_weights", {"update_info": {} if version is None else {"version": version}}, *texts)

    def place_at(path: Any, *texts: str, **more: Any) -> None:
        refused("init_weight_transfer_engine", {"init_info": {"store": str(path), **more}}, *texts)

    def follow(path: Any, **more: Any) -> None:
        info = {"store": str(path), "follow": False, **more}
        answer = engine.post("init_weight_transfer_engine", {"init_info": info})
        assert answer.status_code == 200, answer.text

    def made(name: str, tensors: Dict[str, Any], **options: Any) -> pathlib.Path:
        with weft.Publisher(directory / name, tensors, **options) as publisher:
            publisher.publish()
        return directory / name

    update(None, "no store is followed")
    place_at(directory / "nowhere", "does not exist")
    place_at(MODEL / "config.json", "is not a directory")
    place_at("ftp://trainer", "cannot open a store at ftp://")
    place_at(f"http://127.0.0.1:{free_port()}", "Connection refused")
    # a name that no name server is asked for, since it may take its time
    place_at(f"http://{64 * 'x'}.invalid", "Could not resolve host", follow=True)
    place_at(scene.path, "is not an Ed25519 key", trust=str(MODEL / "config.json"))
    for what, value in {
        "store": 5, "trust": str(directory / "none.pub"), "name": "../engine", "follow": "no", "poll_seconds": -1,
        "threads": 1.5, "running": "stop", "speed": 9,
    }.items():
        refused("init_weight_transfer_engine", {"init_info": {"store": str(scene.path), what: value}}, what)
    update(None, "no store is followed")

    (directory / "empty").mkdir()
    follow(directory / "empty")
    for version in (None, 1):
        update(version, "nothing was published here yet")
    place_at(directory / "nowhere", "does not exist")
    place_at(f"http://127.0.0.1:{free_port()}", "Connection refused")
    update(None, "nothing was published here yet")  # of the one that was followed before

    query = next(name for name in weights if name.endswith("q_proj.weight"))
    for name, tensors in {
        "others": {"another.weight": weights[query]},
        "smaller": {**weights, query: weights[query][:64].clone()},
        "fewer": {name: weight for name, weight in weights.items() if name != query},
        "wider": {name: weight.float() for name, weight in weights.items()},
    }.items():
        place_at(made(name, tensors), "layout: ", follow=False)
    keys = [directory / "ours.key", directory / "theirs.key"]
    for key in keys:
        subprocess.run([COMMAND, "keygen", key], check=True, capture_output=True)
    signed = made("signed", {**weights}, key=str(keys[0]))
    place_at(signed, "sign", trust=f"{keys[1]}.pub", follow=False)
    follow(signed, trust=f"{keys[0]}.pub")
    for wrong in (2, 2**62, -1, 1.5, "1", True):
        update(wrong, "version")
    assert engine.hashes() == before, "a failure has changed the weights"
    assert engine.post("shutdown_weight_transfer_engine").status_code == 200


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
    assert engine.post("start_weight_update").status_code == 200
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # all are answered, where nothing is to be done either
        answers = list(pool.map(lambda _: engine.post("update_weights", {"update_info": {}}).text, range(4)))
    assert len(set(answers)) == 1 and "updated" in answers[0], answers
    assert engine.post("finish_weight_update").status_code == 200


def test_another_run_in_the_same_place() -> None:
    """A trainer that begins anew has versions of the same numbers, and they are not taken for those of before."""
    engine, path = scene.engine, scene.directory / "again"

    def begin_run(seed: int) -> Dict[str, Any]:
        """Of two versions, so that an engine that has neither needs two steps."""
        weights = load_weights()
        move_weights(weights, seed, share=0.001)
        with weft.Publisher(path, weights) as publisher:
            publisher.publish()
            move_weights(weights, seed + 1, share=0.001)
            publisher.publish()
        return weights

    def initialise() -> None:
        info = {"store": str(path), "follow": False}
        answer = engine.post("init_weight_transfer_engine", {"init_info": info})
        assert answer.status_code == 200, answer.text

    def update(**info: int) -> Any:
        assert engine.post("start_weight_update").status_code == 200
        answer = engine.post("update_weights", {"update_info": info})
        if answer.status_code == 200:
            assert engine.post("finish_weight_update").status_code == 200
        return answer

    first = begin_run(100)
    initialise()
    assert update().status_code == 200
    assert engine.version == "2" and equal_to(engine, first)
    shutil.rmtree(path)
    second = begin_run(200)
    answer = update(version=2)
    assert answer.status_code == 500 and "but this replica follows run" in answer.text, answer.text
    assert equal_to(engine, first)
    initialise()
    assert update(version=2).status_code == 200 and equal_to(engine, second)


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
        run(
            test_in_place_from_version_to_version, test_a_stream_in_flight_while_weights_change,
            test_a_version_that_does_not_exist, test_figures_in_the_endpoint_and_the_fleet,
            test_a_store_that_goes_away_and_comes_back, test_equal_to_a_fresh_engine,
            test_stores_that_cannot_be_followed, test_driven_by_the_official_routes,
            test_another_run_in_the_same_place, test_killed_and_restarted_in_mid_follow, test_compiled,
            test_a_speculating_engine_is_refused,
        )


if __name__ == "__main__":
    main()
