/* SPDX-License-Identifier: Apache-2.0
 *
 * relayed.h: a store as its readers see it through a relay that is never behind, so that tests which
 * publish and then read at once mean the same with a relay and without.
 */
#ifndef WEFT_TESTS_RELAYED_H
#define WEFT_TESTS_RELAYED_H

#include <weft/sync.h>

/* Whoever asks for a head waits until the relay has the newest one, but not for ever: a relay does not take
 * every head. `upstream` stays the caller's and must outlive the store; the directory is the relay's. */
weft_status relayed_open(weft_context *context, weft_store *upstream, const char *directory,
                         weft_store **store_out);

#endif
