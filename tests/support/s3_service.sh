# SPDX-License-Identifier: Apache-2.0
#
# s3_service.sh: the real S3 service that WEFT_TEST_S3 names, for tests that run on each: swift (the default), which
# refuses conditional puts, or seaweed, which heeds them. Sourced, behind common.sh, not run.
#
#     begin_s3             starts it in $dir, with a bucket named "bucket", and exports what it takes to use it.
#                          Where it is not installed, the test ends here as skipped; where it does not start, as failed
#     stop_s3              ends exactly what was started
#     s3_bucket NAME       makes a bucket
#     s3_names BUCKET      the names of what is in one, by the service's other interface; see the service's own file
#                          about "BUCKET+segments"
#
# $s3_url is its address, $s3_port its port, $s3_heeds 1 if it heeds conditions, else 0.
s3_service=${WEFT_TEST_S3:-swift}
. "$(dirname "${BASH_SOURCE[0]}")/swift_s3.sh"
. "$(dirname "${BASH_SOURCE[0]}")/seaweed_s3.sh"

stop_s3() { "stop_$s3_service"; }
s3_bucket() { "${s3_service}_bucket" "$1"; }
s3_names() { "${s3_service}_names" "$1"; }

# What a program that is started needs so that this file, sourced again, answers s3_names.
export WEFT_TEST_S3=$s3_service swift_url seaweed_native

begin_s3() {
    local variable
    unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY
    for variable in $(compgen -e AWS_) WEFT_S3_ADDRESSING; do
        unset "$variable"
    done
    if ! "${s3_service}_is_installed"; then
        skip "the S3 service $s3_service is not installed (make test installs it)"
        finish
    fi
    if ! "start_$s3_service" "$dir/$s3_service"; then
        fail "$s3_service does not start: $(tail -n 5 "$dir/$s3_service"/*.log)"
        finish
    fi
    case $s3_service in
    swift) s3_url=$swift_url s3_port=$swift_port s3_heeds=0 ;;
    seaweed) s3_url=$seaweed_url s3_port=$seaweed_port s3_heeds=1 ;;
    esac
    check 'a bucket' s3_bucket bucket
    export AWS_ACCESS_KEY_ID=test:tester AWS_SECRET_ACCESS_KEY=testing AWS_ENDPOINT_URL=$s3_url
}
