/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.c: all parts of a version on all threads, each against its tensor of the base, chunk by chunk, so
 * that a whole tensor is never anywhere but in the base.
 */
#include "payload.h"

#include "../base/context.h"
#include "../base/pool.h"
#include "../tensor/table.h"

#include <string.h>
#include <zstd.h>

/* Decoded, combined and summed while it is in the cache; whole units of every width. */
enum { CHUNK = 256 * 1024 };

/* ---- one worker ---- */

typedef struct plan_worker {
    weft_base_reader base;
    weft_checksum *checksum;
    ZSTD_DCtx *zstd;
    uint8_t *decoded; /* a chunk */
    uint8_t *news;    /* the same of the new state */
} plan_worker;

typedef struct plan_pass {
    weft_foreign_plan *plan;
    const weft_view *view;
    plan_worker *workers;
} plan_pass;

static weft_status worker_open(plan_worker *worker, const plan_pass *pass) {
    weft_context *context = pass->plan->context;
    if (worker->zstd != NULL) {
        return WEFT_OK;
    }
    weft_base_reader_open(&worker->base, context, pass->view);
    worker->decoded = weft_allocate(context, CHUNK);
    worker->news = weft_allocate(context, CHUNK);
    if (worker->decoded == NULL || worker->news == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_checksum_open(context, pass->plan->checksum, &worker->checksum);
    if (status != WEFT_OK) {
        return status;
    }
    worker->zstd = ZSTD_createDCtx();
    return worker->zstd != NULL ? WEFT_OK : weft_fail(context, WEFT_NO_MEMORY, "no memory for zstd");
}

static void worker_close(plan_worker *worker, weft_context *context) {
    weft_base_reader_close(&worker->base);
    weft_checksum_close(worker->checksum);
    ZSTD_freeDCtx(worker->zstd);
    weft_release(context, worker->decoded);
    weft_release(context, worker->news);
}

static weft_status part_fail(const plan_pass *pass, const weft_foreign_part *part, weft_status status,
                             const char *why) {
    return weft_fail(pass->plan->context, status, "the delta of tensor \"%.*s\" %s", WEFT_NAME_SHOWN,
                     part->name, why);
}

/* Fills `output` from the frame. What ends early, or is no frame, is refused. */
static weft_status inflate(const plan_pass *pass, const weft_foreign_part *part, plan_worker *worker,
                           ZSTD_inBuffer *input, void *output, size_t size, bool *ended) {
    ZSTD_outBuffer chunk = {output, size, 0};
    while (chunk.pos < size) {
        size_t before = chunk.pos, taken = input->pos;
        if (*ended) {
            return part_fail(pass, part, WEFT_MALFORMED, "is shorter than the tensor");
        }
        size_t left = ZSTD_decompressStream(worker->zstd, &chunk, input);
        if (ZSTD_isError(left)) {
            return part_fail(pass, part, WEFT_MALFORMED, "is no frame of zstd");
        }
        *ended = left == 0;
        if (!*ended && chunk.pos == before && input->pos == taken) {
            return part_fail(pass, part, WEFT_TRUNCATED, "is cut short");
        }
    }
    return WEFT_OK;
}

/* Nothing may follow what was expected, within the frame or behind it. */
static weft_status inflate_end(const plan_pass *pass, const weft_foreign_part *part, plan_worker *worker,
                               ZSTD_inBuffer *input, bool ended) {
    uint8_t more;
    ZSTD_outBuffer rest = {&more, 1, 0};
    while (!ended) {
        size_t taken = input->pos;
        size_t left = ZSTD_decompressStream(worker->zstd, &rest, input);
        if (ZSTD_isError(left)) {
            return part_fail(pass, part, WEFT_MALFORMED, "is no frame of zstd");
        }
        if (rest.pos > 0) {
            return part_fail(pass, part, WEFT_MALFORMED, "is longer than the tensor");
        }
        if (left > 0 && input->pos == taken) {
            return part_fail(pass, part, WEFT_TRUNCATED, "is cut short");
        }
        ended = left == 0;
    }
    return input->pos == input->size ? WEFT_OK
                                     : part_fail(pass, part, WEFT_MALFORMED, "has bytes behind its frame");
}

static weft_status check_sum(const plan_pass *pass, const weft_foreign_part *part, plan_worker *worker) {
    char text[WEFT_CHECKSUM_TEXT];
    weft_status status = weft_checksum_end(worker->checksum, pass->plan->spelling, text);
    if (status == WEFT_OK && strcmp(text, part->expected) != 0) {
        return weft_fail(
            pass->plan->context, WEFT_CHECKSUM_MISMATCH,
            "tensor \"%.*s\" would have the %s %s, and %.64s was promised: the delta is damaged, "
            "or the base is not the version that it was made from",
            WEFT_NAME_SHOWN, part->name, weft_checksum_name(pass->plan->checksum), text, part->expected);
    }
    return status;
}

/* ---- differences ---- */

/* Bytes whose units are listed at a time: room is made once for all of them. */
enum { STRETCH = 4096, BLOCK = 64, WORDS = BLOCK / 8 };

/* Appends the units of a word that are not zero, and what the new state holds there. `unit` is the word's
 * first. */
static inline void list_word(weft_change_list *list, uint64_t word, const uint8_t *news, uint64_t unit,
                             unsigned width) {
    uint64_t lane = width == 8 ? UINT64_MAX : (UINT64_C(1) << (8 * width % 64)) - 1;
    while (word != 0) {
        unsigned place = (unsigned)__builtin_ctzll(word) / (8 * width);
        list->units[list->count] = unit + place;
        memcpy(list->values + list->count * width, news + place * width, width);
        list->count++;
        word &= ~(lane << (8 * width * place));
    }
}

/* Combines a block of 64 bytes and lists what is not zero. Most words are: which are not is found without a
 * branch for each. */
static inline void list_block(weft_change_list *list, const uint8_t *decoded, const uint8_t *olds,
                              uint8_t *news, uint64_t unit, unsigned width) {
    uint64_t words[WORDS], old[WORDS];
    unsigned found = 0;
    memcpy(words, decoded, BLOCK);
    memcpy(old, olds, BLOCK);
    for (unsigned i = 0; i < WORDS; i++) {
        old[i] ^= words[i];
        found |= (unsigned)(words[i] != 0) << i;
    }
    memcpy(news, old, BLOCK);
    while (found != 0) {
        unsigned i = (unsigned)__builtin_ctz(found);
        list_word(list, words[i], news + 8 * i, unit + 8 * i / width, width);
        found &= found - 1;
    }
}

/* What is left behind the last block. */
static void list_rest(weft_change_list *list, const uint8_t *decoded, const uint8_t *olds, uint8_t *news,
                      uint64_t unit, size_t size) {
    for (size_t offset = 0; offset < size; offset += list->width) {
        bool changed = false;
        for (unsigned i = 0; i < list->width; i++) {
            news[offset + i] = decoded[offset + i] ^ olds[offset + i];
            changed = changed || decoded[offset + i] != 0;
        }
        if (changed) {
            list->units[list->count] = unit + offset / list->width;
            memcpy(list->values + list->count * list->width, news + offset, list->width);
            list->count++;
        }
    }
}

/* With room for all of it in the list; `width` is a constant where this is called. */
static inline void list_stretch(weft_change_list *list, const uint8_t *decoded, const uint8_t *olds,
                                uint8_t *news, uint64_t unit, size_t size, unsigned width) {
    size_t offset = 0;
    for (; offset + BLOCK <= size; offset += BLOCK) {
        list_block(list, decoded + offset, olds + offset, news + offset, unit + offset / width, width);
    }
    list_rest(list, decoded + offset, olds + offset, news + offset, unit + offset / width, size - offset);
}

/* news = olds ^ decoded, and what differs goes into the list. */
static weft_status list_chunk(weft_foreign_step *step, weft_change_list *list, const uint8_t *decoded,
                              const uint8_t *olds, uint8_t *news, uint64_t unit, size_t size) {
    for (size_t offset = 0; offset < size; offset += STRETCH) {
        size_t left = size - offset < STRETCH ? size - offset : STRETCH;
        uint64_t first = unit + offset / list->width;
        weft_status status = weft_list_reserve(step, list, left / list->width);
        if (status != WEFT_OK) {
            return status;
        }
        switch (list->width) {
        case 1:
            list_stretch(list, decoded + offset, olds + offset, news + offset, first, left, 1);
            break;
        case 2:
            list_stretch(list, decoded + offset, olds + offset, news + offset, first, left, 2);
            break;
        case 4:
            list_stretch(list, decoded + offset, olds + offset, news + offset, first, left, 4);
            break;
        default:
            list_stretch(list, decoded + offset, olds + offset, news + offset, first, left, 8);
            break;
        }
    }
    return WEFT_OK;
}

static weft_status decode_xor(const plan_pass *pass, const weft_foreign_part *part, plan_worker *worker,
                              weft_change_list *list) {
    uint64_t bytes = weft_view_at(pass->view, part->tensor)->bytes;
    ZSTD_inBuffer input = {part->data, part->size, 0};
    bool ended = false;
    weft_status status = WEFT_OK;
    for (uint64_t offset = 0; offset < bytes && status == WEFT_OK; offset += CHUNK) {
        size_t size = bytes - offset < CHUNK ? (size_t)(bytes - offset) : CHUNK;
        const uint8_t *olds = NULL;
        status = inflate(pass, part, worker, &input, worker->decoded, size, &ended);
        status =
            status == WEFT_OK ? weft_base_read(&worker->base, part->tensor, offset, size, &olds) : status;
        if (status != WEFT_OK) {
            return status;
        }
        status = list_chunk(pass->plan->step, list, worker->decoded, olds, worker->news,
                            offset / list->width, size);
        if (status == WEFT_OK && part->expected != NULL) {
            status = weft_checksum_add(worker->checksum, worker->news, size);
        }
        status = status == WEFT_OK ? weft_progress_add(pass->plan->context, size) : status;
    }
    if (status == WEFT_OK && (bytes > 0 || part->size > 0)) {
        status = inflate_end(pass, part, worker, &input, ended);
    }
    return status;
}

/* ---- positions and bytes ---- */

/* Bytes `positions` of the tensor, ascending, become units. `next` is the first that is not done. */
static weft_status overwrite_chunk(const plan_pass *pass, weft_change_list *list, const uint8_t *olds,
                                   uint64_t offset, size_t size, const uint8_t *positions,
                                   const uint8_t *bytes, uint64_t count, uint64_t *next) {
    while (*next < count) {
        uint32_t position;
        memcpy(&position, positions + 4 * *next, 4);
        if (position >= offset + size) {
            break;
        }
        uint64_t unit = position / list->width;
        weft_status status = weft_list_reserve(pass->plan->step, list, 1);
        if (status != WEFT_OK) {
            return status;
        }
        uint8_t *value = list->values + list->count * list->width;
        memcpy(value, olds + (unit * list->width - offset), list->width);
        while (*next < count) {
            memcpy(&position, positions + 4 * *next, 4);
            if (position / list->width != unit) {
                break;
            }
            value[position % list->width] = bytes[(*next)++];
        }
        list->units[list->count++] = unit;
    }
    return WEFT_OK;
}

/* The new state of a chunk, for the checksum: the base with the changes from `first` on. */
static void renew(const weft_change_list *list, const uint8_t *olds, uint64_t offset, size_t size,
                  uint64_t first, uint8_t *news) {
    memcpy(news, olds, size);
    for (uint64_t i = first; i < list->count; i++) {
        memcpy(news + (list->units[i] * list->width - offset), list->values + i * list->width, list->width);
    }
}

/* The payload, which is no longer than the number of bytes allows; to be released. */
static weft_status inflate_positions(const plan_pass *pass, const weft_foreign_part *part,
                                     plan_worker *worker, uint64_t bytes, uint8_t **payload_out,
                                     uint64_t *count_out) {
    ZSTD_inBuffer input = {part->data, part->size, 0};
    bool ended = false;
    uint8_t head[4];
    weft_status status = inflate(pass, part, worker, &input, head, sizeof head, &ended);
    if (status != WEFT_OK) {
        return status;
    }
    uint32_t count;
    memcpy(&count, head, sizeof count);
    if (count > bytes) {
        return part_fail(pass, part, WEFT_MALFORMED, "changes more bytes than the tensor has");
    }
    uint64_t size = 5 * (uint64_t)count;
    if (size > weft_context_limits(pass->plan->context)->stage_bytes) {
        return part_fail(pass, part, WEFT_LIMIT_EXCEEDED, "takes more memory than limits.stage_bytes");
    }
    uint8_t *payload = weft_allocate(pass->plan->context, (size_t)size);
    if (payload == NULL) {
        return WEFT_NO_MEMORY;
    }
    status = size > 0 ? inflate(pass, part, worker, &input, payload, (size_t)size, &ended) : WEFT_OK;
    status = status == WEFT_OK ? inflate_end(pass, part, worker, &input, ended) : status;
    if (status != WEFT_OK) {
        weft_release(pass->plan->context, payload);
        return status;
    }
    *payload_out = payload;
    *count_out = count;
    return WEFT_OK;
}

/* A position above 4 GiB is written without its upper bits, and then follows one that is larger. */
static weft_status check_positions(const plan_pass *pass, const weft_foreign_part *part,
                                   const uint8_t *positions, uint64_t count, uint64_t bytes) {
    uint64_t least = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t position;
        memcpy(&position, positions + 4 * i, sizeof position);
        if (position >= bytes) {
            return part_fail(pass, part, WEFT_MALFORMED, "changes bytes behind the tensor's end");
        }
        if (position < least) {
            return part_fail(pass, part, WEFT_MALFORMED,
                             bytes > UINT32_MAX
                                 ? "has positions that do not ascend: they have 32 bits, and "
                                   "those of a tensor above 4 GiB wrap"
                                 : "has positions that do not ascend");
        }
        least = (uint64_t)position + 1;
    }
    return WEFT_OK;
}

