/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_kernels.c: the fast kernels of every level against the readable reference, and the promise on
 * which determinism rests: an element of a product does not depend on the shape around it.
 */
#include "../../lm/model/kernels.h"
#include "../../lm/model/random.h"
#include "lm_reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = 4096 };

static void fill(float *values, size_t count, uint64_t seed) {
    lm_random random = lm_random_open(seed, 0);
    for (size_t i = 0; i < count; i++) {
        values[i] = lm_random_normal(&random);
    }
}

static void widen(const float *values, double *wide, size_t count) {
    for (size_t i = 0; i < count; i++) {
        wide[i] = values[i];
    }
}

static void assert_near(const float *values, const double *wide, size_t count, double tolerance) {
    for (size_t i = 0; i < count; i++) {
        if (!(fabs(values[i] - wide[i]) <= tolerance * (1 + fabs(wide[i])))) {
            fail_msg("element %zu of %zu is %.9g and should be %.9g", i, count, (double)values[i], wide[i]);
        }
    }
}

/* C = A B^T with A in one of the two ways that the model uses, at every level. */
static void check_product(size_t rows, size_t columns, size_t depth, bool transposed) {
    float *a = calloc(rows * depth, sizeof *a), *b = calloc(columns * depth, sizeof *b);
    float *c = calloc(rows * columns, sizeof *c), *packed = calloc(lm_pack_size(columns, depth), sizeof *c);
    double *wide_a = calloc(rows * depth, sizeof *wide_a),
           *wide_b = calloc(columns * depth, sizeof *wide_b);
    double *wide_c = calloc(rows * columns, sizeof *wide_c);
    fill(a, rows * depth, 1);
    fill(b, columns * depth, 2);
    for (size_t i = 0; i < rows * depth; i++) {
        size_t from = transposed ? i % depth * rows + i / depth : i;
        wide_a[i] = a[from];
    }
    widen(b, wide_b, columns * depth);
    lm_reference_linear(wide_a, wide_b, rows, depth, columns, wide_c);
    lm_pack(b, 1, depth, columns, depth, packed);
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        lm_product product = {rows,
                              columns,
                              depth,
                              a,
                              transposed ? 1 : depth,
                              transposed ? rows : 1,
                              packed,
                              depth * LM_PANEL,
                              c,
                              columns,
                              false};
        lm_product_run(lm_kernels_at((weft_cpu)level), &product);
        assert_near(c, wide_c, rows * columns, 1e-5 * sqrt((double)depth));
        for (size_t i = 0; i < rows * columns; i++) {
            c[i] = 1;
            wide_c[i] += 1;
        }
        product.accumulate = true;
        lm_product_run(lm_kernels_at((weft_cpu)level), &product);
        assert_near(c, wide_c, rows * columns, 1e-5 * sqrt((double)depth));
        for (size_t i = 0; i < rows * columns; i++) {
            wide_c[i] -= 1;
        }
    }
    free(a);
    free(b);
    free(c);
    free(packed);
    free(wide_a);
    free(wide_b);
    free(wide_c);
}

static void test_products(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 2, 5, 11, 12, 13, 16, 25, 31, 32, 33, 48, 65};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t j = 0; j < SIZES; j++) {
            check_product(sizes[i], sizes[j], sizes[(i + 2 * j) % SIZES], (i + j) % 2 == 0);
        }
    }
}

/* The same rows alone, in a larger product, and with the depth cut in two: the same bits. */
static void test_shape_does_not_matter(void **state) {
    (void)state;
    enum { ROWS = 29, COLUMNS = 70, DEPTH = 45, CUT = 17 };
    static float a[ROWS * DEPTH], b[COLUMNS * DEPTH], whole[ROWS * COLUMNS], part[ROWS * COLUMNS];
    float packed[3 * LM_PANEL * DEPTH];
    fill(a, ROWS * DEPTH, 3);
    fill(b, COLUMNS * DEPTH, 4);
    lm_pack(b, 1, DEPTH, COLUMNS, DEPTH, packed);
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        const lm_kernels *kernels = lm_kernels_at((weft_cpu)level);
        lm_product product = {ROWS,   COLUMNS,          DEPTH, a,       DEPTH, 1,
                              packed, DEPTH * LM_PANEL, whole, COLUMNS, false};
        lm_product_run(kernels, &product);
        product.c = part;
        for (size_t row = 0; row < ROWS; row++) {
            lm_product one = product;
            one.rows = 1;
            one.a += row * DEPTH;
            one.c += row * COLUMNS;
            lm_product_run(kernels, &one);
        }
        assert_memory_equal(whole, part, sizeof whole);
        lm_product first = product;
        first.depth = CUT;
        lm_product second = product;
        second.depth = DEPTH - CUT;
        second.a += CUT;
        second.b += CUT * LM_PANEL;
        second.accumulate = true;
        lm_product_run(kernels, &first);
        lm_product_run(kernels, &second);
        assert_memory_equal(whole, part, sizeof whole);
    }
}

