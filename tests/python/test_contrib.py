# SPDX-License-Identifier: Apache-2.0
"""What contrib/ holds fits the command: the dashboard and the alerts use metrics that there are, units and manifests
options that there are."""

import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.request

import serving

SOURCE = os.environ.get("WEFT_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CONTRIB = os.path.join(SOURCE, "contrib")
WEFT = serving.WEFT


def read(*names):
    with open(os.path.join(CONTRIB, *names)) as file:
        return file.read()


def need(program):
    if shutil.which(program) is None:
        raise unittest.SkipTest(f"{program} is not installed: it checked nothing")


def names(text):
    return set(re.findall(r"\bweft_(?:serve|follow|publish)_[a-z_]+", text))


def live_names():
    """Of a server with a follower, and of what the follower and a publish leave in files."""
    with tempfile.TemporaryDirectory(prefix="weft-contrib-") as place:
        def run(*arguments):
            subprocess.run([WEFT, *arguments], cwd=place, check=True, capture_output=True)

        run("bench", "--make", "m", "--params", "100K", "--steps", "1")
        server = subprocess.Popen([WEFT, "serve", "store", "--listen", "127.0.0.1:0", "--url-file", "url"], cwd=place,
                                  stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(os.path.join(place, "url")):
                assert server.poll() is None
                time.sleep(0.02)
            with open(os.path.join(place, "url")) as file:
                url = file.read().strip()
            run("publish", url, "m/step-0.safetensors", "--cache", "cache", "--metrics-file", "publish.prom")
            run("follow", url, "out", "--until", "1", "--metrics-file", "follow.prom")
            with urllib.request.urlopen(url + "metrics") as answer:
                text = answer.read().decode()
            for name in ("publish.prom", "follow.prom"):
                with open(os.path.join(place, name)) as file:
                    text += file.read()
        finally:
            server.kill()
            server.wait()
    return {re.match(r"\w+", line)[0] for line in text.splitlines() if not line.startswith("#")}


def test_the_dashboard_and_the_alerts_use_metrics_that_there_are():
    dashboard = json.loads(read("grafana", "weft.json"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = names(" ".join(expressions))
    alerts = names("\n".join(re.findall(r"expr: (.*)", read("prometheus", "weft-alerts.yml"))))
    live = live_names()
    assert len(used) > 20 and len(alerts) > 8
    assert not (used | alerts) - live, (used | alerts) - live
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_promtool_accepts_the_expressions_of_the_dashboard():
    need("promtool")
    dashboard = json.loads(read("grafana", "weft.json"))
    rules = [{"record": f"panel:{panel['id']}:{target['refId']}", "expr": target["expr"].replace("$instance", ".*")}
             for panel in dashboard["panels"] for target in panel["targets"]]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
        file.flush()
        checked = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True)
        assert checked.returncode == 0, checked


def test_promtool_accepts_the_alerts_and_they_fire():
    need("promtool")
    for command in (("check", "rules", "weft-alerts.yml"), ("test", "rules", "weft-alerts-test.yml")):
        checked = subprocess.run(["promtool", *command], cwd=os.path.join(CONTRIB, "prometheus"), capture_output=True,
                                 text=True)
        assert checked.returncode == 0, checked


def test_every_alert_is_in_the_page_for_operators():
    with open(os.path.join(SOURCE, "doc", "OPERATIONS.md")) as file:
        page = file.read()
    alerts = re.findall(r"alert: (\w+)", read("prometheus", "weft-alerts.yml"))
    assert alerts and not [alert for alert in alerts if alert not in page]


def test_the_units_are_in_order_and_confined():
    need("systemd-analyze")
    units = sorted(glob.glob(os.path.join(CONTRIB, "systemd", "*.service")))
    assert len(units) == 3
    for unit in units:
        with tempfile.TemporaryDirectory(prefix="weft-units-") as place:
            copy = os.path.join(place, os.path.basename(unit))
            with open(unit) as file, open(copy, "w") as out:
                out.write(file.read().replace("/usr/bin/weft", os.path.realpath(WEFT)))
            checked = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
            assert checked.returncode == 0 and not checked.stderr, checked
            # 1.4 of 10 as it was written; 2.0 is the most
            score = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", copy],
                                   capture_output=True, text=True)
            assert score.returncode == 0, score.stdout[-400:]


def manifests():
    try:
        import yaml
    except ImportError:
        raise unittest.SkipTest("python3-yaml is not installed: it did not read the manifests") from None
    return {os.path.basename(path): list(yaml.safe_load_all(read("kubernetes", os.path.basename(path))))
            for path in sorted(glob.glob(os.path.join(CONTRIB, "kubernetes", "*.yaml")))}


def test_the_manifests_name_options_and_volumes_that_there_are():
    found = manifests()
    assert len(found) == 2
    config = {item["metadata"]["name"]: item["data"] for items in found.values() for item in items
              if item["kind"] == "ConfigMap"}
    with tempfile.TemporaryDirectory(prefix="weft-manifests-") as place:
        path = os.path.join(place, "relay.toml")
        with open(path, "w") as file:
            file.write(config["weft-relay"]["relay.toml"])
        # all that is wrong is that there is no such token file here
        result = subprocess.run([WEFT, "serve", "--config", path], capture_output=True, text=True)
        assert result.returncode == 1 and "read-token" in result.stderr, result
    told = subprocess.run([WEFT, "help", "--config", "follow"], capture_output=True, text=True, check=True).stdout
    variables = set(re.findall(r"WEFT_FOLLOW_[A-Z_]+", told)) | {"WEFT_FOLLOW_STORE", "WEFT_FOLLOW_OUT"}
    deployments = [item for items in found.values() for item in items if item["kind"] == "Deployment"]
    assert len(deployments) == 2
    for item in deployments:
        spec = item["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        assert item["spec"]["selector"]["matchLabels"] == item["spec"]["template"]["metadata"]["labels"]
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, container
            for variable in container.get("env", ()):
                assert variable["name"] in variables, variable


def test_the_container_file_copies_what_the_build_needs():
    """It is not built here: that takes a registry. Its instructions are read, and its sources are there."""
    lines = re.sub(r"\\\n", " ", read("container", "Containerfile")).splitlines()
    instructions = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    assert {word for word, _ in instructions} <= {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert sum(word == "FROM" for word, _ in instructions) == 2 and ["USER", "10001"] in instructions
    copied = [rest.split() for word, rest in instructions if word == "COPY" and "--from" not in rest]
    for sources in copied:
        for source in sources[:-1]:
            assert os.path.exists(os.path.join(SOURCE, source)), source
    with open(os.path.join(SOURCE, "packages.txt")) as file:
        known = set(file.read().split())
    installed = re.search(r"no-install-recommends\s+(.*?)\s+&&", instructions[1][1])[1].split()
    assert set(installed) <= known, set(installed) - known


if __name__ == "__main__":
    serving.main()
