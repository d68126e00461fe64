/* SPDX-License-Identifier: Apache-2.0
 *
 * The digest: the mix against an AES round written from the standard's text, the kernels against the
 * portable one, what the digest is bound to, and that sums moved word by word are those of memory.
 */
#include "../../lib/base/pool.h"
#include "../../lib/tensor/digest.h"
#include "../../lib/tensor/view.h"
#include "faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint64_t random_u64(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545f4914f6cdd1du;
}

static uint64_t random_below(uint64_t limit) {
    return (random_u64() >> 11) % limit;
}

static void fill(void *data, size_t size) {
    for (size_t i = 0; i < size; i++) {
        ((uint8_t *)data)[i] = (uint8_t)(random_u64() >> 56);
    }
}

/* ---- AES from FIPS-197, without tables ---- */

static uint8_t field_multiply(uint8_t a, uint8_t b) {
    uint8_t result = 0;
    for (int i = 0; i < 8; i++) {
        if ((b >> i & 1) != 0) {
            result ^= a;
        }
        a = (uint8_t)(a << 1 ^ ((a & 0x80) != 0 ? 0x1b : 0));
    }
    return result;
}

/* The inverse is the 254th power; then the affine transformation of section 5.1.1. */
static uint8_t substitute(uint8_t byte) {
    uint8_t inverse = 1;
    for (int i = 0; i < 254; i++) {
        inverse = field_multiply(inverse, byte);
    }
    uint8_t result = 0x63;
    for (int i = 0; i < 5; i++) {
        result ^= (uint8_t)(inverse << i | inverse >> (8 - i));
    }
    return result;
}

static void shift_and_substitute(uint8_t state[16]) {
    uint8_t old[16];
    memcpy(old, state, 16);
    for (int column = 0; column < 4; column++) {
        for (int row = 0; row < 4; row++) {
            state[4 * column + row] = substitute(old[4 * ((column + row) % 4) + row]);
        }
    }
}

static void mix_columns(uint8_t state[16]) {
    for (uint8_t *column = state; column < state + 16; column += 4) {
        uint8_t a[4];
        memcpy(a, column, 4);
        for (int i = 0; i < 4; i++) {
            column[i] = field_multiply(a[i], 2) ^ field_multiply(a[(i + 1) % 4], 3) ^ a[(i + 2) % 4] ^
                        a[(i + 3) % 4];
        }
    }
}

static void add_key(uint8_t state[16], const uint8_t key[16]) {
    for (int i = 0; i < 16; i++) {
        state[i] ^= key[i];
    }
}

static void encrypt_round(uint8_t state[16], const uint8_t key[16]) {
    shift_and_substitute(state);
    mix_columns(state);
    add_key(state, key);
}

static void from_hex(const char *hex, uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        unsigned value;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &value), 1);
        bytes[i] = (uint8_t)value;
    }
}

/* The mix from its definition in digest.h. */
static weft_sum reference_mix(const uint8_t word[16], uint64_t index) {
    uint8_t state[16];
    uint8_t position[16];
    uint8_t key[16];
    memcpy(state, word, 16);
    for (int i = 0; i < 16; i++) {
        position[i] = (uint8_t)(index >> (8 * (i % 8)));
    }
    encrypt_round(state, position);
    from_hex("243f6a8885a308d313198a2e03707344", key, 16);
    encrypt_round(state, key);
    from_hex("a4093822299f31d0082efa98ec4e6c89", key, 16);
    encrypt_round(state, key);
    weft_sum sum = {{0, 0}};
    for (int i = 0; i < 16; i++) {
        sum.lanes[i / 8] |= (uint64_t)state[i] << (8 * (i % 8));
    }
    return sum;
}

