/* SPDX-License-Identifier: Apache-2.0
 *
 * repair_pages.c: a page of the history, made again out of what lies beside it.
 *
 * Records are looked for from the newest of the page back. Each must be of the state that the one after it
 * starts from, so that what failed publishes have left is not taken for a part of the history.
 */
#include "repair.h"

#include "../../base/context.h"
#include "../../tensor/digest.h"
#include "../format/history.h"
#include "../format/leap.h"

#include <string.h>

/* A page that repeats some of the records. */
typedef struct page_source {
    weft_blob blob;
    weft_page *page;
} page_source;

typedef struct page_making {
    weft_repair *repair;
    weft_context *context;
    const weft_repair_gap *gap;
    const weft_blob *blob;
    unsigned format;
    uint64_t first;
    page_source *sources; /* by their last version, highest first; of one version the youngest first */
    size_t source_count;
    page_source before; /* the page before, if it had to be looked for */
    weft_page *page;
    bool head_alone;              /* the last record is the head's, which does not tell what it retires */
    bool made_up[WEFT_PAGE_LONG]; /* records of which nothing was found, */
    bool unknown[WEFT_PAGE_LONG]; /* the digest neither */
} page_making;

uint64_t weft_repair_first(unsigned format, uint64_t last) {
    return last - weft_page_span(format, last) + 1;
}

static uint64_t last_version(const weft_page *page) {
    return page->records[page->record_count - 1].version;
}

/* ---- sources ---- */

static weft_status add_source(page_making *making, const weft_blob *blob, weft_page *page) {
    page_source *sources =
        weft_reallocate_array(making->context, making->sources, making->source_count + 1, sizeof *sources);
    if (sources == NULL) {
        weft_history_release(making->context, page);
        return WEFT_NO_MEMORY;
    }
    making->sources = sources;
    sources[making->source_count++] = (page_source){*blob, page};
    return WEFT_OK;
}

static bool may_repeat(const page_making *making, const char *key, uint64_t version) {
    uint64_t end = (making->gap->last - 1) / WEFT_PAGE_LONG * WEFT_PAGE_LONG + WEFT_PAGE_LONG;
    /* those of format 1 reach furthest back */
    uint64_t from = weft_repair_first(WEFT_SYNC_FORMAT, version);
    return version >= making->first && version <= end && from <= making->gap->last &&
           strcmp(key, making->blob->key) != 0;
}

/* The last head of an epoch names a page by its hash: it can be had without a listing. */
static weft_status find_named(page_making *making) {
    weft_repair *repair = making->repair;
    weft_status status = WEFT_OK;
    for (size_t i = repair->listed ? 0 : repair->head_count; i > 0 && status == WEFT_OK; i--) {
        const weft_repair_head *head = &repair->heads[i - 1];
        weft_page *page;
        if (head->state != WEFT_REPAIR_HEAD_GOOD || !head->head.started ||
            !may_repeat(making, head->head.page.key, head->head.newest.version)) {
            continue;
        }
        status = weft_history_page(making->context, repair->store, &head->head.page, repair->run, &page);
        status = status == WEFT_OK ? add_source(making, &head->head.page, page) : status;
        status = weft_repair_damage(status) ? WEFT_OK : status;
    }
    return status;
}

/* The youngest source that ends with a version, or NULL. */
static const page_source *source_of(const page_making *making, uint64_t version) {
    for (size_t i = 0; i < making->source_count; i++) {
        if (last_version(making->sources[i].page) == version) {
            return &making->sources[i];
        }
    }
    const weft_page *before = making->before.page;
    return before != NULL && last_version(before) == version ? &making->before : NULL;
}

/* ---- records ---- */

/* What is known of a record that is looked for. */
typedef struct record_wish {
    uint64_t version;
    const weft_digest *digest; /* NULL: not known */
    const weft_record *newest; /* as the head has it; or NULL */
} record_wish;

static bool is_wished(const record_wish *wish, const weft_record *record) {
    if (record->version != wish->version ||
        (wish->digest != NULL && !weft_digest_equal(wish->digest, &record->digest))) {
        return false;
    }
    const weft_record *newest = wish->newest;
    return newest == NULL || (newest->patched == record->patched && newest->floor == record->floor &&
                              (!record->patched || strcmp(newest->patch.key, record->patch.key) == 0));
}

