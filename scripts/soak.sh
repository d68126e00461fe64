#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The long tests. A script under tests/cli that repeats something at random (kills, corruptions) asks
# for WEFT_SOAK, and when it is set repeats it thousands of times; those scripts are run here.
set -eu
cd "$(dirname "$0")/.."

export WEFT=$PWD/build/weft WEFT_SOURCE=$PWD WEFT_BUILD=$PWD/build WEFT_SOAK=1
mapfile -t scripts < <(grep -ls WEFT_SOAK tests/cli/test_*.sh)
if [ ${#scripts[@]} -eq 0 ]; then
    echo "soak: no script under tests/cli asks for WEFT_SOAK" >&2
    exit 1
fi
for script in "${scripts[@]}"; do
    echo "== $script"
    bash "$script" || [ $? -eq 77 ]
done
for script in tests/cli/test_*_s3_slow.sh tests/cli/test_s3_*_slow.sh; do
    echo "== $script, on a service that heeds conditional puts"
    WEFT_TEST_S3=seaweed bash "$script" || [ $? -eq 77 ]
done
echo "== learning to add numbers of three digits"
build/tests/test_lm_learning_slow
echo "== kills of a group's leaders and ranks"
WEFT_TEST_KILLS=5000 build/tests/test_group_kills_slow
