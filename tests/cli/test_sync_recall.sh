#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The profile smallest between processes: a follower that is killed goes on with one patch, since what it recalls lies
# beside its checkpoint after each commit. One that lost that file takes an anchor, and arrives all the same. A tensor
# that leaves the model and comes back begins anew, for the publisher as for who follows.
. "$(dirname "$0")/sync.sh"
store=$(place store)

publish() { expect 0 '' "$weft" publish "$store" "$(model "$1")" --profile smallest; }

begin follower follow "$store" out --exec "echo at \$WEFT_VERSION >> seen"
follower=$pid
for step in 0 1 2 3; do
    publish "$step"
    await "version $((step + 1))" grep -q "^at $((step + 1))$" seen
done
kill -KILL "$follower"
ended 137 "$follower" follower
cp out away

publish 4
expect 0 '' "$weft" pull "$store" out --json
says stdout '"anchors": 0,'
says stdout '"patches": 1,'
check 'the killed follower' cmp out "$(model 4)"

expect 0 '' "$weft" pull "$store" away --replace --json
says stdout '"anchors": 1,'
check 'without what it recalls' cmp away "$(model 4)"

cat > leave_out.py << 'END'
import json, struct, sys

name, whole, part = sys.argv[1:]
data = open(whole, "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8 : 8 + size])
begin, end = header.pop(name)["data_offsets"]
for entry in header.values():
    if "data_offsets" in entry and entry["data_offsets"][0] >= end:
        entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
front = json.dumps(header).encode()
weights = data[8 + size :]
with open(part, "wb") as file:
    file.write(struct.pack("<Q", len(front)) + front + weights[:begin] + weights[end:])
END
leaving=model.embed_tokens.weight
store=$(place other)
check 'a model without a tensor' /usr/bin/python3 leave_out.py "$leaving" "$(model 3)" part
for state in "$(model 0)" "$(model 1)" "$(model 2)" part "$(model 4)" "$(model 5)" "$(model 6)"; do
    expect 0 '' "$weft" publish "$store" "$state" --profile smallest --anchor never --cut "$leaving:0:1"
    expect 0 '' "$weft" pull "$store" other_out --json
    says stdout '"healed": 0,'
    check "$state" cmp other_out "$state"
done
says stdout '"patches": 1,'
finish