static const weft_record *find_on_pages(const page_making *making, const record_wish *wish) {
    for (size_t i = 0; i < making->source_count; i++) {
        const weft_page *page = making->sources[i].page;
        for (size_t j = 0; j < page->record_count; j++) {
            if (is_wished(wish, &page->records[j])) {
                return &page->records[j];
            }
        }
    }
    return NULL;
}

static const weft_record *find_in_heads(const page_making *making, const record_wish *wish) {
    const weft_repair *repair = making->repair;
    for (size_t i = repair->head_count; i > 0; i--) {
        const weft_repair_head *head = &repair->heads[i - 1];
        if (head->state == WEFT_REPAIR_HEAD_GOOD && head->head.started &&
            is_wished(wish, &head->head.newest)) {
            return &head->head.newest;
        }
    }
    return NULL;
}

/* WEFT_MORE: it is not there. */
static weft_status search_node(page_making *making, const weft_repair_entry *entry, const record_wish *wish,
                               weft_record *record) {
    weft_context *context = making->context;
    uint8_t *data;
    weft_hash hash;
    weft_status status =
        weft_repair_read(making->repair, entry->key, entry->size, WEFT_LEAP_NODE_MAX, &data, &hash);
    if (status != WEFT_OK) {
        return weft_repair_damage(status) ? WEFT_MORE : status;
    }
    weft_leap_node *node = weft_allocate(context, sizeof *node);
    if (node == NULL) {
        weft_release(context, data);
        return WEFT_NO_MEMORY;
    }
    weft_leap_node_open(node, context);
    status = weft_leap_node_parse(node, entry->key, data, (size_t)entry->size);
    status = weft_repair_damage(status) ? WEFT_MORE : status;
    if (status == WEFT_OK) {
        status = WEFT_MORE;
        bool ours = strcmp(node->run, making->repair->run) == 0;
        for (size_t i = 0; ours && i < node->record_count && status == WEFT_MORE; i++) {
            if (is_wished(wish, &node->records[i])) {
                status = weft_record_copy(context, &node->records[i], record);
            }
        }
    }
    weft_leap_node_release(context, node);
    weft_release(context, data);
    return status;
}

/* WEFT_MORE: it is not there. */
static weft_status find_in_nodes(page_making *making, const record_wish *wish, weft_record *record) {
    uint64_t end = (wish->version + WEFT_LEAP_WAYS - 1) / WEFT_LEAP_WAYS * WEFT_LEAP_WAYS;
    const weft_repair_room *room;
    weft_status status = weft_repair_list(making->repair, "leaps", &room);
    if (status != WEFT_OK) {
        return status;
    }
    status = WEFT_MORE;
    for (size_t i = 0; i < room->count && status == WEFT_MORE; i++) {
        if (room->entries[i].version == end) {
            status = search_node(making, &room->entries[i], wish, record);
        }
    }
    return status;
}

/* ---- records out of patches ---- */

static weft_status object_leads_to(page_making *making, const char *room_name, uint64_t version,
                                   const weft_digest *digest, bool *leads) {
    const weft_repair_room *room;
    weft_status status = weft_repair_list(making->repair, room_name, &room);
    for (size_t i = 0; status == WEFT_OK && i < room->count && !*leads; i++) {
        weft_object object;
        weft_digest base;
        weft_digest result;
        if (room->entries[i].version == version) {
            status = weft_repair_describe(making->repair, &room->entries[i], &object, &base, &result, NULL);
            *leads = status == WEFT_OK && weft_digest_equal(&result, digest);
            status = status == WEFT_MORE ? WEFT_OK : status;
        }
    }
    return status;
}

static weft_status page_leads_to(page_making *making, uint64_t version, const weft_digest *digest,
                                 bool *leads) {
    const weft_repair_room *room;
    weft_status status = weft_repair_list(making->repair, "pages", &room);
    for (size_t i = 0; status == WEFT_OK && i < room->count && !*leads; i++) {
        weft_blob blob;
        weft_page *page;
        if (room->entries[i].version != version) {
            continue;
        }
        status = weft_repair_read_page(making->repair, &room->entries[i], &blob, &page);
        if (status == WEFT_OK) {
            *leads = weft_digest_equal(&page->records[page->record_count - 1].digest, digest);
            weft_history_release(making->context, page);
        }
        status = weft_repair_damage(status) ? WEFT_OK : status;
    }
    return status;
}

