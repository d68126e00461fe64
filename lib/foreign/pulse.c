/* SPDX-License-Identifier: Apache-2.0
 *
 * pulse.c: PULSEPT1, the patches of PULSE: a magic, a header of JSON, and one frame of zstd with the
 * positions and values of each tensor in turn. The header lists every tensor with a digest of its new
 * bytes, so that all of the new state is proven, and with it the base.
 *
 * Positions are gaps of 16 bits with escapes (version 1), Rice-coded gaps (2), or Rice-coded ranks among
 * the weights of the same old exponent (3). Values are new ones (1), or zigzag steps from the old (2 and
 * 3).
 */
#include "format.h"

#include "../base/bytes.h"
#include "../base/context.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/json.h"
#include "../tensor/table.h"

#include <string.h>

enum { MAGIC_BYTES = 8, PREFIX = MAGIC_BYTES + 4, DEPTH = 8, CLASSES = 256, CHUNK = 64 * 1024 };

static const char MAGIC[] = "PULSEPT1";

static weft_status damaged(const weft_foreign_part *part, const weft_foreign_step *step, const char *why) {
    return weft_fail(step->context, WEFT_MALFORMED, "the delta of tensor \"%.*s\" %s", WEFT_NAME_SHOWN,
                     part->name, why);
}

/* ---- positions ---- */

static bool decode_gaps(weft_reader *reader, uint64_t count, uint64_t limit, uint64_t *output) {
    uint64_t position = weft_reader_u32(reader);
    for (uint64_t i = 0; i < count; i++) {
        if (i > 0) {
            uint64_t gap = weft_reader_u16(reader);
            gap = gap == UINT16_MAX ? weft_reader_u32(reader) : gap;
            if (gap == 0) {
                return false;
            }
            position += gap;
        }
        if (weft_reader_failed(reader) || position >= limit) {
            return false;
        }
        output[i] = position;
    }
    return weft_reader_left(reader) == 0;
}

static unsigned bit_at(const uint8_t *data, uint64_t bit) {
    return data[bit / 8] >> (7 - bit % 8) & 1u;
}

/* One block of Rice codes: `count` numbers below `limit`, ascending. False unless it is exactly that. */
static bool decode_rice(weft_reader *reader, uint64_t count, uint64_t limit, uint64_t *output) {
    enum { ESCAPE = 32, MOST = 31 };
    unsigned bits = weft_reader_u8(reader);
    uint32_t unary_bytes = weft_reader_u32(reader);
    const uint8_t *unary = weft_reader_bytes(reader, unary_bytes);
    if (count > limit || bits > MOST || unary == NULL || count > 8 * (uint64_t)unary_bytes) {
        return false;
    }
    const uint8_t *rest = weft_reader_bytes(reader, (size_t)((count * bits + 7) / 8));
    if (rest == NULL) {
        return false;
    }
    uint64_t at = 0, next = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t quotient = 0, remainder = 0;
        while (at < 8 * (uint64_t)unary_bytes && bit_at(unary, at) != 0 && quotient <= ESCAPE) {
            quotient++;
            at++;
        }
        if (at++ >= 8 * (uint64_t)unary_bytes || quotient > ESCAPE) {
            return false;
        }
        if (quotient == ESCAPE) {
            quotient = weft_reader_u32(reader);
            if (quotient < ESCAPE) {
                return false;
            }
        }
        for (unsigned bit = 0; bit < bits; bit++) {
            remainder = remainder << 1 | bit_at(rest, i * bits + bit);
        }
        uint64_t gap = quotient << bits | remainder;
        if (gap >= limit || next + gap >= limit) {
            return false;
        }
        output[i] = next + gap;
        next = output[i] + 1;
    }
    for (uint64_t bit = at; bit < 8 * (uint64_t)unary_bytes; bit++) {
        if (bit_at(unary, bit) == 0) {
            return false;
        }
    }
    for (uint64_t bit = count * bits; bit % 8 != 0; bit++) {
        if (bit_at(rest, bit) != 0) {
            return false;
        }
    }
    return unary_bytes == (at + 7) / 8 && !weft_reader_failed(reader) && weft_reader_left(reader) == 0;
}

/* ---- classes of the old exponent ---- */

typedef struct pulse_class {
    bool coded;
    bool complement; /* the ranks are of weights that do not change */
    uint64_t size;
    uint64_t *ranks;
    uint64_t count;
    uint64_t seen; /* weights of the class so far */
    uint64_t next; /* rank that comes next */
} pulse_class;

