/* SPDX-License-Identifier: Apache-2.0
 *
 * bucket.c: frames. The coding is chosen by count: sparse while few units change, otherwise packed. Of what
 * is no float, or tiny, whichever of sparse, steps and values is the smallest.
 */
#include "bucket.h"

#include <xxhash.h>

enum {
    /* With more than one unit in so many changed, a bucket is dense. That of single bytes is so sooner,
     * since its dense coding is the faster one sooner; that of four bytes and more later, since its steps
     * take more than positions do. */
    WORD_SHARE = 12,
    BYTE_SMALL_SHARE = 20,
    BYTE_FAST_SHARE = 24,
    LONG_SMALL_SHARE = 4,
    LONG_FAST_SHARE = 8,
    LISTED_SHARE = 4, /* with at most so many, its changes are listed in memory; */
    DENSE_SHARE = 8,  /* or, if it is not one to be packed, dense codings are tried too */
};

void weft_bucket_coder_open(weft_bucket_coder *coder, weft_context *context) {
    coder->follows = false;
    coder->recall = NULL;
    coder->depth = 0;
    coder->context = context;
    weft_recent_open(&coder->recent, context);
    coder->kernels = weft_patch_kernels_for(weft_cpu_level());
    weft_window_open(&coder->from, context);
    weft_window_open(&coder->to, context);
    weft_changes_open(&coder->changes, context);
    weft_small_encoder_open(&coder->small_encoder, context);
    weft_small_decoder_open(&coder->small_decoder, context);
    weft_packed_encoder_open(&coder->packed_encoder, context);
    weft_packed_decoder_open(&coder->packed_decoder, context);
    weft_writer_open(&coder->payload, context);
}

void weft_bucket_coder_close(weft_bucket_coder *coder) {
    weft_window_close(&coder->from);
    weft_window_close(&coder->to);
    weft_changes_close(&coder->changes);
    weft_small_encoder_close(&coder->small_encoder);
    weft_small_decoder_close(&coder->small_decoder);
    weft_packed_encoder_close(&coder->packed_encoder);
    weft_packed_decoder_close(&coder->packed_decoder);
    weft_recent_close(&coder->recent);
    weft_writer_close(&coder->payload);
}

/* ---- what changed lately ---- */

/* A bucket is known by its spans, as they stand in a frame. */
static weft_status place_bucket(weft_context *context, const weft_bucket *bucket, const weft_roster *roster,
                                uint64_t *place_out) {
    weft_writer spans;
    weft_writer_open(&spans, context);
    weft_bucket_write_spans(bucket, roster, &spans);
    weft_status status = weft_writer_failed(&spans) ? WEFT_NO_MEMORY : WEFT_OK;
    *place_out = XXH3_64bits(spans.data, spans.size);
    weft_writer_close(&spans);
    return status;
}

/* Of what types changes are recalled. */
static bool recallable(weft_dtype dtype) {
    return weft_exponent_of(dtype).present && weft_dtype_width(dtype) == 2;
}

/* Gives the small encoder the list of recent changes, if there is one to be used. */
static weft_status use_recent(weft_bucket_coder *coder, const weft_bucket *bucket,
                              const weft_roster *roster, weft_profile profile) {
    weft_recent *list = &coder->small_encoder.recent.list;
    uint64_t place;
    list->count = 0;
    if (profile != WEFT_PROFILE_SMALLEST || coder->recall == NULL || !recallable(bucket->dtype)) {
        return WEFT_OK;
    }
    weft_status status = place_bucket(coder->context, bucket, roster, &place);
    return status == WEFT_OK ? weft_recent_list(list, coder->recall, place, bucket->units, coder->depth)
                             : status;
}

/* Few enough to be remembered. */
static bool is_noted(uint64_t changed, uint64_t units) {
    return changed <= units / WEFT_RECALL_SHARE;
}

weft_status weft_bucket_note(weft_bucket_coder *coder, const weft_bucket *bucket, const weft_roster *roster,
                             const weft_frame_result *result) {
    const weft_changes *changes = &coder->changes;
    uint64_t place;
    if (coder->recall == NULL || !result->present || !recallable(bucket->dtype)) {
        return WEFT_OK;
    }
    weft_status status = place_bucket(coder->context, bucket, roster, &place);
    return status == WEFT_OK
               ? weft_recall_note(coder->recall, place, changes->positions, changes->olds, changes->news,
                                  changes->count, !is_noted(result->changed, bucket->units))
               : status;
}

