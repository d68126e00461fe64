/* SPDX-License-Identifier: Apache-2.0
 *
 * rice.c: blocks of rice.h, in and out, the form that fits a sample, and the kernels for any processor,
 * which the vector forms are tested against.
 */
#include "rice_loop.h"

static size_t climb_portable(const void *numbers, size_t count, unsigned width, uint8_t *bits, void *rest) {
    return climb_from(numbers, 0, 0, count, width, bits, rest);
}

static void descend_portable(const uint8_t *bits, size_t count, unsigned width, const void *rest,
                             void *numbers) {
    descend_from(bits, 0, 0, count, width, rest, numbers);
}

const weft_rice_kernels weft_rice_kernels_portable = {
    .cut = cut_numbers,
    .mend = mend_numbers,
    .climb = climb_portable,
    .descend = descend_portable,
    .ones = count_ones,
};

const weft_rice_kernels *weft_rice_kernels_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return &weft_rice_kernels_avx512;
    }
    if (level == WEFT_CPU_AVX2) {
        return &weft_rice_kernels_avx2;
    }
#endif
    (void)level;
    return &weft_rice_kernels_portable;
}

/* ---- the form ---- */

/* Numbers of a sample whose upper part is at least so much; of 0, all. */
static void count_climbs(const uint64_t *sample, size_t count, unsigned low,
                         uint32_t reach[WEFT_RICE_RUNGS + 1]) {
    memset(reach, 0, (WEFT_RICE_RUNGS + 1) * sizeof *reach);
    for (size_t i = 0; i < count; i++) {
        uint64_t part = sample[i] >> low;
        reach[part < WEFT_RICE_RUNGS ? part : WEFT_RICE_RUNGS]++;
    }
    for (unsigned r = WEFT_RICE_RUNGS; r-- > 0;) {
        reach[r] += reach[r + 1];
    }
}

/* Bits of a first rung that is thinned out. */
static uint64_t thin_bits(const uint64_t *sample, size_t count, unsigned low) {
    uint64_t bits = (count + 7) / 8;
    for (size_t i = 0; i < count; i += 8) {
        uint64_t any = 0;
        for (size_t j = i; j < count && j < i + 8; j++) {
            any |= sample[j];
        }
        bits += any >> low != 0 ? 8 : 0;
    }
    return bits;
}

uint64_t weft_rice_form_fit(weft_rice_form *form, const uint64_t *sample, size_t count, unsigned width) {
    uint64_t least, any = 0;
    for (size_t i = 0; i < count; i++) {
        any |= sample[i];
    }
    /* without rungs, numbers travel whole */
    *form = (weft_rice_form){.rungs = 0};
    least = count * (uint64_t)(8 * width);
    for (unsigned low = 0; low < 8 * width && (low == 0 || any >> low != 0); low++) {
        uint32_t reach[WEFT_RICE_RUNGS + 1];
        count_climbs(sample, count, low, reach);
        uint64_t thin = thin_bits(sample, count, low), bits = count * (uint64_t)low;
        bits += thin < count ? thin : count;
        for (unsigned rungs = 1; rungs <= WEFT_RICE_RUNGS; rungs++) {
            uint64_t cost = bits + reach[rungs] * (uint64_t)(8 * width);
            if (cost < least) {
                least = cost;
                *form = (weft_rice_form){.low = low, .rungs = rungs, .thin = thin < count};
            }
            bits += reach[rungs];
        }
    }
    return least << 16;
}

/* ---- encoding ---- */

static size_t whole_groups(size_t count) {
    return (count + WEFT_RICE_GROUP - 1) / WEFT_RICE_GROUP * WEFT_RICE_GROUP;
}

void weft_rice_encoder_begin(weft_rice_encoder *encoder, const weft_pack_kernels *packs,
                             const weft_rice_kernels *rice, weft_rice_form form, unsigned width,
                             weft_writer *writer) {
    encoder->packs = packs;
    encoder->rice = rice;
    encoder->form = form;
    encoder->width = width;
    encoder->waiting = 0;
    encoder->changed = 0;
    weft_writer_u8(writer, (uint8_t)form.low);
    weft_writer_u8(writer, (uint8_t)form.rungs);
    weft_writer_u8(writer, form.thin ? 1 : 0);
}

