/* SPDX-License-Identifier: Apache-2.0
 *
 * visit.c: prepared changes, shown to whoever wants to know what a commit will do to live tensors.
 *
 * Changes are staged bucket by bucket, and a live tensor may have some in many buckets, row by row in turn.
 * Each segment of a bucket is a list whose live units ascend. Those of one tensor are merged by a heap, so
 * that nothing is copied but one batch.
 */
#include "transaction.h"

#include "../../base/pool.h"
#include "../../base/state.h"
#include "../../base/status.h"
#include "../../tensor/table.h"

#include <stdlib.h>

enum { DEFAULT_BATCH = 65536 };

/* What one segment of a bucket has yet to show. */
typedef struct visit_list {
    size_t index; /* of the live tensor */
    const weft_staged *staged;
    const weft_segment *segment;
    uint64_t next; /* sparse: index of the change; dense: units into the segment */
    uint64_t end;
    uint64_t unit; /* of the live tensor, at `next` */
} visit_list;

typedef struct visit_pass {
    weft_context *context;
    const weft_view *view;
    weft_change_function visit;
    void *opaque;
    visit_list *lists;
    size_t list_count;
    weft_change_batch batch;
    size_t capacity; /* of a batch */
    uint64_t *units;
    uint8_t *olds;
    uint8_t *news;
} visit_pass;

/* ---- the lists ---- */

/* Decoders need not keep to the order of positions; a merge needs it, and a commit takes it as well. */
static weft_status visit_sort_bucket(void *argument, size_t index, unsigned worker) {
    (void)worker;
    weft_apply *apply = argument;
    weft_staged *staged = &apply->staged[index];
    return staged->used && staged->dense_news == NULL ? weft_changes_sort(&staged->changes) : WEFT_OK;
}

static bool visit_dense_differs(const weft_staged *staged, uint64_t position) {
    size_t offset = (size_t)position * staged->width;
    return memcmp(staged->dense_olds + offset, staged->dense_news + offset, staged->width) != 0;
}

/* Settles a list on its next change. False if there is none. */
static bool visit_reach(visit_list *list) {
    const weft_segment *segment = list->segment;
    const weft_staged *staged = list->staged;
    if (staged->dense_news != NULL) {
        while (list->next < list->end && !visit_dense_differs(staged, segment->linear + list->next)) {
            list->next++;
        }
    }
    if (list->next == list->end) {
        return false;
    }
    uint64_t offset =
        staged->dense_news != NULL ? list->next : staged->changes.positions[list->next] - segment->linear;
    list->unit = weft_segment_live(segment, offset);
    return true;
}

/* Changes and segments ascend together. */
static void visit_list_bucket(visit_pass *pass, const weft_staged *staged) {
    const weft_changes *changes = &staged->changes;
    size_t first = 0;
    for (size_t i = 0; i < staged->window.segments.count; i++) {
        const weft_segment *segment = &staged->window.segments.items[i];
        visit_list list = {.staged = staged, .segment = segment, .end = segment->units};
        if (staged->dense_news == NULL) {
            list.next = first;
            while (first < changes->count && changes->positions[first] < segment->linear + segment->units) {
                first++;
            }
            list.end = first;
        }
        if (!segment->tied && visit_reach(&list)) {
            list.index = weft_view_live(pass->view, segment->live);
            pass->lists[pass->list_count++] = list;
        }
    }
}

static int visit_compare_lists(const void *a, const void *b) {
    const visit_list *first = a;
    const visit_list *second = b;
    if (first->index != second->index) {
        return first->index < second->index ? -1 : 1;
    }
    return (first->unit > second->unit) - (first->unit < second->unit);
}

static weft_status visit_open(visit_pass *pass, weft_apply *apply, size_t batch) {
    size_t segments = 0;
    uint64_t most = 1;
    for (size_t i = 0; i < apply->staged_count; i++) {
        const weft_staged *staged = &apply->staged[i];
        if (staged->used) {
            segments += staged->window.segments.count;
            most += staged->dense_news != NULL ? staged->units : staged->changes.count;
        }
    }
    batch = batch != 0 ? batch : DEFAULT_BATCH;
    pass->capacity = batch < most ? batch : (size_t)most;
    pass->lists = weft_allocate_array(pass->context, segments, sizeof *pass->lists);
    pass->units = weft_allocate_array(pass->context, pass->capacity, sizeof *pass->units);
    pass->olds = weft_allocate_array(pass->context, pass->capacity, sizeof(uint64_t));
    pass->news = weft_allocate_array(pass->context, pass->capacity, sizeof(uint64_t));
    if (pass->lists == NULL || pass->units == NULL || pass->olds == NULL || pass->news == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < apply->staged_count; i++) {
        if (apply->staged[i].used) {
            visit_list_bucket(pass, &apply->staged[i]);
        }
    }
    qsort(pass->lists, pass->list_count, sizeof *pass->lists, visit_compare_lists);
    return WEFT_OK;
}

