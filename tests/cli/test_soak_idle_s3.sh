#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A follower on S3 that is left alone, with the credentials of an instance, which expire: how often it asks, how soon it
# sees a version, and that nobody hears of the credentials. All that it asks goes through tests/support/aws_front.py,
# which counts; versions come from elsewhere. A few seconds here; with WEFT_SOAK ten minutes, five of them with a version
# each minute and five without any, and credentials that live for a minute. Figures are printed and not judged.
. "$(dirname "$0")/sync.sh"
. "$cli/../support/s3_service.sh"
trap 'stop_s3; end_children' EXIT
life=3 pause=1 still=3 steps=(1 2)
if [ -n "${WEFT_SOAK:-}" ]; then
    life=60 pause=60 still=300 steps=(1 2 3 4 5)
fi
begin_s3
/usr/bin/python3 -B "$cli/../support/aws_front.py" --upstream "$s3_url" --user "$AWS_ACCESS_KEY_ID" \
    --secret "$AWS_SECRET_ACCESS_KEY" --url-file front --life "$life" > front.out 2> front.err < /dev/null &
children+=("$!")
await 'the front' test -s front
read -r front < front
now() { date +%s.%N; }
asked() { grep -c 's3 [A-Z]* /bucket' front.log; }
rate() { awk -v a="$1" -v b="$2" -v s="$3" 'BEGIN { printf "%.3f", (b - a) / s }'; }

expect 0 '' "$weft" publish s3://bucket/run "$(model 0)"
env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY -u AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3="$front" \
    AWS_EC2_METADATA_SERVICE_ENDPOINT="$front" "$weft" follow s3://bucket/run follower.model --max-failures 1 \
    --exec 'date +%s.%N > now-$WEFT_VERSION && mv now-$WEFT_VERSION seen-$WEFT_VERSION' > follower.out 2> follower.err \
    < /dev/null &
follower=$!
children+=("$follower")
await 'version 1' test -s seen-1
from=$(asked)
for step in "${steps[@]}"; do
    sleep "$pause"
    expect 0 '' "$weft" publish s3://bucket/run "$(model "$step")"
    published=$(now)
    await "version $((step + 1))" test -s "seen-$((step + 1))"
    echo "version $((step + 1)): in place $(awk -v a="$published" -v b="$(cat "seen-$((step + 1))")" \
        'BEGIN { printf "%.2f", b - a }') s after its publish, $pause s after the one before"
done
to=$(asked)
echo "with a version each $pause s: $(rate "$from" "$to" $((${#steps[@]} * pause))) requests a second, fetching and reports included"
sleep "$still"
echo "without any for $still s: $(rate "$to" "$(asked)" "$still") requests a second"
check 'the weights' cmp follower.model "$(model "$step")"
check 'it runs' kill -0 "$follower"
silent follower.err 'failed|denied|expired|credential|error|warning'
echo "credentials of $life s were given $(grep -c ' gave instance$' front.log) times, $(grep -c refused front.log) refused"
check 'they were renewed' test "$(grep -c ' gave instance$' front.log)" -ge 2
kill "$follower"
ended 143 "$follower" follower
finish