/* The first rung; returns where it ends. */
static uint8_t *write_ground(const weft_rice_encoder *encoder, void *numbers, size_t count, uint8_t *output,
                             size_t *climbed) {
    const weft_rice_kernels *rice = encoder->rice;
    if (!encoder->form.thin) {
        *climbed = rice->climb(numbers, count, encoder->width, output, numbers);
        return output + count / 8;
    }
    uint8_t bits[WEFT_RICE_BLOCK / 8 + WEFT_RICE_SLACK];
    *climbed = rice->climb(numbers, count, encoder->width, bits, numbers);
    /* the bytes go behind the bits that say which there are, and no kernel minds what it writes behind
     * these before the bytes come */
    size_t kept = rice->climb(bits, count / 8, 1, output, bits);
    output += count / 64;
    memcpy(output, bits, kept);
    return output + kept;
}

/* Codes the first `count` of the numbers that wait: a block, or the last ones. */
static weft_status write_block(weft_rice_encoder *encoder, size_t count, weft_writer *writer) {
    const weft_rice_form *form = &encoder->form;
    unsigned width = encoder->width;
    size_t whole = whole_groups(count), number_bytes = WEFT_RICE_BLOCK * (size_t)width;
    size_t most = 2 * number_bytes + (WEFT_RICE_RUNGS + 1) * (WEFT_RICE_BLOCK / 8) + WEFT_RICE_SLACK;
    uint8_t *room = weft_writer_reserve(writer, most), *output = room;
    if (room == NULL) {
        return WEFT_NO_MEMORY;
    }
    uint8_t *numbers = encoder->numbers;
    memset(numbers + count * width, 0, (whole - count) * width);
    if (form->low > 0) {
        encoder->rice->cut(numbers, whole, width, form->low, output);
        output += whole / 8 * form->low;
    }
    size_t left = whole;
    if (form->rungs > 0) {
        output = write_ground(encoder, numbers, whole, output, &left);
    }
    for (unsigned r = 1; r < form->rungs && left > 0; r++) {
        size_t before = left;
        left = encoder->rice->climb(numbers, before, width, output, numbers);
        output += (before + 7) / 8;
    }
    memcpy(output, numbers, left * width);
    output += left * width;
    writer->size += (size_t)(output - room);
    return WEFT_OK;
}

weft_status weft_rice_encoder_tile(weft_rice_encoder *encoder, const void *old, const void *new,
                                   size_t units, weft_writer *writer) {
    unsigned width = encoder->width;
    encoder->changed +=
        encoder->packs->fold_steps(old, new, units, width, encoder->numbers + encoder->waiting * width);
    encoder->waiting += units;
    if (encoder->waiting < WEFT_RICE_BLOCK) {
        return WEFT_OK;
    }
    /* the block is coded in place, and what comes behind it waits on */
    size_t behind = encoder->waiting - WEFT_RICE_BLOCK, block = WEFT_RICE_BLOCK * (size_t)width;
    weft_status status = write_block(encoder, WEFT_RICE_BLOCK, writer);
    memmove(encoder->numbers, encoder->numbers + block, behind * width);
    encoder->waiting = behind;
    return status;
}

weft_status weft_rice_encoder_end(weft_rice_encoder *encoder, weft_writer *writer) {
    weft_status status = encoder->waiting > 0 ? write_block(encoder, encoder->waiting, writer) : WEFT_OK;
    encoder->waiting = 0;
    return status == WEFT_OK && weft_writer_failed(writer) ? WEFT_NO_MEMORY : status;
}

/* ---- decoding ---- */

weft_status weft_rice_decoder_begin(weft_rice_decoder *decoder, weft_context *context,
                                    const weft_pack_kernels *packs, const weft_rice_kernels *rice,
                                    unsigned width, const uint8_t *payload, size_t size, size_t units) {
    decoder->context = context;
    decoder->packs = packs;
    decoder->rice = rice;
    decoder->width = width;
    decoder->units = units;
    decoder->first = 0;
    decoder->ready = 0;
    decoder->cursor = payload + WEFT_RICE_FRONT;
    decoder->end = payload + size;
    if (size < WEFT_RICE_FRONT || payload[0] >= 8 * width || payload[1] > WEFT_RICE_RUNGS ||
        payload[2] > 1) {
        return weft_fail(context, WEFT_MALFORMED, "a bucket of steps has no valid front");
    }
    decoder->form = (weft_rice_form){payload[0], payload[1], payload[2] == 1};
    return WEFT_OK;
}

