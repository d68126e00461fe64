/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c: the table of named tensors.
 *
 * Tensors stay in the order in which they were added. Names are found, and walked in canonical order,
 * through an AA tree (a balanced binary tree: see Andersson, "Balanced search trees made simple") whose
 * nodes also count the tensors below them. The tree was chosen over a hash because names come from
 * hostile files: its worst case is as good as its average, without a secret seed. And because all of it
 * is up to date after every add, the const calls only read, so any number of threads may make them once
 * the table is built.
 */
#include "table.h"
#include "../base/sized.h"

#include "../base/context.h"
#include "strides.h"

#include <string.h>

/* Node 0 is the empty tree; node i + 1 belongs to tensor i. */
typedef struct tree_node {
    uint32_t left;
    uint32_t right;
    uint32_t level;
    uint32_t count; /* tensors in this subtree, ties left out */
} tree_node;

struct weft_table {
    weft_context *context;
    weft_tensor *tensors;
    tree_node *nodes;
    size_t count;
    size_t capacity;
    uint32_t root;
    uint64_t bytes;
    weft_batch_access batch; /* its size is 0 if there is none */
};

/* ---- names and sizes ---- */

bool weft_text_is_utf8(const char *text, size_t size) {
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0;
    while (at < size) {
        unsigned char lead = bytes[at];
        size_t extra = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
        if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || extra >= size - at) {
            return false;
        }
        for (size_t i = 1; i <= extra; i++) {
            if ((bytes[at + i] & 0xc0) != 0x80) {
                return false;
            }
        }
        /* overlong forms, surrogates, and what lies beyond U+10FFFF */
        unsigned char next = extra > 0 ? bytes[at + 1] : 0;
        if ((lead == 0xe0 && next < 0xa0) || (lead == 0xed && next > 0x9f) ||
            (lead == 0xf0 && next < 0x90) || (lead == 0xf4 && next > 0x8f)) {
            return false;
        }
        at += extra + 1;
    }
    return true;
}

weft_status weft_tensor_measure(weft_context *context, weft_status status, const char *where,
                                const weft_tensor *tensor, uint64_t *bytes_out) {
    uint64_t bits = weft_dtype_bits(tensor->dtype);
    bool empty = false;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        empty = empty || tensor->shape[i] == 0;
        uint64_t length = tensor->shape[i] == 0 ? 1 : tensor->shape[i];
        if (__builtin_mul_overflow(bits, length, &bits) || bits > INT64_MAX) {
            return weft_fail(
                context, status,
                "%s: tensor \"%.*s\" is too large: its shape overflows 63 bits at dimension %u", where,
                WEFT_NAME_SHOWN, tensor->name, (unsigned)i);
        }
    }
    if (!empty && bits % 8 != 0) {
        return weft_fail(
            context, status, "%s: tensor \"%.*s\" has %llu bits of %s, which do not fill whole bytes",
            where, WEFT_NAME_SHOWN, tensor->name, (unsigned long long)bits, weft_dtype_name(tensor->dtype));
    }
    *bytes_out = empty ? 0 : bits / 8;
    return WEFT_OK;
}

bool weft_tensor_alike(const weft_tensor *a, const weft_tensor *b) {
    return a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->shape, b->shape, a->rank * sizeof a->shape[0]) == 0;
}

/* ---- the tree ---- */

static const char *node_name(const weft_table *table, uint32_t node) {
    return table->tensors[node - 1].name;
}

static void recount(weft_table *table, uint32_t node) {
    tree_node *nodes = table->nodes;
    uint32_t own = table->tensors[node - 1].tied_to < 0 ? 1 : 0;
    nodes[node].count = nodes[nodes[node].left].count + nodes[nodes[node].right].count + own;
}

/* A left child of the same level becomes the parent. */
static uint32_t skew(weft_table *table, uint32_t node) {
    tree_node *nodes = table->nodes;
    uint32_t left = nodes[node].left;
    if (nodes[left].level != nodes[node].level) {
        return node;
    }
    nodes[node].left = nodes[left].right;
    nodes[left].right = node;
    recount(table, node);
    recount(table, left);
    return left;
}

