# SPDX-License-Identifier: Apache-2.0
"""A cache of another make before `weft serve`, as the edge of a content delivery network is: nginx, which is told
nothing but to obey the fields of the answers. Objects that never change are asked for once, heads are always
fresh, ranges and waiting work; before an origin and before a relay."""
import os
import shutil
import subprocess
import tempfile
import threading
import time

import serving
import weft_store
from relaying import Relay, Run, at_once
from serving import Server, hold_port, wait_for

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
CONFIGURATION = """
daemon off;
user root;
worker_processes 2;
pid {root}/nginx.pid;
error_log {root}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {root}/body;
    proxy_temp_path {root}/temp; fastcgi_temp_path {root}/temp; uwsgi_temp_path {root}/temp; scgi_temp_path {root}/temp;
    proxy_cache_path {root}/cache levels=1:2 keys_zone=edge:4m inactive=60m;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {upstream};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_cache edge;
            proxy_cache_lock on;
            proxy_cache_lock_age 60s;
            proxy_cache_lock_timeout 60s;
            add_header X-Edge $upstream_cache_status always;
        }}
    }}
}}
"""


class Edge(Server):
    """nginx before `upstream`; requests to it are made as to a server of ours."""

    def __init__(self, upstream):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-edge.")
        self.log_path = os.path.join(self.scratch.name, "log")
        self.tls, self.host = False, "127.0.0.1"
        self.held = hold_port()
        self.port = self.held.getsockname()[1]
        path = os.path.join(self.scratch.name, "nginx.conf")
        with open(path, "w") as file:
            file.write(CONFIGURATION.format(root=self.scratch.name, port=self.port, upstream=upstream.rstrip("/")))
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([NGINX, "-p", self.scratch.name, "-c", path],
                                            stdin=subprocess.DEVNULL, stderr=log)
        self.url = f"http://127.0.0.1:{self.port}"
        if not wait_for(lambda: self.process.poll() is not None or self.answers()) or self.process.poll() is not None:
            raise RuntimeError("nginx does not start: " + self.log())

    def answers(self):
        try:
            self.socket().close()
            return True
        except OSError:
            return False


def check_edge(run, upstream):
    """Followers come through the edge before `upstream`; run.proxy stands behind it all and counts."""
    with Edge(upstream) as edge:
        run.proxy.set_faults([{"fault": "delay", "seconds": 0}])
        results = at_once(12, lambda i: run.pull(edge.url, f"first-{run.published}-{i}"))
        assert not any(isinstance(result, Exception) for result in results), results
        asked = dict(run.proxy.faults.rules[0].struck_for)
        objects = {path: count for path, count in asked.items() if path.split("/")[1] in ("anchors", "patches", "pages")}
        assert objects and set(objects.values()) == {1}, asked
        # a head is never kept: the next version is there as soon as it is published
        for _ in range(2):
            version = run.publish()
            assert wait_for(lambda: version <= weft_store.parse_head(
                edge.request("GET", "/heads/00000001").body)["newest"]["version"])
            for name in (run.published - 1, run.published):  # followers that are there, and newcomers
                results = at_once(12, lambda i: run.pull(edge.url, f"first-{name}-{i}"))
                assert not any(isinstance(result, Exception) for result in results), results
        asked = dict(run.proxy.faults.rules[0].struck_for)
        immutable = [path for path in asked if path.split("/")[1] in ("anchors", "patches", "pages", "leaps")]
        assert all(asked[path] == 1 for path in immutable), asked
        # ranges of what is kept, and of what is not there
        anchor = run.keys("anchors")[0]
        content = run.content(anchor)
        part = edge.request("GET", "/" + anchor, fields={"Range": "bytes=7-99"})
        assert part.status == 206 and part.body == content[7:100] and part["X-Edge"] == "HIT", part
        whole = edge.request("GET", "/" + anchor)
        assert whole.status == 200 and whole.body == content and "immutable" in whole["Cache-Control"]
        assert edge.request("GET", "/" + anchor, fields={"If-None-Match": whole["ETag"]}).status == 304
        for _ in range(2):  # what is missing may come: that it was missing is not kept
            missing = edge.request("GET", "/patches/none")
            assert missing.status == 404 and missing["X-Edge"] == "MISS", missing
        # who waits for a version waits through the edge
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(
            edge.request("GET", f"/v1/watch?after={run.published}&seconds=25")))
        waiting.start()
        time.sleep(0.2)
        run.publish()
        waiting.join()
        assert answers[0].status == 200 and b'"kind":"head"' in answers[0].body.replace(b" ", b""), answers


def test_edge_before_an_origin():
    with Run("400K") as run:
        run.publish()
        check_edge(run, run.proxy.url)


def test_edge_before_a_relay():
    with Run("400K") as run:
        run.publish()
        with Relay(run.proxy.url) as relay:
            relay.has_version(1)
            check_edge(run, relay.url)


def test_edge_behind_a_relay():
    """A relay may also have an edge for its upstream."""
    with Run("400K") as run:
        run.publish()
        with Edge(run.origin.url) as edge, Relay(edge.url) as relay:
            relay.has_version(1)
            run.pull(relay.url)
            relay.has_version(run.publish())
            run.pull(relay.url)


if __name__ == "__main__":
    if not os.path.exists(NGINX):
        serving.skip_all("nginx is not installed (make deps-test installs it): no edge was tested")
    serving.main()
