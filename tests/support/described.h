/* SPDX-License-Identifier: Apache-2.0
 *
 * described.h: what the library tells of its objects, as values for assertions.
 */
#ifndef WEFT_TESTS_DESCRIBED_H
#define WEFT_TESTS_DESCRIBED_H

#include <weft/weft.h>

static inline weft_subscriber_info subscriber_info(const weft_subscriber *subscriber) {
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(subscriber, &info);
    return info;
}

static inline weft_patch_info patch_info(const weft_patch *patch) {
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    return info;
}

static inline weft_apply_stats apply_stats(const weft_apply *apply) {
    weft_apply_stats stats = {.size = sizeof stats};
    weft_apply_describe(apply, &stats);
    return stats;
}

static inline weft_group_info group_info(const weft_group *group) {
    weft_group_info info = {.size = sizeof info};
    weft_group_describe(group, &info);
    return info;
}

static inline weft_member_info member_info(const weft_member *member) {
    weft_member_info info = {.size = sizeof info};
    weft_member_describe(member, &info);
    return info;
}

static inline weft_relay_stats relay_stats(weft_relay *relay) {
    weft_relay_stats stats = {.size = sizeof stats};
    weft_relay_describe(relay, &stats);
    return stats;
}

static inline weft_loco_store_stats meeting_stats(const weft_loco_exchange *exchange) {
    weft_loco_store_stats stats = {.size = sizeof stats};
    weft_loco_store_describe(exchange, &stats);
    return stats;
}

static inline weft_store_traits store_traits(const weft_store *store) {
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(store, &traits);
    return traits;
}

#endif