typedef weft_status visit_cells(void *opaque, uint64_t unit, const uint16_t *cells, size_t count);

static weft_status walk_cells(const weft_foreign_part *part, const weft_tensor *tensor,
                              weft_base_reader *base, visit_cells *visit, void *opaque) {
    weft_status status = WEFT_OK;
    for (uint64_t offset = 0; offset < tensor->bytes && status == WEFT_OK; offset += 2 * CHUNK) {
        size_t size = tensor->bytes - offset < 2 * CHUNK ? (size_t)(tensor->bytes - offset) : 2 * CHUNK;
        const uint8_t *olds = NULL;
        uint16_t cells[CHUNK];
        status = weft_base_read(base, part->tensor, offset, size, &olds);
        if (status == WEFT_OK) {
            memcpy(cells, olds, size);
            status = visit(opaque, offset / 2, cells, size / 2);
        }
    }
    return status;
}

static weft_status count_cells(void *opaque, uint64_t unit, const uint16_t *cells, size_t count) {
    pulse_class *classes = opaque;
    (void)unit;
    for (size_t i = 0; i < count; i++) {
        classes[cells[i] >> 7 & 0xff].size++;
    }
    return WEFT_OK;
}

typedef struct pulse_finding {
    const weft_foreign_part *part;
    const weft_foreign_step *step;
    pulse_class *classes;
    weft_change_list *list;
} pulse_finding;

static weft_status find_cells(void *opaque, uint64_t unit, const uint16_t *cells, size_t count) {
    const pulse_finding *finding = opaque;
    weft_change_list *list = finding->list;
    for (size_t i = 0; i < count; i++) {
        pulse_class *class = &finding->classes[cells[i] >> 7 & 0xff];
        if (!class->coded) {
            continue;
        }
        bool listed = class->next < class->count && class->ranks[class->next] == class->seen;
        class->next += listed;
        class->seen++;
        if (listed == class->complement) {
            continue;
        }
        if (list->count == finding->part->count) {
            return damaged(finding->part, finding->step, "has more changes than it says");
        }
        list->units[list->count++] = unit + i;
    }
    return WEFT_OK;
}

/* The records, and the ranks of each. */
static weft_status read_classes(const weft_foreign_part *part, const weft_foreign_step *step,
                                pulse_class *classes) {
    weft_context *context = step->context;
    weft_reader reader = weft_reader_over(part->data, part->size);
    unsigned records = weft_reader_u16(&reader);
    int before = -1;
    uint32_t sizes[CLASSES], order[CLASSES];
    if (records < 1 || records > CLASSES) {
        return damaged(part, step, "has no classes");
    }
    for (unsigned i = 0; i < records; i++) {
        unsigned exponent = weft_reader_u8(&reader), flags = weft_reader_u8(&reader);
        pulse_class *class = &classes[exponent];
        class->count = weft_reader_u32(&reader);
        sizes[i] = weft_reader_u32(&reader);
        order[i] = exponent;
        class->coded = true;
        class->complement = (flags & 1u) != 0;
        uint64_t changed = class->complement ? class->size - class->count : class->count;
        if (weft_reader_failed(&reader) || (int)exponent <= before || flags > 1 ||
            class->count > class->size || (!class->complement && class->count == 0) ||
            (2 * changed > class->size) != class->complement) {
            return damaged(part, step, "has a class that is not as it should be");
        }
        before = (int)exponent;
    }
    for (unsigned i = 0; i < records; i++) {
        pulse_class *class = &classes[order[i]];
        const uint8_t *block = weft_reader_bytes(&reader, sizes[i]);
        if (block == NULL || (class->count == 0) != (sizes[i] == 0) ||
            class->count > 8 * (uint64_t)sizes[i]) {
            return damaged(part, step, "has a class that is cut short");
        }
        class->ranks = weft_allocate_array(context, (size_t) class->count + 1, sizeof *class->ranks);
        if (class->ranks == NULL) {
            return WEFT_NO_MEMORY;
        }
        weft_reader rice = weft_reader_over(block, sizes[i]);
        if (class->count > 0 && !decode_rice(&rice, class->count, class->size, class->ranks)) {
            return damaged(part, step, "has a class whose ranks are damaged");
        }
    }
    return weft_reader_left(&reader) == 0 ? WEFT_OK : damaged(part, step, "has bytes behind its classes");
}

