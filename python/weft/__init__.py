# SPDX-License-Identifier: Apache-2.0
"""weft: exact sparse patches between model checkpoints, and learning from sampled responses.

Each module stands over one header of libweft, which it loads when it is imported; see weft.library.
"""
