/* SPDX-License-Identifier: Apache-2.0
 *
 * strides.c: see strides.h.
 */
#include "strides.h"

#include "../base/context.h"
#include "../base/cpu.h"
#include "digest.h"
#include "table.h"

#include <string.h>

/* ---- shapes ---- */

/* Puts a dimension in front of the others, or joins it with the next, if that continues it. */
static void put_dimension(weft_strides *strides, uint64_t count, uint64_t step) {
    if (count == 1) {
        return;
    }
    if (strides->rank > 0 && step == strides->counts[0] * strides->steps[0]) {
        strides->counts[0] *= count;
        return;
    }
    memmove(strides->counts + 1, strides->counts, strides->rank * sizeof strides->counts[0]);
    memmove(strides->steps + 1, strides->steps, strides->rank * sizeof strides->steps[0]);
    strides->counts[0] = count;
    strides->steps[0] = step;
    strides->rank++;
}

weft_strides weft_strides_of(const weft_tensor *tensor) {
    weft_strides strides = {0};
    if (tensor->strides == NULL) {
        put_dimension(&strides, weft_tensor_units(tensor), 1);
        return strides;
    }
    for (uint32_t i = tensor->rank; i-- > 0;) {
        put_dimension(&strides, tensor->shape[i], (uint64_t)tensor->strides[i]);
    }
    return strides;
}

bool weft_strides_joined(const weft_strides *strides) {
    return strides->rank == 0 || (strides->rank == 1 && strides->steps[0] == 1);
}

/* Sorts dimensions by their steps, the widest first. */
static void sort_dimensions(weft_strides *strides) {
    for (uint32_t i = 1; i < strides->rank; i++) {
        uint64_t count = strides->counts[i];
        uint64_t step = strides->steps[i];
        uint32_t at = i;
        for (; at > 0 && strides->steps[at - 1] < step; at--) {
            strides->counts[at] = strides->counts[at - 1];
            strides->steps[at] = strides->steps[at - 1];
        }
        strides->counts[at] = count;
        strides->steps[at] = step;
    }
}

/* From the first element to the last, both counted, of the dimensions from `first` on. */
static uint64_t extent_from(const weft_strides *strides, uint32_t first) {
    uint64_t extent = 1;
    for (uint32_t i = first; i < strides->rank; i++) {
        extent += (strides->counts[i] - 1) * strides->steps[i];
    }
    return extent;
}

static weft_status check_extent(weft_context *context, const weft_tensor *tensor) {
    uint64_t extent = weft_dtype_width(tensor->storage);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        uint64_t distance;
        bool over = __builtin_mul_overflow(tensor->shape[i] - 1, (uint64_t)tensor->strides[i], &distance) ||
                    __builtin_mul_overflow(distance, weft_dtype_width(tensor->storage), &distance) ||
                    __builtin_add_overflow(extent, distance, &extent);
        if (over || extent > INT64_MAX) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "tensor \"%.*s\": the strides overflow 63 bits at dimension %u",
                             WEFT_NAME_SHOWN, tensor->name, (unsigned)i);
        }
    }
    return WEFT_OK;
}

weft_status weft_strides_check(weft_context *context, const weft_tensor *tensor) {
    if (tensor->access != NULL || weft_dtype_bits(tensor->dtype) % 8 != 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "tensor \"%.*s\": only a tensor in plain memory, of a dtype of whole bytes, can "
                         "have strides",
                         WEFT_NAME_SHOWN, tensor->name);
    }
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] > 1 && tensor->strides[i] < 0) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "tensor \"%.*s\": the stride of dimension %u is negative; give the first byte "
                             "in memory as data, and name the elements in that order",
                             WEFT_NAME_SHOWN, tensor->name, (unsigned)i);
        }
    }
    weft_status status = check_extent(context, tensor);
    if (status != WEFT_OK) {
        return status;
    }
    weft_strides strides = weft_strides_of(tensor);
    sort_dimensions(&strides);
    for (uint32_t i = 0; i < strides.rank; i++) {
        if (strides.steps[i] < extent_from(&strides, i + 1)) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "tensor \"%.*s\": a stride of %llu lets elements overlap; each stride must "
                             "reach over all that the smaller ones do",
                             WEFT_NAME_SHOWN, tensor->name, (unsigned long long)strides.steps[i]);
        }
    }
    return WEFT_OK;
}

/* ---- places ---- */

uint64_t weft_strides_offset(const weft_strides *strides, uint64_t unit) {
    uint64_t offset = 0;
    for (uint32_t i = strides->rank; i-- > 0;) {
        offset += unit % strides->counts[i] * strides->steps[i];
        unit /= strides->counts[i];
    }
    return offset;
}

weft_stretch weft_strides_stretch(const weft_strides *strides, uint64_t unit, uint64_t units) {
    weft_stretch stretch = {.offset = weft_strides_offset(strides, unit), .units = 1, .step = 1};
    if (strides->rank > 0) {
        uint64_t row = strides->counts[strides->rank - 1];
        stretch.units = row - unit % row;
        stretch.step = strides->steps[strides->rank - 1];
    }
    stretch.units = stretch.units < units ? stretch.units : units;
    return stretch;
}

