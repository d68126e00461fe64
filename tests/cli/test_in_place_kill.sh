#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `weft apply --in-place`, killed at random instants: see in_place_kill.py. With WEFT_SOAK set, thousands
# of times.
exec /usr/bin/python3 -B "$(dirname "$0")/in_place_kill.py"
