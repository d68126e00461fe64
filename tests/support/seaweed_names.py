# SPDX-License-Identifier: Apache-2.0
"""seaweed_names.py ADDRESS BUCKET: what is in a bucket of SeaweedFS, by its other interface, which lists directories.

"BUCKET+segments" is what is left of uploads in parts that were neither completed nor taken back: KEY/UPLOAD of each.
"""

import base64
import json
import sys
import urllib.error
import urllib.parse
import urllib.request

UPLOADS = ".uploads"
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def entries(address, directory):
    last, more = "", True
    while more:
        query = urllib.parse.urlencode({"limit": 1000, "lastFileName": last})
        request = urllib.request.Request(f"{address}{urllib.parse.quote(directory)}/?{query}",
                                         headers={"Accept": "application/json"})
        try:
            with opener.open(request) as answer:
                listing = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 404:  # before the first upload in parts
                raise
            return
        yield from listing["Entries"] or []
        last, more = listing["LastFileName"], listing["ShouldDisplayLoadMore"]


def files(address, directory):
    for entry in entries(address, directory):
        path = entry["FullPath"]
        if not entry["Mode"] >> 31:
            yield path
        elif not path.endswith("/" + UPLOADS):
            yield from files(address, path)


def main():
    address = sys.argv[1]
    bucket, _, segments = sys.argv[2].partition("+")
    top = f"/buckets/{bucket}"
    if segments:
        for entry in entries(address, f"{top}/{UPLOADS}"):
            print(f"{base64.b64decode(entry['Extended']['key']).decode()}/{entry['FullPath'].rpartition('/')[2]}")
    else:
        for path in files(address, top):
            print(path.removeprefix(top + "/"))


main()
