/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_simulate.c: a publisher, a store, a tree of relays and their workers, event by event, with the same
 * numbers for the same seed.
 *
 * What is modelled: a version can be seen once it is encoded and put; readers learn of it by their long
 * poll, read the page, then the objects that lead them there: patches, leaps over 4, 16, 64, … versions, or
 * an anchor. A relay fetches an object once, when the first of its readers asks, and passes it on while it
 * comes. Transfers share a link fairly. A worker that is busy with a version takes the newest when it is
 * done. Workers go away and come back to what they had; others begin with nothing; a transfer that is cut
 * goes on after a moment, a segment at most being fetched again.
 *
 * Readers of one pipe all have the same rate at any moment, so a pipe needs one clock of the bytes that
 * each of its transfers has had, and a heap of the readings at which they end: that is what makes ten
 * thousand workers cheap.
 */
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a version costs each reader beside its objects, in requests (the long poll, the head, the page) and
 * in bytes; how many bytes a request may ask for; a chunk, which a relay passes on when it has all of it.
 */
enum { INDEX_REQUESTS = 3, INDEX_BYTES = 900, SEGMENT = 16 << 20, CHUNK = 1 << 20 };
enum { LEAP_LEVELS = 8, ROUTE_MAX = 64 };
static const double BACKOFF = 0.5;

typedef enum event_kind { PUBLISH, SEE, TAKE, PIPE, ARRIVE, COMMIT } event_kind;

typedef struct event {
    double time;
    uint64_t number; /* the order of events at one time */
    event_kind kind;
    uint32_t subject; /* a worker, a pipe or a transfer */
    uint64_t value;   /* a version, or a pipe's stamp */
} event;

typedef struct transfer {
    double reading;  /* of the pipe's clock when it ends */
    double late;     /* seconds that it loses by a cut */
    uint32_t reader; /* a relay, or `relays` + a worker */
    uint32_t object;
    uint32_t pipe;
    uint32_t next; /* that waits for the same relay: an index + 1, or 0 */
} transfer;

/* A link that some readers share. */
typedef struct pipe {
    double capacity; /* bytes per second, of all */
    double each;     /* at most, of one */
    double rate;     /* of each, now */
    double clock;    /* bytes that each has had */
    double at;       /* when that was so */
    uint64_t stamp;  /* of the newest event for it */
    uint32_t *heap;  /* transfers by reading */
    size_t count, room;
} pipe;

/* Relays first, tier by tier and region by region; a pipe for each region at the store, then one for each
 * relay. */
typedef struct relay {
    uint32_t pipe;  /* that it reads from */
    int64_t parent; /* a relay, or -1: the store */
    uint32_t region;
    uint32_t
        waiting;  /* the first transfer, + 1, that has all that the relay has, and not all of its object */
    uint8_t *has; /* of each object: 0 nothing, 1 on its way, 2 all */
} relay;

typedef struct worker {
    uint32_t pipe;
    int64_t parent;
    uint32_t region;
    double delay; /* one way to the store */
    uint64_t version, target, known;
    uint64_t back; /* the version at which it comes back; 0: it is there */
    uint32_t route[ROUTE_MAX];
    uint32_t steps, step;
    bool busy;
    bool counts; /* it was there when the target came out */
} worker;

typedef struct simulation {
    weft_command *command;
    const plan_fleet *fleet;
    const plan_way *way;
    plan_result *result;
    uint64_t random;
    event *events;
    size_t event_count, event_room;
    uint64_t event_number;
    pipe *pipes;
    size_t pipe_count;
    relay *relays;
    size_t relay_count, relay_room;
    worker *workers;
    size_t worker_count;
    transfer *transfers;
    uint32_t *free_transfers;
    size_t transfer_count, transfer_room, free_count, free_room;
    double *samples;
    size_t sample_count, sample_room;
    struct {
        uint64_t commits, skipped;
        double bytes, requests; /* that the store answers */
    } regions[PLAN_REGIONS_MAX];
    double *visible; /* ends of steps, by version */
    double *sizes;   /* of objects */
    uint64_t last;   /* the version that ends it; the first is 1, and all have it */
    double now;
    bool failed; /* no memory */
} simulation;