/* FIPS-197, appendix B: the state at the start of rounds 1 to 4 and 10, and the round keys between. */
static void test_reference_is_aes(void **state) {
    (void)state;
    static const char *const states[] = {
        "193de3bea0f4e22b9ac68d2ae9f84808",
        "a49c7ff2689f352b6b5bea43026a5049",
        "aa8f5f0361dde3ef82d24ad26832469a",
        "486c4eee671d9d0d4de3b138d65f58e7",
    };
    static const char *const keys[] = {
        "a0fafe1788542cb123a339392a6c7605",
        "f2c295f27a96b9435935807a7359f67f",
        "3d80477d4716fe3e1e237e446d7a883b",
    };
    for (int i = 0; i < 3; i++) {
        uint8_t block[16];
        uint8_t key[16];
        uint8_t expected[16];
        from_hex(states[i], block, 16);
        from_hex(keys[i], key, 16);
        from_hex(states[i + 1], expected, 16);
        encrypt_round(block, key);
        assert_memory_equal(block, expected, 16);
    }
    uint8_t last[16];
    uint8_t key[16];
    uint8_t cipher[16];
    from_hex("eb40f21e592e38848ba113e71bc342d2", last, 16);
    from_hex("d014f9a8c9ee2589e13f0cc8b6630ca6", key, 16);
    from_hex("3925841d02dc09fbdc118597196a0b32", cipher, 16);
    shift_and_substitute(last);
    add_key(last, key);
    assert_memory_equal(last, cipher, 16);
    assert_int_equal(substitute(0x00), 0x63);
    assert_int_equal(substitute(0x53), 0xed);
}

/* Every entry of the S-box in every place of a word, and random words at random positions. */
static void test_portable_mix(void **state) {
    (void)state;
    for (int value = 0; value < 256; value++) {
        uint8_t word[16];
        memset(word, value, 16);
        assert_true(weft_sum_equal(weft_mix_portable(word, 0), reference_mix(word, 0)));
    }
    for (int i = 0; i < 500; i++) {
        uint8_t word[16];
        fill(word, 16);
        uint64_t index = i % 2 == 0 ? random_u64() : random_below(1000);
        assert_true(weft_sum_equal(weft_mix_portable(word, index), reference_mix(word, index)));
    }
}

/* ---- kernels ---- */

static weft_sum slow_sum(const uint8_t *data, size_t bytes, uint64_t word) {
    weft_sum sum = {{0, 0}};
    for (size_t at = 0; at < bytes; at += WEFT_WORD) {
        uint8_t padded[WEFT_WORD] = {0};
        memcpy(padded, data + at, bytes - at < WEFT_WORD ? bytes - at : WEFT_WORD);
        weft_sum_add(&sum, weft_mix_portable(padded, word++));
    }
    return sum;
}

static void test_levels_agree(void **state) {
    (void)state;
    enum { SIZE = 3000 };
    uint8_t *data = malloc(SIZE + 64);
    fill(data, SIZE + 64);
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        const weft_digest_kernels *kernels = weft_digest_kernels_for((weft_cpu)level);
        for (size_t bytes = 0; bytes < 1200; bytes++) {
            size_t offset = random_below(64);
            uint64_t word = bytes % 3 == 0 ? random_u64() : random_below(1 << 20);
            assert_true(weft_sum_equal(kernels->sum(data + offset, bytes, word),
                                       slow_sum(data + offset, bytes, word)));
        }
        for (int i = 0; i < 300; i++) {
            size_t offset = random_below(64);
            size_t bytes = random_below(SIZE + 1);
            uint64_t word = UINT64_MAX - random_below(100); /* positions wrap around */
            assert_true(weft_sum_equal(kernels->sum(data + offset, bytes, word),
                                       slow_sum(data + offset, bytes, word)));
        }
        uint64_t words[SIZE / WEFT_WORD];
        for (size_t count = 0; count <= SIZE / WEFT_WORD; count++) {
            size_t offset = random_below(64);
            weft_sum expected = {{0, 0}};
            for (size_t i = 0; i < count; i++) {
                words[i] = random_u64() >> random_below(60);
                weft_sum_add(&expected, weft_mix_portable(data + offset + i * WEFT_WORD, words[i]));
            }
            assert_true(weft_sum_equal(kernels->sum_words(data + offset, words, count), expected));
        }
    }
    free(data);
}

/* A kernel must not read behind its data, whatever the tail: the sanitizers watch blocks of exact size. */
static void test_kernels_stay_inside(void **state) {
    (void)state;
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        const weft_digest_kernels *kernels = weft_digest_kernels_for((weft_cpu)level);
        for (size_t bytes = 1; bytes < 200; bytes++) {
            uint8_t *data = malloc(bytes);
            fill(data, bytes);
            assert_true(weft_sum_equal(kernels->sum(data, bytes, 5), slow_sum(data, bytes, 5)));
            free(data);
        }
        for (size_t count = 1; count < 40; count++) {
            uint8_t *data = malloc(count * WEFT_WORD);
            uint64_t *words = malloc(count * sizeof *words);
            fill(data, count * WEFT_WORD);
            for (size_t i = 0; i < count; i++) {
                words[i] = 9 + i;
            }
            assert_true(weft_sum_equal(kernels->sum_words(data, words, count),
                                       slow_sum(data, count * WEFT_WORD, 9)));
            free(words);
            free(data);
        }
    }
}