static weft_status decode_classes(const weft_foreign_part *part, const weft_tensor *tensor,
                                  weft_base_reader *base, const weft_foreign_step *step,
                                  weft_change_list *list) {
    pulse_class *classes = weft_allocate_zeroed(step->context, CLASSES, sizeof *classes);
    if (classes == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = walk_cells(part, tensor, base, count_cells, classes);
    status = status == WEFT_OK ? read_classes(part, step, classes) : status;
    if (status == WEFT_OK) {
        pulse_finding finding = {part, step, classes, list};
        status = walk_cells(part, tensor, base, find_cells, &finding);
    }
    for (unsigned i = 0; i < CLASSES; i++) {
        weft_release(step->context, classes[i].ranks);
    }
    weft_release(step->context, classes);
    return status == WEFT_OK && list->count != part->count
               ? damaged(part, step, "has fewer changes than it says")
               : status;
}

/* ---- values ---- */

/* Zigzag steps of a byte, and behind them those that a byte does not hold. */
static weft_status decode_steps(const weft_foreign_part *part, weft_base_reader *base,
                                const weft_foreign_step *step, weft_change_list *list) {
    enum { ESCAPE = 0xff };
    weft_reader symbols = weft_reader_over(part->values, part->value_bytes);
    const uint8_t *bytes = weft_reader_bytes(&symbols, (size_t)part->count);
    if (bytes == NULL) {
        return damaged(part, step, "has fewer values than positions");
    }
    for (uint64_t i = 0; i < part->count; i++) {
        unsigned zigzag = bytes[i];
        if (zigzag == ESCAPE) {
            zigzag = weft_reader_u16(&symbols);
            if (weft_reader_failed(&symbols) || zigzag < ESCAPE) {
                return damaged(part, step, "has a value that is not as it should be");
            }
        }
        if (zigzag == 0) {
            return damaged(part, step, "has a change that changes nothing");
        }
        const uint8_t *olds = NULL;
        uint16_t old;
        weft_status status = weft_base_read(base, part->tensor, list->units[i] * 2, sizeof old, &olds);
        if (status != WEFT_OK) {
            return status;
        }
        memcpy(&old, olds, sizeof old);
        uint16_t news = (uint16_t)(old + ((zigzag >> 1) ^ (0u - (zigzag & 1u))));
        memcpy(list->values + 2 * i, &news, sizeof news);
    }
    return weft_reader_left(&symbols) == 0 ? WEFT_OK : damaged(part, step, "has values behind the last");
}

static weft_status decode_pulse(const weft_foreign_part *part, const weft_tensor *tensor,
                                weft_base_reader *base, weft_foreign_step *step, weft_change_list *list) {
    uint64_t units = weft_tensor_units(tensor);
    if (part->count > units || (part->count == 0 && (part->size > 0 || part->value_bytes > 0))) {
        return damaged(part, step, "has another number of changes than it says");
    }
    weft_status status = part->count > 0 ? weft_list_reserve(step, list, part->count) : WEFT_OK;
    if (status != WEFT_OK || part->count == 0) {
        return status;
    }
    weft_reader reader = weft_reader_over(part->data, part->size);
    if (part->variant == 3) {
        status = decode_classes(part, tensor, base, step, list);
    } else {
        bool whole = part->variant == 1 ? decode_gaps(&reader, part->count, units, list->units)
                                        : decode_rice(&reader, part->count, units, list->units);
        status = whole ? WEFT_OK : damaged(part, step, "has positions that are damaged");
        list->count = whole ? part->count : 0;
    }
    if (status == WEFT_OK && part->variant != 1) {
        return decode_steps(part, base, step, list);
    }
    if (status == WEFT_OK && part->value_bytes != 2 * part->count) {
        return damaged(part, step, "has another number of values than of positions");
    }
    if (status == WEFT_OK) {
        memcpy(list->values, part->values, part->value_bytes);
    }
    return status;
}

/* ---- the envelope ---- */

/* The bytes of a header, from the first bytes of a file. */
static weft_status header_length(weft_context *context, const char *path, const uint8_t prefix[PREFIX],
                                 uint64_t file_bytes, uint32_t *size_out) {
    if (file_bytes < PREFIX || memcmp(prefix, MAGIC, MAGIC_BYTES) != 0) {
        return weft_fail(context, WEFT_MALFORMED, "%s: this is no patch of PULSE", path);
    }
    memcpy(size_out, prefix + MAGIC_BYTES, sizeof *size_out);
    return *size_out > file_bytes - PREFIX || *size_out > weft_context_limits(context)->header_bytes
               ? weft_fail(context, WEFT_TRUNCATED, "%s: its header is cut short, or too large", path)
               : WEFT_OK;
}

static weft_status header_parse(weft_context *context, const char *path, const uint8_t *header, size_t size,
                                json_t **header_out) {
    uint64_t containers = 3 * weft_context_limits(context)->tensors + 16;
    return weft_json_parse(context, path, (const char *)header, size, DEPTH, containers, header_out);
}

/* Of a file that is only listed. WEFT_MORE: it is of something else. */
static weft_status header_peek(weft_context *context, const char *path, json_t **header_out) {
    uint8_t prefix[PREFIX] = {0};
    size_t got = 0;
    uint64_t file_bytes = 0;
    uint32_t size = 0;
    weft_status status = weft_file_peek(context, path, 0, prefix, sizeof prefix, &got, &file_bytes);
    if (status == WEFT_OK && (got < PREFIX || memcmp(prefix, MAGIC, MAGIC_BYTES) != 0)) {
        return WEFT_MORE;
    }
    status = status == WEFT_OK ? header_length(context, path, prefix, file_bytes, &size) : status;
    uint8_t *header = status == WEFT_OK ? weft_allocate(context, (size_t)size + 1) : NULL;
    if (status == WEFT_OK) {
        status = header == NULL ? WEFT_NO_MEMORY
                                : weft_file_peek(context, path, PREFIX, header, size, &got, &file_bytes);
    }
    status = status == WEFT_OK ? header_parse(context, path, header, got, header_out) : status;
    weft_release(context, header);
    return status;
}

static bool header_steps(const json_t *header, uint64_t *step, uint64_t *base) {
    return weft_json_number(json_object_get(header, "step"), step) &&
           weft_json_number(json_object_get(header, "baseStep"), base) && *base < *step;
}

static weft_status list_path(weft_foreign *foreign, char *path) {
    weft_context *context = foreign->context;
    json_t *header = NULL;
    uint64_t step = 0, base = 0;
    if (path != NULL && weft_foreign_listed(foreign, path)) {
        weft_release(context, path);
        return WEFT_OK;
    }
    weft_status status = path == NULL ? WEFT_NO_MEMORY : header_peek(context, path, &header);
    if (status == WEFT_OK && !header_steps(header, &step, &base)) {
        status = weft_fail(context, WEFT_MALFORMED, "%s: it does not say from which step to which it leads",
                           path);
    }
    json_decref(header);
    if (status == WEFT_OK && !weft_foreign_known(foreign, step)) {
        return weft_foreign_add(foreign, step, base, false, path);
    }
    weft_release(context, path);
    return status == WEFT_MORE ? WEFT_OK : status;
}

static weft_status list_name(void *opaque, const char *name) {
    weft_foreign *foreign = opaque;
    char *path = weft_path_join(foreign->context, foreign->root, name);
    if (path != NULL && !weft_path_is_file(path)) {
        weft_release(foreign->context, path);
        return WEFT_OK;
    }
    return list_path(foreign, path);
}

static weft_status pulse_list(weft_foreign *foreign) {
    if (weft_path_is_file(foreign->root)) {
        return list_path(foreign, weft_copy_text(foreign->context, foreign->root, strlen(foreign->root)));
    }
    return weft_directory_names(foreign->context, foreign->root, list_name, foreign);
}

static bool pulse_detect(weft_context *context, const char *path) {
    json_t *header = NULL;
    weft_status status = weft_path_is_file(path) ? header_peek(context, path, &header) : WEFT_MORE;
    json_decref(header);
    weft_context_clear(context);
    return status == WEFT_OK;
}

/* ---- reading ---- */

/* The digits of "xxh3:…", or of a digest alone. */
static const char *digest_digits(const json_t *entry) {
    const char *text = json_string_value(json_object_get(entry, "tensorDigest"));
    const char *colon = text != NULL ? strrchr(text, ':') : NULL;
    return colon != NULL ? colon + 1 : text;
}

static weft_status add_entry(weft_foreign_plan *plan, const char *path, const json_t *entry,
                             unsigned version, weft_reader *payload) {
    static const char *const codings[] = {"", "delta-u16-esc", "rice-gap", "exp-class-rice"};
    uint64_t changed = 0, position_bytes = 0, value_bytes = 0;
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const char *coding = json_string_value(json_object_get(entry, "idxEnc"));
    weft_foreign_part part = {.name = json_string_value(json_object_get(entry, "name")),
                              .coding = WEFT_CODED_OWN,
                              .expected = digest_digits(entry),
                              .dtype = "BF16",
                              .shape = json_object_get(entry, "shape"),
                              .decode = decode_pulse,
                              .variant = version};
    if (part.name == NULL || part.expected == NULL || !json_is_array(part.shape) || dtype == NULL ||
        strcmp(dtype, "bf16") != 0 || coding == NULL || strcmp(coding, codings[version]) != 0 ||
        !weft_json_number(json_object_get(entry, "changed"), &changed) ||
        !weft_json_number(json_object_get(entry, "idxBytes"), &position_bytes) ||
        !weft_json_number(json_object_get(entry, "valBytes"), &value_bytes)) {
        return weft_fail(plan->context, WEFT_MALFORMED,
                         "%s: tensor %zu of its header is not as it should be", path, plan->part_count);
    }
    part.count = changed;
    part.data = weft_reader_bytes(payload, (size_t)position_bytes);
    part.size = (size_t)position_bytes;
    part.values = weft_reader_bytes(payload, (size_t)value_bytes);
    part.value_bytes = (size_t)value_bytes;
    if (weft_reader_failed(payload)) {
        return weft_fail(plan->context, WEFT_TRUNCATED, "%s: its payload is shorter than its header says",
                         path);
    }
    return weft_foreign_plan_part(plan, &part);
}

static weft_status add_entries(weft_foreign_plan *plan, const char *path, const uint8_t *frame,
                               size_t size) {
    weft_context *context = plan->context;
    const json_t *tensors = json_object_get(plan->json, "tensors");
    int64_t version = json_integer_value(json_object_get(plan->json, "formatVersion"));
    uint8_t *memory = NULL;
    size_t bytes = 0;
    if (version < 1 || version > 3 || !json_is_array(tensors)) {
        return weft_fail(context, WEFT_UNSUPPORTED, "%s: version %lld of this format is not known", path,
                         (long long)version);
    }
    weft_status status = WEFT_OK;
    if (size > 0) {
        status = weft_foreign_plan_inflate(plan, path, frame, size, &memory, &bytes);
        status = status == WEFT_OK ? weft_foreign_plan_keep(plan, memory) : status;
    }
    weft_reader payload = weft_reader_over(memory != NULL ? memory : (const void *)"", bytes);
    for (size_t i = 0; status == WEFT_OK && i < json_array_size(tensors); i++) {
        status = add_entry(plan, path, json_array_get(tensors, i), (unsigned)version, &payload);
    }
    if (status == WEFT_OK && weft_reader_left(&payload) > 0) {
        status = weft_fail(context, WEFT_MALFORMED, "%s: its payload is longer than its header says", path);
    }
    return status;
}

static weft_status pulse_collect(const weft_foreign *foreign, const weft_foreign_version *version,
                                 weft_foreign_plan *plan) {
    uint8_t *memory = NULL;
    size_t size = 0;
    uint32_t header_bytes = 0;
    uint64_t step = 0, base = 0;
    plan->checksum = WEFT_FOREIGN_XXH3_128;
    plan->complete = true;
    weft_status status = weft_foreign_plan_file(plan, version->path, &memory, &size);
    if (status != WEFT_OK) {
        return status;
    }
    status = header_length(plan->context, version->path, memory, size, &header_bytes);
    status = status == WEFT_OK
                 ? header_parse(plan->context, version->path, memory + PREFIX, header_bytes, &plan->json)
                 : status;
    if (status == WEFT_OK &&
        (!header_steps(plan->json, &step, &base) || step != version->version || base != version->base)) {
        status = weft_foreign_changed(foreign, version);
    }
    status = status == WEFT_OK ? add_entries(plan, version->path, memory + PREFIX + header_bytes,
                                             size - PREFIX - header_bytes)
                               : status;
    weft_release(plan->context, memory);
    return status;
}

const weft_foreign_reader weft_foreign_pulse = {
    .format = WEFT_FOREIGN_PULSE,
    .name = "pulse",
    .proves = true,
    .detect = pulse_detect,
    .list = pulse_list,
    .collect = pulse_collect,
};
