/* SPDX-License-Identifier: Apache-2.0
 *
 * bucket_packed.c: packed buckets, tile by tile: coded from the weights of both sides, or decoded next to
 * those of one, and proven on the way, while a tile is in the cache.
 */
#include "bucket.h"

enum {
    PACKED_LEAST = 4096, /* units of a bucket whose tables are worth their bytes */
    ONE_SAMPLE = 4096,   /* units that say enough of one class */
};

weft_packed_kind weft_packed_kind_of(weft_dtype dtype) {
    weft_packed_kind kind = {weft_dtype_width(dtype), 0, weft_exponent_of(dtype)};
    switch (dtype) {
    case WEFT_DTYPE_F8_E5M2:
    case WEFT_DTYPE_F8_E5M2FNUZ:
        kind.low = 3;
        break;
    case WEFT_DTYPE_F8_E4M3:
    case WEFT_DTYPE_F8_E4M3FNUZ:
        kind.low = 4;
        break;
    case WEFT_DTYPE_BF16:
        kind.low = 8;
        break;
    case WEFT_DTYPE_F16:
        kind.low = 11;
        break;
    case WEFT_DTYPE_F32:
        kind.low = 24;
        break;
    case WEFT_DTYPE_F64:
        kind.low = 53;
        break;
    default:
        break;
    }
    return kind;
}

bool weft_bucket_packs(const weft_bucket *bucket) {
    return bucket->format != 1 && bucket->units >= PACKED_LEAST &&
           weft_packed_kind_of(bucket->dtype).low != 0;
}

/* What units of a run do to the digest: those in `new`, which come from those in `old`; NULL: from nothing.
 */
static void prove_units(const weft_digest_kernels *kernels, const weft_run *run, uint64_t first,
                        size_t units, unsigned width, const uint8_t *old, const uint8_t *new,
                        weft_sums *moves, weft_sum *delta) {
    for (size_t done = 0; done < units;) {
        uint64_t byte = weft_run_unit(run, first + done) * width;
        uint64_t left = weft_run_left(run, first + done),
                 room = (WEFT_GRAIN_BYTES - byte % WEFT_GRAIN_BYTES) / width;
        left = left < room ? left : room;
        size_t some = left < units - done ? (size_t)left : units - done;
        weft_sum moved = kernels->sum(new + done *width, some * width, byte / WEFT_WORD);
        if (old != NULL) {
            weft_sum_subtract(&moved, kernels->sum(old + done * width, some * width, byte / WEFT_WORD));
        }
        weft_sum_add(delta, moved);
        if (moves != NULL) {
            weft_sums_move(moves, run->tensor, byte, moved);
        }
        done += some;
    }
}

/* Units of a run, end to end: where they lie, or copied to `scratch`. */
static const uint8_t *run_units(const weft_run *run, uint64_t first, size_t units, unsigned width,
                                uint8_t *scratch) {
    if (run->memory_gap == 0) {
        return run->memory + first * width;
    }
    for (size_t done = 0; done < units;) {
        uint64_t left = weft_run_joined(run, first + done);
        size_t some = left < units - done ? (size_t)left : units - done;
        memcpy(scratch + done * width, run->memory + weft_run_offset(run, first + done) * width,
               some * width);
        done += some;
    }
    return scratch;
}

static void write_units(const weft_run *run, uint64_t first, size_t units, unsigned width,
                        const uint8_t *values) {
    uint8_t *memory = (uint8_t *)(uintptr_t)run->memory;
    for (size_t done = 0; done < units;) {
        uint64_t left = weft_run_joined(run, first + done);
        size_t some = left < units - done ? (size_t)left : units - done;
        memcpy(memory + weft_run_offset(run, first + done) * width, values + done * width, some * width);
        done += some;
    }
}

static size_t tile_units(const weft_run *run, uint64_t done) {
    return run->units - done < WEFT_TILE ? (size_t)(run->units - done) : WEFT_TILE;
}

/* ---- encoding ---- */