/* What leads from one state to another, with changes in no word, some words or all, in blocks of exact
 * size. */
static void test_difference(void **state) {
    (void)state;
    static const size_t sizes[] = {0,  1,   15,  16,   17,   31,   32,   33,   63,  64,
                                   65, 127, 200, 2048, 4096, 4100, 8191, 8192, 9000};
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        const weft_digest_kernels *kernels = weft_digest_kernels_for((weft_cpu)level);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (size_t one_in = 1; one_in <= 4096; one_in *= 8) {
                size_t bytes = sizes[i];
                uint64_t word = random_u64();
                uint8_t *before = malloc(bytes + 1), *after = malloc(bytes + 1);
                fill(before + 1, bytes);
                memcpy(after, before, bytes + 1);
                for (size_t b = 1; b <= bytes; b++) {
                    after[b] ^= (uint8_t)(random_below(one_in) == 0);
                }
                weft_sum expected = slow_sum(after + 1, bytes, word);
                weft_sum_subtract(&expected, slow_sum(before + 1, bytes, word));
                assert_true(
                    weft_sum_equal(kernels->difference(before + 1, after + 1, bytes, word), expected));
                free(before);
                free(after);
            }
        }
    }
}

static void test_flips_and_swaps(void **state) {
    (void)state;
    enum { SIZE = 4096 };
    uint8_t data[SIZE];
    fill(data, SIZE);
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_best());
    weft_sum before = kernels->sum(data, SIZE, 0);
    for (size_t bit = 0; bit < SIZE * 8; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        weft_sum after = kernels->sum(data, SIZE, 0);
        assert_true(after.lanes[0] != before.lanes[0] && after.lanes[1] != before.lanes[1]);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t a = 0; a < SIZE; a += WEFT_WORD) {
        size_t b = (a + WEFT_WORD * (1 + random_below(SIZE / WEFT_WORD - 1))) % SIZE;
        uint8_t word[WEFT_WORD];
        memcpy(word, data + a, WEFT_WORD);
        memcpy(data + a, data + b, WEFT_WORD);
        memcpy(data + b, word, WEFT_WORD);
        assert_false(weft_sum_equal(kernels->sum(data, SIZE, 0), before));
        memcpy(data + b, data + a, WEFT_WORD);
        memcpy(data + a, word, WEFT_WORD);
    }
    /* zeros are not nothing, and a word elsewhere is another word */
    uint8_t zeros[32] = {0};
    assert_false(weft_sum_equal(kernels->sum(zeros, 16, 0), kernels->sum(zeros, 32, 0)));
    assert_false(weft_sum_equal(kernels->sum(data, 16, 0), kernels->sum(data, 16, 1)));
}

/* Promise 5's trap. A receiver whose base drifted applies the right step to the wrong word. With a mix
 * that is linear in 8-byte halves, the step's effect on the sum would be the same on both sides, and
 * the drift would stay hidden. Here the moves must differ, even if drift and step share a half. */
static void test_drift_beside_a_step(void **state) {
    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint8_t old_word[WEFT_WORD];
        uint8_t new_word[WEFT_WORD];
        uint8_t old_drifted[WEFT_WORD];
        uint8_t new_drifted[WEFT_WORD];
        fill(old_word, WEFT_WORD);
        memcpy(new_word, old_word, WEFT_WORD);
        size_t unit = random_below(8);
        new_word[2 * unit] ^= 1;
        size_t drift = unit / 4 * 4 + (unit + 1 + random_below(3)) % 4; /* another unit of the same half */
        memcpy(old_drifted, old_word, WEFT_WORD);
        memcpy(new_drifted, new_word, WEFT_WORD);
        uint8_t flip = (uint8_t)(1u << random_below(8));
        old_drifted[2 * drift] ^= flip;
        new_drifted[2 * drift] ^= flip;
        uint64_t index = random_below(1 << 30);
        weft_sum honest = weft_mix_portable(new_word, index);
        weft_sum_subtract(&honest, weft_mix_portable(old_word, index));
        weft_sum drifted = weft_mix_portable(new_drifted, index);
        weft_sum_subtract(&drifted, weft_mix_portable(old_drifted, index));
        assert_true(honest.lanes[0] != drifted.lanes[0] && honest.lanes[1] != drifted.lanes[1]);
    }
}

