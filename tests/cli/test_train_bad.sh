#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft train` and what should not be in its store: trajectories of another run, of another slot, truncated,
# damaged and forged ones are counted by their reasons and made again; a store that is full is waited for. The
# run comes out the same, bit for bit.
. "$(dirname "$0")/train.sh"

run good s-good 2 --steps 4
course good s-good > good.course

# ---- what a run learns with, lost or damaged ----
# goes_on CODE PATTERN: a trainer that resumes the run, which has nothing left to do
goes_on() {
    expect "$1" "$2" "$weft" train s-good --role trainer --output good "${tiny[@]}" --steps 4
}
cp good/learning.json learning.json
rm good/learning.json
goes_on 1 "learning\.json'.*put the file back from a copy.*or give --fresh"
head -c 100 learning.json > good/learning.json
goes_on 3 'learning\.json: bad JSON.*put the file back from a copy.*or give --fresh'
sed 's/"kind":"learning"/"kind":"teaching"/' learning.json > good/learning.json
goes_on 3 'does not say how a run learns.*put the file back'
cp learning.json good/learning.json
cp good/run.json run.json
rm good/run.json
goes_on 1 "run\.json'.*put the file back from a copy.*or give --fresh"
cp run.json good/run.json
goes_on 0 'going on with run'

# ---- trajectories that nobody asked for ----
# A trainer that gives up leaves its first version, and a worker then the slots of the first batch.
half() {
    expect 4 'no worker delivers' "$weft" train "s-$1" --role trainer --output "$1" "${tiny[@]}" --slots 8 --steps 4 \
        --patience 0.2
    worker "$1-early" "s-$1"
    local early=$pid
    await "the slots of $1" test -e "s-$1/train/rollouts/0-0" -a -e "s-$1/train/rollouts/0-1" \
        -a -e "s-$1/train/rollouts/0-2" -a -e "s-$1/train/rollouts/0-3" -a -e "s-$1/train/rollouts/0-4" \
        -a -e "s-$1/train/rollouts/0-5" -a -e "s-$1/train/rollouts/0-6" -a -e "s-$1/train/rollouts/0-7"
    kill -TERM "$early"
    ended 143 "$early" "$1-early"
}
half bad
half other
slots=s-bad/train/rollouts
mkdir was && cp "$slots"/* was
cp s-other/train/rollouts/0-0 "$slots/0-0"
cp was/0-2 "$slots/0-1"
head -c 300 was/0-2 > "$slots/0-2"
head -c 100000 /dev/zero > "$slots/0-3"
overwrite "$slots/0-4"
# FORGERY FILE: changes an object and gives it a checksum that agrees
forge() {
    /usr/bin/python3 - "$1" "$2" << 'END'
import hashlib, struct, sys
path, what = sys.argv[1:]
data = bytearray(open(path, "rb").read()[:-32])
rewards = len(data) - 4 * 4
if what == "reward":
    old = struct.unpack_from("<f", data, rewards)[0]
    struct.pack_into("<f", data, rewards, 1 - old)
elif what == "score":
    data[rewards - 4] ^= 1  # the last bit of the last log-probability
elif what == "version":
    struct.pack_into("<Q", data, 40, 9)  # the step of its policy
elif what == "digest":
    data[60] ^= 1
open(path, "wb").write(data + hashlib.sha256(data).digest())
END
}
forge "$slots/0-5" reward
forge "$slots/0-6" score
forge "$slots/0-7" version
trainer bad s-bad --slots 8 --steps 4
learner=$pid
refused() { [ "$(grep -c 'is not used' bad.err)" -ge 8 ]; }
await 'the batch is refused' refused
worker bad-worker s-bad
honest=$pid
# and one while it runs
cp was/0-0 "$slots/2-0" && forge "$slots/2-0" digest
ended 0 "$learner" bad
ended 0 "$honest" bad-worker
alike bad s-bad good
/usr/bin/python3 - bad/metrics.jsonl << 'END' || fail "the reasons: $(cut -c 1-2000 bad.err)"
import collections, json, sys
reasons = collections.Counter()
for line in open(sys.argv[1]):
    told = json.loads(line)["trajectories"]
    assert told["used"] == 32 and sum(told["reasons"].values()) == told["rejected"]
    reasons.update(told["reasons"])
expected = {"run": 1, "place": 1, "form": 2, "size": 1, "reward": 1, "score": 1, "version": 1}
for reason, count in expected.items():
    assert reasons[reason] >= count, (reason, reasons)
END
for reason in run place form size reward score version; do
    says bad.err "is not used \($reason\)"
done

# ---- a worker that cannot compute the same ----
expect 4 'no worker delivers' "$weft" train s-kind --role trainer --output kind "${tiny[@]}" --patience 0.2
if grep -q '"arithmetic":"fused"' s-kind/train/run; then
    expect 1 'work on a machine of the same kind' env WEFT_CPU=portable "$weft" train s-kind --role rollout
else
    skip 'a worker that cannot compute the same: this processor has one way only'
fi

# ---- files that may not be so large ----
expect 1 'File too large' bash -c 'ulimit -f 64; exec "$@"' - "$weft" train s-limit --role trainer --output limit \
    "${tiny[@]}"
absent limit/state.safetensors

# ---- a store that is full ----
# a claim has a head, too, before it has a version
published() {
    "$weft" log "$1" --json 2> /dev/null | grep -q '"step"'
}
mkdir full
if mount -t tmpfs -o size=1m tmpfs full 2> /dev/null; then
    trainer room full/store --steps 4
    learner=$pid
    await 'the first version' published full/store
    dd if=/dev/zero of=full/ballast bs=4k 2> /dev/null
    worker room-worker full/store
    honest=$pid
    await 'told' grep -q 'trying again' room-worker.err
    says room-worker.err 'No space|full'
    rm full/ballast
    ended 0 "$learner" room
    ended 0 "$honest" room-worker
    alike room full/store good
    umount full
else
    skip 'a store that is full: no tmpfs can be mounted'
fi
finish