static void visit_close(visit_pass *pass) {
    weft_release(pass->context, pass->lists);
    weft_release(pass->context, pass->units);
    weft_release(pass->context, pass->olds);
    weft_release(pass->context, pass->news);
}

/* ---- showing ---- */

/* The context is in use meanwhile: what the function does with it is refused, as in every callback. */
static weft_status visit_flush(visit_pass *pass) {
    weft_change_batch *batch = &pass->batch;
    if (batch->count == 0) {
        return WEFT_OK;
    }
    weft_scope scope;
    weft_scope_push(&scope, pass->context);
    weft_status answer = pass->visit(pass->opaque, batch);
    weft_scope_pop(&scope);
    batch->count = 0;
    return weft_answer(pass->context, answer, "the function that visits changes, at tensor \"%.*s\",",
                       WEFT_NAME_SHOWN, batch->tensor->name);
}

/* Moves changes of a list into the batch, up to the live unit `bound`, the next list's, or until the batch
 * is full. False if the list has no more. */
static inline __attribute__((always_inline)) bool visit_move(visit_pass *pass, visit_list *list,
                                                             uint64_t bound, unsigned width) {
    const weft_staged *staged = list->staged;
    bool dense = staged->dense_news != NULL;
    const void *olds = dense ? staged->dense_olds : staged->changes.olds;
    const void *news = dense ? staged->dense_news : staged->changes.news;
    size_t count = pass->batch.count;
    bool more = true;
    while (more && count < pass->capacity && list->unit <= bound) {
        uint64_t place = dense ? list->segment->linear + list->next : list->next;
        pass->units[count] = list->unit;
        weft_unit_store(pass->olds, count, width, weft_unit_load(olds, place, width));
        weft_unit_store(pass->news, count, width, weft_unit_load(news, place, width));
        count++;
        list->next++;
        more = visit_reach(list);
    }
    pass->batch.count = count;
    return more;
}

static bool visit_move_width(visit_pass *pass, visit_list *list, uint64_t bound) {
    switch (list->staged->width) {
    case 1:
        return visit_move(pass, list, bound, 1);
    case 2:
        return visit_move(pass, list, bound, 2);
    case 4:
        return visit_move(pass, list, bound, 4);
    default:
        return visit_move(pass, list, bound, 8);
    }
}

static void visit_sink_first(visit_list *heap, size_t count) {
    size_t place = 0;
    for (;;) {
        size_t child = 2 * place + 1;
        if (child + 1 < count && heap[child + 1].unit < heap[child].unit) {
            child++;
        }
        if (child >= count || heap[place].unit <= heap[child].unit) {
            return;
        }
        visit_list moved = heap[place];
        heap[place] = heap[child];
        heap[child] = moved;
        place = child;
    }
}

/* All lists of one tensor. In the order of their first units, they are a heap. */
static weft_status visit_tensor(visit_pass *pass, visit_list *heap, size_t count) {
    weft_status status = WEFT_OK;
    pass->batch = (weft_change_batch){
        .tensor = heap[0].segment->live,
        .index = heap[0].index,
        .units = pass->units,
        .olds = pass->olds,
        .news = pass->news,
    };
    while (status == WEFT_OK && count > 0) {
        uint64_t bound = count > 1 ? heap[1].unit : UINT64_MAX;
        bound = count > 2 && heap[2].unit < bound ? heap[2].unit : bound;
        bool more = visit_move_width(pass, &heap[0], bound);
        if (!more) {
            heap[0] = heap[--count];
        }
        visit_sink_first(heap, count);
        if (pass->batch.count == pass->capacity || count == 0) {
            status = visit_flush(pass);
        }
    }
    return status;
}

weft_status weft_apply_changes(weft_apply *apply, size_t batch, weft_change_function visit, void *opaque) {
    weft_status entered = weft_context_enter(apply->context);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (apply->phase != WEFT_APPLY_PREPARED) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT,
                         "changes are visited between prepare and commit");
    }
    visit_pass pass = {.context = apply->context, .view = apply->view, .visit = visit, .opaque = opaque};
    weft_status status = weft_parallel(apply->context, apply->staged_count, visit_sort_bucket, apply);
    if (status == WEFT_OK) {
        status = visit_open(&pass, apply, batch);
    }
    size_t first = 0;
    while (status == WEFT_OK && first < pass.list_count) {
        size_t end = first + 1;
        while (end < pass.list_count && pass.lists[end].index == pass.lists[first].index) {
            end++;
        }
        status = visit_tensor(&pass, pass.lists + first, end - first);
        first = end;
    }
    visit_close(&pass);
    return status;
}