/* ---- states ---- */

typedef struct test_model {
    weft_context *context;
    weft_table *table;
    weft_view *view;
    weft_sums *sums;
    uint8_t *data[4];
} test_model;

static const struct {
    const char *name;
    weft_dtype dtype;
    uint32_t rank;
    uint64_t shape[2];
    size_t bytes;
} model_tensors[4] = {
    {"layers.weight", WEFT_DTYPE_BF16, 2, {1031, 517}, (size_t)1031 * 517 * 2}, /* five grains */
    {"bias", WEFT_DTYPE_U8, 1, {37}, 37},
    {"ids", WEFT_DTYPE_I64, 2, {3, 4}, 96},
    {"exact", WEFT_DTYPE_F32, 1, {WEFT_GRAIN_BYTES / 4}, WEFT_GRAIN_BYTES},
};

static void model_open(test_model *model, unsigned threads) {
    memset(model, 0, sizeof *model);
    weft_context_options options = {.size = sizeof options, .threads = threads};
    assert_int_equal(weft_context_create(&options, &model->context), WEFT_OK);
    assert_int_equal(weft_table_create(model->context, &model->table), WEFT_OK);
    random_state = 1234567;
    for (size_t i = 0; i < 4; i++) {
        model->data[i] = malloc(model_tensors[i].bytes);
        fill(model->data[i], model_tensors[i].bytes);
        weft_tensor tensor = {
            .size = sizeof tensor,
            .name = model_tensors[i].name,
            .dtype = model_tensors[i].dtype,
            .rank = model_tensors[i].rank,
            .shape = {model_tensors[i].shape[0], model_tensors[i].shape[1]},
            .data = model->data[i],
        };
        assert_int_equal(weft_table_add(model->table, &tensor), WEFT_OK);
    }
}

static void model_sum(test_model *model) {
    assert_int_equal(weft_view_create(model->context, model->table, &model->view), WEFT_OK);
    assert_int_equal(weft_sums_compute(model->context, model->view, &model->sums), WEFT_OK);
}

static void model_close(test_model *model) {
    weft_sums_destroy(model->sums);
    weft_view_destroy(model->view);
    weft_table_destroy(model->table);
    weft_context_destroy(model->context);
    for (size_t i = 0; i < 4; i++) {
        free(model->data[i]);
    }
}

static size_t put(uint8_t *bytes, uint64_t value, size_t size) {
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    return size;
}

static size_t put_tensor(uint8_t *bytes, const weft_tensor *tensor) {
    size_t size = put(bytes, tensor->dtype, 1);
    size += put(bytes + size, tensor->rank, 1);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        size += put(bytes + size, tensor->shape[i], 8);
    }
    weft_sum sum = slow_sum(tensor->data, (size_t)tensor->bytes, 0);
    size += put(bytes + size, sum.lanes[0], 8);
    return size + put(bytes + size, sum.lanes[1], 8);
}

static weft_digest hash(const uint8_t *bytes, size_t size) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, size));
    weft_digest digest;
    memcpy(digest.bytes, canonical.digest, 16);
    return digest;
}

/* The digests from their definition, over one buffer; and the value itself, for ever. */
static void test_definition(void **state) {
    (void)state;
    test_model model;
    model_open(&model, 2);
    assert_int_equal(weft_table_tie(model.table, "tied", "bias"), WEFT_OK);
    model_sum(&model);
    static const size_t order[4] = {1, 3, 2, 0}; /* bias, exact, ids, layers.weight */
    uint8_t bytes[1024];
    size_t size = 12;
    memcpy(bytes, "weft-state-1", 12);
    size += put(bytes + size, 4, 8);
    for (size_t i = 0; i < 4; i++) {
        const weft_tensor *tensor = weft_table_at(model.table, order[i]);
        uint8_t single[256];
        memcpy(single, "weft-tensor-1", 13);
        weft_digest expected = hash(single, 13 + put_tensor(single + 13, tensor));
        weft_digest digest = weft_sums_tensor(model.sums, i);
        assert_true(weft_digest_equal(&digest, &expected));
        size += put(bytes + size, strlen(tensor->name), 4);
        memcpy(bytes + size, tensor->name, strlen(tensor->name));
        size += strlen(tensor->name);
        size += put_tensor(bytes + size, tensor);
    }
    weft_digest expected = hash(bytes, size);
    weft_digest digest = weft_sums_digest(model.sums);
    assert_true(weft_digest_equal(&digest, &expected));
    char text[WEFT_DIGEST_TEXT];
    weft_digest_format(&digest, text);
    assert_string_equal(text, "a42dcb9f7108a8eeb5051ca1dcec926b");
    model_close(&model);
}

