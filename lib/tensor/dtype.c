/* SPDX-License-Identifier: Apache-2.0
 *
 * dtype.c: what is known about each dtype. One row per dtype, in the order of their numbers; everything
 * else asks here, so that a new dtype is one new row.
 */
#include <weft/tensor.h>

#include <string.h>

typedef struct dtype_row {
    const char *name;
    unsigned bits;
    unsigned width;
} dtype_row;

static const dtype_row rows[] = {
    [WEFT_DTYPE_BOOL] = {"BOOL", 8, 1},
    [WEFT_DTYPE_U8] = {"U8", 8, 1},
    [WEFT_DTYPE_I8] = {"I8", 8, 1},
    [WEFT_DTYPE_F8_E5M2] = {"F8_E5M2", 8, 1},
    [WEFT_DTYPE_F8_E4M3] = {"F8_E4M3", 8, 1},
    [WEFT_DTYPE_F8_E8M0] = {"F8_E8M0", 8, 1},
    [WEFT_DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8, 1},
    [WEFT_DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8, 1},
    [WEFT_DTYPE_F4] = {"F4", 4, 1},
    [WEFT_DTYPE_F6_E2M3] = {"F6_E2M3", 6, 1},
    [WEFT_DTYPE_F6_E3M2] = {"F6_E3M2", 6, 1},
    [WEFT_DTYPE_U16] = {"U16", 16, 2},
    [WEFT_DTYPE_I16] = {"I16", 16, 2},
    [WEFT_DTYPE_F16] = {"F16", 16, 2},
    [WEFT_DTYPE_BF16] = {"BF16", 16, 2},
    [WEFT_DTYPE_U32] = {"U32", 32, 4},
    [WEFT_DTYPE_I32] = {"I32", 32, 4},
    [WEFT_DTYPE_F32] = {"F32", 32, 4},
    [WEFT_DTYPE_U64] = {"U64", 64, 8},
    [WEFT_DTYPE_I64] = {"I64", 64, 8},
    [WEFT_DTYPE_F64] = {"F64", 64, 8},
    [WEFT_DTYPE_C64] = {"C64", 64, 8},
};

enum { ROW_COUNT = sizeof(rows) / sizeof(rows[0]) };

/* The numbers come from files too, so any value may be asked for. Row 0 is empty: no name, no bits. */
static const dtype_row *row_of(weft_dtype dtype) {
    unsigned number = (unsigned)dtype;
    return &rows[number < ROW_COUNT ? number : 0];
}

const char *weft_dtype_name(weft_dtype dtype) {
    return row_of(dtype)->name;
}

bool weft_dtype_parse(const char *name, weft_dtype *dtype_out) {
    if (name == NULL) {
        return false;
    }
    for (unsigned number = 1; number < ROW_COUNT; number++) {
        if (strcmp(rows[number].name, name) == 0) {
            *dtype_out = (weft_dtype)number;
            return true;
        }
    }
    return false;
}

unsigned weft_dtype_bits(weft_dtype dtype) {
    return row_of(dtype)->bits;
}

unsigned weft_dtype_width(weft_dtype dtype) {
    return row_of(dtype)->width;
}

uint64_t weft_tensor_units(const weft_tensor *tensor) {
    unsigned width = weft_dtype_width(tensor->dtype);
    return width == 0 ? 0 : tensor->bytes / width;
}