/* Of three nodes of one level in a row, the middle one moves up. */
static uint32_t split(weft_table *table, uint32_t node) {
    tree_node *nodes = table->nodes;
    uint32_t right = nodes[node].right;
    if (right == 0 || nodes[nodes[right].right].level != nodes[node].level) {
        return node;
    }
    nodes[node].right = nodes[right].left;
    nodes[right].left = node;
    nodes[right].level++;
    recount(table, node);
    recount(table, right);
    return right;
}

/* The depth of the recursion is at most twice the logarithm of the count. The name is known to be new. */
static uint32_t insert_node(weft_table *table, uint32_t at, uint32_t fresh) {
    if (at == 0) {
        return fresh;
    }
    if (strcmp(node_name(table, fresh), node_name(table, at)) < 0) {
        table->nodes[at].left = insert_node(table, table->nodes[at].left, fresh);
    } else {
        table->nodes[at].right = insert_node(table, table->nodes[at].right, fresh);
    }
    recount(table, at);
    return split(table, skew(table, at));
}

/* ---- building ---- */

weft_status weft_table_create(weft_context *context, weft_table **table_out) {
    weft_context_clear(context);
    weft_table *table = weft_allocate_zeroed(context, 1, sizeof(*table));
    if (table == NULL) {
        return WEFT_NO_MEMORY;
    }
    table->context = context;
    *table_out = table;
    return WEFT_OK;
}

void weft_table_destroy(weft_table *table) {
    if (table == NULL) {
        return;
    }
    weft_context *context = table->context;
    for (size_t i = 0; i < table->count; i++) {
        weft_release(context, (char *)(uintptr_t)table->tensors[i].name);
        if (table->tensors[i].tied_to < 0) {
            weft_release(context, (int64_t *)(uintptr_t)table->tensors[i].strides);
        }
    }
    weft_release(context, table->tensors);
    weft_release(context, table->nodes);
    weft_release(context, table);
}

static weft_status reserve_one(weft_table *table) {
    uint64_t limit = weft_context_limits(table->context)->tensors;
    if (table->count >= limit || table->count >= UINT32_MAX - 1) {
        return weft_fail(
            table->context, WEFT_LIMIT_EXCEEDED,
            "the table would exceed the limit of %llu tensors; raise limits.tensors to allow it",
            (unsigned long long)limit);
    }
    if (table->count < table->capacity) {
        return WEFT_OK;
    }
    size_t capacity = table->capacity == 0 ? 16 : table->capacity * 2;
    weft_tensor *tensors =
        weft_reallocate_array(table->context, table->tensors, capacity, sizeof(*tensors));
    if (tensors == NULL) {
        return WEFT_NO_MEMORY;
    }
    table->tensors = tensors;
    tree_node *nodes = weft_reallocate_array(table->context, table->nodes, capacity + 1, sizeof(*nodes));
    if (nodes == NULL) {
        return WEFT_NO_MEMORY;
    }
    memset(&nodes[0], 0, sizeof(nodes[0]));
    table->nodes = nodes;
    table->capacity = capacity;
    return WEFT_OK;
}

static weft_status check_name(weft_table *table, const char *name) {
    weft_context *context = table->context;
    if (name == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "a tensor needs a name");
    }
    size_t length = strnlen(name, WEFT_NAME_MAX + 1);
    if (length > WEFT_NAME_MAX) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                         "the tensor name \"%.*s...\" is longer than %d bytes", WEFT_NAME_SHOWN, name,
                         WEFT_NAME_MAX);
    }
    if (!weft_text_is_utf8(name, length)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the tensor name \"%.*s\" is not UTF-8",
                         WEFT_NAME_SHOWN, name);
    }
    if (weft_table_find(table, name) >= 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "there are two tensors named \"%.*s\"",
                         WEFT_NAME_SHOWN, name);
    }
    return WEFT_OK;
}