static void test_threads_do_not_matter(void **state) {
    (void)state;
    weft_digest first;
    for (unsigned threads = 1; threads <= 5; threads++) {
        test_model model;
        model_open(&model, threads);
        model_sum(&model);
        weft_digest digest = weft_sums_digest(model.sums);
        if (threads == 1) {
            first = digest;
        }
        assert_true(weft_digest_equal(&digest, &first));
        model_close(&model);
    }
}

/* Masters, callbacks and plain memory of the same weights are the same state. */
static weft_status read_memory(void *opaque, uint64_t offset, void *output, size_t size) {
    memcpy(output, (const uint8_t *)opaque + offset, size);
    return WEFT_OK;
}

static weft_digest digest_one(weft_context *context, const weft_tensor *tensor) {
    weft_table *table;
    weft_view *view;
    weft_sums *sums;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    assert_int_equal(weft_table_add(table, tensor), WEFT_OK);
    assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
    assert_int_equal(weft_sums_compute(context, view, &sums), WEFT_OK);
    weft_digest digest = weft_sums_digest(sums);
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    weft_table_destroy(table);
    return digest;
}

static void test_storage_does_not_matter(void **state) {
    (void)state;
    enum { COUNT = 300001 };
    static const weft_access access = {.read = read_memory};
    weft_context *context;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    float *masters = malloc(COUNT * sizeof *masters);
    uint16_t *weights = malloc(COUNT * sizeof *weights);
    for (size_t i = 0; i < COUNT; i++) {
        uint32_t bits = (uint32_t)random_u64();
        memcpy(&masters[i], &bits, sizeof bits);
        weights[i] = weft_bf16_round(bits);
    }
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "w",
                          .dtype = WEFT_DTYPE_BF16,
                          .rank = 1,
                          .shape = {COUNT},
                          .data = weights};
    weft_digest plain = digest_one(context, &tensor);
    weft_tensor master = tensor;
    master.storage = WEFT_DTYPE_F32;
    master.data = masters;
    weft_digest digest = digest_one(context, &master);
    assert_true(weft_digest_equal(&plain, &digest));
    weft_tensor remote = tensor;
    remote.data = NULL;
    remote.access = &access;
    remote.opaque = weights;
    digest = digest_one(context, &remote);
    assert_true(weft_digest_equal(&plain, &digest));

    /* and what the digest is bound to */
    weft_tensor other = tensor;
    other.name = "v";
    digest = digest_one(context, &other);
    assert_false(weft_digest_equal(&plain, &digest));
    other = tensor;
    other.dtype = WEFT_DTYPE_F16;
    digest = digest_one(context, &other);
    assert_false(weft_digest_equal(&plain, &digest));
    other = tensor;
    other.rank = 2;
    other.shape[1] = 1;
    digest = digest_one(context, &other);
    assert_false(weft_digest_equal(&plain, &digest));
    other.rank = 2;
    other.shape[0] = 1;
    other.shape[1] = COUNT;
    weft_digest turned = digest_one(context, &other);
    assert_false(weft_digest_equal(&turned, &digest));
    free(weights);
    free(masters);
    weft_context_destroy(context);
}