static weft_status decode_overwrite(const plan_pass *pass, const weft_foreign_part *part,
                                    plan_worker *worker, weft_change_list *list) {
    uint64_t bytes = weft_view_at(pass->view, part->tensor)->bytes;
    uint8_t *payload = NULL;
    uint64_t count = 0, next = 0;
    weft_status status = inflate_positions(pass, part, worker, bytes, &payload, &count);
    if (status != WEFT_OK) {
        return status;
    }
    status = check_positions(pass, part, payload, count, bytes);
    for (uint64_t offset = 0; offset < bytes && status == WEFT_OK; offset += CHUNK) {
        size_t size = bytes - offset < CHUNK ? (size_t)(bytes - offset) : CHUNK;
        const uint8_t *olds = NULL;
        uint64_t first = list->count;
        status = weft_base_read(&worker->base, part->tensor, offset, size, &olds);
        if (status == WEFT_OK) {
            status =
                overwrite_chunk(pass, list, olds, offset, size, payload, payload + 4 * count, count, &next);
        }
        if (status == WEFT_OK && part->expected != NULL) {
            renew(list, olds, offset, size, first, worker->news);
            status = weft_checksum_add(worker->checksum, worker->news, size);
        }
        status = status == WEFT_OK ? weft_progress_add(pass->plan->context, size) : status;
    }
    weft_release(pass->plan->context, payload);
    return status;
}