/* True if something knows the state as that of a version. A leap lies where a patch of one version does,
 * and starts from an older state. */
static weft_status is_known(page_making *making, uint64_t version, const weft_digest *digest, bool *known) {
    const record_wish wish = {.version = version, .digest = digest};
    static const char *const rooms[] = {"patches", "anchors", "pieces"};
    *known = version == 0 || find_on_pages(making, &wish) != NULL || find_in_heads(making, &wish) != NULL;
    weft_status status = *known ? WEFT_OK : page_leads_to(making, version, digest, known);
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms && status == WEFT_OK && !*known; i++) {
        status = object_leads_to(making, rooms[i], version, digest, known);
    }
    return status;
}

/* What the objects of a version tell of it. */
typedef struct object_search {
    weft_record record; /* of the best so far */
    bool found;
    bool certain; /* it starts from the version before */
    size_t matches;
} object_search;

static weft_status try_object(page_making *making, const weft_repair_entry *entry, const record_wish *wish,
                              object_search *search) {
    weft_object object;
    weft_digest base;
    weft_digest digest;
    weft_record record = {0};
    weft_digest nothing = weft_state_nothing();
    weft_status status = weft_repair_describe(making->repair, entry, &object, &base, &digest, &record);
    if (status != WEFT_OK) {
        return status == WEFT_MORE ? WEFT_OK : status;
    }
    bool certain = false;
    bool whole = weft_digest_equal(&base, &nothing);
    bool fits = weft_digest_equal(&digest, wish->digest);
    /* an anchor is of a version that has a patch as well, mostly: it comes last */
    if (fits && !whole) {
        status = is_known(making, wish->version - 1, &base, &certain);
    }
    if (status == WEFT_OK && fits) {
        search->matches += !whole;
        if (!search->found || certain) {
            weft_record_close(&search->record, making->context);
            record.patched = !whole;
            record.base = whole ? (weft_digest){{0}} : base;
            record.patch = whole ? (weft_object){.bytes = 0} : object;
            search->record = record;
            search->found = true;
            search->certain = certain;
            return WEFT_OK;
        }
    }
    weft_record_close(&record, making->context);
    return status;
}

/* WEFT_MORE: they do not tell. */
static weft_status find_in_objects(page_making *making, const record_wish *wish, weft_record *record) {
    static const char *const rooms[] = {"patches", "pieces", "anchors"};
    object_search search = {.found = false};
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms && status == WEFT_OK && wish->digest != NULL; i++) {
        const weft_repair_room *room;
        status = weft_repair_list(making->repair, rooms[i], &room);
        for (size_t j = 0; status == WEFT_OK && j < room->count && !search.certain; j++) {
            if (room->entries[j].version == wish->version) {
                status = try_object(making, &room->entries[j], wish, &search);
            }
        }
    }
    if (status == WEFT_OK && search.found && (search.certain || search.matches <= 1)) {
        *record = search.record;
        return WEFT_OK;
    }
    weft_record_close(&search.record, making->context);
    return status == WEFT_OK ? WEFT_MORE : status;
}

/* Where what was found does not tell, the record after it does, or as good as. */
static void fill_in(const page_making *making, const weft_record *after, weft_record *record) {
    const weft_repair_gap *gap = making->gap;
    uint64_t floor = after != NULL ? after->floor : gap->floor;
    record->milliseconds = after != NULL ? after->milliseconds : gap->milliseconds;
    record->floor = floor < record->version ? floor : record->version;
    if (record->epoch == 0) {
        record->epoch = after != NULL ? after->epoch : gap->epoch;
    }
}

