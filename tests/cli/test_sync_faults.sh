#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Publishers and followers as processes that are killed, stopped, starved of disk and shown wrong clocks: see
# sync_faults.py. With WEFT_SOAK set, thousands of kills.
exec /usr/bin/python3 -B "$(dirname "$0")/sync_faults.py"