/* Appends a checked tensor under a copy of `name`. */
static weft_status append(weft_table *table, const weft_tensor *tensor, const char *name) {
    weft_status status = reserve_one(table);
    if (status != WEFT_OK) {
        return status;
    }
    char *copy = weft_copy_text(table->context, name, strlen(name));
    if (copy == NULL) {
        return WEFT_NO_MEMORY;
    }
    table->tensors[table->count] = *tensor;
    table->tensors[table->count].name = copy;
    table->count++;
    uint32_t fresh = (uint32_t)table->count;
    table->nodes[fresh] = (tree_node){.level = 1};
    recount(table, fresh);
    table->root = insert_node(table, table->root, fresh);
    return WEFT_OK;
}

static weft_status check_storage(weft_context *context, const weft_tensor *tensor) {
    if (tensor->storage == tensor->dtype) {
        return WEFT_OK;
    }
    if (tensor->dtype != WEFT_DTYPE_BF16 || tensor->storage != WEFT_DTYPE_F32) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "tensor \"%.*s\": the only storage that differs from the dtype is F32 for BF16",
                         WEFT_NAME_SHOWN, tensor->name);
    }
    if (tensor->access != NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "tensor \"%.*s\": F32 masters must be plain memory; callbacks speak in BF16",
                         WEFT_NAME_SHOWN, tensor->name);
    }
    return WEFT_OK;
}

static weft_status check_converter(weft_context *context, const weft_tensor *tensor) {
    if (tensor->converter == NULL) {
        return WEFT_OK;
    }
    weft_converter converter;
    weft_status status =
        weft_sized_read(context, tensor->converter, &converter, sizeof converter, "weft_converter");
    if (status != WEFT_OK) {
        return status;
    }
    if (converter.commit == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "tensor \"%.*s\": its converter lacks a commit function", WEFT_NAME_SHOWN,
                         tensor->name);
    }
    if (tensor->access != NULL || tensor->strides != NULL || tensor->storage != tensor->dtype) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "tensor \"%.*s\" has a converter and must be a copy in its dtype, in plain memory, "
            "end to end",
            WEFT_NAME_SHOWN, tensor->name);
    }
    return WEFT_OK;
}

/* The tensor's own copy of its strides, if it needs any. */
static weft_status copy_strides(weft_context *context, weft_tensor *tensor) {
    if (tensor->strides == NULL || tensor->bytes == 0) {
        tensor->strides = NULL;
        return WEFT_OK;
    }
    weft_status status = weft_strides_check(context, tensor);
    if (status != WEFT_OK) {
        return status;
    }
    weft_strides strides = weft_strides_of(tensor);
    int64_t *copy = NULL;
    if (!weft_strides_joined(&strides)) {
        copy = weft_allocate_array(context, tensor->rank, sizeof *copy);
        if (copy == NULL) {
            return WEFT_NO_MEMORY;
        }
        memcpy(copy, tensor->strides, tensor->rank * sizeof *copy);
    }
    tensor->strides = copy;
    return WEFT_OK;
}

weft_status weft_table_add(weft_table *table, const weft_tensor *given) {
    weft_context *context = table->context;
    weft_context_clear(context);
    weft_tensor copy;
    weft_status status = weft_sized_read(context, given, &copy, sizeof copy, "weft_tensor");
    if (status == WEFT_OK) {
        status = check_name(table, copy.name);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (weft_dtype_name(copy.dtype) == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "tensor \"%.*s\": %d is no dtype", WEFT_NAME_SHOWN,
                         copy.name, (int)copy.dtype);
    }
    if (copy.rank > WEFT_RANK_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "tensor \"%.*s\" has %u dimensions; at most %d are supported", WEFT_NAME_SHOWN,
                         copy.name, (unsigned)copy.rank, WEFT_RANK_MAX);
    }
    copy.storage = copy.storage == 0 ? copy.dtype : copy.storage;
    copy.tied_to = -1;
    for (uint32_t i = copy.rank; i < WEFT_RANK_MAX; i++) {
        copy.shape[i] = 0;
    }
    status = check_storage(context, &copy);
    if (status == WEFT_OK) {
        status = weft_tensor_measure(context, WEFT_INVALID_ARGUMENT, "table", &copy, &copy.bytes);
    }
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t total;
    if (__builtin_add_overflow(table->bytes, copy.bytes, &total) || total > INT64_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "with tensor \"%.*s\" the table's size overflows 63 bits", WEFT_NAME_SHOWN,
                         copy.name);
    }
    if (copy.bytes == 0 || copy.access != NULL) {
        copy.data = NULL;
    }
    status = copy_strides(context, &copy);
    if (status != WEFT_OK) {
        return status;
    }
    status = check_converter(context, &copy);
    if (status == WEFT_OK) {
        status = append(table, &copy, copy.name);
    }
    if (status == WEFT_OK) {
        table->bytes = total;
    } else {
        weft_release(context, (int64_t *)(uintptr_t)copy.strides);
    }
    return status;
}