static weft_status find_record(page_making *making, const record_wish *wish, const weft_record *after,
                               weft_record *record) {
    weft_context *context = making->context;
    const weft_record *found = find_on_pages(making, wish);
    if (found != NULL) {
        return weft_record_copy(context, found, record);
    }
    weft_status status = find_in_nodes(making, wish, record);
    if (status != WEFT_MORE) {
        return status;
    }
    if (wish->newest != NULL) {
        making->head_alone = true;
        return weft_record_copy(context, wish->newest, record);
    }
    found = find_in_heads(making, wish);
    if (found != NULL) {
        making->head_alone = wish->version == making->gap->last;
        return weft_record_copy(context, found, record);
    }
    status = find_in_objects(making, wish, record);
    if (status == WEFT_MORE) {
        /* of a version of which nothing is left but, mostly, the digest */
        size_t index = (size_t)(wish->version - making->first);
        making->made_up[index] = true;
        making->unknown[index] = wish->digest == NULL;
        *record = (weft_record){.version = wish->version};
        if (wish->digest != NULL) {
            record->digest = *wish->digest;
        }
        status = weft_texts_add(&record->labels, making->context, "lost");
        if (status == WEFT_OK) {
            status = weft_texts_add(&record->labels, making->context, "the record of this version");
        }
    }
    if (status == WEFT_OK) {
        fill_in(making, after, record);
    }
    return status;
}

/* ---- the rest of a page ---- */

static weft_status look_for_before(page_making *making) {
    const weft_repair_room *room;
    const weft_record *first = &making->page->records[0];
    weft_status status = weft_repair_list(making->repair, "pages", &room);
    for (size_t i = 0; status == WEFT_OK && i < room->count && making->before.page == NULL; i++) {
        weft_page *page;
        weft_blob blob;
        if (room->entries[i].version != making->first - 1) {
            continue;
        }
        status = weft_repair_read_page(making->repair, &room->entries[i], &blob, &page);
        if (status == WEFT_OK &&
            (!first->patched ||
             weft_digest_equal(&first->base, &page->records[page->record_count - 1].digest))) {
            making->before = (page_source){blob, page};
        } else if (status == WEFT_OK) {
            weft_history_release(making->context, page);
        }
        status = weft_repair_damage(status) ? WEFT_OK : status;
    }
    return status;
}

static weft_status find_link(page_making *making) {
    weft_page *page = making->page;
    for (size_t i = 0; i < making->source_count; i++) {
        const weft_page *source = making->sources[i].page;
        if (source->records[0].version == making->first && source->linked) {
            page->linked = true;
            page->previous = source->previous;
            break;
        }
    }
    /* of the head's page the one before may be the only one that tells of anchors */
    bool wanted = !page->linked || (making->gap->newest != NULL && making->source_count == 0);
    weft_status status = making->first > 1 && wanted ? look_for_before(making) : WEFT_OK;
    if (status == WEFT_OK && !page->linked && making->before.page != NULL) {
        page->linked = true;
        page->previous = making->before.blob;
    }
    return status;
}

/* ---- from the other side ---- */

/* A patch that starts from the state of the version before. WEFT_MORE: there is none. */
static weft_status find_from_base(page_making *making, size_t index, const weft_digest *base,
                                  weft_record *record) {
    static const char *const rooms[] = {"patches", "pieces"};
    const weft_record *lost = &making->page->records[index];
    weft_status status = WEFT_MORE;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms && status == WEFT_MORE; i++) {
        const weft_repair_room *room;
        weft_status listed = weft_repair_list(making->repair, rooms[i], &room);
        if (listed != WEFT_OK) {
            return listed;
        }
        for (size_t j = 0; j < room->count && status == WEFT_MORE; j++) {
            weft_digest digest;
            if (room->entries[j].version != lost->version) {
                continue;
            }
            weft_object object;
            weft_digest found;
            status =
                weft_repair_describe(making->repair, &room->entries[j], &object, &found, &digest, record);
            bool fits = status == WEFT_OK && weft_digest_equal(&found, base) &&
                        (making->unknown[index] || weft_digest_equal(&digest, &lost->digest));
            if (fits) {
                record->patched = true;
                record->base = found;
                record->patch = object;
            } else if (status == WEFT_OK) {
                weft_record_close(record, making->context);
                status = WEFT_MORE;
            }
        }
    }
    return status;
}

