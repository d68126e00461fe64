/* SPDX-License-Identifier: Apache-2.0
 *
 * patch.c: opening a patch file and asking it questions.
 */
#include "patch.h"
#include "../../base/sized.h"

#include "../../base/status.h"
#include "stream.h"

static weft_status read_source(weft_context *context, const weft_source *source, uint64_t offset,
                               void *data, size_t size) {
    if (offset > source->size || size > source->size - offset) {
        return weft_fail(context, WEFT_TRUNCATED, "the patch is cut short: %zu bytes at %llu are missing",
                         size, (unsigned long long)offset);
    }
    if (source->memory != NULL) {
        memcpy(data, (const uint8_t *)source->memory + offset, size);
        return WEFT_OK;
    }
    return weft_answer(context, source->read(source->opaque, offset, data, size),
                       "reading the patch at byte %llu", (unsigned long long)offset);
}

/* Reads a stretch into fresh memory. */
static weft_status read_part(weft_patch *patch, uint64_t offset, size_t size, uint8_t **data_out) {
    uint8_t *data = weft_allocate(patch->context, size);
    if (data == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = read_source(patch->context, &patch->source, offset, data, size);
    if (status != WEFT_OK) {
        weft_release(patch->context, data);
        return status;
    }
    *data_out = data;
    return WEFT_OK;
}

static weft_status open_header(weft_patch *patch, uint64_t *size_out) {
    uint8_t preamble[WEFT_PREAMBLE_BYTES];
    uint64_t size = 0;
    weft_status status = read_source(patch->context, &patch->source, 0, preamble, sizeof preamble);
    if (status == WEFT_OK) {
        status = weft_header_measure(patch->context, preamble, &size);
    }
    if (status == WEFT_OK && size > patch->source.size) {
        status = weft_fail(patch->context, WEFT_TRUNCATED, "the patch is cut short inside of its header");
    }
    if (status == WEFT_OK && size > weft_context_limits(patch->context)->header_bytes) {
        status =
            weft_fail(patch->context, WEFT_LIMIT_EXCEEDED, "the patch's header is larger than the limit");
    }
    if (status != WEFT_OK) {
        return status;
    }
    uint8_t *data;
    status = read_part(patch, 0, (size_t)size, &data);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_header_read(&patch->header, data, (size_t)size);
    weft_release(patch->context, data);
    *size_out = size;
    return status;
}

static weft_status open_index(weft_patch *patch, uint64_t header_size) {
    uint64_t size = patch->source.size;
    if (size < header_size + WEFT_FOOTER_BYTES) {
        return weft_fail(patch->context, WEFT_TRUNCATED, "the patch is cut short: it has no footer");
    }
    uint8_t last[WEFT_FOOTER_BYTES];
    weft_status status =
        read_source(patch->context, &patch->source, size - WEFT_FOOTER_BYTES, last, WEFT_FOOTER_BYTES);
    if (status == WEFT_OK) {
        status = weft_footer_read(patch->context, last, header_size, size, &patch->footer);
    }
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t units, bytes;
    weft_roster_measure(&patch->header.roster, &units, &bytes);
    if (units != patch->footer.total || bytes != patch->footer.dense_bytes) {
        return weft_fail(patch->context, WEFT_MALFORMED,
                         "the patch's footer counts other tensors than its header");
    }
    uint8_t *data;
    size_t tail = (size_t)(size - patch->footer.index_offset);
    status = read_part(patch, patch->footer.index_offset, tail, &data);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_frame_index_read(&patch->index, &patch->header.roster, &patch->footer, header_size, data,
                                   tail);
    weft_release(patch->context, data);
    return status;
}

static weft_status build_table(weft_patch *patch) {
    weft_status status = weft_table_create(patch->context, &patch->table);
    const weft_roster *roster = &patch->header.roster;
    for (size_t i = 0; i < roster->count && status == WEFT_OK; i++) {
        if (roster->entries[i].fate != WEFT_FATE_REMOVED) {
            status = weft_table_add(patch->table, &roster->entries[i].tensor);
        }
    }
    return status;
}

weft_status weft_patch_open(weft_context *context, const weft_source *source, weft_patch **patch_out) {
    weft_context_clear(context);
    weft_patch *patch = weft_allocate_zeroed(context, 1, sizeof *patch);
    if (patch == NULL) {
        return WEFT_NO_MEMORY;
    }
    patch->context = context;
    patch->source = *source;
    weft_header_open(&patch->header, context);
    weft_frame_index_open(&patch->index, context);
    uint64_t header_size = 0;
    weft_status status = open_header(patch, &header_size);
    if (status == WEFT_OK) {
        status = open_index(patch, header_size);
    }
    if (status == WEFT_OK) {
        status = build_table(patch);
    }
    if (status != WEFT_OK) {
        weft_patch_close(patch);
        return status;
    }
    *patch_out = patch;
    return WEFT_OK;
}

void weft_patch_close(weft_patch *patch) {
    if (patch == NULL) {
        return;
    }
    weft_table_destroy(patch->table);
    weft_frame_index_close(&patch->index);
    weft_header_close(&patch->header);
    weft_release(patch->context, patch);
}

void weft_patch_describe(const weft_patch *patch, weft_patch_info *info_out) {
    weft_patch_info info = {
        .size = sizeof info,
        .version = patch->header.version,
        .profile = patch->header.profile,
        .bytes = patch->source.size,
        .changed = patch->footer.changed,
        .total = patch->footer.total,
        .dense_bytes = patch->footer.dense_bytes,
        .buckets = patch->index.count,
        .base = patch->footer.base,
        .result = patch->footer.result,
        .recalls = patch->header.depth,
    };
    for (size_t i = 0; i < patch->header.roster.count; i++) {
        weft_fate fate = patch->header.roster.entries[i].fate;
        info.added += fate == WEFT_FATE_ADDED;
        info.removed += fate == WEFT_FATE_REMOVED;
        info.replaced += fate == WEFT_FATE_REPLACED;
    }
    weft_sized_write(&info, info_out, sizeof info);
}

const weft_table *weft_patch_table(const weft_patch *patch) {
    return patch->table;
}

const weft_container *weft_patch_container(const weft_patch *patch) {
    return patch->header.container.file_count > 0 ? &patch->header.container : NULL;
}

const char *weft_patch_label(const weft_patch *patch, const char *key) {
    for (size_t i = 0; i + 1 < patch->header.label_count; i += 2) {
        if (strcmp(patch->header.labels[i], key) == 0) {
            return patch->header.labels[i + 1];
        }
    }
    return NULL;
}

size_t weft_patch_label_count(const weft_patch *patch) {
    return patch->header.label_count / 2;
}

const char *weft_patch_label_key(const weft_patch *patch, size_t index) {
    return index < weft_patch_label_count(patch) ? patch->header.labels[2 * index] : NULL;
}

size_t weft_patch_tensor_count(const weft_patch *patch) {
    return patch->header.roster.count;
}

const weft_tensor *weft_patch_tensor(const weft_patch *patch, size_t index, weft_fate *fate_out) {
    if (index >= patch->header.roster.count) {
        return NULL;
    }
    const weft_roster_entry *entry = &patch->header.roster.entries[index];
    if (fate_out != NULL) {
        *fate_out = entry->fate;
    }
    return &entry->tensor;
}

weft_status weft_patch_frame(weft_context *context, const weft_patch *patch, size_t index,
                             weft_writer *buffer, weft_frame *frame) {
    const weft_frame_index_entry *entry = &patch->index.entries[index];
    size_t length = (size_t)entry->length;
    const uint8_t *data;
    if (patch->source.memory != NULL) {
        data = (const uint8_t *)patch->source.memory + entry->offset;
    } else {
        buffer->size = 0;
        uint8_t *room = weft_writer_reserve(buffer, length);
        if (room == NULL) {
            return WEFT_NO_MEMORY;
        }
        weft_status status = read_source(context, &patch->source, entry->offset, room, length);
        if (status != WEFT_OK) {
            return status;
        }
        data = room;
    }
    weft_status status = weft_frame_read(context, &patch->header.roster, data, length, frame);
    if (status != WEFT_OK) {
        return status;
    }
    bool recalling = frame->coding == WEFT_CODING_SMALLEST;
    if ((patch->header.version < 2 && frame->coding > WEFT_CODING_VALUES) ||
        (recalling && patch->header.profile != WEFT_PROFILE_SMALLEST)) {
        weft_bucket_close(&frame->bucket, context);
        return weft_fail(
            context, WEFT_MALFORMED,
            "a bucket's frame has a coding that version %u, or the patch's profile, does not have",
            patch->header.version);
    }
    if (frame->checksum != entry->checksum || !weft_bucket_same_spans(&frame->bucket, &entry->bucket)) {
        weft_bucket_close(&frame->bucket, context);
        return weft_fail(context, WEFT_CHECKSUM_MISMATCH,
                         "bucket %zu is not the one that the patch's index names; fetch the patch again",
                         index);
    }
    return WEFT_OK;
}

weft_status weft_patch_bucket(weft_context *context, const weft_patch *patch, size_t index,
                              weft_bucket_info *info_out) {
    weft_context_clear(context);
    if (index >= patch->index.count) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the patch has %zu buckets, not %zu",
                         patch->index.count, index + 1);
    }
    weft_writer buffer;
    weft_frame frame;
    weft_writer_open(&buffer, context);
    weft_status status = weft_sized_check(context, info_out, "weft_bucket_info");
    if (status == WEFT_OK) {
        status = weft_patch_frame(context, patch, index, &buffer, &frame);
    }
    if (status == WEFT_OK) {
        const weft_bucket *bucket = &frame.bucket;
        const weft_bucket_info info = {
            .size = sizeof info,
            .coding = frame.coding,
            .offset = patch->index.entries[index].offset,
            .bytes = patch->index.entries[index].length,
            .units = bucket->units,
            .changed = frame.changed,
            .first_tensor = bucket->spans[0].tensor,
            .last_tensor = bucket->spans[bucket->span_count - 1].tensor,
        };
        weft_sized_write(&info, info_out, sizeof info);
        weft_bucket_close(&frame.bucket, context);
    }
    weft_writer_close(&buffer);
    return status;
}

weft_status weft_patch_check_base(weft_context *context, const weft_patch *patch, const weft_sums *sums) {
    weft_digest here = weft_sums_digest(sums);
    if (weft_digest_equal(&here, &patch->footer.base)) {
        return WEFT_OK;
    }
    char have[WEFT_DIGEST_TEXT];
    char want[WEFT_DIGEST_TEXT];
    weft_digest_format(&here, have);
    weft_digest_format(&patch->footer.base, want);
    bool done = weft_digest_equal(&here, &patch->footer.result);
    return weft_fail(context, WEFT_BASE_MISMATCH,
                     "base mismatch: these weights are at %s, the patch needs %s; %s", have, want,
                     done ? "they are already at the patch's result, nothing is to do"
                          : "apply the patches in between first, or start from that checkpoint");
}

weft_status weft_patch_blame(weft_context *context, weft_status status, size_t index, size_t count,
                             const char *what) {
    if (status == WEFT_OK || count < 2) {
        return status;
    }
    return weft_fail(context, status, "patch %zu of %zu: %s%s", index + 1, count,
                     weft_context_error(context), index > 0 ? what : "");
}
