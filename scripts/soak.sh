#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The tests again, with WEFT_SOAK set: those that repeat something at random (kills, corruptions) then
# repeat it thousands of times.
set -eu
cd "$(dirname "$0")/.."
WEFT_SOAK=1 exec ctest --test-dir build --output-on-failure --verbose --timeout 36000 --label-regex 'slow|cli'