/* Where the way from the newest record back has ended, the way up from the page before may go on. */
static weft_status climb_up(page_making *making) {
    weft_page *page = making->page;
    const weft_page *before = making->before.page;
    const weft_digest *base = before != NULL ? &before->records[before->record_count - 1].digest : NULL;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < page->record_count && status == WEFT_OK; i++) {
        weft_record record = {0};
        if (making->made_up[i] && base != NULL) {
            status = find_from_base(making, i, base, &record);
            if (status == WEFT_OK) {
                fill_in(making, i + 1 < page->record_count ? &page->records[i + 1] : NULL, &record);
                weft_record_close(&page->records[i], making->context);
                page->records[i] = record;
                making->made_up[i] = false;
                making->unknown[i] = false;
            }
            status = status == WEFT_MORE ? WEFT_OK : status;
        }
        base = making->unknown[i] ? NULL : &page->records[i].digest;
    }
    return status;
}

/* What the pages before tell of anchors and leaps, and the records since. Nothing, where one is lost. */
static weft_status read_front(page_making *making, weft_front *front) {
    weft_context *context = making->context;
    weft_page *page = making->page;
    weft_page *read = NULL;
    weft_status status = weft_front_take(front, context, page);
    while (status == WEFT_OK && !front->full && page->linked) {
        weft_page *before = NULL;
        status = weft_history_page(context, making->repair->store, &page->previous, making->repair->run,
                                   &before);
        weft_history_release(context, read);
        read = before;
        page = before;
        status = status == WEFT_OK ? weft_front_take(front, context, page) : status;
    }
    weft_history_release(context, read);
    return weft_repair_damage(status) ? WEFT_OK : status;
}

static weft_status fill_page(page_making *making, const weft_anchor *anchors, size_t count,
                             const weft_leaps *leaps) {
    weft_page *page = making->page;
    const weft_record *last = &page->records[page->record_count - 1];
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count; i++) {
        if (making->gap->newest == NULL || anchors[i].version >= making->gap->newest->floor) {
            page->anchors[page->anchor_count++] = anchors[i];
        }
    }
    for (size_t i = 0; i < leaps->count && status == WEFT_OK; i++) {
        bool kept = making->format == WEFT_SYNC_FORMAT || leaps->items[i].last > last->floor;
        status = kept ? weft_leaps_add(&page->leaps, making->context, &leaps->items[i]) : WEFT_OK;
    }
    return status;
}

/* Anchors and leaps are those of the version before, unless something has come. */
static weft_status copy_model(page_making *making) {
    const weft_page *model = making->before.page;
    for (size_t i = 0; i < making->source_count; i++) {
        const weft_page *source = making->sources[i].page;
        if (last_version(source) <= making->gap->last && source->full) {
            model = source;
            break;
        }
    }
    if (model != NULL && model->full) {
        return fill_page(making, model->anchors, model->anchor_count, &model->leaps);
    }
    weft_front front = {.full = false};
    weft_status status = read_front(making, &front);
    if (status == WEFT_OK && front.full) {
        status = fill_page(making, front.anchors, front.anchor_count, &front.leaps);
    }
    weft_front_close(&front, making->context);
    return status;
}

/* ---- the very bytes ---- */

static weft_status compare_page(page_making *making, bool *exact) {
    weft_writer writer;
    weft_hash hash;
    weft_writer_open(&writer, making->context);
    weft_status status = weft_page_format(making->page, &writer);
    if (status == WEFT_OK) {
        status = weft_hash_compute(making->context, writer.data, writer.size, &hash);
    }
    *exact = status == WEFT_OK && writer.size == making->blob->bytes &&
             weft_hash_equal(&hash, &making->blob->hash);
    weft_writer_close(&writer);
    return status;
}

/* With the key of each page of the same version as the one that this one has replaced, and without. */
static weft_status compare_replacing(page_making *making, bool *exact) {
    weft_page *page = making->page;
    page->replaces[0] = '\0';
    weft_status status = compare_page(making, exact);
    for (size_t i = 0; i < making->source_count && status == WEFT_OK && !*exact; i++) {
        const page_source *source = &making->sources[i];
        if (last_version(source->page) == making->gap->last) {
            memcpy(page->replaces, source->blob.key, sizeof page->replaces);
            status = compare_page(making, exact);
        }
    }
    return status;
}