weft_status weft_table_tie(weft_table *table, const char *name, const char *target) {
    weft_context *context = table->context;
    weft_context_clear(context);
    weft_status status = check_name(table, name);
    if (status != WEFT_OK) {
        return status;
    }
    int64_t index = target == NULL ? -1 : weft_table_find(table, target);
    if (index < 0) {
        return weft_fail(context, WEFT_NOT_FOUND, "cannot tie \"%.*s\" to \"%.*s\": no such tensor",
                         WEFT_NAME_SHOWN, name, WEFT_NAME_SHOWN, target == NULL ? "" : target);
    }
    weft_tensor copy = table->tensors[index];
    if (copy.tied_to >= 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "cannot tie \"%.*s\" to \"%.*s\", which is itself tied; tie it to \"%.*s\"",
                         WEFT_NAME_SHOWN, name, WEFT_NAME_SHOWN, target, WEFT_NAME_SHOWN,
                         table->tensors[copy.tied_to].name);
    }
    copy.tied_to = index;
    return append(table, &copy, name);
}

weft_status weft_table_set_batch_access(weft_table *table, const weft_batch_access *given) {
    weft_context_clear(table->context);
    weft_batch_access batch;
    weft_status status = weft_sized_read(table->context, given, &batch, sizeof batch, "weft_batch_access");
    if (status != WEFT_OK) {
        return status;
    }
    if (given != NULL &&
        (batch.begin == NULL || batch.gather == NULL || batch.scatter == NULL || batch.end == NULL)) {
        return weft_fail(table->context, WEFT_INVALID_ARGUMENT,
                         "a weft_batch_access needs all four of begin, gather, scatter and end");
    }
    table->batch = given != NULL ? batch : (weft_batch_access){0};
    return WEFT_OK;
}

weft_batch_access weft_table_batch(const weft_table *table) {
    return table->batch;
}

void weft_table_bind(weft_table *table, size_t first, size_t count, void *data) {
    uint8_t *cursor = data;
    for (size_t i = first; i < first + count; i++) {
        weft_tensor *tensor = &table->tensors[i];
        tensor->data = tensor->bytes == 0 ? NULL : cursor;
        cursor += tensor->bytes;
    }
}

/* ---- asking ---- */

size_t weft_table_count(const weft_table *table) {
    return table->count;
}

const weft_tensor *weft_table_at(const weft_table *table, size_t index) {
    return index < table->count ? &table->tensors[index] : NULL;
}

int64_t weft_table_find(const weft_table *table, const char *name) {
    uint32_t node = table->root;
    while (node != 0) {
        int order = strcmp(name, node_name(table, node));
        if (order == 0) {
            return (int64_t)node - 1;
        }
        node = order < 0 ? table->nodes[node].left : table->nodes[node].right;
    }
    return -1;
}

size_t weft_table_sorted_count(const weft_table *table) {
    return table->root == 0 ? 0 : table->nodes[table->root].count;
}

/* `position` is below weft_table_sorted_count. */
size_t weft_table_sorted(const weft_table *table, size_t position) {
    const tree_node *nodes = table->nodes;
    uint32_t node = table->root;
    for (;;) {
        size_t before = nodes[nodes[node].left].count;
        size_t own = table->tensors[node - 1].tied_to < 0 ? 1 : 0;
        if (position < before) {
            node = nodes[node].left;
        } else if (own == 1 && position == before) {
            return node - 1;
        } else {
            position -= before + own;
            node = nodes[node].right;
        }
    }
}

uint64_t weft_table_bytes(const weft_table *table) {
    return table->bytes;
}
