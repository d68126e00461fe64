#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Memory: a diff of two checkpoints of 4 GiB by two threads takes at most 256 MiB of heap and the size of the
# patch; a header that claims the moon takes none. The checkpoints are mostly holes.
exec /usr/bin/python3 -B "$(dirname "$0")/heap.py"