/* A tensor's value is not bound to its name, so that a renamed tensor can be recognised. */
static void test_tensor_value_and_ties(void **state) {
    (void)state;
    weft_context *context;
    weft_table *table;
    weft_view *view;
    weft_sums *sums;
    uint16_t data[100];
    fill(data, sizeof data);
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "a",
                          .dtype = WEFT_DTYPE_BF16,
                          .rank = 1,
                          .shape = {100},
                          .data = data};
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
    assert_int_equal(weft_sums_compute(context, view, &sums), WEFT_OK);
    weft_digest alone = weft_sums_digest(sums);
    weft_sums_destroy(sums);
    weft_view_destroy(view);

    assert_int_equal(weft_table_tie(table, "b", "a"), WEFT_OK);
    assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
    assert_int_equal(weft_sums_compute(context, view, &sums), WEFT_OK);
    weft_digest tied = weft_sums_digest(sums);
    assert_true(weft_digest_equal(&alone, &tied));
    weft_sums_destroy(sums);
    weft_view_destroy(view);

    tensor.name = "c";
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
    assert_int_equal(weft_sums_compute(context, view, &sums), WEFT_OK);
    weft_digest both = weft_sums_digest(sums);
    assert_false(weft_digest_equal(&alone, &both));
    weft_digest first = weft_sums_tensor(sums, 0);
    weft_digest second = weft_sums_tensor(sums, 1);
    assert_true(weft_digest_equal(&first, &second));
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    weft_table_destroy(table);
    weft_context_destroy(context);
}

/* An empty model, and empty tensors, have digests too. */
static void test_nothing(void **state) {
    (void)state;
    weft_context *context;
    weft_table *table;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    weft_digest digests[2];
    for (int i = 0; i < 2; i++) {
        weft_view *view;
        weft_sums *sums;
        assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
        assert_int_equal(weft_sums_compute(context, view, &sums), WEFT_OK);
        assert_int_equal(weft_sums_audit(context, sums, 100), WEFT_OK);
        assert_int_equal(weft_sums_audit(context, sums, UINT64_MAX), WEFT_OK);
        digests[i] = weft_sums_digest(sums);
        weft_sums_destroy(sums);
        weft_view_destroy(view);
        weft_tensor tensor = {
            .size = sizeof tensor, .name = "e", .dtype = WEFT_DTYPE_BF16, .rank = 2, .shape = {4, 0}};
        if (i == 0) {
            assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
        }
    }
    assert_false(weft_digest_equal(&digests[0], &digests[1]));
    weft_table_destroy(table);
    weft_context_destroy(context);
}

/* ---- moving ---- */

typedef struct word_change {
    size_t tensor; /* in model_tensors */
    uint64_t word;
} word_change;

/* Moves one word's grain by what the word in memory was and became. */
static void move_word(test_model *model, weft_sums *sums, word_change change) {
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_best());
    size_t bytes = model_tensors[change.tensor].bytes;
    uint8_t *place = model->data[change.tensor] + change.word * WEFT_WORD;
    size_t size = bytes - change.word * WEFT_WORD < WEFT_WORD ? bytes - change.word * WEFT_WORD : WEFT_WORD;
    uint8_t word[WEFT_WORD] = {0};
    memcpy(word, place, size);
    weft_sum delta = {{0, 0}};
    weft_sum_subtract(&delta, kernels->sum_words(word, &change.word, 1));
    fill(place, 1 + random_below(size));
    memcpy(word, place, size);
    weft_sum_add(&delta, kernels->sum_words(word, &change.word, 1));
    size_t index = (size_t)weft_view_find(model->view, model_tensors[change.tensor].name);
    weft_sums_move(sums, index, change.word * WEFT_WORD, delta);
}

static void test_moving_equals_summing(void **state) {
    (void)state;
    test_model model;
    model_open(&model, 2);
    model_sum(&model);
    weft_digest before = weft_sums_digest(model.sums);
    weft_sums *moves;
    assert_int_equal(weft_sums_zero(model.context, model.view, &moves), WEFT_OK);
    for (int i = 0; i < 3000; i++) {
        size_t tensor = random_below(4);
        uint64_t words = (model_tensors[tensor].bytes + WEFT_WORD - 1) / WEFT_WORD;
        move_word(&model, moves, (word_change){tensor, random_below(words)});
    }
    weft_sums_merge(model.sums, moves, false);
    weft_sums *again;
    assert_int_equal(weft_sums_compute(model.context, model.view, &again), WEFT_OK);
    weft_digest moved = weft_sums_digest(model.sums);
    weft_digest summed = weft_sums_digest(again);
    assert_true(weft_digest_equal(&moved, &summed));
    assert_false(weft_digest_equal(&moved, &before));
    /* each grain, not only each tensor */
    assert_int_equal(weft_sums_audit(model.context, model.sums, UINT64_MAX), WEFT_OK);
    /* and back */
    weft_sums_merge(model.sums, moves, true);
    weft_digest back = weft_sums_digest(model.sums);
    assert_true(weft_digest_equal(&back, &before));
    weft_sums_destroy(again);
    weft_sums_destroy(moves);
    model_close(&model);
}