/* The new units of the bucket, end to end: where they lie, or a copy, which the caller releases. */
static weft_status new_units(weft_bucket_coder *coder, const weft_bucket *bucket, const uint8_t **units_out,
                             uint8_t **copy_out) {
    const weft_window *window = &coder->to;
    const weft_run *run = &window->runs[0];
    *copy_out = NULL;
    if (window->run_count == 1 && run->memory != NULL && run->memory_gap == 0) {
        *units_out = run->memory;
        return WEFT_OK;
    }
    *copy_out = weft_allocate(coder->context, (size_t)bucket->units * bucket->width);
    *units_out = *copy_out;
    if (*copy_out == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_window_copy_runs(window, bucket->width, *copy_out);
    return WEFT_OK;
}

/* Goes over the bucket's tiles; `values` are all new units. */
typedef enum pack_task {
    PACK_ALL,    /* code and prove */
    PACK_AGAIN,  /* code: all is proven */
    PACK_UNDONE, /* take back what proving did to the sums */
} pack_task;

static weft_status pack_tiles(weft_bucket_coder *coder, const weft_bucket *bucket, weft_coding coding,
                              const uint8_t *values, pack_task task, weft_sums *moves, weft_sum *delta) {
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_level());
    unsigned width = bucket->width;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < coder->from.run_count; i++) {
        const weft_run *run = &coder->from.runs[i];
        for (uint64_t done = 0; done < run->units && status == WEFT_OK; done += WEFT_TILE) {
            size_t units = tile_units(run, done);
            const uint8_t *old = run_units(run, done, units, width, coder->tile_olds);
            const uint8_t *new = values + (run->linear + done) * width;
            if (task == PACK_UNDONE) {
                prove_units(kernels, run, done, units, width, new, old, moves, delta);
                continue;
            }
            status = coding == WEFT_CODING_RICE
                         ? weft_rice_encoder_tile(&coder->rice_encoder, old, new, units, &coder->payload)
                         : weft_packed_encoder_tile(&coder->packed_encoder, old, new, units);
            if (task == PACK_ALL) {
                prove_units(kernels, run, done, units, width, old, new, moves, delta);
            }
        }
    }
    return status;
}

/* Chooses how to code the bucket, from a sample of it. */
static weft_status begin_pack(weft_bucket_coder *coder, const weft_bucket *bucket, weft_profile profile,
                              weft_coding *coding) {
    weft_packed_encoder *encoder = &coder->packed_encoder;
    const weft_packed_kernels *kernels = &coder->kernels->packed;
    weft_packed_kind kind = weft_packed_kind_of(bucket->dtype);
    weft_class_sample exponents;
    weft_rice_form form;
    bool small = profile != WEFT_PROFILE_FAST, classes = small && kind.exponent.present;
    weft_status status = classes ? weft_scan_sample(coder, bucket, &exponents) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    const weft_packed_sample sample = {
        coder->tile_olds, coder->tile_news,
        weft_scan_pick(coder, &coder->from, &coder->to, bucket, classes ? WEFT_PACK_SAMPLE : ONE_SAMPLE)};
    bool by_value = weft_packed_prefers_values(encoder, kernels, kind, &sample, small ? NULL : &form);
    *coding = by_value ? WEFT_CODING_PACKED_VALUES : small ? WEFT_CODING_PACKED_STEPS : WEFT_CODING_RICE;
    if (*coding == WEFT_CODING_RICE) {
        coder->payload.size = 0;
        weft_rice_encoder_begin(&coder->rice_encoder, kernels->packs, kernels->rice, form, kind.width,
                                &coder->payload);
        return WEFT_OK;
    }
    return weft_packed_encoder_begin(encoder, kernels, kind, by_value,
                                     classes && !by_value ? &exponents : NULL, &sample, bucket->units);
}

/* After the last tile. */
static weft_status end_pack(weft_bucket_coder *coder, const weft_bucket *bucket, weft_coding coding,
                            const uint8_t *values) {
    bool again;
    if (coding == WEFT_CODING_RICE) {
        return weft_rice_encoder_end(&coder->rice_encoder, &coder->payload);
    }
    weft_status status = weft_packed_encoder_end(&coder->packed_encoder, &again);
    if (status == WEFT_OK && again) {
        status = pack_tiles(coder, bucket, coding, values, PACK_AGAIN, NULL, NULL);
        status = status == WEFT_OK ? weft_packed_encoder_end(&coder->packed_encoder, &again) : status;
    }
    return status;
}

