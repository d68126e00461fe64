# SPDX-License-Identifier: Apache-2.0
"""publish, pull, follow and gc on a real S3 service that errs: a proxy before it does what such services do.

Every command ends with the bytes where they belong, or with an error that says why and the exit code of one; none
hangs. An upload in parts that fails leaves no parts behind. Most of the time is waiting, so all run at once.

WEFT names the command, WEFT_TEST_STORE the place in S3 and AWS_ENDPOINT_URL the service, which
tests/support/s3_service.sh has started.
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fault_proxy import FaultProxy  # noqa: E402

WEFT = os.path.abspath(os.environ.get("WEFT") or "build/weft")
PLACES = os.environ["WEFT_TEST_STORE"]
SERVICE = os.environ["AWS_ENDPOINT_URL"]
PATIENCE = 400
failures = 0


def error_body(code, more=""):
    return f"<?xml version='1.0' encoding='UTF-8'?>\n<Error><Code>{code}</Code><Message>So.</Message>{more}</Error>"


def fail(text):
    global failures
    failures += 1
    print(f"FAILED: {text}", flush=True)


def left_of_uploads(prefix):
    """What is left of uploads in parts, as the service's own interface tells."""
    bucket = PLACES.removeprefix("s3://").split("/")[0]
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "s3_service.sh")
    listed = subprocess.run(["bash", "-c", f'. "{script}" && s3_names {bucket}+segments'], stdout=subprocess.PIPE,
                            text=True, timeout=PATIENCE).stdout
    return [name for name in listed.split() if name.startswith(prefix)]


def make_models(root):
    """Small ones, and one whose anchor goes in parts."""
    for name, params, steps in (("small", "60K", 2), ("large", "6500K", 1)):
        subprocess.run([WEFT, "bench", "--make", os.path.join(root, name), "--params", params, "--steps", str(steps)],
                       stdout=subprocess.DEVNULL, check=True, timeout=PATIENCE)