uint8_t *weft_tensor_memory(const weft_tensor *tensor, uint64_t unit) {
    if (tensor->strides != NULL) {
        weft_strides strides = weft_strides_of(tensor);
        unit = weft_strides_offset(&strides, unit);
    }
    return (uint8_t *)tensor->data + unit * weft_dtype_width(tensor->storage);
}

/* ---- moving ---- */

static inline __attribute__((always_inline)) void copy_units(uint8_t *output, uint64_t output_step,
                                                             const uint8_t *input, uint64_t input_step,
                                                             uint64_t count, unsigned width) {
    for (uint64_t i = 0; i < count; i++) {
        memcpy(output + i * output_step * width, input + i * input_step * width, width);
    }
}

static void copy_stretch(uint8_t *output, uint64_t output_step, const uint8_t *input, uint64_t input_step,
                         uint64_t count, unsigned width) {
    if (output_step == 1 && input_step == 1) {
        memcpy(output, input, (size_t)(count * width));
        return;
    }
    switch (width) {
    case 1:
        copy_units(output, output_step, input, input_step, count, 1);
        break;
    case 2:
        copy_units(output, output_step, input, input_step, count, 2);
        break;
    case 4:
        copy_units(output, output_step, input, input_step, count, 4);
        break;
    default:
        copy_units(output, output_step, input, input_step, count, 8);
        break;
    }
}

/* Masters may lie apart: they are brought together before they are cast. */
static void cast_stretch(uint8_t *output, const uint8_t *input, uint64_t step, uint64_t count) {
    enum { BLOCK = 512 };
    float masters[BLOCK];
    uint16_t rounded[BLOCK];
    for (uint64_t done = 0; done < count; done += BLOCK) {
        size_t some = count - done < BLOCK ? (size_t)(count - done) : BLOCK;
        copy_stretch((uint8_t *)masters, 1, input + done * step * sizeof(float), step, some, sizeof(float));
        weft_bf16_cast(weft_cpu_level(), masters, rounded, some);
        memcpy(output + done * sizeof(uint16_t), rounded, some * sizeof(uint16_t));
    }
}

static void read_units(const weft_tensor *tensor, const weft_strides *strides, uint64_t unit,
                       uint64_t units, uint8_t *output) {
    unsigned width = weft_dtype_width(tensor->dtype);
    unsigned held = weft_dtype_width(tensor->storage);
    for (uint64_t done = 0; done < units;) {
        weft_stretch stretch = weft_strides_stretch(strides, unit + done, units - done);
        const uint8_t *input = (const uint8_t *)tensor->data + stretch.offset * held;
        if (tensor->storage != tensor->dtype) {
            cast_stretch(output + done * width, input, stretch.step, stretch.units);
        } else {
            copy_stretch(output + done * width, 1, input, stretch.step, stretch.units, width);
        }
        done += stretch.units;
    }
}

void weft_tensor_read(const weft_tensor *tensor, uint64_t unit, uint64_t units, void *output) {
    weft_strides strides = weft_strides_of(tensor);
    read_units(tensor, &strides, unit, units, output);
}

void weft_tensor_gather(const weft_tensor *tensor, const uint64_t *words, size_t count, void *output) {
    weft_strides strides = weft_strides_of(tensor);
    uint64_t most = WEFT_WORD / weft_dtype_width(tensor->dtype);
    uint64_t units = weft_tensor_units(tensor);
    for (size_t i = 0; i < count; i++) {
        uint8_t *word = (uint8_t *)output + i * WEFT_WORD;
        uint64_t left = units - words[i] * most;
        memset(word, 0, WEFT_WORD);
        read_units(tensor, &strides, words[i] * most, left < most ? left : most, word);
    }
}

void weft_tensor_write(const weft_tensor *tensor, uint64_t unit, uint64_t units, const void *values) {
    unsigned width = weft_dtype_width(tensor->dtype);
    if (tensor->strides == NULL) {
        memcpy((uint8_t *)tensor->data + unit * width, values, (size_t)(units * width));
        return;
    }
    weft_strides strides = weft_strides_of(tensor);
    for (uint64_t done = 0; done < units;) {
        weft_stretch stretch = weft_strides_stretch(&strides, unit + done, units - done);
        copy_stretch((uint8_t *)tensor->data + stretch.offset * width, stretch.step,
                     (const uint8_t *)values + done * width, 1, stretch.units, width);
        done += stretch.units;
    }
}

/* ---- overlap ---- */

/* A tensor as a set of bytes, the widest dimension first. There is one more, of the bytes of an element,
 * and for a moment another, where one is split. */
typedef struct byte_set {
    uint32_t rank;
    uint64_t counts[WEFT_RANK_MAX + 2];
    uint64_t steps[WEFT_RANK_MAX + 2];
} byte_set;