/* The pages that one of a version takes the place of: from the one of the version before back, as they link
 * to each other. */
static weft_status retire_repeated(page_making *making, weft_texts *retired) {
    weft_context *context = making->context;
    uint64_t last = making->gap->last;
    const page_source *sources[WEFT_PAGE_SHORT];
    size_t count = 0;
    uint64_t end = last - 1;
    bool once = making->format == WEFT_SYNC_FORMAT;
    while (end >= making->first && end % WEFT_PAGE_SHORT != 0 && (!once || count == 0)) {
        const page_source *source = source_of(making, end);
        if (source == NULL) {
            break;
        }
        sources[count++] = source;
        end = source->page->records[0].version - 1;
    }
    weft_status status = WEFT_OK;
    for (size_t i = count; i > 0 && status == WEFT_OK; i--) {
        status = weft_texts_add(retired, context, sources[i - 1]->blob.key);
    }
    return status;
}

/* What a version retires when no anchor has come: as weft_ledger_draft does. */
static weft_status retire_again(page_making *making, weft_record *record, bool replaced) {
    weft_context *context = making->context;
    uint64_t last = making->gap->last;
    const page_source *former = source_of(making, last - 1);
    weft_texts *retired = &record->retired;
    weft_status status = WEFT_OK;
    weft_texts_close(retired, context);
    if (replaced && former != NULL && former->page->replaces[0] != '\0') {
        status = weft_texts_add(retired, context, former->page->replaces);
    }
    if (status == WEFT_OK) {
        status = retire_repeated(making, retired);
    }
    for (uint64_t i = WEFT_PAGE_SHORT;
         last % WEFT_PAGE_LONG == 0 && i < WEFT_PAGE_LONG && status == WEFT_OK; i += WEFT_PAGE_SHORT) {
        const page_source *source = source_of(making, last - WEFT_PAGE_LONG + i);
        status = source != NULL ? weft_texts_add(retired, context, source->blob.key) : WEFT_OK;
    }
    return status;
}

/* With what the newest record can have retired, if only the head tells of it. */
static weft_status compare_retiring(page_making *making, bool *exact) {
    weft_record *last = &making->page->records[making->page->record_count - 1];
    if (making->head_alone) {
        weft_texts_close(&last->retired, making->context);
    }
    weft_status status = compare_replacing(making, exact);
    for (int i = 0; i < 2 && status == WEFT_OK && !*exact && making->head_alone; i++) {
        status = retire_again(making, last, i == 0);
        if (status == WEFT_OK) {
            status = compare_replacing(making, exact);
        }
    }
    return status;
}

/* ---- making ---- */

/* Somebody may have given it another name. */
static weft_page *take_same(page_making *making) {
    for (size_t i = 0; i < making->source_count; i++) {
        page_source *source = &making->sources[i];
        if (source->blob.bytes == making->blob->bytes &&
            weft_hash_equal(&source->blob.hash, &making->blob->hash)) {
            weft_page *page = source->page;
            *source = making->sources[--making->source_count];
            return page;
        }
    }
    return NULL;
}

static weft_status make_page(page_making *making, bool *exact) {
    const weft_repair_gap *gap = making->gap;
    weft_page *page = making->page;
    size_t count = (size_t)(gap->last - making->first + 1);
    record_wish wish = {gap->last, gap->proven ? &gap->digest : NULL, gap->newest};
    weft_status status = WEFT_OK;
    const weft_record *after = NULL;
    for (size_t i = count; i > 0 && status == WEFT_OK; i--) {
        weft_record *record = &page->records[i - 1];
        status = find_record(making, &wish, after, record);
        after = record;
        wish = (record_wish){wish.version - 1, record->patched ? &record->base : NULL, NULL};
    }
    /* what is not there yet is empty */
    page->record_count = count;
    if (status == WEFT_OK) {
        status = find_link(making);
    }
    if (status == WEFT_OK) {
        status = climb_up(making);
    }
    bool bare = making->format > WEFT_SYNC_FORMAT && gap->last % WEFT_PAGE_FULL != 0 && page->linked;
    if (status == WEFT_OK && bare) {
        status = compare_retiring(making, exact);
    }
    if (status == WEFT_OK && !*exact) {
        status = copy_model(making);
        page->full = true;
        status = status == WEFT_OK ? compare_retiring(making, exact) : status;
    }
    if (status == WEFT_OK && !*exact) {
        page->replaces[0] = '\0';
    }
    return status;
}