/* ---- tools ---- */

static double draw(simulation *sim) {
    uint64_t z = sim->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* Room for one more of an array. */
static bool grow(simulation *sim, void *array, size_t count, size_t *room, size_t size) {
    void **items = array;
    if (count < *room) {
        return true;
    }
    size_t larger = *room > 0 ? 2 * *room : 64;
    void *moved = realloc(*items, larger * size);
    if (moved == NULL) {
        sim->failed = true;
        return false;
    }
    *items = moved;
    *room = larger;
    return true;
}

static bool comes_before(const event *a, const event *b) {
    return a->time < b->time || (a->time == b->time && a->number < b->number);
}

static void add_event(simulation *sim, double time, event_kind kind, uint32_t subject, uint64_t value) {
    if (!grow(sim, &sim->events, sim->event_count, &sim->event_room, sizeof *sim->events)) {
        return;
    }
    event added = {time, sim->event_number++, kind, subject, value};
    size_t i = sim->event_count++;
    for (; i > 0 && comes_before(&added, &sim->events[(i - 1) / 2]); i = (i - 1) / 2) {
        sim->events[i] = sim->events[(i - 1) / 2];
    }
    sim->events[i] = added;
}

static event take_event(simulation *sim) {
    event first = sim->events[0], last = sim->events[--sim->event_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < sim->event_count) {
        if (child + 1 < sim->event_count && comes_before(&sim->events[child + 1], &sim->events[child])) {
            child++;
        }
        if (!comes_before(&sim->events[child], &last)) {
            break;
        }
        sim->events[i] = sim->events[child];
        i = child;
    }
    sim->events[i] = last;
    return first;
}

/* ---- objects: patches to a version, leaps to a version, anchors of a version ---- */

static uint32_t object_of(const simulation *sim, unsigned level, uint64_t version) {
    return (uint32_t)(level * (sim->last + 1) + version);
}

static uint32_t anchor_of(const simulation *sim, uint64_t version) {
    return object_of(sim, LEAP_LEVELS, version);
}

static size_t count_objects(const simulation *sim) {
    return (LEAP_LEVELS + 1) * (size_t)(sim->last + 1);
}

static void weigh_objects(simulation *sim) {
    const plan_way *way = sim->way;
    for (uint64_t version = 0; version <= sim->last; version++) {
        double span = 1;
        for (unsigned level = 0; level < LEAP_LEVELS; level++, span *= 4) {
            /* a leap is in proportion to a patch as the law says, whatever a patch weighs */
            double grown = plan_patch_bytes(way->model, plan_density_after(way->density, span)) /
                           fmax(plan_patch_bytes(way->model, way->density), 1);
            sim->sizes[object_of(sim, level, version)] = way->payload * fmax(grown, 1);
        }
        sim->sizes[anchor_of(sim, version)] =
            way->whole ? way->payload : fmax(plan_anchor_bytes(way->model), way->payload);
    }
}

/* From `from` to `to` by the largest leaps that begin there. Returns the bytes; more than ROUTE_MAX steps
 * are none. */
static double route_by_patches(simulation *sim, uint64_t from, uint64_t to, uint32_t *route,
                               uint32_t *steps) {
    double bytes = 0;
    while (from < to && *steps < ROUTE_MAX) {
        unsigned level = 0;
        uint64_t span = 1;
        while (level + 1 < LEAP_LEVELS && from % (4 * span) == 0 && from + 4 * span <= to) {
            level++;
            span *= 4;
        }
        from += span;
        route[*steps] = object_of(sim, level, from);
        bytes += sim->sizes[route[*steps]];
        (*steps)++;
    }
    return from == to ? bytes : INFINITY;
}

static void choose_route(simulation *sim, worker *who) {
    uint64_t every = sim->fleet->anchor_every, to = who->target;
    who->steps = who->step = 0;
    if (sim->way->whole) {
        who->route[who->steps++] = object_of(sim, 0, to);
        return;
    }
    uint32_t behind[ROUTE_MAX], behind_steps = 1;
    uint64_t anchor = to - (to - 1) % every; /* version 1 is one */
    behind[0] = anchor_of(sim, anchor);
    double by_anchor = sim->sizes[behind[0]] + route_by_patches(sim, anchor, to, behind, &behind_steps);
    double by_patches =
        who->version > 0 ? route_by_patches(sim, who->version, to, who->route, &who->steps) : INFINITY;
    if (by_anchor < by_patches) {
        memcpy(who->route, behind, sizeof behind);
        who->steps = behind_steps;
        sim->result->anchors++;
    }
    for (uint32_t i = 0; i < who->steps; i++) {
        unsigned level = who->route[i] / (unsigned)(sim->last + 1);
        sim->result->leaps += level > 0 && level < LEAP_LEVELS;
    }
}

/* ---- pipes ---- */

static void advance(simulation *sim, pipe *link) {
    link->clock += link->rate * (sim->now - link->at);
    link->at = sim->now;
}

static double wish_of(const pipe *link) {
    return link->count > 0 ? fmin(link->each, link->capacity / (double)link->count) : 0;
}

static void announce(simulation *sim, uint32_t index) {
    pipe *link = &sim->pipes[index];
    link->stamp++;
    if (link->count > 0 && link->rate > 0) {
        double left = fmax(sim->transfers[link->heap[0]].reading - link->clock, 0);
        add_event(sim, sim->now + left / link->rate, PIPE, index, link->stamp);
    }
}

/* The regions' pipes share what the store can send: who wants less than a fair share gets it, others divide
 * the rest. */
static void share_uplink(simulation *sim) {
    size_t regions = sim->fleet->count;
    bool settled[PLAN_REGIONS_MAX] = {false};
    double left = sim->fleet->uplink;
    uint64_t readers = 0;
    for (size_t i = 0; i < regions; i++) {
        advance(sim, &sim->pipes[i]);
        readers += sim->pipes[i].count;
    }
    for (bool more = true; more && readers > 0;) {
        double fair = left / (double)readers;
        more = false;
        for (size_t i = 0; i < regions; i++) {
            pipe *link = &sim->pipes[i];
            if (!settled[i] && link->count > 0 && wish_of(link) <= fair) {
                link->rate = wish_of(link);
                left -= link->rate * (double)link->count;
                readers -= link->count;
                settled[i] = more = true;
            }
        }
    }
    for (size_t i = 0; i < regions; i++) {
        if (!settled[i]) {
            sim->pipes[i].rate = readers > 0 ? fmax(left, 0) / (double)readers : 0;
        }
        announce(sim, (uint32_t)i);
    }
}

static void change_pipe(simulation *sim, uint32_t index) {
    if (index < sim->fleet->count) {
        share_uplink(sim);
    } else {
        sim->pipes[index].rate = wish_of(&sim->pipes[index]);
        announce(sim, index);
    }
}

static double reading_at(const simulation *sim, const pipe *link, size_t place) {
    return sim->transfers[link->heap[place]].reading;
}

static void push_transfer(simulation *sim, pipe *link, uint32_t added) {
    if (!grow(sim, &link->heap, link->count, &link->room, sizeof *link->heap)) {
        return;
    }
    size_t i = link->count++;
    double reading = sim->transfers[added].reading;
    for (; i > 0 && reading < reading_at(sim, link, (i - 1) / 2); i = (i - 1) / 2) {
        link->heap[i] = link->heap[(i - 1) / 2];
    }
    link->heap[i] = added;
}

static uint32_t pop_transfer(simulation *sim, pipe *link) {
    uint32_t first = link->heap[0], last = link->heap[--link->count];
    double reading = sim->transfers[last].reading;
    size_t i = 0, child;
    while ((child = 2 * i + 1) < link->count) {
        if (child + 1 < link->count && reading_at(sim, link, child + 1) < reading_at(sim, link, child)) {
            child++;
        }
        if (reading_at(sim, link, child) >= reading) {
            break;
        }
        link->heap[i] = link->heap[child];
        i = child;
    }
    link->heap[i] = last;
    return first;
}

/* ---- transfers ---- */

static bool new_transfer(simulation *sim, uint32_t *index_out) {
    if (sim->free_count > 0) {
        *index_out = sim->free_transfers[--sim->free_count];
        return true;
    }
    if (!grow(sim, &sim->transfers, sim->transfer_count, &sim->transfer_room, sizeof *sim->transfers)) {
        return false;
    }
    *index_out = (uint32_t)sim->transfer_count++;
    return true;
}

static void free_transfer(simulation *sim, uint32_t index) {
    if (grow(sim, &sim->free_transfers, sim->free_count, &sim->free_room, sizeof *sim->free_transfers)) {
        sim->free_transfers[sim->free_count++] = index;
    }
}

static double requests_for(double bytes) {
    return fmax(1, ceil(bytes / SEGMENT));
}

static void count_transfer(simulation *sim, uint32_t pipe, bool to_worker, double bytes, double requests) {
    plan_result *result = sim->result;
    if (pipe < sim->fleet->count) {
        sim->regions[pipe].bytes += bytes;
        sim->regions[pipe].requests += requests;
    }
    if (to_worker) {
        result->worker_bytes += bytes;
        result->worker_requests += requests;
    }
}

/* A relay that does not have it asks for it in turn. */
static void start_transfer(simulation *sim, uint32_t reader, uint32_t pipe_index, int64_t parent,
                           uint32_t object) {
    uint32_t index;
    double bytes = sim->sizes[object], late = 0;
    if (parent >= 0 && sim->relays[parent].has[object] == 0) {
        sim->relays[parent].has[object] = 1;
        start_transfer(sim, (uint32_t)parent, sim->relays[parent].pipe, sim->relays[parent].parent, object);
    }
    if (!new_transfer(sim, &index)) {
        return;
    }
    double requests = requests_for(bytes);
    if (sim->fleet->faults > 0 && draw(sim) < sim->fleet->faults) {
        bytes += draw(sim) * fmin(bytes, SEGMENT);
        requests++;
        late = BACKOFF * (1 + draw(sim));
        sim->result->cuts++;
    }
    count_transfer(sim, pipe_index, reader >= sim->relay_count, bytes, requests);
    pipe *link = &sim->pipes[pipe_index];
    advance(sim, link);
    sim->transfers[index] = (transfer){link->clock + bytes, late, reader, object, pipe_index, 0};
    push_transfer(sim, link, index);
    change_pipe(sim, pipe_index);
}

static int64_t parent_of(const simulation *sim, const transfer *moved) {
    return moved->reader < sim->relay_count ? sim->relays[moved->reader].parent
                                            : sim->workers[moved->reader - sim->relay_count].parent;
}

static void take_object(simulation *sim, uint32_t place) {
    worker *who = &sim->workers[place];
    start_transfer(sim, (uint32_t)(sim->relay_count + place), who->pipe, who->parent,
                   who->route[who->step]);
}

static void wait_for_relay(simulation *sim, relay *from, uint32_t index) {
    sim->transfers[index].next = from->waiting;
    from->waiting = index + 1;
}

/* All bytes of an object are with a reader. */
static void arrive(simulation *sim, uint32_t index) {
    const transfer moved = sim->transfers[index];
    free_transfer(sim, index);
    if (moved.reader >= sim->relay_count) {
        uint32_t place = (uint32_t)(moved.reader - sim->relay_count);
        worker *who = &sim->workers[place];
        if (++who->step < who->steps) {
            take_object(sim, place);
        } else {
            double work = sim->way->prepare * who->steps + sim->way->pause;
            add_event(sim, sim->now + work, COMMIT, place, 0);
        }
        return;
    }
    relay *from = &sim->relays[moved.reader];
    uint32_t link = from->waiting;
    from->has[moved.object] = 2;
    from->waiting = 0;
    while (link > 0) {
        uint32_t waiting = link - 1;
        link = sim->transfers[waiting].next;
        if (sim->transfers[waiting].object == moved.object) {
            /* the last chunk has still to come */
            double last = fmin(CHUNK, sim->sizes[moved.object]) / sim->fleet->local;
            add_event(sim, sim->now + last, ARRIVE, waiting, 0);
        } else {
            wait_for_relay(sim, from, waiting);
        }
    }
}

/* A reader cannot have the end of what its relay has not. */
static void end_transfer(simulation *sim, uint32_t index) {
    const transfer *moved = &sim->transfers[index];
    int64_t parent = parent_of(sim, moved);
    if (parent >= 0 && sim->relays[parent].has[moved->object] != 2) {
        wait_for_relay(sim, &sim->relays[parent], index);
    } else if (moved->late > 0) {
        add_event(sim, sim->now + moved->late, ARRIVE, index, 0);
    } else {
        arrive(sim, index);
    }
}

static void run_pipe(simulation *sim, const event *what) {
    pipe *link = &sim->pipes[what->subject];
    if (what->value != link->stamp || link->count == 0) {
        return;
    }
    advance(sim, link);
    /* the clock is a sum of many: what ends now may seem to lack a fraction of a byte */
    link->clock = fmax(link->clock, reading_at(sim, link, 0));
    uint32_t ended = pop_transfer(sim, link);
    change_pipe(sim, what->subject);
    end_transfer(sim, ended);
}

/* ---- versions ---- */

static void begin_route(simulation *sim, uint32_t place) {
    worker *who = &sim->workers[place];
    who->busy = true;
    who->target = who->known;
    choose_route(sim, who);
    count_transfer(sim, who->pipe, true, INDEX_BYTES, INDEX_REQUESTS);
    /* the page, then the request for the first object and its first byte */
    add_event(sim, sim->now + 4 * who->delay, TAKE, place, 0);
}

static void see_version(simulation *sim, uint32_t place, uint64_t version) {
    worker *who = &sim->workers[place];
    const plan_fleet *fleet = sim->fleet;
    if (who->back > version) {
        return;
    }
    bool was_away = who->back != 0;
    who->back = 0;
    who->known = version > who->known ? version : who->known;
    if (!was_away && who->version > 0 && !who->busy && fleet->leave > 0 && draw(sim) < fleet->leave) {
        who->back = version + fleet->away;
        return;
    }
    if (!who->busy && fleet->join > 0 && who->version > 0 && draw(sim) < fleet->join) {
        who->version = 0;
        was_away = true;
    }
    if (who->version > 0 && who->known - who->version > sim->result->most_behind && !was_away) {
        sim->result->most_behind = who->known - who->version;
    }
    if (!who->busy && who->known > who->version) {
        who->counts = !was_away && who->version > 0;
        begin_route(sim, place);
    }
}

static void commit(simulation *sim, uint32_t place) {
    worker *who = &sim->workers[place];
    sim->regions[who->region].commits++;
    if (who->counts) {
        sim->regions[who->region].skipped += who->target - who->version - 1;
        if (grow(sim, &sim->samples, sim->sample_count, &sim->sample_room, sizeof *sim->samples)) {
            sim->samples[sim->sample_count++] = sim->now - sim->visible[who->target];
        }
    }
    who->version = who->target;
    who->busy = false;
    if (who->known > who->version) {
        who->counts = true;
        begin_route(sim, place);
    }
}

static void publish(simulation *sim, uint64_t version) {
    const plan_fleet *fleet = sim->fleet;
    for (size_t i = 0; i < sim->worker_count; i++) {
        add_event(sim, sim->now + sim->workers[i].delay, SEE, (uint32_t)i, version);
    }
    for (size_t i = 0; i < sim->relay_count; i++) {
        count_transfer(sim, sim->relays[i].pipe, false, INDEX_BYTES, INDEX_REQUESTS);
    }
    if (version < sim->last) {
        sim->visible[version + 1] = sim->visible[version] + fleet->step;
        add_event(sim, sim->visible[version + 1] + sim->way->publish, PUBLISH, 0, version + 1);
    }
}

/* ---- the tree ---- */

static bool add_relay(simulation *sim, int64_t parent, uint32_t region, uint32_t pipe) {
    if (!grow(sim, &sim->relays, sim->relay_count, &sim->relay_room, sizeof *sim->relays)) {
        return false;
    }
    sim->relays[sim->relay_count++] = (relay){.pipe = pipe, .parent = parent, .region = region};
    return true;
}

/* Tiers of a region until the last serves all of its workers. Sets where the last one begins. */
static bool plant_region(simulation *sim, uint32_t region, size_t *first_out, size_t *count_out) {
    const plan_fleet *fleet = sim->fleet;
    size_t first = sim->relay_count, count = fleet->relays;
    for (size_t i = 0; i < count; i++) {
        if (!add_relay(sim, -1, region, region)) {
            return false;
        }
    }
    while (count > 0 && count * fleet->fan_out < fleet->regions[region].workers) {
        size_t next = sim->relay_count,
               wanted = (fleet->regions[region].workers + fleet->fan_out - 1) / fleet->fan_out;
        size_t tier = wanted < count * fleet->fan_out ? wanted : count * fleet->fan_out;
        for (size_t i = 0; i < tier; i++) {
            size_t parent = first + i % count;
            if (!add_relay(sim, (int64_t)parent, region, (uint32_t)(fleet->count + parent))) {
                return false;
            }
        }
        first = next;
        count = tier;
    }
    *first_out = first;
    *count_out = count;
    return true;
}

static void settle_workers(simulation *sim, uint32_t region, size_t first, size_t count) {
    const plan_fleet *fleet = sim->fleet;
    for (uint64_t i = 0; i < fleet->regions[region].workers; i++) {
        worker *who = &sim->workers[sim->worker_count++];
        int64_t parent = count > 0 ? (int64_t)(first + i % count) : -1;
        *who = (worker){.parent = parent,
                        .pipe = parent >= 0 ? (uint32_t)(fleet->count + (size_t)parent) : region,
                        .region = region,
                        .delay = fleet->regions[region].delay};
    }
}

static bool plant(simulation *sim) {
    const plan_fleet *fleet = sim->fleet;
    uint64_t workers = 0;
    for (size_t i = 0; i < fleet->count; i++) {
        workers += fleet->regions[i].workers;
    }
    sim->workers = calloc(workers, sizeof *sim->workers);
    sim->visible = calloc(sim->last + 1, sizeof *sim->visible);
    sim->sizes = calloc(count_objects(sim), sizeof *sim->sizes);
    if (sim->workers == NULL || sim->visible == NULL || sim->sizes == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < fleet->count; i++) {
        size_t first = 0, count = 0;
        if (!plant_region(sim, i, &first, &count)) {
            return false;
        }
        settle_workers(sim, i, first, count);
    }
    sim->pipe_count = fleet->count + sim->relay_count;
    sim->pipes = calloc(sim->pipe_count, sizeof *sim->pipes);
    for (size_t i = 0; i < sim->relay_count; i++) {
        sim->relays[i].has = calloc(count_objects(sim), 1);
        if (sim->relays[i].has == NULL) {
            return false;
        }
    }
    for (size_t i = 0; i < sim->pipe_count && sim->pipes != NULL; i++) {
        sim->pipes[i].capacity = i < fleet->count ? fleet->regions[i].rate : fleet->local;
        sim->pipes[i].each = fleet->local;
    }
    return sim->pipes != NULL;
}

static void uproot(simulation *sim) {
    for (size_t i = 0; i < sim->relay_count; i++) {
        free(sim->relays[i].has);
    }
    for (size_t i = 0; i < sim->pipe_count && sim->pipes != NULL; i++) {
        free(sim->pipes[i].heap);
    }
    free(sim->pipes);
    free(sim->relays);
    free(sim->workers);
    free(sim->visible);
    free(sim->sizes);
    free(sim->events);
    free(sim->transfers);
    free(sim->free_transfers);
    free(sim->samples);
}

/* ---- all ---- */

static int compare_samples(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void conclude(simulation *sim) {
    plan_result *result = sim->result;
    double versions = (double)sim->fleet->versions;
    size_t count = sim->sample_count;
    if (count > 0) {
        qsort(sim->samples, count, sizeof *sim->samples, compare_samples);
        result->median = sim->samples[(count - 1) / 2];
        result->p99 = sim->samples[(size_t)(0.99 * (double)(count - 1))];
        result->worst = sim->samples[count - 1];
    }
    for (size_t i = 0; i < sim->fleet->count; i++) {
        uint64_t commits = sim->regions[i].commits, skipped = sim->regions[i].skipped;
        double delivered = commits > 0 ? (double)commits / (double)(commits + skipped) : 1;
        result->commits += commits;
        result->skipped += skipped;
        result->store_bytes += sim->regions[i].bytes / versions;
        result->store_requests += sim->regions[i].requests / versions;
        result->all_bytes += sim->regions[i].bytes / versions / delivered;
        result->all_requests += sim->regions[i].requests / versions / delivered;
    }
    result->worker_bytes /= versions;
    result->worker_requests /= versions;
    result->relays = sim->relay_count;
}

static void handle(simulation *sim, const event *what) {
    switch (what->kind) {
    case PUBLISH:
        publish(sim, what->value);
        break;
    case SEE:
        see_version(sim, what->subject, what->value);
        break;
    case TAKE:
        take_object(sim, what->subject);
        break;
    case PIPE:
        run_pipe(sim, what);
        break;
    case ARRIVE:
        arrive(sim, what->subject);
        break;
    case COMMIT:
        commit(sim, what->subject);
        break;
    }
}

/* Everybody is at the version before the first, so that what is counted is a run, and not how it began. */
int plan_simulate(weft_command *command, const plan_fleet *fleet, const plan_way *way,
                  plan_result *result) {
    simulation sim = {.command = command,
                      .fleet = fleet,
                      .way = way,
                      .result = result,
                      .random = fleet->seed,
                      .last = fleet->versions + 1};
    *result = (plan_result){0};
    bool planted = plant(&sim);
    int code = EXIT_DONE;
    if (planted) {
        weigh_objects(&sim);
        for (size_t i = 0; i < sim.worker_count; i++) {
            sim.workers[i].version = sim.workers[i].known = 1;
        }
        add_event(&sim, way->publish, PUBLISH, 0, 2);
    }
    for (unsigned handled = 1; planted && !sim.failed && sim.event_count > 0 && code == EXIT_DONE;
         handled++) {
        event next = take_event(&sim);
        sim.now = next.time;
        handle(&sim, &next);
        code = handled % 4096 == 0 ? command_interrupted() : EXIT_DONE;
    }
    if (!planted || sim.failed) {
        code = command_error(command, EXIT_FAILED, "no memory for a simulation of this size");
    }
    if (code == EXIT_DONE) {
        conclude(&sim);
    }
    uproot(&sim);
    return code;
}
