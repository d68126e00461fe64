#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Where the S3 store gets its credentials: each source of the chain, on a service that gives them as Amazon's do and
# checks signatures, session tokens and expiry (tests/support/aws_front.py) before a real S3 service. Then a publisher
# and a follower run with credentials that expire every three seconds.
. "$(dirname "$0")/sync.sh"
. "$cli/../support/s3_service.sh"
trap 'stop_s3; end_children' EXIT
begin_s3
/usr/bin/python3 -B "$cli/../support/aws_front.py" --upstream "$s3_url" --user "$AWS_ACCESS_KEY_ID" \
    --secret "$AWS_SECRET_ACCESS_KEY" --url-file front --life 3 > front.out 2> front.err < /dev/null &
children+=("$!")
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
await 'the front' test -s front
read -r front < front
export AWS_ENDPOINT_URL_S3=$front AWS_EC2_METADATA_DISABLED=true WEFT_STORE_ATTEMPTS=3
unset AWS_ENDPOINT_URL
echo 'container token/==' | tr ' ' - > front.token
echo 'eyJhbGciOi.identity.token_-' > front.identity
mkdir -p "$HOME/.aws"
head -c 5000 /dev/urandom > object

# round NAME VARIABLE=VALUE...: an object there and back with credentials of that source
round() {
    local name=$1 before
    shift
    before=$(grep -c " gave $name\$" front.log)
    stdin=object expect 0 '' env "$@" "$tool" put s3://bucket/credentials "$name"
    expect 0 '' env "$@" "$tool" get s3://bucket/credentials "$name"
    check "$name: the object" cmp stdout object
    expect 0 '' env "$@" "$tool" head s3://bucket/credentials "$name"
    check "$name gave credentials" test "$(grep -c " gave $name\$" front.log)" -eq $((before + 3))
}

# ---- each source ----
round instance AWS_EC2_METADATA_DISABLED=false AWS_EC2_METADATA_SERVICE_ENDPOINT="$front/"
round container AWS_CONTAINER_CREDENTIALS_FULL_URI="$front/container" \
    AWS_CONTAINER_AUTHORIZATION_TOKEN="$(cat front.token)"
round container AWS_CONTAINER_CREDENTIALS_FULL_URI="$front/container" \
    AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE="$dir/front.token"
identity=(AWS_WEB_IDENTITY_TOKEN_FILE="$dir/front.identity" AWS_ENDPOINT_URL_STS="$front")
round web-identity "${identity[@]}" AWS_ROLE_ARN=arn:aws:iam::123456789012:role/weft
cat > "$HOME/.aws/config" << END
# comments, and settings of others
[default]
region = us-east-1
s3 =
    max_concurrent_requests = 20
    credential_process = false
[profile process]
credential_process = curl -s --noproxy '*' "$front/process" # a comment of the shell's
endpoint_url = http://127.0.0.1:1
[profile role]
role_arn = arn:aws:iam::123456789012:role/weft
web_identity_token_file = $dir/front.identity
[profile sso]
sso_session = ours
[profile borrowed]
role_arn = arn:aws:iam::1:role/x
source_profile = default
[profile broken]
credential_process = echo '{"Version": 2}'
[profile failing]
credential_process = exit 3
END
round process AWS_PROFILE=process
round web-identity AWS_PROFILE=role AWS_ENDPOINT_URL_STS="$front"
# keys in a file, which go before what the environment has of roles and services, and keys of the environment: as often
# as it takes within the three seconds that they live
ask_front() { curl -s --noproxy '*' "$front/$1"; }
from_file() {
    ask_front profile > "$HOME/.aws/credentials" &&
        env "${identity[@]}" AWS_ROLE_ARN=x "$tool" put s3://bucket/credentials file < object
}
from_environment() {
    local keys
    mapfile -t keys < <(ask_front profile | sed -n 's/.*= *//p')
    AWS_ACCESS_KEY_ID=${keys[0]} AWS_SECRET_ACCESS_KEY=${keys[1]} AWS_SESSION_TOKEN=${keys[2]} "$tool" get \
        s3://bucket/credentials file > got && cmp got object
}
await 'keys of a file' from_file
await 'keys of the environment' from_environment
rm "$HOME/.aws/credentials"