class Scene:
    """A directory, in one that has the models, and a proxy before the service."""

    def __init__(self, root, proxy):
        self.root, self.proxy = root, proxy
        self.environment = dict(os.environ, HOME=root)
        self.environment.pop("WEFT_TOKEN", None)

    def model(self, name, number):
        return os.path.join(os.path.dirname(self.root), name, f"step-{number}.safetensors")

    def place(self):
        return f"{PLACES}/{uuid.uuid4().hex}"

    def run(self, *arguments, codes=(0,), words="", through=False):
        """The exit code. Through the proxy if told to."""
        environment = dict(self.environment, AWS_ENDPOINT_URL=self.proxy.url) if through else self.environment
        process = subprocess.Popen([WEFT, *arguments], env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            self.output, self.error = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            self.output, self.error = process.communicate()
            fail(f"{self.what}: weft {arguments[0]} hangs: {self.error}")
            return None
        code = process.returncode
        if code not in codes or words not in self.error or "Sanitizer" in self.error:
            fail(f"{self.what}: weft {arguments[0]} gave {code}, not one of {codes} and '{words}': {self.error}")
        return code

    what = "before"

    def publish(self, store, model, *more, **options):
        return self.run("publish", store, model, "--cache", os.path.join(self.root, "cache", store[-8:]), "-q", *more,
                        **options)

    def pulled(self, store, model, *more, **options):
        """A newcomer gets exactly the model."""
        out = os.path.join(self.root, f"out-{uuid.uuid4().hex}")
        code = self.run("pull", store, out, "-q", *more, **options)
        if code == 0:
            with open(out, "rb") as got, open(model, "rb") as wanted:
                if got.read() != wanted.read():
                    fail(f"{self.what}: the pull is not what was published")
        elif os.path.exists(out):
            fail(f"{self.what}: the pull failed, and left something")
        return code

    def orphans(self, store, allowed=0):
        """No part of an upload, nor its beginning, may be left under the place."""
        names = left_of_uploads(store.removeprefix("s3://").partition("/")[2])
        if len(names) > allowed:
            fail(f"{self.what}: left behind: {names}")


# ---- uploads in parts ----

COMPLETE = {"method": "POST", "query": "uploadId=*"}
CREATE = {"method": "POST", "query": "uploads=*"}
PART = {"method": "PUT", "query": "partNumber=*"}
ABORT = {"method": "DELETE", "query": "uploadId=*"}
INTERNAL = error_body("InternalError")
SLOW_DOWN = error_body("SlowDown")

# These pass, or can be seen through.
UPLOADS = {
    "a completion whose answer is lost": [{**COMPLETE, "fault": "lose", "count": 1}],
    "completions whose answers are all lost": [{**COMPLETE, "fault": "lose"}],
    "an error behind 200": [{**COMPLETE, "fault": "status", "code": 200, "body": INTERNAL, "count": 2}],
    "an error behind 200 that is none": [{**COMPLETE, "fault": "belie", "code": 200, "body": INTERNAL, "count": 1}],
    "errors that are none, to the end": [{**COMPLETE, "fault": "belie", "code": 500, "body": INTERNAL}],
    "a completion that is cut off": [{**COMPLETE, "fault": "cut", "after": 40, "count": 1}],
    "a completion that is truncated": [{**COMPLETE, "fault": "truncate", "after": 60, "count": 1}],
    "completions that are slowed down": [{**COMPLETE, "fault": "status", "body": SLOW_DOWN, "retry_after": 1,
                                          "count": 2}],
    "a completion twice": [{**COMPLETE, "fault": "duplicate"}],
    "parts whose answers are lost": [{**PART, "fault": "lose", "count": 3}],
    "parts that are slowed down": [{**PART, "fault": "status", "body": SLOW_DOWN, "count": 4}],
    "parts that are cut off": [{**PART, "fault": "cut", "where": "request", "count": 3}],
    "parts that stall": [{**PART, "fault": "stall", "where": "request", "seconds": 9, "count": 2}],
    "parts with a wrong bit": [{**PART, "fault": "flip", "where": "request", "count": 2}],
    "parts that are truncated": [{**PART, "fault": "truncate", "where": "request", "count": 2}],
    "parts twice": [{**PART, "fault": "duplicate"}],
    "a beginning that is slowed down": [{**CREATE, "fault": "status", "body": SLOW_DOWN, "count": 2}],
    "a beginning that is truncated": [{**CREATE, "fault": "truncate", "after": 70, "count": 1}],
    "a beginning whose answer is lost": [{**CREATE, "fault": "lose", "count": 1}],
    "whole puts with a wrong bit": [{"method": "PUT", "fault": "flip", "where": "request", "count": 2}],
    "a slow service": [{"fault": "delay", "seconds": 0.3}],
}

# These do not: what is to be said, and how many beginnings may be left, of which nobody knows the name.
FAILED_UPLOADS = {
    "completions that fail": ([{**COMPLETE, "fault": "status", "code": 500, "body": INTERNAL}], "InternalError"),
    "errors behind 200": ([{**COMPLETE, "fault": "status", "code": 200, "body": INTERNAL}], "InternalError"),
    "a completion that is denied": ([{**COMPLETE, "fault": "status", "code": 403, "body": error_body("AccessDenied")}],
                                    "AWS_ACCESS_KEY_ID"),
    "the second part fails": ([{**PART, "query": "partNumber=2&*", "fault": "status", "code": 500}], "500"),
    "the second part is denied": ([{**PART, "query": "partNumber=2&*", "fault": "status", "code": 403,
                                    "body": error_body("AccessDenied")}], "AWS_ACCESS_KEY_ID"),
    "the second part is always damaged": ([{**PART, "query": "partNumber=2&*", "fault": "flip", "where": "request"}],
                                          "400"),
    "an end whose answer is lost": ([{**PART, "query": "partNumber=2&*", "fault": "status", "code": 500},
                                     {**ABORT, "fault": "lose", "count": 1}], "500"),
    "an end that fails twice": ([{**PART, "query": "partNumber=2&*", "fault": "status", "code": 500},
                                 {**ABORT, "fault": "status", "code": 503, "count": 2}], "500"),
}


def uploads_that_arrive(scene):
    for scene.what, faults in UPLOADS.items():
        store = scene.place()
        scene.proxy.set_faults(faults)
        before = sum(scene.proxy.counts().values()) - scene.proxy.counts()["requests"]
        stalls = ("--timeout", "4") if faults[0]["fault"] == "stall" else ()
        scene.publish(store, scene.model("large", 0), *stalls, through=True)
        after = sum(scene.proxy.counts().values()) - scene.proxy.counts()["requests"]
        if after == before:
            fail(f"{scene.what}: the fault never struck")
        scene.proxy.set_faults([])
        scene.pulled(store, scene.model("large", 0))


def uploads_that_fail(scene):
    for scene.what, (faults, words) in FAILED_UPLOADS.items():
        store = scene.place()
        scene.proxy.set_faults(faults)
        scene.publish(store, scene.model("large", 0), "--retries", "2", codes=(4,), words=words, through=True)
        scene.proxy.set_faults([])
        scene.orphans(store)
        scene.pulled(store, scene.model("large", 0), codes=(1,), words="published")
        scene.publish(store, scene.model("large", 0))
        scene.pulled(store, scene.model("large", 0))


# ---- reading ----

GET = {"method": "GET", "path": "*/anchors/*"}
READS = {
    "cuts": [{**GET, "fault": "cut", "count": 12}],
    "truncated": [{**GET, "fault": "truncate", "count": 3}],
    "a wrong bit": [{**GET, "fault": "flip", "count": 1}],
    "too much": [{**GET, "fault": "repeat", "count": 1}],
    "stalls": [{**GET, "fault": "stall", "seconds": 9, "count": 2}],
    "slowed down": [{"fault": "status", "body": SLOW_DOWN, "retry_after": 1, "probability": 0.3, "count": 3}],
    "errors": [{"fault": "status", "code": 500, "body": INTERNAL, "probability": 0.3, "count": 4}],
}


def reads(scene):
    store = scene.place()
    scene.what = "before the reads"
    scene.publish(store, scene.model("large", 0))
    for scene.what, faults in READS.items():
        scene.proxy.set_faults(faults)
        # an answer that cannot be is told, and not tried again
        code = scene.pulled(store, scene.model("large", 0), "--timeout", "4", codes=(0, 3, 4), through=True)
        scene.proxy.set_faults([])
        if code != 0 and scene.what != "too much":
            fail(f"{scene.what}: the pull gave up: {scene.error}")
        scene.pulled(store, scene.model("large", 0), through=True)


# ---- errors that do not pass ----

REFUSALS = {
    "denied": ({"code": 403, "body": error_body("AccessDenied")}, 4, "AWS_ACCESS_KEY_ID"),
    "an expired token": ({"code": 400, "body": error_body("ExpiredToken")}, 4, "temporary credentials"),
    "a skewed clock": ({"code": 403, "body": error_body("RequestTimeTooSkewed")}, 4, "clock"),
    "another region": ({"code": 400, "body": error_body("AuthorizationHeaderMalformed", "<Region>eu-x-1</Region>")}, 2,
                       "set AWS_REGION=eu-x-1"),
    "a redirection": ({"code": 301, "body": error_body("PermanentRedirect", "<Endpoint>b.s3.eu-x-1.example</Endpoint>")},
                      2, "b.s3.eu-x-1.example"),
    "no bucket": ({"code": 404, "body": error_body("NoSuchBucket")}, 2, "no such bucket"),
    "always slow": ({"code": 503, "body": SLOW_DOWN, "retry_after": 1}, 4, "fewer requests"),
    "always broken": ({"code": 500, "body": INTERNAL}, 4, "InternalError"),
    "no S3 at all": ({"code": 418, "body": "<html>tea</html>"}, 4, "not as S3 does"),
}


def refusals(scene):
    store = scene.place()
    scene.what = "before the refusals"
    small = scene.model("small", 0)
    scene.publish(store, small)
    for scene.what, (answer, code, words) in REFUSALS.items():
        scene.proxy.set_faults([{"fault": "status", **answer}])
        more = ("--retries", "1")
        scene.publish(store, scene.model("small", 1), *more, codes=(code,), words=words, through=True)
        # HEAD has no body, and its status may be all that there is to go by
        scene.run("pull", store, os.path.join(scene.root, "none"), *more, codes=(code,), words=words, through=True)
        scene.run("follow", store, os.path.join(scene.root, "none"), "--max-failures", "1", *more, codes=(code,),
                  words=words, through=True)
        scene.run("log", store, *more, codes=(code,), words=words, through=True)
        scene.run("gc", store, "--grace", "0", *more, codes=(code,), words=words, through=True)
        scene.proxy.set_faults([])
        if os.path.exists(os.path.join(scene.root, "none")):
            fail(f"{scene.what}: something was left")
        scene.pulled(store, small)
    for scene.what, rule, words in (("always silent", {"fault": "stall", "after": 0, "seconds": 30}, "no byte moved"),
                                    ("always cut", {"fault": "cut", "where": "before"}, "attempts")):
        scene.proxy.set_faults([rule])
        begin = time.monotonic()
        scene.publish(store, small, "--retries", "1", "--timeout", "1", codes=(4,), words=words, through=True)
        scene.run("pull", store, os.path.join(scene.root, "none"), "--retries", "1", "--timeout", "1", codes=(4,),
                  words=words, through=True)
        scene.proxy.set_faults([])
        if time.monotonic() - begin > PATIENCE / 2:
            fail(f"{scene.what}: it took {time.monotonic() - begin:.0f} s")
    scene.pulled(store, small)


# ---- listings ----

LIST = {"method": "GET", "query": "*list-type=2*"}
LISTINGS = {
    "a truncated list": ([{**LIST, "fault": "truncate", "count": 2}], (0,)),
    "a list that is cut off": ([{**LIST, "fault": "cut", "count": 2}], (0,)),
    "a list that is slowed down": ([{**LIST, "fault": "status", "body": SLOW_DOWN, "count": 2}], (0,)),
    "wrong bits in a list": ([{**LIST, "fault": "flip", "count": 2}], (0, 4)),
    "lists that are truncated": ([{**LIST, "fault": "truncate"}], (4,)),
    "removals whose answers are lost": ([{"method": "DELETE", "fault": "lose", "probability": 0.5, "count": 8}], (0,)),
}


def listings(scene):
    store = scene.place()
    scene.what = "before the listings"
    for number in (0, 1, 2, 0, 1):
        scene.publish(store, scene.model("small", number), "--anchor", "now", "--keep-anchors", "1")
    for scene.what, (faults, codes) in LISTINGS.items():
        scene.proxy.set_faults(faults)
        scene.run("gc", store, "--grace", "0", codes=codes, through=True)
        scene.proxy.set_faults([])
        scene.pulled(store, scene.model("small", 1))
        scene.run("log", store)
        scene.publish(store, scene.model("small", 2), "--anchor", "now", "--keep-anchors", "1")
        scene.publish(store, scene.model("small", 1), "--anchor", "now", "--keep-anchors", "1")


def run(test, root):
    begin = time.monotonic()
    directory = os.path.join(root, test.__name__)
    os.mkdir(directory)
    with FaultProxy(SERVICE, seed=3) as proxy:
        test(Scene(directory, proxy))
        print(f"{test.__name__}: {time.monotonic() - begin:.1f} s, {json.dumps(proxy.counts())}", flush=True)


def main():
    tests = (uploads_that_arrive, uploads_that_fail, reads, refusals, listings)
    with tempfile.TemporaryDirectory(prefix="weft-s3-faults.") as root:
        make_models(root)
        sys.stderr = open(os.path.join(root, "proxy.log"), "w")
        with concurrent.futures.ThreadPoolExecutor(len(tests)) as pool:
            for future in [pool.submit(run, test, root) for test in tests]:
                future.result()
    sys.exit(1 if failures else 0)


main()
