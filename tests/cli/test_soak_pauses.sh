#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Publishers, parts, collectors, readers, relays, servers and ranks of a meeting, as processes that are killed and
# stopped while others take over: see soak_pauses.py. With WEFT_SOAK set, 10,000 kills and 10,000 pauses.
exec /usr/bin/python3 -B "$(dirname "$0")/soak_pauses.py"