/* ---- positions and units ---- */

/* The n-th position as it stands there; UINT64_MAX if it is below zero. */
static uint64_t position_at(const weft_foreign_part *part, uint64_t index) {
    const uint8_t *data = part->data + index * weft_dtype_width(part->positions);
    uint16_t narrow;
    uint32_t half;
    uint64_t whole;
    switch (part->positions) {
    case WEFT_DTYPE_U16:
        memcpy(&narrow, data, sizeof narrow);
        return narrow;
    case WEFT_DTYPE_U32:
        memcpy(&half, data, sizeof half);
        return half;
    case WEFT_DTYPE_I32:
        memcpy(&half, data, sizeof half);
        return half <= INT32_MAX ? half : UINT64_MAX;
    default:
        memcpy(&whole, data, sizeof whole);
        return whole <= INT64_MAX ? whole : UINT64_MAX;
    }
}

static weft_status decode_units(const plan_pass *pass, const weft_foreign_part *part,
                                weft_change_list *list) {
    uint64_t units = weft_tensor_units(weft_view_at(pass->view, part->tensor));
    uint64_t count = part->size / weft_dtype_width(part->positions);
    if (count * list->width != part->value_bytes || part->size % weft_dtype_width(part->positions) != 0) {
        return part_fail(pass, part, WEFT_MALFORMED, "has another number of positions than of values");
    }
    weft_status status = weft_list_reserve(pass->plan->step, list, count);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t least = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t position = position_at(part, i);
        position = part->gaps && position < units ? least + position : position;
        if (position < least || position >= units) {
            return part_fail(pass, part, WEFT_MALFORMED,
                             position >= units
                                 ? "has a position outside of the tensor; 32 bits do not reach "
                                   "what lies behind 2^31 of them"
                                 : "has positions that do not ascend");
        }
        list->units[i] = position;
        least = position + 1;
    }
    if (count > 0) {
        memcpy(list->values, part->values, part->value_bytes);
    }
    list->count = count;
    return WEFT_OK;
}