/* The next bytes of the payload, or NULL. */
static const uint8_t *take(weft_rice_decoder *decoder, size_t bytes) {
    const uint8_t *taken = decoder->cursor;
    if (bytes > (size_t)(decoder->end - taken)) {
        return NULL;
    }
    decoder->cursor += bytes;
    return taken;
}

/* The first rung of `count` numbers. */
static const uint8_t *read_ground(weft_rice_decoder *decoder, size_t count) {
    if (!decoder->form.thin) {
        return take(decoder, count / 8);
    }
    const uint8_t *which = take(decoder, count / 64);
    if (which == NULL) {
        return NULL;
    }
    size_t kept = decoder->rice->ones(which, count / 64);
    const uint8_t *bytes = take(decoder, kept);
    if (bytes == NULL) {
        return NULL;
    }
    memcpy(decoder->rooms[0], bytes, kept);
    decoder->rice->descend(which, count / 8, 1, decoder->rooms[0], decoder->bits);
    return decoder->bits;
}

/* A rung as it lies in the payload. */
typedef struct rung {
    const uint8_t *bits;
    size_t count;
} rung;

/* All rungs of a block of `count` numbers, from the ground; sets how many there are, and how many numbers
 * are left above the last. */
static bool read_rungs(weft_rice_decoder *decoder, size_t count, rung rungs[WEFT_RICE_RUNGS],
                       unsigned *rung_count, size_t *left_out) {
    unsigned r = 0;
    size_t left = count;
    for (; r < decoder->form.rungs && left > 0; r++) {
        rungs[r].count = left;
        rungs[r].bits = r == 0 ? read_ground(decoder, left) : take(decoder, (left + 7) / 8);
        if (rungs[r].bits == NULL || (left % 8 != 0 && rungs[r].bits[left / 8] >> (left % 8) != 0)) {
            return false;
        }
        left = decoder->rice->ones(rungs[r].bits, (left + 7) / 8);
    }
    *rung_count = r;
    *left_out = left;
    return true;
}

static bool read_block(weft_rice_decoder *decoder) {
    size_t count = decoder->units < WEFT_RICE_BLOCK ? decoder->units : WEFT_RICE_BLOCK;
    size_t whole = whole_groups(count), left;
    unsigned width = decoder->width, rung_count;
    rung rungs[WEFT_RICE_RUNGS];
    const uint8_t *planes = take(decoder, whole / 8 * decoder->form.low), *above;
    if (planes == NULL || !read_rungs(decoder, whole, rungs, &rung_count, &left) ||
        (above = take(decoder, left * width)) == NULL) {
        return false;
    }
    memcpy(decoder->rooms[rung_count % 2], above, left * width);
    for (unsigned r = rung_count; r-- > 0;) {
        decoder->rice->descend(rungs[r].bits, rungs[r].count, width, decoder->rooms[(r + 1) % 2],
                               decoder->rooms[r % 2]);
    }
    if (decoder->form.low > 0) {
        decoder->rice->mend(decoder->rooms[0], whole, width, decoder->form.low, planes);
    }
    decoder->units -= count;
    decoder->first = 0;
    decoder->ready = count;
    return decoder->units > 0 || decoder->cursor == decoder->end;
}

weft_status weft_rice_decoder_next(weft_rice_decoder *decoder, const void *old, size_t units, void *new) {
    unsigned width = decoder->width;
    for (size_t done = 0; done < units;) {
        if (decoder->ready == 0 && (decoder->units == 0 || !read_block(decoder))) {
            return weft_fail(decoder->context, WEFT_MALFORMED, "a bucket of steps does not hold its units");
        }
        size_t some = units - done < decoder->ready ? units - done : decoder->ready;
        decoder->packs->unfold_steps(decoder->rooms[0] + decoder->first * width,
                                     (const uint8_t *)old + done * width, some, width,
                                     (uint8_t *)new + done *width);
        decoder->first += some;
        decoder->ready -= some;
        done += some;
    }
    return WEFT_OK;
}