weft_status weft_frame_note(weft_recall *recall, const weft_frame *frame, const weft_changes *changes) {
    bool sparse = frame->coding <= WEFT_CODING_SMALL || frame->coding == WEFT_CODING_SMALLEST;
    if (!recallable(frame->bucket.dtype)) {
        return WEFT_OK;
    }
    return weft_recall_note(recall, frame->place, changes->positions, changes->olds, changes->news,
                            changes->count, !sparse || !is_noted(frame->changed, frame->bucket.units));
}

/* ---- writing ---- */

/* A frame without its payload, which is written next; returns where it starts. */
static size_t begin_frame(const weft_bucket *bucket, const weft_roster *roster, weft_coding coding,
                          uint64_t changed, weft_sum delta, weft_writer *frame) {
    size_t start = frame->size;
    weft_writer_u32(frame, 0);
    weft_writer_u8(frame, (uint8_t)coding);
    weft_bucket_write_spans(bucket, roster, frame);
    weft_writer_varint(frame, changed);
    weft_writer_u64(frame, delta.lanes[0]);
    weft_writer_u64(frame, delta.lanes[1]);
    return start;
}

/* Length and checksum of the frame that starts there. */
static weft_status end_frame(weft_writer *frame, size_t start) {
    uint64_t length = frame->size - start + WEFT_FRAME_CHECKSUM;
    if (weft_writer_failed(frame)) {
        return WEFT_NO_MEMORY;
    }
    if (length > UINT32_MAX) {
        return weft_fail(frame->context, WEFT_LIMIT_EXCEEDED,
                         "a bucket's frame is over 4 GiB; choose "
                         "smaller buckets");
    }
    for (unsigned i = 0; i < WEFT_FRAME_LENGTH; i++) {
        frame->data[start + i] = (uint8_t)(length >> (8 * i));
    }
    weft_writer_u64(frame, XXH3_64bits(frame->data + start, frame->size - start));
    return weft_writer_failed(frame) ? WEFT_NO_MEMORY : WEFT_OK;
}

static weft_status write_frame(const weft_bucket *bucket, const weft_roster *roster, weft_coding coding,
                               uint64_t changed, weft_sum delta, const weft_writer *payload,
                               weft_writer *frame) {
    size_t start = begin_frame(bucket, roster, coding, changed, delta, frame);
    weft_writer_bytes(frame, payload->data, payload->size);
    return weft_writer_failed(payload) ? WEFT_NO_MEMORY : end_frame(frame, start);
}

/* The frame of what coder->packed_encoder has. */
static weft_status write_packed(weft_bucket_coder *coder, const weft_bucket *bucket,
                                const weft_roster *roster, weft_coding coding, uint64_t changed,
                                weft_sum delta, weft_writer *frame) {
    size_t start = begin_frame(bucket, roster, coding, changed, delta, frame);
    weft_status status = weft_packed_encoder_finish(&coder->packed_encoder, frame);
    return status == WEFT_OK ? end_frame(frame, start) : status;
}

/* Both sides of a bucket end to end, in dtype. */
typedef struct dense_sides {
    uint8_t *from;
    uint8_t *to;
} dense_sides;

static void release_sides(weft_context *context, dense_sides *sides) {
    weft_release(context, sides->from);
    weft_release(context, sides->to);
}

static weft_status copy_sides(weft_bucket_coder *coder, const weft_bucket *bucket, dense_sides *sides) {
    size_t bytes = (size_t)bucket->units * bucket->width;
    sides->from = weft_allocate(coder->context, bytes);
    sides->to = weft_allocate(coder->context, bytes);
    if (sides->from == NULL || sides->to == NULL) {
        release_sides(coder->context, sides);
        return WEFT_NO_MEMORY;
    }
    weft_window_copy_runs(&coder->from, bucket->width, sides->from);
    weft_window_copy_runs(&coder->to, bucket->width, sides->to);
    return WEFT_OK;
}

static uint64_t count_differing(const dense_sides *sides, uint64_t units, unsigned width) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < units; i++) {
        count += memcmp(sides->from + i * width, sides->to + i * width, width) != 0;
    }
    return count;
}

/* Codes the bucket densely both ways and keeps the smaller in coder->payload, if it beats what is there.
 * An empty payload is beaten by anything. */