static weft_status add_ones(void *argument, size_t index, unsigned worker) {
    (void)worker;
    for (int i = 0; i < 1000; i++) {
        weft_sums_move(argument, 3, index % 2 * WEFT_GRAIN_BYTES, (weft_sum){{1, UINT64_MAX}});
    }
    return WEFT_OK;
}

static void test_moves_are_atomic(void **state) {
    (void)state;
    test_model model;
    model_open(&model, 4);
    model_sum(&model);
    weft_sums *sums;
    assert_int_equal(weft_sums_zero(model.context, model.view, &sums), WEFT_OK);
    assert_int_equal(weft_parallel(model.context, 200, add_ones, sums), WEFT_OK);
    weft_sum total = weft_sums_total(sums, 3);
    assert_true(total.lanes[0] == 200000 && total.lanes[1] == (uint64_t)0 - 200000);
    weft_sums_destroy(sums);
    model_close(&model);
}

static void test_sums_on_another_view(void **state) {
    (void)state;
    test_model model;
    model_open(&model, 2);
    model_sum(&model);
    weft_view *second;
    weft_sums *copy;
    assert_int_equal(weft_view_create(model.context, model.table, &second), WEFT_OK);
    assert_int_equal(weft_sums_check(model.context, model.sums, second), WEFT_OK);
    assert_int_equal(weft_sums_zero(model.context, second, &copy), WEFT_OK);
    weft_sums_add_common(copy, model.sums);
    weft_digest a = weft_sums_digest(model.sums);
    weft_digest b = weft_sums_digest(copy);
    assert_true(weft_digest_equal(&a, &b));
    assert_int_equal(weft_sums_audit(model.context, copy, UINT64_MAX), WEFT_OK);
    weft_sums_destroy(copy);
    weft_view_destroy(second);

    uint8_t extra;
    weft_tensor tensor = {
        .size = sizeof tensor, .name = "z", .dtype = WEFT_DTYPE_U8, .rank = 0, .data = &extra};
    assert_int_equal(weft_table_add(model.table, &tensor), WEFT_OK);
    assert_int_equal(weft_view_create(model.context, model.table, &second), WEFT_OK);
    assert_int_equal(weft_sums_check(model.context, model.sums, second), WEFT_INVALID_ARGUMENT);
    weft_view_destroy(second);
    model_close(&model);
}

/* ---- the audit ---- */

static void test_audit_finds_one_bit(void **state) {
    (void)state;
    test_model model;
    model_open(&model, 2);
    model_sum(&model);
    assert_int_equal(weft_sums_audit(model.context, model.sums, UINT64_MAX), WEFT_OK);
    for (int i = 0; i < 20; i++) {
        size_t tensor = (size_t)i % 4;
        size_t byte = random_below(model_tensors[tensor].bytes);
        model.data[tensor][byte] ^= (uint8_t)(1u << random_below(8));
        assert_int_equal(weft_sums_audit(model.context, model.sums, UINT64_MAX), WEFT_DIGEST_MISMATCH);
        const char *text = weft_context_error(model.context);
        assert_non_null(strstr(text, model_tensors[tensor].name));
        assert_non_null(strstr(text, "pull again"));
        const char *range = strstr(text, "in bytes ");
        assert_non_null(range);
        unsigned long long begin;
        unsigned long long end;
        assert_int_equal(sscanf(range, "in bytes %llu to %llu", &begin, &end), 2);
        assert_true(begin <= byte && byte < end && end - begin <= WEFT_GRAIN_BYTES);
        weft_sums_destroy(model.sums);
        assert_int_equal(weft_sums_compute(model.context, model.view, &model.sums), WEFT_OK);
    }
    model_close(&model);
}