static byte_set bytes_of(const weft_tensor *tensor) {
    weft_strides strides = weft_strides_of(tensor);
    uint64_t width = weft_dtype_width(tensor->storage);
    sort_dimensions(&strides);
    byte_set set = {.rank = strides.rank + 1};
    for (uint32_t i = 0; i < strides.rank; i++) {
        set.counts[i] = strides.counts[i];
        set.steps[i] = strides.steps[i] * width;
    }
    set.counts[strides.rank] = width;
    set.steps[strides.rank] = 1;
    if (strides.rank > 0 && strides.steps[strides.rank - 1] == 1) { /* the elements of a row touch */
        set.rank--;
        set.counts[set.rank - 1] *= width;
        set.steps[set.rank - 1] = 1;
    }
    return set;
}

static int64_t extent_of(const byte_set *set) {
    int64_t extent = 1;
    for (uint32_t i = 0; i < set->rank; i++) {
        extent += (int64_t)((set->counts[i] - 1) * set->steps[i]);
    }
    return extent;
}

static int64_t floor_divide(int64_t a, int64_t b) {
    return a / b - (a % b < 0);
}

static void drop_widest(byte_set *set) {
    set->rank--;
    memmove(set->counts, set->counts + 1, set->rank * sizeof set->counts[0]);
    memmove(set->steps, set->steps + 1, set->rank * sizeof set->steps[0]);
}

/* Cuts the widest dimension into rows of `step` bytes, which is a multiple of its own: `set` keeps the
 * whole rows, with the new dimension in front, and `rest` is what is left. Returns how many whole rows
 * there are. */
static uint64_t split_widest(byte_set *set, uint64_t step, byte_set *rest) {
    uint64_t row = step / set->steps[0];
    uint64_t rows = set->counts[0] / row;
    *rest = *set;
    rest->counts[0] = set->counts[0] % row;
    set->counts[0] = row;
    memmove(set->counts + 1, set->counts, set->rank * sizeof set->counts[0]);
    memmove(set->steps + 1, set->steps, set->rank * sizeof set->steps[0]);
    set->counts[0] = rows;
    set->steps[0] = step;
    set->rank++;
    return rows;
}

/* True if the sets have no byte in common, when `b` begins `distance` bytes behind `a`. The widest step of
 * the two is made common, if it is not: by cutting the other set into such rows, or because it is shorter
 * than one. Rows of which each is no longer than the step can meet at no more than two distances, and what
 * is left is a matter of the dimensions within. */
static bool sets_apart(byte_set a, byte_set b, int64_t distance) {
    if (distance >= extent_of(&a) || distance + extent_of(&b) <= 0) {
        return true;
    }
    uint64_t step = a.rank > 0 && a.steps[0] > 1 ? a.steps[0] : 1;
    step = b.rank > 0 && b.steps[0] > step ? b.steps[0] : step;
    if (step == 1) {
        return false;
    }
    byte_set *sets[2] = {&a, &b};
    uint64_t rows[2] = {1, 1};
    for (int i = 0; i < 2; i++) {
        byte_set *set = sets[i];
        if (set->rank > 0 && set->steps[0] < step && extent_of(set) > (int64_t)step) {
            byte_set rest;
            if (step % set->steps[0] != 0) {
                return false;
            }
            int64_t behind = (int64_t)(split_widest(set, step, &rest) * step);
            if (rest.counts[0] > 0 && !(i == 0 ? sets_apart(rest, b, distance - behind)
                                               : sets_apart(a, rest, distance + behind))) {
                return false;
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        if (sets[i]->rank > 0 && sets[i]->steps[0] == step) {
            rows[i] = sets[i]->counts[0];
            drop_widest(sets[i]);
        }
    }
    /* a row of `b` that is `apart` rows behind one of `a` must begin less than either's extent away */
    int64_t least = floor_divide(-extent_of(&b) - distance, (int64_t)step) + 1;
    int64_t most = floor_divide(extent_of(&a) - 1 - distance, (int64_t)step);
    least = least > 1 - (int64_t)rows[0] ? least : 1 - (int64_t)rows[0];
    most = most < (int64_t)rows[1] - 1 ? most : (int64_t)rows[1] - 1;
    for (int64_t apart = least; apart <= most; apart++) {
        if (!sets_apart(a, b, distance + apart * (int64_t)step)) {
            return false;
        }
    }
    return true;
}

const uint8_t *weft_tensor_end(const weft_tensor *tensor) {
    byte_set set = bytes_of(tensor);
    return (const uint8_t *)tensor->data + extent_of(&set);
}

bool weft_tensor_same_places(const weft_tensor *a, const weft_tensor *b) {
    weft_strides first = weft_strides_of(a);
    weft_strides second = weft_strides_of(b);
    return a->data == b->data && a->storage == b->storage && first.rank == second.rank &&
           memcmp(first.counts, second.counts, first.rank * sizeof first.counts[0]) == 0 &&
           memcmp(first.steps, second.steps, first.rank * sizeof first.steps[0]) == 0;
}

bool weft_tensor_apart(const weft_tensor *a, const weft_tensor *b) {
    return sets_apart(bytes_of(a), bytes_of(b), (intptr_t)b->data - (intptr_t)a->data);
}
