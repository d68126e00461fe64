# SPDX-License-Identifier: Apache-2.0
"""chromium.py: a real browser for tests: Debian's chromium without a window, driven over the DevTools protocol.

The protocol goes through a pair of pipes (--remote-debugging-pipe), as JSON texts that each end with a zero byte,
so nothing but the browser itself is needed. It is ended, by its own word or by its pid, with `with`.
"""
import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

PATIENCE = 200  # seconds that anything may take on a busy machine before a test gives up

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync",
         "--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb", "--lang=en-US"]


def is_installed():
    return shutil.which("chromium") is not None


class Browser:
    """A browser; ends with `with`."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="weft-chromium.", ignore_cleanup_errors=True)
        self.pages, self.buffer, self.number = {}, b"", 0
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()

        def name_pipes():
            # The browser reads descriptor 3 and writes 4; either pipe may be at one of them already.
            reading, writing = fcntl.fcntl(commands, fcntl.F_DUPFD, 10), fcntl.fcntl(answers, fcntl.F_DUPFD, 10)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self.process = subprocess.Popen(
            ["chromium", *FLAGS, f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=name_pipes, start_new_session=True)
        os.close(commands)
        os.close(answers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.command("Browser.close", patience=10)
            self.process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.profile.cleanup()

    def read_message(self, end):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            data = os.read(self.answers, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer")
            self.buffer += data
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def command(self, method, session=None, patience=PATIENCE, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.commands, data):]
        end = time.monotonic() + patience
        while True:
            answer = self.read_message(end)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            page = self.pages.get(answer.get("sessionId"))
            if page is not None and "method" in answer:
                page.events.append(answer)


class Page:
    """A tab of its own, of a given size; closed with `with`. What it tells without being asked is in `events`."""

    def __init__(self, browser, width=1200, height=900):
        self.browser, self.events = browser, []
        self.target = browser.command("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.command("Target.attachToTarget", targetId=self.target, flatten=True)
        self.session = attached["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(domain + ".enable")
        self.resize(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        del self.browser.pages[self.session]
        self.browser.command("Target.closeTarget", targetId=self.target)

    def command(self, method, **parameters):
        return self.browser.command(method, self.session, **parameters)

    def visit(self, url):
        self.command("Page.navigate", url=url)

    def evaluate(self, expression):
        result = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression):
        """Until a JavaScript expression is true; False if it does not become so."""
        end = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent")

    def requests(self):
        """Every address that the page has asked for."""
        return [event["params"]["request"]["url"] for event in self.events
                if event["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        """Errors and warnings of the console, exceptions, and what the browser itself found wrong."""
        found = []
        for event in self.events:
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"])
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(parameters["args"])
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"])
        return found

    def resize(self, width, height, scale=1):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                     mobile=False)

    def prefer(self, scheme):
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path, most=float("inf")):
        """Of the whole page, however long; or of its first `most` pixels."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], most), "scale": 1}
        data = self.command("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
