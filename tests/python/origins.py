# SPDX-License-Identifier: Apache-2.0
"""origins.py: a store for tests that put a proxy before it, and the ways that lead there.

It is a `weft serve` of the test's own, unless WEFT_TEST_STORE is the URL of a place in S3: then that, with the
service at AWS_ENDPOINT_URL. With WEFT_TEST_RELAY readers take a way through a relay: "before" the proxy, which then
stands between the relay and the store, or "behind" it.
"""
import contextlib
import os
import sys
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import relaying  # noqa: E402
import serving  # noqa: E402
from fault_proxy import FaultProxy  # noqa: E402

PLACES = os.environ.get("WEFT_TEST_STORE", "")
RELAY = os.environ.get("WEFT_TEST_RELAY", "")


class Way:
    """What a process needs to reach a store: its URL, and variables."""

    def __init__(self, url, **environment):
        self.url, self.environment = url, environment


class Served:
    def __init__(self):
        self.server = serving.Server()
        self.address = self.server.url  # what a proxy is put before
        self.direct = Way(self.server.url)

    def through(self, proxy):
        return Way(proxy.url)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.server.__exit__(*error)


class InS3:
    def __init__(self):
        self.address = os.environ["AWS_ENDPOINT_URL"]
        self.direct = Way(f"{PLACES}/{uuid.uuid4().hex}")

    def through(self, proxy):
        """The proxy is who requests are signed for; it passes the Host on as it comes."""
        return Way(self.direct.url, AWS_ENDPOINT_URL=proxy.url)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def open_origin():
    return InS3() if PLACES.startswith("s3://") else Served()


def open_relay(way):
    return relaying.Relay(way.url, environment=way.environment)


@contextlib.contextmanager
def bad_way(origin, seed):
    """A proxy, and the readers' way through it."""
    if RELAY == "behind":
        with open_relay(origin.direct) as relay, FaultProxy(relay.url, seed) as proxy:
            yield proxy, Way(proxy.url)
    elif RELAY == "before":
        with FaultProxy(origin.address, seed) as proxy, open_relay(origin.through(proxy)) as relay:
            yield proxy, Way(relay.url)
    else:
        with FaultProxy(origin.address, seed) as proxy:
            yield proxy, origin.through(proxy)


@contextlib.contextmanager
def good_way(origin):
    """The readers' way without a proxy."""
    if RELAY:
        with open_relay(origin.direct) as relay:
            yield Way(relay.url)
    else:
        yield origin.direct