# ---- what people read ----
expect 1 'set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.*or name a profile of .*/.aws/credentials' \
    "$tool" get s3://bucket key
expect 1 'only one of AWS_ACCESS_KEY_ID' env AWS_ACCESS_KEY_ID=x "$tool" get s3://bucket key
expect 1 'no profile absent, which AWS_PROFILE names' env AWS_PROFILE=absent "$tool" get s3://bucket key
expect 1 'unsupported.*profile sso needs a sign-in.*aws configure export-credentials' env AWS_PROFILE=sso \
    "$tool" get s3://bucket key
expect 1 'unsupported.*profile borrowed needs' env AWS_PROFILE=borrowed "$tool" get s3://bucket key
expect 1 'credential_process of the profile broken: what came holds no credentials' env AWS_PROFILE=broken \
    "$tool" get s3://bucket key
expect 1 'fails with exit code 3' env AWS_PROFILE=failing "$tool" get s3://bucket key
expect 1 'there is no web identity.s token file nowhere' env AWS_WEB_IDENTITY_TOKEN_FILE=nowhere AWS_ROLE_ARN=x \
    "$tool" get s3://bucket key
expect 1 'denied.*POST .*400 InvalidIdentityToken' env "${identity[@]}" AWS_ROLE_ARN=arn:aws:iam::1:role/other \
    "$tool" get s3://bucket key
expect 1 'denied.*answers 401' env AWS_CONTAINER_CREDENTIALS_FULL_URI="$front/container" "$tool" get s3://bucket key
expect 1 'AWS_CONTAINER_CREDENTIALS_FULL_URI: ' env AWS_CONTAINER_CREDENTIALS_FULL_URI=http://example.com/ \
    "$tool" get s3://bucket key
expect 1 'no credentials: neither AWS_ACCESS_KEY_ID.*instance metadata does not answer' env AWS_EC2_METADATA_DISABLED= \
    AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:1 "$tool" get s3://bucket key
expect 1 'no longer valid.*ExpiredToken|does not know the key' env AWS_ACCESS_KEY_ID=ASIAX AWS_SECRET_ACCESS_KEY=x \
    AWS_SESSION_TOKEN=y "$tool" get s3://bucket key

# ---- encryption and storage class, of objects in one request and in parts; the signature covers them ----
head -c $((9 << 20)) /dev/urandom > large
making=(AWS_PROFILE=process WEFT_S3_STORAGE_CLASS=STANDARD WEFT_S3_ENCRYPTION=AES256)
stdin=object expect 0 '' env "${making[@]}" "$tool" put s3://bucket/making small
stdin=large expect 0 '' env "${making[@]}" "$tool" put s3://bucket/making large
expect 0 '' env "${making[@]}" "$tool" get s3://bucket/making large
check 'a large object' cmp stdout large
says front.log 's3 PUT /bucket/making/small AES256 STANDARD$'
says front.log 's3 POST /bucket/making/large\?uploads= AES256 STANDARD$'
says front.log 's3 PUT /bucket/making/large\?partNumber=1&uploadId=[^ ]*$'
expect 1 'WEFT_S3_STORAGE_CLASS is too long, or has spaces' env AWS_PROFILE=process WEFT_S3_STORAGE_CLASS='a b' \
    "$tool" get s3://bucket key

# ---- credentials that expire every three seconds ----
unset AWS_EC2_METADATA_DISABLED
export AWS_EC2_METADATA_SERVICE_ENDPOINT=$front
begin follower follow s3://bucket/run follower.model --until 6 --poll 0.2
follower=$pid
renewals() { [ "$(grep -c ' gave instance$' front.log)" -ge "$1" ]; }
for step in 0 1 2 3 4 5; do
    expect 0 '' "$weft" publish s3://bucket/run "$(model "$step")"
    [ "$step" -eq 5 ] || await 'the follower renews' renewals $(($(grep -c ' gave instance$' front.log) + 1))
    # one in three is refused before its date
    [ $((step % 3)) -ne 0 ] || check 'revoked' ask_front revoke
done
ended 0 "$follower" follower
check 'the follower is there' cmp follower.model "$(model 5)"
silent follower.err 'failed|denied|expired|credential'
says front.log 'refused ExpiredToken'
finish