static weft_status decode_values(const plan_pass *pass, const weft_foreign_part *part, plan_worker *worker,
                                 weft_change_list *list) {
    uint64_t bytes = weft_view_at(pass->view, part->tensor)->bytes;
    if (part->size != bytes) {
        return part_fail(pass, part, WEFT_MALFORMED, "has another size than the tensor");
    }
    weft_status status = WEFT_OK;
    for (uint64_t offset = 0; offset < bytes && status == WEFT_OK; offset += CHUNK) {
        size_t size = bytes - offset < CHUNK ? (size_t)(bytes - offset) : CHUNK;
        const uint8_t *olds = NULL;
        status = weft_base_read(&worker->base, part->tensor, offset, size, &olds);
        for (size_t i = 0; i < size && status == WEFT_OK; i++) {
            worker->decoded[i] = olds[i] ^ part->data[offset + i];
        }
        status = status == WEFT_OK ? list_chunk(pass->plan->step, list, worker->decoded, olds, worker->news,
                                                offset / list->width, size)
                                   : status;
    }
    return status;
}

/* Sums the new state of a tensor whose list is complete. */
static weft_status sum_list(const plan_pass *pass, const weft_foreign_part *part, plan_worker *worker,
                            const weft_change_list *list) {
    uint64_t bytes = weft_view_at(pass->view, part->tensor)->bytes, first = 0;
    weft_status status = WEFT_OK;
    for (uint64_t offset = 0; offset < bytes && status == WEFT_OK; offset += CHUNK) {
        size_t size = bytes - offset < CHUNK ? (size_t)(bytes - offset) : CHUNK;
        const uint8_t *olds = NULL;
        status = weft_base_read(&worker->base, part->tensor, offset, size, &olds);
        if (status != WEFT_OK) {
            return status;
        }
        uint64_t end = first;
        while (end < list->count && list->units[end] * list->width < offset + size) {
            end++;
        }
        weft_change_list part_of = *list;
        part_of.count = end;
        renew(&part_of, olds, offset, size, first, worker->news);
        first = end;
        status = weft_checksum_add(worker->checksum, worker->news, size);
    }
    return status;
}

