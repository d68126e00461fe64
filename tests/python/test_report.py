#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The report of `weft demo`, in a real browser: one file that asks nobody for anything, whose tiles, charts and tables
have the numbers of metrics.jsonl, and that takes all text for text. Pictures go to WEFT_PICTURES, if that is set."""
import json
import os
import statistics
import subprocess
import tempfile

import chromium
from chromium import Page
from serving import WEFT, main, skip_all
from training import TENSORS, make_step

HOSTILE = "</script><script>window.hit=1</script><img src=x onerror=\"window.hit=2\">"
CHARTS = {"reward": ["reward", "smooth", "success"], "density": ["1", "8", "32"], "bytes": ["sent", "dense"],
          "staleness": ["mean", "max"], "trainer": ["wait", "train", "publish", "state", "rest"],
          "workers": ["generate", "pull", "put"], "pause": ["pause", "longest"], "loss": ["loss"]}


class Report:
    """The report of steps; removed with `with`."""

    def __init__(self, steps, run=None):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-report.")
        self.path = os.path.join(self.scratch.name, "report.html")
        with open(os.path.join(self.scratch.name, "metrics.jsonl"), "w") as file:
            file.writelines(json.dumps(step) + "\n" for step in steps)
        if run is not None:
            with open(os.path.join(self.scratch.name, "run.json"), "w") as file:
                json.dump(run, file)
        subprocess.run([WEFT, "demo", "--report", self.scratch.name, "--output", self.path], check=True,
                       capture_output=True)
        self.url = "file://" + self.path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.scratch.cleanup()


def visit(page, report):
    page.visit(report.url)
    assert page.wait("document.querySelectorAll('#charts svg path[data-series]').length >= 20"), page.complaints()


def check_manners(page, report):
    assert page.complaints() == [], page.complaints()
    assert set(page.requests()) == {report.url}, page.requests()
    assert page.evaluate("window.hit === undefined && document.images.length === 0")
    assert page.evaluate("!/NaN|Infinity|undefined/.test(document.querySelector('main').innerHTML)")


def tiles(page):
    return page.evaluate("Object.fromEntries([...document.querySelectorAll('.tile')]"
                         ".map(tile => [...tile.children].map(part => part.textContent)).map(([a, ...b]) => [a, b]))")


def table(page, body):
    return page.evaluate(f"[...document.querySelectorAll('#{body} tr')]"
                         ".map(row => [...row.children].map(cell => cell.textContent))")


def test_it_has_the_numbers():
    steps = [make_step(number) for number in range(100)]
    with Report(steps) as report, Page(BROWSER) as page:
        visit(page, report)
        shown = tiles(page)
        first, last = (statistics.mean(step["reward"] for step in part) for part in (steps[:10], steps[-10:]))
        assert shown["Reward"] == [f"{first:.3g} → {last:.3g}", "means of 10 steps"], shown
        sent = statistics.mean(step["bytes"]["sent"] for step in steps)
        assert shown["Bytes per sync"] == [f"{sent / 1024:.2f} KiB", "full sync: 273 KiB"], shown
        assert shown["Reduction"][0] == f"{280000 / sent:.3g}×", shown
        saved = page.evaluate("document.querySelector('h1').textContent")
        assert f" saved: {280000 / sent:.3g}× fewer bytes, while reward went from {first:.2f} to {last:.2f}" in saved, saved
        assert page.evaluate("document.getElementById('large-card').hidden"), "this run had no model of real size"
        assert shown["Staleness"] == ["0.5", "most 1"] and shown["Workers"] == ["2", "no trajectory rejected"], shown
        assert table(page, "tensors") == [[name, f"{place + 1}%", f"{place + 1}%", ""]
                                          for place, name in enumerate(TENSORS)]
        page.evaluate("document.getElementById('steps-details').open = true")
        assert page.wait("document.querySelectorAll('#steps tr').length === 100")
        for row, step in zip(table(page, "steps"), steps):
            pause = max(worker["pause"] for worker in step["workers"])
            told = [step["step"], step["version"], step["reward"], step["success"], step["loss"], step["rate"],
                    step["density"]["1"], step["density"]["8"], step["density"]["32"], step["bytes"]["sent"],
                    step["bytes"]["dense"], step["staleness"]["mean"], pause, step["seconds"]["step"]]
            assert [None if cell == "–" else float(cell) for cell in row] == told, (row, told)
        check_manners(page, report)


def test_the_charts_are_drawn():
    steps = [make_step(number) for number in range(60)]
    with Report(steps) as report, Page(BROWSER) as page:
        visit(page, report)
        for name, series in CHARTS.items():
            drawn = page.evaluate(f"[...document.querySelectorAll('#chart-{name} path[data-series]')]"
                                  ".filter(path => path.getAttribute('d').length > 10).map(path => path.dataset.series)")
            assert drawn == series, (name, drawn)
            label = page.evaluate(f"document.getElementById('chart-{name}').getAttribute('aria-label')")
            assert "by step" in label and " from " in label, label
        points = page.evaluate("[...document.querySelectorAll('#chart-reward circle.point[data-series=reward]')]"
                               ".map(point => Number(point.getAttribute('cy')))")
        assert len(points) == 60 and points[0] > points[-1], "the reward has risen, and the line has not"
        page.evaluate("document.getElementById('chart-bytes').focus()")
        for key in ("Home", "ArrowRight"):
            for kind in ("keyDown", "keyUp"):
                page.command("Input.dispatchKeyEvent", type=kind, key=key, code=key)
        told = page.evaluate("document.getElementById('chart-bytes').closest('section').querySelector('.readout').textContent")
        assert told == f"step 1sent {steps[1]['bytes']['sent'] / 1024:.2f} KiBfull sync 273 KiB", told
        pictures = os.environ.get("WEFT_PICTURES")
        for width in (1120, 360):
            for scheme in ("light", "dark"):
                page.resize(width, 800)
                page.prefer(scheme)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, f"too wide for {width}"
                if pictures:
                    page.screenshot(os.path.join(pictures, f"report-{width}-{scheme}.png"))
        check_manners(page, report)


def test_texts_stay_texts():
    steps = [make_step(number, tensors={HOSTILE: 0.5, "": 0}, workers=[{"name": HOSTILE, "pause": 0.001}])
             for number in range(3)]
    with Report(steps) as report, Page(BROWSER) as page:
        visit(page, report)
        assert table(page, "tensors")[0][0] == HOSTILE
        assert tiles(page)["Workers"][0] == "1"
        check_manners(page, report)


def test_it_tells_what_a_program_says_of_its_run():
    """run.json: its command and its proof have places of their own, the rest are settings; all of it is text."""
    steps = [make_step(number) for number in range(3)]
    run = {"command": "demo --steps 3 " + HOSTILE, "proof": "equal " + HOSTILE, "link": "50 Mbit/s", "batch": {"prompts": 8}}
    with Report(steps, run) as report, Page(BROWSER) as page:
        visit(page, report)
        assert page.evaluate("document.getElementById('about').textContent").startswith(run["command"] + " · ")
        assert page.evaluate("document.getElementById('proof').textContent") == run["proof"]
        assert page.evaluate("!document.getElementById('proof-card').hidden")
        shown = page.evaluate("[...document.getElementById('settings').children].map(part => part.textContent)")
        assert shown == ["link", "50 Mbit/s", "batch prompts", "8"], shown
        check_manners(page, report)
    with Report(steps, {"command": {"x": 1}, "proof": 7}) as report, Page(BROWSER) as page:
        visit(page, report)
        assert "demo --report " in page.evaluate("document.getElementById('about').textContent")
        assert page.evaluate("document.getElementById('proof-card').hidden")
        check_manners(page, report)


def test_it_bears_what_is_missing():
    bare = {"reward": 0, "elements": 1, "rate": 0, "bytes": {"sent": 0, "dense": 0}}
    with Report([{"step": number, "version": number, **bare} for number in range(2)]) as report, Page(BROWSER) as page:
        visit(page, report)
        assert tiles(page)["Reduction"][0] == "–" and tiles(page)["Pause"][0] == "–"
        check_manners(page, report)


if not chromium.is_installed():
    skip_all("chromium is not installed (make deps-test installs it): the report of `weft demo` was not tested")
with chromium.Browser() as BROWSER:
    main()