static weft_status try_dense(weft_bucket_coder *coder, const weft_bucket *bucket, const dense_sides *sides,
                             weft_profile profile, weft_coding *coding) {
    size_t units = (size_t)bucket->units;
    const weft_coding codings[] = {WEFT_CODING_VALUES, WEFT_CODING_DIFFERENCE};
    for (unsigned i = 0; i < 2; i++) {
        weft_writer candidate;
        weft_writer_open(&candidate, coder->context);
        const void *base = codings[i] == WEFT_CODING_DIFFERENCE ? sides->from : NULL;
        weft_status status =
            weft_dense_encode(coder->context, base, sides->to, units, bucket->width, profile, &candidate);
        if (status != WEFT_OK) {
            weft_writer_close(&candidate);
            return status;
        }
        if (coder->payload.size == 0 || candidate.size < coder->payload.size) {
            weft_writer kept = coder->payload;
            coder->payload = candidate;
            candidate = kept;
            *coding = codings[i];
        }
        weft_writer_close(&candidate);
    }
    return WEFT_OK;
}

static weft_status encode_sparse(weft_bucket_coder *coder, const weft_bucket *bucket, bool small) {
    return small ? weft_small_encoder_finish(&coder->small_encoder, &coder->changes, &coder->payload)
                 : weft_fast_encode(&coder->changes, bucket->units, &coder->payload);
}

static weft_status encode_dense(weft_bucket_coder *coder, const weft_bucket *bucket, weft_profile profile,
                                bool too_many, weft_sums *moves, weft_coding *coding, uint64_t *changed,
                                weft_sum *delta) {
    dense_sides sides;
    weft_status status = copy_sides(coder, bucket, &sides);
    if (status != WEFT_OK) {
        return status;
    }
    status = try_dense(coder, bucket, &sides, profile, coding);
    if (status == WEFT_OK && too_many) {
        *changed = count_differing(&sides, bucket->units, bucket->width);
        status = weft_window_prove_all(&coder->from, sides.to, bucket->width, false, moves, delta);
    }
    release_sides(coder->context, &sides);
    return status;
}

static unsigned packed_share(const weft_bucket *bucket, weft_profile profile) {
    bool fast = profile == WEFT_PROFILE_FAST;
    switch (bucket->width) {
    case 1:
        return fast ? BYTE_FAST_SHARE : BYTE_SMALL_SHARE;
    case 2:
        return WORD_SHARE;
    default:
        return fast ? LONG_FAST_SHARE : LONG_SMALL_SHARE;
    }
}

bool weft_bucket_many(const weft_bucket *bucket, weft_profile profile, uint64_t changed) {
    return changed >
           bucket->units / (weft_bucket_packs(bucket) ? packed_share(bucket, profile) : DENSE_SHARE);
}

bool weft_bucket_few(const weft_bucket *bucket, uint64_t changed) {
    return changed <= bucket->units / LISTED_SHARE;
}

weft_status weft_bucket_list(weft_bucket_coder *coder, const weft_bucket *bucket,
                             const weft_frame_result *result) {
    bool beyond;
    if (coder->changes.count == result->changed || !weft_bucket_few(bucket, result->changed)) {
        return WEFT_OK;
    }
    return weft_scan(coder, bucket, false, bucket->units / LISTED_SHARE, NULL, NULL, &beyond);
}

/* The frame of a bucket that is packed if many units differ; there is none if not. */
static weft_status encode_packed(weft_bucket_coder *coder, const weft_bucket *bucket,
                                 const weft_roster *roster, weft_profile profile, weft_sums *moves,
                                 weft_writer *frame, weft_frame_result *result) {
    weft_coding coding;
    weft_sum delta;
    uint64_t changed = 0;
    weft_status status =
        weft_bucket_pack(coder, bucket, profile, bucket->units / packed_share(bucket, profile) + 1, moves,
                         &coding, &changed, &delta);
    bool many = weft_bucket_many(bucket, profile, changed);
    coder->changes.count = 0;
    *result = (weft_frame_result){changed, many, false};
    if (status != WEFT_OK || !many) {
        return status;
    }
    return coding == WEFT_CODING_RICE
               ? write_frame(bucket, roster, coding, changed, delta, &coder->payload, frame)
               : write_packed(coder, bucket, roster, coding, changed, delta, frame);
}

/* Whether many units differ, to judge by some of them. */
static bool seem_many(weft_bucket_coder *coder, const weft_bucket *bucket, weft_profile profile) {
    size_t differing, picked = weft_scan_glance(coder, bucket, &differing);
    return differing > picked / packed_share(bucket, profile);
}