weft_status weft_bucket_pack(weft_bucket_coder *coder, const weft_bucket *bucket, weft_profile profile,
                             uint64_t least, weft_sums *moves, weft_coding *coding, uint64_t *changed,
                             weft_sum *delta) {
    const uint8_t *values;
    uint8_t *copy;
    *delta = (weft_sum){{0, 0}};
    weft_status status = begin_pack(coder, bucket, profile, coding);
    if (status == WEFT_OK) {
        status = new_units(coder, bucket, &values, &copy);
    }
    if (status != WEFT_OK) {
        return status;
    }
    status = pack_tiles(coder, bucket, *coding, values, PACK_ALL, moves, delta);
    *changed = *coding == WEFT_CODING_RICE ? coder->rice_encoder.changed : coder->packed_encoder.changed;
    if (status == WEFT_OK && *changed < least) {
        status = pack_tiles(coder, bucket, *coding, values, PACK_UNDONE, moves, delta);
    } else if (status == WEFT_OK) {
        status = end_pack(coder, bucket, *coding, values);
    }
    weft_release(coder->context, copy);
    return status;
}

/* The tiles of new tensors; proven, unless that is done. */
static weft_status pack_whole_tiles(weft_bucket_coder *coder, const weft_bucket *bucket, bool prove,
                                    weft_sums *sums, weft_sum *delta) {
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_level());
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < coder->to.run_count; i++) {
        const weft_run *run = &coder->to.runs[i];
        for (uint64_t done = 0; done < run->units && status == WEFT_OK; done += WEFT_TILE) {
            size_t units = tile_units(run, done);
            const uint8_t *new = run_units(run, done, units, bucket->width, coder->tile_news);
            status = weft_packed_encoder_tile(&coder->packed_encoder, NULL, new, units);
            if (prove) {
                prove_units(kernels, run, done, units, bucket->width, NULL, new, sums, delta);
            }
        }
    }
    return status;
}

weft_status weft_bucket_pack_whole(weft_bucket_coder *coder, const weft_bucket *bucket, weft_sums *sums,
                                   weft_sum *delta) {
    weft_packed_encoder *encoder = &coder->packed_encoder;
    bool again = false;
    *delta = (weft_sum){{0, 0}};
    /* both sides of the sample are the new one */
    const weft_packed_sample sample = {NULL, coder->tile_news,
                                       weft_scan_pick(coder, &coder->to, &coder->to, bucket, ONE_SAMPLE)};
    weft_status status =
        weft_packed_encoder_begin(encoder, &coder->kernels->packed, weft_packed_kind_of(bucket->dtype),
                                  true, NULL, &sample, bucket->units);
    if (status == WEFT_OK) {
        status = pack_whole_tiles(coder, bucket, true, sums, delta);
    }
    if (status == WEFT_OK) {
        status = weft_packed_encoder_end(encoder, &again);
    }
    if (status == WEFT_OK && again) {
        status = pack_whole_tiles(coder, bucket, false, NULL, NULL);
        status = status == WEFT_OK ? weft_packed_encoder_end(encoder, &again) : status;
    }
    return status;
}

/* ---- decoding ---- */

static weft_status begin_unpack(weft_bucket_coder *coder, const weft_bucket *bucket, weft_coding coding,
                                const uint8_t *payload, size_t size) {
    const weft_packed_kernels *kernels = &coder->kernels->packed;
    return coding == WEFT_CODING_RICE
               ? weft_rice_decoder_begin(&coder->rice_decoder, coder->context, kernels->packs,
                                         kernels->rice, bucket->width, payload, size, (size_t)bucket->units)
               : weft_packed_decoder_begin(
                     &coder->packed_decoder, kernels, weft_packed_kind_of(bucket->dtype),
                     coding == WEFT_CODING_PACKED_VALUES, payload, size, (size_t)bucket->units);
}

static weft_status unpack_tile(weft_bucket_coder *coder, weft_coding coding, const void *old, size_t units,
                               void *new) {
    return coding == WEFT_CODING_RICE ? weft_rice_decoder_next(&coder->rice_decoder, old, units, new)
                                      : weft_packed_decoder_next(&coder->packed_decoder, old, units, new);
}