static void count_lost(const page_making *making, uint64_t lost[2]) {
    for (uint64_t i = 0; i < making->page->record_count; i++) {
        if (making->made_up[i]) {
            lost[0] = lost[0] == 0 ? making->first + i : lost[0];
            lost[1] = making->first + i;
        }
    }
}

static weft_status make_whole(page_making *making, weft_page **page_out, bool *exact_out,
                              uint64_t lost[2]) {
    const weft_repair_room *room;
    weft_status status = weft_repair_list(making->repair, "pages", &room);
    for (size_t i = 0; status == WEFT_OK && i < room->count; i++) {
        const weft_repair_entry *entry = &room->entries[i];
        weft_blob blob;
        weft_page *page;
        if (!may_repeat(making, entry->key, entry->version)) {
            continue;
        }
        status = weft_repair_read_page(making->repair, entry, &blob, &page);
        status = status == WEFT_OK ? add_source(making, &blob, page) : status;
        status = weft_repair_damage(status) ? WEFT_OK : status;
    }
    if (status == WEFT_OK) {
        status = find_named(making);
    }
    if (status != WEFT_OK) {
        return status;
    }
    *page_out = take_same(making);
    *exact_out = *page_out != NULL;
    if (*exact_out) {
        return WEFT_OK;
    }
    making->page = weft_allocate(making->context, sizeof *making->page);
    if (making->page == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_page_open(making->page, making->context);
    making->page->format = making->format;
    memcpy(making->page->run, making->repair->run, sizeof making->page->run);
    status = make_page(making, exact_out);
    count_lost(making, lost);
    bool nothing = making->gap->newest == NULL && !making->page->linked;
    for (size_t i = 0; i < making->page->record_count; i++) {
        nothing = nothing && making->made_up[i];
    }
    if (status != WEFT_OK || nothing) {
        weft_history_release(making->context, making->page);
        making->page = NULL;
    }
    *page_out = making->page;
    return status;
}

static weft_status make_of_format(weft_repair *repair, const weft_blob *blob, const weft_repair_gap *gap,
                                  unsigned format, weft_page **page_out, bool *exact_out,
                                  uint64_t lost[2]) {
    page_making making = {
        .repair = repair,
        .context = repair->context,
        .gap = gap,
        .blob = blob,
        .format = format,
        .first = weft_repair_first(format, gap->last),
    };
    lost[0] = 0;
    lost[1] = 0;
    weft_status status = make_whole(&making, page_out, exact_out, lost);
    for (size_t i = 0; i < making.source_count; i++) {
        weft_history_release(making.context, making.sources[i].page);
    }
    weft_release(making.context, making.sources);
    weft_history_release(making.context, making.before.page);
    return status;
}

/* Into a run of format 2 a page of format 1 is made only if it is the very one. */
weft_status weft_repair_make_page(weft_repair *repair, const weft_blob *blob, const weft_repair_gap *gap,
                                  weft_page **page_out, bool *exact_out, uint64_t lost[2]) {
    weft_page *old = NULL;
    uint64_t old_lost[2];
    bool exact = false;
    bool first = repair->head.format == WEFT_SYNC_FORMAT;
    *page_out = NULL;
    weft_status status = make_of_format(repair, blob, gap, first ? WEFT_SYNC_FORMAT : WEFT_HISTORY_FORMAT,
                                        page_out, exact_out, lost);
    if (status == WEFT_OK && !first && !*exact_out && blob->key[0] != '\0') {
        status = make_of_format(repair, blob, gap, WEFT_SYNC_FORMAT, &old, &exact, old_lost);
    }
    if (status == WEFT_OK && exact) {
        weft_history_release(repair->context, *page_out);
        *page_out = old;
        *exact_out = true;
        memcpy(lost, old_lost, sizeof old_lost);
    } else {
        weft_history_release(repair->context, old);
    }
    if (status != WEFT_OK) {
        weft_history_release(repair->context, *page_out);
        *page_out = NULL;
    }
    return status;
}

/* ---- anchors ---- */

weft_status weft_repair_open_link(weft_repair *repair, size_t index, weft_page **page_out) {
    const weft_repair_link *link = &repair->links[index];
    if (link->made != NULL) {
        *page_out = link->made;
        return WEFT_OK;
    }
    return weft_history_page(repair->context, repair->store, &link->blob, repair->run, page_out);
}

void weft_repair_close_link(weft_repair *repair, size_t index, weft_page *page) {
    if (repair->links[index].made == NULL) {
        weft_history_release(repair->context, page);
    }
}

/* True if the history has the state as that of the version. */
static weft_status is_in_history(weft_repair *repair, uint64_t version, const weft_digest *digest,
                                 bool *found) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < repair->link_count && status == WEFT_OK && !repair->links[i].cut; i++) {
        weft_page *page;
        status = weft_repair_open_link(repair, i, &page);
        if (status != WEFT_OK) {
            return status;
        }
        uint64_t first = page->records[0].version;
        if (version >= first) {
            *found = weft_digest_equal(&page->records[version - first].digest, digest);
        }
        weft_repair_close_link(repair, i, page);
        if (version >= first) {
            break;
        }
    }
    return status;
}