/* ---- all of them ---- */

static weft_status decode_any(const plan_pass *pass, const weft_foreign_part *part, plan_worker *worker,
                              weft_change_list *list) {
    weft_status status = WEFT_OK;
    switch (part->coding) {
    case WEFT_CODED_XOR:
        return decode_xor(pass, part, worker, list);
    case WEFT_CODED_OVERWRITE:
        return decode_overwrite(pass, part, worker, list);
    case WEFT_CODED_UNITS:
        status = decode_units(pass, part, list);
        break;
    case WEFT_CODED_VALUES:
        status = decode_values(pass, part, worker, list);
        break;
    case WEFT_CODED_OWN:
        status = part->decode(part, weft_view_at(pass->view, part->tensor), &worker->base, pass->plan->step,
                              list);
        break;
    }
    return status == WEFT_OK && part->expected != NULL ? sum_list(pass, part, worker, list) : status;
}

static weft_status decode_part(void *argument, size_t index, unsigned number) {
    const plan_pass *pass = argument;
    const weft_foreign_part *part = &pass->plan->parts[index];
    plan_worker *worker = &pass->workers[number];
    weft_change_list *list = &pass->plan->step->lists[index];
    const weft_tensor *tensor = weft_view_at(pass->view, part->tensor);
    weft_status status = worker_open(worker, pass);
    if (status != WEFT_OK) {
        return status;
    }
    (void)ZSTD_DCtx_reset(worker->zstd, ZSTD_reset_session_only);
    list->width = weft_dtype_width(tensor->dtype);
    list->name = weft_copy_text(pass->plan->context, tensor->name, strlen(tensor->name));
    status = list->name != NULL ? weft_checksum_begin(worker->checksum) : WEFT_NO_MEMORY;
    if (status != WEFT_OK) {
        return status;
    }
    status = decode_any(pass, part, worker, list);
    return status == WEFT_OK && part->expected != NULL ? check_sum(pass, part, worker) : status;
}