/* What coder->changes do to the digest, unless that is `proven`; they are written, if that is wanted. */
static weft_status prove_changes(weft_bucket_coder *coder, const weft_sum *proven, bool write,
                                 weft_sums *moves, weft_sum *delta) {
    if (proven == NULL) {
        return weft_window_prove(&coder->from, &coder->changes, WEFT_PROOF_VALUES, write, moves, delta);
    }
    *delta = *proven;
    return write ? weft_window_scatter(&coder->from, &coder->changes, false) : WEFT_OK;
}

/* The frame of coder->changes. `proven` is what they do to the digest, or NULL; `too_many`, if the scan
 * that found them has stopped early. */
static weft_status encode_scanned(weft_bucket_coder *coder, const weft_bucket *bucket,
                                  const weft_roster *roster, weft_profile profile, bool too_many,
                                  const weft_sum *proven, weft_sums *moves, weft_writer *frame,
                                  weft_frame_result *result) {
    bool small = profile != WEFT_PROFILE_FAST, recent = coder->small_encoder.recent.list.count > 0;
    weft_status status = WEFT_OK;
    uint64_t changed = coder->changes.count;
    weft_coding coding = !small ? WEFT_CODING_FAST : recent ? WEFT_CODING_SMALLEST : WEFT_CODING_SMALL;
    weft_sum delta = {{0, 0}};
    coder->payload.size = 0;
    bool many = weft_bucket_many(bucket, profile, changed);
    *result = (weft_frame_result){changed, changed > 0, coder->follows && changed > 0 && !many};
    if (changed == 0) {
        return WEFT_OK;
    }
    if (!too_many) {
        status = encode_sparse(coder, bucket, small);
        if (status == WEFT_OK) {
            status = prove_changes(coder, proven, result->written, moves, &delta);
        }
    }
    if (status == WEFT_OK && many) {
        status = encode_dense(coder, bucket, profile, too_many, moves, &coding, &changed, &delta);
    }
    if (status != WEFT_OK) {
        return status;
    }
    result->changed = changed;
    return write_frame(bucket, roster, coding, changed, delta, &coder->payload, frame);
}

weft_status weft_bucket_encode_windows(weft_bucket_coder *coder, const weft_bucket *bucket,
                                       const weft_roster *roster, weft_profile profile, weft_sums *moves,
                                       weft_writer *frame, weft_frame_result *result) {
    bool packs = weft_bucket_packs(bucket), too_many = false;
    weft_status status = WEFT_OK;
    /* What some units say saves a pass over all of them that finds too many, or too few. The count of all
     * decides. */
    if (packs && seem_many(coder, bucket, profile)) {
        status = encode_packed(coder, bucket, roster, profile, moves, frame, result);
        if (status != WEFT_OK || result->present) {
            return status;
        }
    }
    uint64_t most = bucket->units / (packs ? packed_share(bucket, profile) : 2);
    weft_sum delta = {{0, 0}};
    status = use_recent(coder, bucket, roster, profile);
    if (status == WEFT_OK) {
        status = weft_scan(coder, bucket, profile != WEFT_PROFILE_FAST, most, moves, &delta, &too_many);
    }
    if (status == WEFT_OK && packs && too_many) {
        return encode_packed(coder, bucket, roster, profile, moves, frame, result);
    }
    return status == WEFT_OK
               ? encode_scanned(coder, bucket, roster, profile, too_many, &delta, moves, frame, result)
               : status;
}

weft_status weft_bucket_encode_known(weft_bucket_coder *coder, const weft_bucket *bucket,
                                     const weft_roster *roster, weft_profile profile, weft_sums *moves,
                                     weft_writer *frame, weft_frame_result *result) {
    weft_status status = use_recent(coder, bucket, roster, profile);
    if (status == WEFT_OK && profile != WEFT_PROFILE_FAST && coder->changes.count > 0) {
        status = weft_scan_known(coder, bucket);
    }
    return status == WEFT_OK
               ? encode_scanned(coder, bucket, roster, profile, false, NULL, moves, frame, result)
               : status;
}

weft_status weft_bucket_open_base(weft_bucket_coder *coder, const weft_bucket *bucket,
                                  const weft_bucket_side *from) {
    weft_status status =
        weft_window_set(&coder->from, from->view, from->tensor_map, bucket, WEFT_NEED_BYTES);
    if (status != WEFT_OK || coder->from.holding != WEFT_HELD_ALL || !coder->follows) {
        return status;
    }
    if (!coder->from.writable || !coder->from.direct || weft_view_tied(from->view)) {
        return weft_fail(coder->context, WEFT_INVALID_ARGUMENT,
                         "a base that is to follow its diff must be plain memory that can be written, and "
                         "each tensor's own");
    }
    return WEFT_OK;
}