weft_status weft_bucket_unpack(weft_bucket_coder *coder, const weft_bucket *bucket, weft_coding coding,
                               const uint8_t *payload, size_t size, const void *base, void *output) {
    size_t units = (size_t)bucket->units;
    unsigned width = bucket->width;
    weft_status status = begin_unpack(coder, bucket, coding, payload, size);
    for (size_t done = 0; done < units && status == WEFT_OK; done += WEFT_TILE) {
        size_t some = units - done < WEFT_TILE ? units - done : WEFT_TILE;
        const uint8_t *old = base != NULL ? (const uint8_t *)base + done * width : NULL;
        status = unpack_tile(coder, coding, old, some, (uint8_t *)output + done * width);
    }
    return status;
}

weft_status weft_bucket_unpack_through(weft_bucket_coder *coder, const weft_bucket *bucket,
                                       weft_coding coding, const uint8_t *payload, size_t size, bool fresh,
                                       weft_sums *moves, weft_sum *delta_out) {
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_level());
    unsigned width = bucket->width;
    weft_status status = begin_unpack(coder, bucket, coding, payload, size);
    *delta_out = (weft_sum){{0, 0}};
    for (size_t i = 0; i < coder->from.run_count; i++) {
        const weft_run *run = &coder->from.runs[i];
        for (uint64_t done = 0; done < run->units && status == WEFT_OK; done += WEFT_TILE) {
            size_t units = tile_units(run, done);
            const uint8_t *old = fresh ? NULL : run_units(run, done, units, width, coder->tile_olds);
            status = unpack_tile(coder, coding, old, units, coder->tile_news);
            if (status == WEFT_OK) {
                prove_units(kernels, run, done, units, width, old, coder->tile_news, moves, delta_out);
                write_units(run, done, units, width, coder->tile_news);
            }
        }
    }
    return status;
}

/* Appends the changes of a tile that starts at `linear`. */
static weft_status list_changes(weft_bucket_coder *coder, const uint8_t *old, size_t units, uint32_t linear,
                                weft_changes *changes) {
    unsigned width = changes->width;
    uint32_t *positions = coder->tile_positions;
    size_t found = coder->kernels->diff(old, coder->tile_news, units, width, 0, positions);
    weft_status status = weft_changes_grow(changes, found);
    if (status != WEFT_OK) {
        return status;
    }
    for (size_t i = 0; i < found; i++) {
        size_t place = changes->count + i;
        changes->positions[place] = linear + positions[i];
        weft_unit_store(changes->olds, place, width, weft_unit_load(old, positions[i], width));
        weft_unit_store(changes->news, place, width, weft_unit_load(coder->tile_news, positions[i], width));
    }
    changes->count += found;
    return WEFT_OK;
}

weft_status weft_bucket_unpack_changes(weft_bucket_coder *coder, const weft_frame *frame,
                                       weft_changes *changes, weft_sums *moves, weft_sum *delta_out) {
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_level());
    const weft_bucket *bucket = &frame->bucket;
    unsigned width = bucket->width;
    weft_status status = begin_unpack(coder, bucket, frame->coding, frame->payload, frame->payload_size);
    if (status == WEFT_OK) {
        status = weft_changes_reset(changes, width, (size_t)frame->changed);
    }
    *delta_out = (weft_sum){{0, 0}};
    for (size_t i = 0; i < coder->from.run_count; i++) {
        const weft_run *run = &coder->from.runs[i];
        for (uint64_t done = 0; done < run->units && status == WEFT_OK; done += WEFT_TILE) {
            size_t units = tile_units(run, done);
            const uint8_t *old = run_units(run, done, units, width, coder->tile_olds);
            status = unpack_tile(coder, frame->coding, old, units, coder->tile_news);
            if (status == WEFT_OK) {
                prove_units(kernels, run, done, units, width, old, coder->tile_news, moves, delta_out);
                status = list_changes(coder, old, units, (uint32_t)(run->linear + done), changes);
            }
        }
    }
    return status;
}
