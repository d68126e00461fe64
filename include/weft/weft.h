/* SPDX-License-Identifier: Apache-2.0
 *
 * weft.h: everything. Each room of the library has a header of its own; this includes them all.
 */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <weft/base.h>
#include <weft/foreign.h>
#include <weft/loco.h>
#include <weft/patch.h>
#include <weft/rollout.h>
#include <weft/store.h>
#include <weft/sync.h>
#include <weft/tensor.h>

#endif
