#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""/v1/train of `weft serve`, and what its page shows of it in a real browser: the steps of a trainer as the object
train/metrics has them, those that are new while it trains, and nothing that is not a step."""
import json
import os
import tempfile
import unittest

import chromium
from chromium import Page
from serving import Server, main
from training import make_step

HOSTILE = "<img src=x onerror=\"window.hit=1\">"


def put(server, steps, run="ab"):
    text = json.dumps({"run": run, "steps": steps}) if isinstance(steps, list) else steps
    answer = server.request("PUT", "/train/metrics", text.encode())
    assert answer.status in (201, 204), answer


def ask(server, query=""):
    answer = server.request("GET", "/v1/train" + query)
    assert answer.status == 200 and answer["content-type"] == "application/json", answer
    return json.loads(answer.body)


def test_it_tells_the_steps():
    with Server() as server:
        assert ask(server) == {"newest": 0, "error": None, "run": None, "steps": []}
        steps = [make_step(number) for number in range(5)]
        put(server, steps, {"name": "ab", "task": {"steps": 32}, "list": [1]})
        told = ask(server)
        assert told["newest"] == 4 and told["steps"] == steps, told
        assert told["run"] == {"name": "ab", "task": {"steps": 32}, "list": None}, told
        put(server, steps + [make_step(5)])
        assert [step["step"] for step in ask(server, "?from=4")["steps"]] == [4, 5]
        assert ask(server, "?from=6") == {"newest": 5, "error": None, "run": "ab", "steps": []}
        put(server, steps[:2])
        assert ask(server, "?from=6")["newest"] == 1
        for query in ("?from=x", "?from=-1", "?from="):
            assert server.request("GET", "/v1/train" + query).status == 400, query
        assert server.request("PUT", "/v1/train", b"x").status == 405
        assert server.request("HEAD", "/v1/train").status == 200
        assert server.request("DELETE", "/train/metrics").status == 204
        assert ask(server)["steps"] == []


def test_it_believes_nothing():
    with Server() as server:
        good = make_step(1)
        for text in ("", "{", "[]", "{\"steps\":{}}", "{\"run\":1}", json.dumps({"steps": [1]}),
                     json.dumps({"steps": [{**good, "reward": "0.5"}]}), json.dumps({"steps": [{"step": 1}]}),
                     json.dumps({"steps": [{**good, "bytes": [1, 2]}]}), "{\"steps\":" + "[" * 90000,
                     json.dumps({"steps": [good]}) + "x"):
            put(server, text)
            told = ask(server)
            assert told["steps"] == [] and told["error"], (text[:100], told)
        put(server, [{**good, "strange": HOSTILE, "success": "no", "tensors": {"a": "b", "c": 0.5, "x" * 300: 1},
                      "workers": [1, {"name": "w", "pause": None}, {"pause": 1}]}])
        step = ask(server)["steps"][0]
        assert "strange" not in step and step["success"] is None and step["tensors"] == {"c": 0.5}, step
        assert [worker["name"] for worker in step["workers"]] == ["w"], step
        put(server, [make_step(3), make_step(4), make_step(3, reward=0.25)])
        assert [(step["step"], step["reward"]) for step in ask(server)["steps"]] == [(3, 0.25)]
        with open(server.path("train/metrics"), "w") as file:  # the server itself would not take so much
            json.dump({"steps": [good], "run": "x" * (17 << 20)}, file)
        assert "too long" in ask(server)["error"]


def test_a_relay_has_none():
    with Server() as upstream, tempfile.TemporaryDirectory(prefix="weft-cache.") as cache:
        put(upstream, [make_step(1)])
        with Server("--cache", cache, directory=upstream.url) as relay:
            assert ask(relay)["steps"] == []


POINTS = "document.querySelectorAll('#chart-reward circle.point[data-series=reward]').length === %d"


def test_the_page_shows_it():
    if not chromium.is_installed():
        raise unittest.SkipTest("chromium is not installed (make deps-test installs it)")
    pictures = os.environ.get("WEFT_PICTURES")
    with Server() as server, chromium.Browser() as browser, Page(browser) as page:
        page.visit(server.url)
        assert page.wait("document.getElementById('link-text')?.textContent === 'live'")
        assert page.evaluate("document.getElementById('training').hidden")
        steps = [make_step(number) for number in range(12)]
        put(server, steps)
        assert page.wait(POINTS % 12)
        assert not page.evaluate("document.getElementById('training').hidden")
        assert page.text("#training-note") == "step 11, version 12, learning rate 0.0001"
        steps += [make_step(number) for number in range(12, 40)]
        put(server, steps)
        assert page.wait(POINTS % 40)
        for name in ("reward", "loss", "density", "bytes", "staleness", "trainer"):
            assert page.evaluate(f"document.querySelectorAll('#chart-{name} path[data-series]').length > 0"), name
        put(server, steps[:3], HOSTILE)
        assert page.wait(POINTS % 3), "the trainer has gone back, and the page has not"
        put(server, json.dumps({"steps": HOSTILE}))
        assert page.wait("document.getElementById('training-note').textContent.startsWith('What the trainer tells cannot')")
        put(server, steps)
        assert page.wait(POINTS % 40)
        for width in (1200, 360):
            page.resize(width, 800)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"too wide for {width}"
            if pictures:
                page.screenshot(os.path.join(pictures, f"training-{width}.png"))
        assert page.complaints() == [], page.complaints()
        assert all(url.startswith((server.url, "data:")) for url in page.requests())
        assert page.evaluate("window.hit === undefined && !/NaN|Infinity/.test(document.body.outerHTML)")


main()