static void insert_anchor(weft_page *page, const weft_anchor *anchor) {
    size_t place = 0;
    while (place < page->anchor_count && page->anchors[place].version > anchor->version) {
        place++;
    }
    if (page->anchor_count == WEFT_ANCHORS_MAX) {
        page->anchor_count--;
    }
    if (place < WEFT_ANCHORS_MAX) {
        memmove(page->anchors + place + 1, page->anchors + place,
                (page->anchor_count - place) * sizeof *page->anchors);
        page->anchors[place] = *anchor;
        page->anchor_count++;
    }
}

static weft_status try_anchor(weft_repair *repair, const weft_repair_entry *entry, weft_page *page) {
    weft_anchor anchor = {.version = entry->version};
    weft_digest base;
    weft_digest nothing = weft_state_nothing();
    bool found = false;
    weft_status status = weft_repair_describe(repair, entry, &anchor.object, &base, &anchor.digest, NULL);
    if (status == WEFT_OK && weft_digest_equal(&base, &nothing)) {
        status = is_in_history(repair, anchor.version, &anchor.digest, &found);
    }
    if (status == WEFT_OK && found) {
        insert_anchor(page, &anchor);
    }
    return status == WEFT_MORE ? WEFT_OK : status;
}

/* The newest full page, if it was made and is not the very one that was lost. */
static weft_status find_full(weft_repair *repair, weft_page **page_out) {
    weft_status status = WEFT_OK;
    bool full = false;
    for (size_t i = 0; i < repair->link_count && status == WEFT_OK && !full && !repair->links[i].cut; i++) {
        weft_page *page;
        status = weft_repair_open_link(repair, i, &page);
        if (status == WEFT_OK) {
            full = page->full;
            *page_out = full && !repair->links[i].exact ? repair->links[i].made : NULL;
            weft_repair_close_link(repair, i, page);
        }
    }
    return status;
}

weft_status weft_repair_find_anchors(weft_repair *repair) {
    static const char *const rooms[] = {"anchors", "pieces"};
    weft_page *page = NULL;
    const weft_record *newest = &repair->head.newest;
    weft_status status = find_full(repair, &page);
    if (page == NULL) {
        return status;
    }
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms && status == WEFT_OK; i++) {
        const weft_repair_room *room;
        status = weft_repair_list(repair, rooms[i], &room);
        for (size_t j = 0; status == WEFT_OK && j < room->count; j++) {
            const weft_repair_entry *entry = &room->entries[j];
            if (entry->version >= newest->floor && entry->version <= newest->version &&
                weft_anchor_find(page->anchors, page->anchor_count, entry->version) == NULL) {
                status = try_anchor(repair, entry, page);
            }
        }
    }
    return status;
}