/* What the delta says of its tensor is what the base has. */
static weft_status check_alike(const weft_foreign_plan *plan, const weft_foreign_part *part,
                               const weft_tensor *tensor) {
    bool alike = part->dtype == NULL || strcmp(part->dtype, weft_dtype_name(tensor->dtype)) == 0;
    if (part->shape != NULL) {
        alike = alike && json_array_size(part->shape) == tensor->rank;
        for (uint32_t i = 0; alike && i < tensor->rank; i++) {
            uint64_t size = (uint64_t)json_integer_value(json_array_get(part->shape, i));
            alike = size == tensor->shape[i];
        }
    }
    return alike ? WEFT_OK
                 : weft_fail(plan->context, WEFT_BASE_MISMATCH,
                             "tensor \"%.*s\" has another dtype or shape in the delta than in the base",
                             WEFT_NAME_SHOWN, part->name);
}

/* Finds the tensor of each part, and refuses one that comes twice. */
static weft_status find_tensors(weft_foreign_plan *plan, const weft_view *base, uint64_t *bytes_out) {
    bool *seen = weft_allocate_zeroed(plan->context, weft_view_count(base) + 1, sizeof *seen);
    if (seen == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = WEFT_OK;
    *bytes_out = 0;
    for (size_t i = 0; i < plan->part_count && status == WEFT_OK; i++) {
        weft_foreign_part *part = &plan->parts[i];
        int64_t tensor = weft_view_find(base, part->name);
        if (tensor < 0) {
            status = weft_fail(plan->context, WEFT_BASE_MISMATCH,
                               "there is a delta of tensor \"%.*s\", which the base does not have",
                               WEFT_NAME_SHOWN, part->name);
        } else if (seen[tensor] && !plan->pieces) {
            status =
                weft_fail(plan->context, WEFT_MALFORMED,
                          "there are two deltas of tensor \"%.*s\"; a difference that is put on twice is "
                          "gone",
                          WEFT_NAME_SHOWN, part->name);
        } else {
            seen[tensor] = true;
            part->tensor = (size_t)tensor;
            *bytes_out += weft_view_at(base, part->tensor)->bytes;
            status = check_alike(plan, part, weft_view_at(base, part->tensor));
        }
    }
    weft_release(plan->context, seen);
    if (status == WEFT_OK && plan->complete && plan->part_count < weft_view_count(base)) {
        status = weft_fail(plan->context, WEFT_BASE_MISMATCH,
                           "the delta has %zu tensors and the base %zu; this format has all of them",
                           plan->part_count, weft_view_count(base));
    }
    return status;
}

weft_status weft_foreign_plan_decode(weft_foreign_plan *plan, const weft_view *base) {
    weft_context *context = plan->context;
    uint64_t bytes = 0;
    weft_status status = find_tensors(plan, base, &bytes);
    status = status == WEFT_OK ? weft_step_resize(plan->step, plan->part_count) : status;
    if (status != WEFT_OK) {
        return status;
    }
    unsigned threads = weft_context_threads(context);
    plan_pass pass = {.plan = plan, .view = base};
    pass.workers = weft_allocate_zeroed(context, threads, sizeof *pass.workers);
    if (pass.workers == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_progress_begin(context, "read", bytes);
    status = weft_parallel(context, plan->part_count, decode_part, &pass);
    for (unsigned i = 0; i < threads; i++) {
        worker_close(&pass.workers[i], context);
    }
    weft_release(context, pass.workers);
    if (status == WEFT_OK && plan->pieces) {
        status = weft_step_join(plan->step);
    }
    if (status == WEFT_OK) {
        weft_step_settle(plan->step);
    }
    return status;
}