/* Strips, with columns in strips of their own as keys have them and side by side as values have them, give
 * the bits of panels. */
static void test_strips(void **state) {
    (void)state;
    enum { DEPTH = 23, COLUMNS_MOST = 101, ROWS_MOST = 5, WIDTH = COLUMNS_MOST + LM_STRIP };
    static float a[ROWS_MOST * DEPTH], b[COLUMNS_MOST * DEPTH], panels[4 * LM_PANEL * DEPTH];
    static float keys[WIDTH * DEPTH], values[WIDTH * DEPTH];
    fill(a, ROWS_MOST * DEPTH, 7);
    fill(b, COLUMNS_MOST * DEPTH, 8);
    lm_pack(b, 1, DEPTH, COLUMNS_MOST, DEPTH, panels);
    for (size_t j = 0; j < COLUMNS_MOST; j++) {
        for (size_t k = 0; k < DEPTH; k++) {
            keys[(j / LM_STRIP * DEPTH + k) * LM_STRIP + j % LM_STRIP] = b[j * DEPTH + k];
            values[k * WIDTH + j] = b[j * DEPTH + k];
        }
    }
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        const lm_kernels *kernels = lm_kernels_at((weft_cpu)level);
        for (size_t rows = 1; rows <= ROWS_MOST; rows++) {
            for (size_t columns = 1; columns <= COLUMNS_MOST; columns++) {
                float expected[ROWS_MOST * COLUMNS_MOST] = {0}, found[ROWS_MOST * COLUMNS_MOST] = {0};
                lm_product whole = {rows,     columns,      DEPTH, a, DEPTH, 1, panels, DEPTH * LM_PANEL,
                                    expected, COLUMNS_MOST, false};
                lm_strip_product product = {rows, columns,          DEPTH,    a,     DEPTH,
                                            keys, DEPTH * LM_STRIP, LM_STRIP, found, COLUMNS_MOST};
                lm_product_run(kernels, &whole);
                kernels->strips(&product);
                assert_memory_equal(found, expected, sizeof found);
                memset(found, 0, sizeof found);
                product.b = values;
                product.strip = LM_STRIP;
                product.step = WIDTH;
                kernels->strips(&product);
                assert_memory_equal(found, expected, sizeof found);
            }
        }
    }
}

static void check_rows(const lm_kernels *kernels, size_t count) {
    static float x[ROOM], y[ROOM], z[ROOM];
    static double wide_x[ROOM], wide_y[ROOM], wide_z[ROOM];
    fill(x, count, 5);
    fill(y, count, 6);
    widen(x, wide_x, count);
    widen(y, wide_y, count);
    float scale = kernels->norm(x, y, 1e-5f, count, z);
    lm_reference_norm(wide_x, wide_y, 1e-5, count, wide_z);
    assert_near(z, wide_z, count, 1e-5);
    assert_true(scale > 0);
    kernels->swiglu(x, y, count, z);
    lm_reference_swiglu(wide_x, wide_y, count, wide_z);
    assert_near(z, wide_z, count, 2e-6);
    memcpy(z, x, sizeof z);
    memcpy(wide_z, wide_x, sizeof wide_z);
    kernels->softmax(z, 3.0f, count);
    lm_reference_softmax(wide_z, 3.0, count);
    assert_near(z, wide_z, count, 2e-6);
    memcpy(z, x, sizeof z);
    memcpy(wide_z, wide_x, sizeof wide_z);
    kernels->log_softmax(z, 0.7f, count);
    lm_reference_log_softmax(wide_z, (double)0.7f, count);
    assert_near(z, wide_z, count, 2e-6);
}

