# SPDX-License-Identifier: Apache-2.0
"""origins.py: a store for tests that put a proxy before it, and the ways that lead there.

It is a `weft serve` of the test's own, unless WEFT_TEST_STORE is the URL of a place in S3: then that, with the
service at AWS_ENDPOINT_URL.
"""
import os
import uuid

import serving

PLACES = os.environ.get("WEFT_TEST_STORE", "")


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