/* A rolling audit comes round to every byte, and a mismatch is met again until it is healed. */
static void test_rolling_audit(void **state) {
    (void)state;
    test_model model;
    model_open(&model, 2);
    model_sum(&model);
    size_t byte = (size_t)3 * WEFT_GRAIN_BYTES + 12345;
    for (int round = 0; round < 3; round++) {
        model.data[0][byte] ^= 4;
        int calls = 0;
        weft_status status = WEFT_OK;
        while (status == WEFT_OK && calls < 100) {
            status = weft_sums_audit(model.context, model.sums, 1000);
            calls++;
        }
        assert_int_equal(status, WEFT_DIGEST_MISMATCH);
        assert_true(calls <= 8); /* one grain each, and there are eight */
        assert_int_equal(weft_sums_audit(model.context, model.sums, 1), WEFT_DIGEST_MISMATCH);
        model.data[0][byte] ^= 4;
        for (int i = 0; i < 20; i++) {
            assert_int_equal(weft_sums_audit(model.context, model.sums, 300000), WEFT_OK);
        }
    }
    assert_int_equal(weft_sums_audit(model.context, model.sums, 0), WEFT_OK);
    model_close(&model);
}

static weft_status refuse(void *opaque, uint64_t offset, void *output, size_t size) {
    (void)opaque;
    (void)output;
    (void)size;
    return offset < WEFT_GRAIN_BYTES ? WEFT_OK : WEFT_IO_FAILED;
}

static bool stop(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)opaque;
    (void)phase;
    (void)done;
    (void)total;
    return false;
}

static void test_failures_come_through(void **state) {
    (void)state;
    static const weft_access access = {.read = refuse};
    weft_context_options options = {.size = sizeof options, .threads = 3};
    for (int i = 0; i < 2; i++) {
        weft_context *context;
        weft_table *table;
        weft_view *view;
        weft_sums *sums = NULL;
        assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
        assert_int_equal(weft_table_create(context, &table), WEFT_OK);
        uint8_t *data = calloc(64, WEFT_GRAIN_BYTES);
        weft_tensor tensor = {.size = sizeof tensor,
                              .name = "far",
                              .dtype = WEFT_DTYPE_U8,
                              .rank = 1,
                              .shape = {64 * WEFT_GRAIN_BYTES}};
        tensor.access = i == 0 ? &access : NULL;
        tensor.data = data;
        assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
        assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
        weft_status status = weft_sums_compute(context, view, &sums);
        assert_int_equal(status, i == 0 ? WEFT_IO_FAILED : WEFT_CANCELLED);
        assert_null(sums);
        if (i == 0) {
            assert_non_null(strstr(weft_context_error(context), "\"far\""));
        }
        weft_view_destroy(view);
        weft_table_destroy(table);
        weft_context_destroy(context);
        free(data);
        options.progress = stop;
    }
}

static weft_status sum_everything(weft_context *context, const weft_view *view) {
    weft_sums *sums = NULL;
    weft_sums *copy = NULL;
    weft_status status = weft_sums_compute(context, view, &sums);
    if (status == WEFT_OK) {
        status = weft_sums_zero(context, view, &copy);
    }
    if (status == WEFT_OK) {
        weft_sums_add_common(copy, sums);
        status = weft_sums_audit(context, copy, UINT64_MAX);
    }
    weft_sums_destroy(copy);
    weft_sums_destroy(sums);
    return status;
}

static void test_each_allocation_fails_once(void **state) {
    (void)state;
    test_model model;
    model_open(&model, 1);
    model_sum(&model);
    faults injector = {0};
    weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(&injector), .threads = 2};
    size_t count = 0;
    for (size_t n = 1;; n++) {
        weft_context *context;
        assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
        faults_reset(&injector, n);
        weft_status status = sum_everything(context, model.view);
        bool fired = faults_fired(&injector);
        assert_true(status == WEFT_OK || (fired && status == WEFT_NO_MEMORY));
        count += status == WEFT_NO_MEMORY ? 1 : 0;
        faults_reset(&injector, 0);
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&injector), 0);
        if (!fired) {
            break;
        }
    }
    assert_true(count >= 10);
    model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_is_aes),
        cmocka_unit_test(test_portable_mix),
        cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_kernels_stay_inside),
        cmocka_unit_test(test_difference),
        cmocka_unit_test(test_flips_and_swaps),
        cmocka_unit_test(test_drift_beside_a_step),
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_threads_do_not_matter),
        cmocka_unit_test(test_storage_does_not_matter),
        cmocka_unit_test(test_tensor_value_and_ties),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_moving_equals_summing),
        cmocka_unit_test(test_moves_are_atomic),
        cmocka_unit_test(test_sums_on_another_view),
        cmocka_unit_test(test_audit_finds_one_bit),
        cmocka_unit_test(test_rolling_audit),
        cmocka_unit_test(test_failures_come_through),
        cmocka_unit_test(test_each_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