static void test_rows(void **state) {
    (void)state;
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        for (size_t count = 1; count < 70; count++) {
            check_rows(lm_kernels_at((weft_cpu)level), count);
        }
        check_rows(lm_kernels_at((weft_cpu)level), 1000);
    }
}

/* Far from zero the exponential must end in 0 or a finite number, never in a NaN. */
static void test_extremes(void **state) {
    (void)state;
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        float row[20] = {1e30f, -1e30f, 0, 1e30f};
        float gate[4] = {-1e4f, 1e4f, -100, 100}, up[4] = {1, 1, 1, 1}, output[4];
        lm_kernels_at((weft_cpu)level)->softmax(row, 1, 20);
        assert_true(fabsf(row[0] - 0.5f) < 1e-6f && row[1] >= 0 && row[1] < 1e-30f);
        lm_kernels_at((weft_cpu)level)->swiglu(gate, up, 4, output);
        assert_true(fabsf(output[0]) < 1e-30f && output[1] == 1e4f && output[3] == 100);
    }
}

/* All levels give the same bits wherever no product takes part. */
static void test_levels_agree(void **state) {
    (void)state;
    enum { COUNT = 203 };
    float first[4][COUNT];
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        const lm_kernels *kernels = lm_kernels_at((weft_cpu)level);
        float x[COUNT], y[COUNT], rows[4][COUNT];
        fill(x, COUNT, 7);
        fill(y, COUNT, 8);
        kernels->norm(x, y, 1e-5f, COUNT, rows[0]);
        kernels->swiglu(x, y, COUNT, rows[1]);
        memcpy(rows[2], x, sizeof x);
        kernels->softmax(rows[2], 1, COUNT);
        memcpy(rows[3], x, sizeof x);
        kernels->log_softmax(rows[3], 1, COUNT);
        if (level == 0) {
            memcpy(first, rows, sizeof rows);
        }
        assert_memory_equal(first, rows, sizeof rows);
    }
}

static void test_rotation(void **state) {
    (void)state;
    enum { HEAD = 10, POSITION = 7 };
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        float x[HEAD], cosines[HEAD / 2], sines[HEAD / 2], before[HEAD];
        double wide[HEAD];
        fill(x, HEAD, 9);
        memcpy(before, x, sizeof x);
        widen(x, wide, HEAD);
        for (size_t i = 0; i < HEAD / 2; i++) {
            double angle = POSITION * pow(100, -(double)i / (HEAD / 2));
            cosines[i] = (float)cos(angle);
            sines[i] = (float)sin(angle);
        }
        lm_kernels_at((weft_cpu)level)->rotate(x, cosines, sines, 1, HEAD / 2);
        lm_reference_rotate(wide, POSITION, 100, HEAD);
        assert_near(x, wide, HEAD, 1e-6);
        lm_kernels_at((weft_cpu)level)->rotate(x, cosines, sines, -1, HEAD / 2);
        widen(before, wide, HEAD);
        assert_near(x, wide, HEAD, 1e-6);
    }
}

/* One weight, step by step in double precision. */
static void test_adam(void **state) {
    (void)state;
    for (int level = 0; level <= (int)weft_cpu_best(); level++) {
        float master = 0.5f, first = 0, second = 0, gradient = 0.3f;
        double wide = 0.5, m = 0, v = 0;
        for (int n = 1; n <= 20; n++, gradient = -gradient * 1.1f) {
            lm_adam_step step = {.rate = 0.01f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.99f,
                                 .bias1 = (float)(1 - pow(0.9, n)),
                                 .bias2 = (float)(1 - pow(0.99, n)),
                                 .epsilon = 1e-8f,
                                 .decay = 0.001f,
                                 .scale = 0.5f};
            double slope = 0.5 * (double)gradient;
            m = 0.9 * m + 0.1 * slope;
            v = 0.99 * v + 0.01 * slope * slope;
            wide -= 0.001 * wide + 0.01 * (m / (1 - pow(0.9, n))) / (sqrt(v / (1 - pow(0.99, n))) + 1e-8);
            lm_kernels_at((weft_cpu)level)->adam(&step, &gradient, &master, &first, &second, 1);
        }
        assert_near(&master, &wide, 1, 1e-5);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_strips),
        cmocka_unit_test(test_shape_does_not_matter),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_adam),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