weft_status weft_bucket_encode(weft_bucket_coder *coder, const weft_bucket *bucket,
                               const weft_roster *roster, weft_profile profile,
                               const weft_bucket_side *from, const weft_bucket_side *to, weft_sums *moves,
                               weft_writer *frame, weft_frame_result *result) {
    weft_status status = weft_bucket_open_base(coder, bucket, from);
    if (status == WEFT_OK) {
        status = weft_window_set(&coder->to, to->view, to->tensor_map, bucket, WEFT_NEED_MASTERS);
    }
    if (status != WEFT_OK) {
        return status;
    }
    *result = (weft_frame_result){0, false, false};
    if (coder->from.holding == WEFT_HELD_NONE && coder->to.holding == WEFT_HELD_NONE) {
        return WEFT_OK;
    }
    if (coder->from.holding != WEFT_HELD_ALL || coder->to.holding != WEFT_HELD_ALL) {
        return weft_fail(coder->context, WEFT_INVALID_ARGUMENT,
                         "the two states hold different parts of tensor %s; diff states of the same layout",
                         roster->entries[bucket->spans[0].tensor].tensor.name);
    }
    return weft_bucket_encode_windows(coder, bucket, roster, profile, moves, frame, result);
}

weft_status weft_bucket_encode_whole(weft_bucket_coder *coder, const weft_bucket *bucket,
                                     const weft_roster *roster, weft_profile profile,
                                     const weft_bucket_side *to, weft_sums *sums, weft_writer *frame,
                                     weft_frame_result *result) {
    weft_status status = weft_window_set(&coder->to, to->view, to->tensor_map, bucket, WEFT_NEED_BYTES);
    if (status != WEFT_OK) {
        return status;
    }
    if (coder->to.holding != WEFT_HELD_ALL) {
        return weft_fail(coder->context, WEFT_INVALID_ARGUMENT,
                         "tensor %s is new and must be held whole to be published",
                         roster->entries[bucket->spans[0].tensor].tensor.name);
    }
    weft_sum delta;
    if (weft_bucket_packs(bucket)) {
        *result = (weft_frame_result){bucket->units, true, false};
        status = weft_bucket_pack_whole(coder, bucket, sums, &delta);
        return status == WEFT_OK ? write_packed(coder, bucket, roster, WEFT_CODING_PACKED_VALUES,
                                                bucket->units, delta, frame)
                                 : status;
    }
    size_t bytes = (size_t)bucket->units * bucket->width;
    uint8_t *values = weft_allocate(coder->context, bytes);
    if (values == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_window_copy_runs(&coder->to, bucket->width, values);
    coder->payload.size = 0;
    status = weft_window_prove_all(&coder->to, values, bucket->width, true, sums, &delta);
    if (status == WEFT_OK) {
        status = weft_dense_encode(coder->context, NULL, values, (size_t)bucket->units, bucket->width,
                                   profile, &coder->payload);
    }
    weft_release(coder->context, values);
    if (status != WEFT_OK) {
        return status;
    }
    *result = (weft_frame_result){bucket->units, true, false};
    return write_frame(bucket, roster, WEFT_CODING_VALUES, bucket->units, delta, &coder->payload, frame);
}

weft_status weft_bucket_encode_changes(weft_bucket_coder *coder, const weft_bucket *bucket,
                                       const weft_roster *roster, weft_sum delta, weft_writer *frame,
                                       weft_frame_result *result) {
    *result = (weft_frame_result){coder->changes.count, coder->changes.count > 0, false};
    if (coder->changes.count == 0) {
        return WEFT_OK;
    }
    coder->payload.size = 0;
    weft_status status = encode_sparse(coder, bucket, false);
    if (status != WEFT_OK) {
        return status;
    }
    return write_frame(bucket, roster, WEFT_CODING_FAST, coder->changes.count, delta, &coder->payload,
                       frame);
}

/* A decoder may be told to step by nothing; the fast coding has no way to say so. */
static bool steps_everywhere(const weft_changes *changes) {
    size_t still = 0;
    for (size_t i = 0; i < changes->count; i++) {
        still += weft_unit_load(changes->olds, i, changes->width) ==
                 weft_unit_load(changes->news, i, changes->width);
    }
    return still == 0;
}

weft_status weft_frame_relay(weft_context *context, const weft_frame *frame, const weft_roster *roster,
                             const weft_changes *changes, weft_writer *output) {
    if (frame->coding != WEFT_CODING_SMALL && frame->coding != WEFT_CODING_SMALLEST) {
        weft_writer_bytes(output, frame->data, frame->size);
        return weft_writer_failed(output) ? WEFT_NO_MEMORY : WEFT_OK;
    }
    if (!steps_everywhere(changes)) {
        return weft_fail(context, WEFT_MALFORMED, "a bucket names a change that changes nothing");
    }
    weft_writer payload;
    weft_writer_open(&payload, context);
    weft_status status = weft_fast_encode(changes, frame->bucket.units, &payload);
    if (status == WEFT_OK) {
        status = write_frame(&frame->bucket, roster, WEFT_CODING_FAST, frame->changed, frame->delta,
                             &payload, output);
    }
    weft_writer_close(&payload);
    return status;
}

/* ---- reading ---- */

uint64_t weft_frame_checksum(const uint8_t *data, size_t size) {
    weft_reader last = weft_reader_over(data + size - WEFT_FRAME_CHECKSUM, WEFT_FRAME_CHECKSUM);
    return weft_reader_u64(&last);
}

/* What a bucket of tensors may be coded in that were not there before. */
static bool fresh_coding(const weft_frame *frame) {
    return frame->coding == WEFT_CODING_VALUES ||
           (frame->coding == WEFT_CODING_PACKED_VALUES && frame->changed == frame->bucket.units);
}

weft_status weft_frame_read(weft_context *context, const weft_roster *roster, const uint8_t *data,
                            size_t size, weft_frame *frame) {
    memset(frame, 0, sizeof *frame);
    frame->data = data;
    frame->size = size;
    if (size < WEFT_FRAME_LENGTH + WEFT_FRAME_CHECKSUM) {
        return weft_fail(context, WEFT_TRUNCATED, "a bucket's frame is cut short");
    }
    frame->checksum = weft_frame_checksum(data, size);
    if (XXH3_64bits(data, size - WEFT_FRAME_CHECKSUM) != frame->checksum) {
        return weft_fail(
            context, WEFT_CHECKSUM_MISMATCH,
            "a bucket was damaged on its way: its checksum does not match; fetch the patch again");
    }
    weft_reader reader = weft_reader_over(data, size - WEFT_FRAME_CHECKSUM);
    uint32_t length = weft_reader_u32(&reader);
    frame->coding = (weft_coding)weft_reader_u8(&reader);
    if (length != size || frame->coding < WEFT_CODING_FAST || frame->coding > WEFT_CODING_SMALLEST) {
        return weft_fail(context, WEFT_MALFORMED, "a bucket's frame has an unknown coding or length");
    }
    weft_roster here = weft_roster_with(roster, context);
    const uint8_t *spans = reader.cursor;
    weft_status status = weft_bucket_read_spans(&frame->bucket, &here, &reader);
    if (status == WEFT_OK) {
        frame->place = XXH3_64bits(spans, (size_t)(reader.cursor - spans));
        frame->changed = weft_reader_varint(&reader);
        frame->delta.lanes[0] = weft_reader_u64(&reader);
        frame->delta.lanes[1] = weft_reader_u64(&reader);
        frame->payload_size = weft_reader_left(&reader);
        frame->payload = weft_reader_bytes(&reader, frame->payload_size);
        bool fresh = roster->entries[frame->bucket.spans[0].tensor].fate != WEFT_FATE_KEPT;
        /* a small bucket of which more than half changed would have been coded densely: such a claim is no
         * reason to take memory */
        bool recent = frame->coding == WEFT_CODING_SMALLEST;
        uint64_t most =
            frame->coding == WEFT_CODING_SMALL || recent ? frame->bucket.units / 2 : frame->bucket.units;
        if (weft_reader_failed(&reader) || frame->changed == 0 || frame->changed > most ||
            (fresh && !fresh_coding(frame)) || (recent && !recallable(frame->bucket.dtype))) {
            status = weft_fail(context, WEFT_MALFORMED, "a bucket's frame contradicts itself");
        }
    }
    if (status != WEFT_OK) {
        weft_bucket_close(&frame->bucket, context);
    }
    return status;
}

static bool frame_packed(const weft_frame *frame) {
    return frame->coding >= WEFT_CODING_PACKED_STEPS && frame->coding <= WEFT_CODING_RICE;
}

bool weft_frame_dense(const weft_frame *frame) {
    return frame->coding >= WEFT_CODING_DIFFERENCE && frame->coding != WEFT_CODING_SMALLEST &&
           !(frame_packed(frame) && weft_bucket_few(&frame->bucket, frame->changed));
}

bool weft_frame_passes(const weft_frame *frame) {
    return !weft_frame_dense(frame) || frame_packed(frame);
}

/* Decodes a few changes at a time, which asks for their memory, and proves those of the chunk before, whose
 * memory is there by now. A proof that writes needs no changes once they are proven: its chunks take turns
 * in two places. */
enum { CHUNKS = 2, LAG = 1 };

/* The decoder asks for memory as it goes, as if it had no gaps; where it has, this does. */
static void ask_for_rows(const weft_run *run, const weft_changes *changes, size_t first) {
    for (size_t i = first; i < changes->count && run->memory_gap != 0; i++) {
        uint64_t offset = weft_run_offset(run, changes->positions[i] - run->linear);
        __builtin_prefetch((const void *)((uintptr_t)run->memory + offset * changes->width));
    }
}

static weft_status decode_fast(weft_bucket_coder *coder, const weft_frame *frame, weft_changes *changes,
                               weft_proof *proof) {
    weft_fast_decoder decoder;
    size_t count = (size_t)frame->changed;
    bool by_callback = weft_proof_by_callback(proof);
    size_t chunk = by_callback ? count : WEFT_PROOF_CHUNK;
    size_t chunks = (count + chunk - 1) / chunk;
    size_t places = proof->write ? CHUNKS : chunks;
    weft_status status = weft_fast_decoder_begin(&decoder, coder->context, frame->payload,
                                                 frame->payload_size, frame->bucket.units);
    if (status == WEFT_OK && proof->write && changes->width == 2) {
        bool good = weft_proof_fast_through(proof, &decoder, count);
        return good ? weft_fast_decoder_finish(&decoder) : weft_fast_decoder_broken(&decoder);
    }
    for (size_t i = 0; i < chunks + LAG && status == WEFT_OK; i++) {
        if (i < chunks) {
            const weft_run *run = &coder->from.runs[proof->run];
            decoder.weights = (uintptr_t)run->memory - run->linear * changes->width;
            changes->count = i % places * chunk;
            size_t left = count - i * chunk;
            status = weft_fast_decoder_some(&decoder, changes, left < chunk ? left : chunk);
            if (status == WEFT_OK && !by_callback) {
                ask_for_rows(run, changes, i % places * chunk);
            }
        }
        if (status == WEFT_OK && i >= LAG && i - LAG < chunks) {
            size_t first = (i - LAG) % places * chunk;
            size_t left = count - (i - LAG) * chunk;
            status = weft_proof_add(proof, changes, first, first + (left < chunk ? left : chunk));
        }
    }
    return status == WEFT_OK ? weft_fast_decoder_finish(&decoder) : status;
}

/* A fast change takes at least three bits; a count beyond that is no reason to take memory. */
static weft_status check_count(weft_context *context, const weft_frame *frame) {
    if (frame->coding == WEFT_CODING_FAST && frame->changed / 4 > frame->payload_size) {
        return weft_fail(context, WEFT_MALFORMED, "a bucket claims more changes than it can hold");
    }
    return WEFT_OK;
}

/* Changes come in two lists, which share words: they are proven when both are in one. */
static weft_status decode_smallest(weft_bucket_coder *coder, const weft_frame *frame, weft_changes *changes,
                                   bool write, weft_sums *moves, weft_sum *delta_out) {
    weft_context *context = coder->context;
    if (coder->recall == NULL) {
        return weft_fail(
            context, WEFT_UNSUPPORTED,
            "the patch is of the profile `smallest`: only who has followed the versions before "
            "it can read it; pull the version from its store");
    }
    weft_status status =
        weft_recent_list(&coder->recent, coder->recall, frame->place, frame->bucket.units, coder->depth);
    if (status == WEFT_OK) {
        status = weft_changes_reset(changes, 2, (size_t)frame->changed);
    }
    if (status == WEFT_OK) {
        status = weft_smallest_decode(&coder->small_decoder, coder->kernels->tiles,
                                      weft_exponent_of(frame->bucket.dtype), &coder->recent, frame->payload,
                                      frame->payload_size, frame->bucket.units, (size_t)frame->changed,
                                      &coder->from, changes);
    }
    if (status == WEFT_OK) {
        status = weft_changes_sort(changes);
    }
    for (size_t i = 1; i < changes->count && status == WEFT_OK; i++) {
        if (changes->positions[i] == changes->positions[i - 1]) {
            status = weft_fail(context, WEFT_MALFORMED, "a bucket names a weight twice");
        }
    }
    return status == WEFT_OK
               ? weft_window_prove(&coder->from, changes, WEFT_PROOF_STEPS, write, moves, delta_out)
               : status;
}

static weft_status decode_and_prove(weft_bucket_coder *coder, const weft_frame *frame,
                                    weft_changes *changes, bool write, weft_sums *moves,
                                    weft_sum *delta_out) {
    size_t room = write && frame->changed > WEFT_TILE ? WEFT_TILE : (size_t)frame->changed;
    weft_status status = check_count(coder->context, frame);
    if (status == WEFT_OK && frame->coding == WEFT_CODING_SMALLEST) {
        return decode_smallest(coder, frame, changes, write, moves, delta_out);
    }
    if (status == WEFT_OK) {
        status = weft_changes_reset(changes, frame->bucket.width, room);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_proof proof;
    bool fast = frame->coding == WEFT_CODING_FAST;
    weft_proof_begin(&proof, &coder->from, WEFT_PROOF_STEPS, write, moves);
    if (fast) {
        status = decode_fast(coder, frame, changes, &proof);
    } else {
        status =
            weft_small_decode(&coder->small_decoder, coder->kernels->tiles,
                              weft_exponent_of(frame->bucket.dtype), frame->payload, frame->payload_size,
                              frame->bucket.units, (size_t)frame->changed, changes, &proof);
    }
    if (status == WEFT_OK) {
        *delta_out = weft_proof_finish(&proof);
    }
    return status;
}

weft_status weft_frame_decode(weft_bucket_coder *coder, const weft_frame *frame, weft_changes *changes,
                              weft_sums *moves, weft_sum *delta_out) {
    if (frame_packed(frame)) {
        return weft_bucket_unpack_changes(coder, frame, changes, moves, delta_out);
    }
    return decode_and_prove(coder, frame, changes, false, moves, delta_out);
}

weft_status weft_frame_decode_through(weft_bucket_coder *coder, const weft_frame *frame, bool fresh,
                                      weft_sums *moves, weft_sum *delta_out) {
    if (frame_packed(frame)) {
        return weft_bucket_unpack_through(coder, &frame->bucket, frame->coding, frame->payload,
                                          frame->payload_size, fresh, moves, delta_out);
    }
    return decode_and_prove(coder, frame, &coder->changes, true, moves, delta_out);
}

bool weft_frame_by_words(const weft_frame *frame) {
    return frame->coding == WEFT_CODING_FAST ||
           (frame->coding == WEFT_CODING_SMALL &&
            weft_small_single(weft_exponent_of(frame->bucket.dtype), frame->payload, frame->payload_size,
                              (size_t)frame->changed));
}

weft_status weft_frame_decode_steps(weft_bucket_coder *coder, const weft_frame *frame,
                                    weft_changes *changes) {
    weft_fast_decoder decoder;
    weft_status status = check_count(coder->context, frame);
    if (status == WEFT_OK) {
        status = weft_changes_reset(changes, frame->bucket.width, (size_t)frame->changed);
    }
    if (status == WEFT_OK && frame->coding == WEFT_CODING_SMALL) {
        return weft_small_decode_steps(&coder->small_decoder, weft_exponent_of(frame->bucket.dtype),
                                       frame->payload, frame->payload_size, frame->bucket.units,
                                       (size_t)frame->changed, changes);
    }
    if (status == WEFT_OK) {
        status = weft_fast_decoder_begin(&decoder, coder->context, frame->payload, frame->payload_size,
                                         frame->bucket.units);
    }
    if (status == WEFT_OK) {
        status = weft_fast_decoder_some(&decoder, changes, (size_t)frame->changed);
    }
    return status == WEFT_OK ? weft_fast_decoder_finish(&decoder) : status;
}

weft_status weft_frame_decode_dense(weft_bucket_coder *coder, const weft_frame *frame, const void *base,
                                    void *output) {
    if (frame_packed(frame)) {
        return weft_bucket_unpack(coder, &frame->bucket, frame->coding, frame->payload, frame->payload_size,
                                  base, output);
    }
    return weft_dense_decode(coder->context, frame->payload, frame->payload_size,
                             frame->coding == WEFT_CODING_DIFFERENCE ? base : NULL,
                             (size_t)frame->bucket.units, frame->bucket.width, output);
}
