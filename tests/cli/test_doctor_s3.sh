#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# weft doctor, on a directory, on weft serve with tokens and without writing, and on a real S3 service: what it finds is
# what these are known to do, and nothing is left. And the table of costs.
. "$(dirname "$0")/sync.sh"
. "$cli/../support/s3_service.sh"
trap 'stop_s3; end_children' EXIT
begin_s3

# found CHECK VERDICT: a line of the page
found() { says stdout "^$1 +$2 "; }

mkdir store
expect 0 '' "$weft" publish store "$(model 0)"
find store | sort > before
expect 0 '' "$weft" doctor store --bytes 1M
for check in reach put get ranges 'conditional get' 'conditional put' list 'throughput of gets' remove; do
    found "$check" yes
done
found watch no
find store | sort > after
check 'nothing is left in the directory' cmp before after
expect 1 'not all is well' "$weft" doctor nowhere
says stdout 'there is no such directory'
absent nowhere

umask 077
echo reader > reader
echo writer > writer
serve served store --read-token-file reader --write-token-file writer
expect 0 '' "$weft" doctor "$url" --token-file writer --bytes 1M --json
cp stdout page.json
/usr/bin/python3 - page.json << 'END' || fail 'the page of the server in JSON'
import json, sys
page = json.load(open(sys.argv[1]))
verdicts = {check["check"]: check["verdict"] for check in page["checks"]}
assert page["sound"] is True, page
expected = {"reach": "yes", "TLS": "no", "credentials": "yes", "clock": "yes", "put": "yes", "conditional put": "yes",
            "watch": "yes", "remove": "yes", "large put on condition": "yes"}
assert expected.items() <= verdicts.items(), verdicts
END
# who may only read, and who may nothing
expect 4 'not all is well' "$weft" doctor "$url" --token-file reader
found reach yes
found put failed
expect 4 'not all is well' "$weft" doctor "$url" --retries 0
says stdout '^reach +failed .*token'
expect 4 'not all is well' "$weft" doctor http://127.0.0.1:1/ --retries 0
find store -type f | sort > after
grep -v -x -f <(find store -type d) before > before.files
check 'nothing is left behind the server' cmp before.files after

expect 0 '' "$weft" doctor s3://bucket/doctor --bytes 9M
says stdout '^credentials +yes +environment$'
found clock yes
found list yes
heeds=no
[ "$s3_heeds" -eq 0 ] || heeds=yes
found 'conditional put' "$heeds"
found 'conditional get' yes
found remove yes
s3_names bucket | grep -v weft-conditions > names
silent names doctor
s3_names bucket+segments > names
silent names doctor
expect 4 'not all is well' env AWS_SECRET_ACCESS_KEY=wrong "$weft" doctor s3://bucket/doctor --retries 0
says stdout '^reach +failed'
silent stdout testing

# ---- costs ----
expect 0 '' "$weft" doctor --cost
says stdout '^ +10,000 +without +206,400,000 +14,400,000 +154.56$'
expect 0 '' "$weft" doctor --cost --interval 1h --price-put 0 --json
check 'the price of an hour' /usr/bin/python3 -c '
import json
days = json.load(open("stdout"))["days"]
assert [day["workers"] for day in days] == [1, 1, 100, 100, 10000, 10000]
assert days[0]["gets"] / 86400 < 0.2 and days[4]["gets"] == 10000 * days[0]["gets"]
assert days[5]["gets"] < days[4]["gets"] / 100'
expect 2 'give a store' "$weft" doctor
expect 2 'asks no store' "$weft" doctor --cost store
finish
