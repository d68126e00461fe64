/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_lookup.c: what a key is.
 *
 * Objects of the history are known from the pages that were read. For a key that is not known, the history
 * is read back from the newest head, page by page, as far as versions are kept; all who ask for unknown
 * keys wait for the same walk, and when it has ended, what it did not meet does not exist until there is a
 * new head. Pages that have taught are passed over, so that a walk costs the pages that are new.
 *
 * The newest head is in memory. Heads of earlier epochs matter to nobody but to who looks for the newest by
 * trying; they are fetched when they are asked for, and kept on disk for when the store is gone.
 */
#include "relay.h"

#include "../base/clock.h"
#include "../base/context.h"

#include <stdio.h>
#include <string.h>

/* A head of an earlier epoch is not fetched again for so long, nor is its absence told otherwise. */
static const double OLD_HEAD_SECONDS = 60;
static const double OLD_HEAD_RETRY_SECONDS = 1;

/* Of a walk: a million versions, in pages of 64. Each page names the hash of the one before, yet who has
 * prepared them has as many as it likes, and nobody waits for ever. */
enum { WALK_PAGES = 1 << 14 };

/* ---- answers ---- */

static weft_relay_failure failure_of_absence(const char *key) {
    weft_relay_failure failure = {.status = WEFT_NOT_FOUND};
    snprintf(failure.text, sizeof failure.text, "the history names no %.200s", key);
    return failure;
}

static weft_relay_failure failure_of_silence(const weft_relay *relay) {
    weft_relay_failure failure = {.status = WEFT_REMOTE_FAILED};
    snprintf(failure.text, sizeof failure.text, "nothing is known yet of what this relays: %.180s",
             relay->error);
    return failure;
}

static void answer_memory(weft_relay_reader *reader, const uint8_t *data, size_t size) {
    weft_hash hash;
    weft_status status = WEFT_NO_MEMORY;
    reader->memory = weft_allocate(reader->context, size);
    if (reader->memory != NULL) {
        memcpy(reader->memory, data, size);
        status = weft_hash_compute(reader->context, data, size, &hash);
    }
    if (status != WEFT_OK) {
        weft_reader_fail(reader, &(weft_relay_failure){status, "there is no memory for a head"});
        return;
    }
    weft_hex_format(hash.bytes, sizeof hash.bytes, reader->object.tag.text);
    reader->object.bytes = size;
    reader->state = READER_MEMORY;
}

static bool answer_known(weft_relay_reader *reader) {
    weft_relay *relay = reader->relay;
    weft_relay_item *item = weft_relay_catalog_find(&relay->catalog, reader->key);
    if (item == NULL) {
        return false;
    }
    reader->object.bytes = item->bytes;
    snprintf(reader->object.tag.text, sizeof reader->object.tag.text, "%s", item->tag);
    int file = weft_flight_open_proven(relay, item);
    reader->object.file = file >= 0 ? file : -1;
    reader->state = file >= 0 ? READER_FILE : READER_KNOWN;
    return true;
}

/* ---- heads ---- */

/* The place of an epoch's head, or the one that was fetched longest ago and that nobody waits for. */
static weft_old_head *find_place(weft_relay *relay, uint64_t epoch) {
    weft_old_head *place = NULL;
    for (size_t i = 0; i < WEFT_RELAY_OLD_HEADS; i++) {
        weft_old_head *head = &relay->old_heads[i];
        if (head->epoch == epoch) {
            return head;
        }
        if (!head->wanted && !head->loading && (place == NULL || head->fetched < place->fetched)) {
            place = head;
        }
    }
    if (place != NULL) {
        *place = (weft_old_head){.epoch = epoch};
    }
    return place;
}

static bool is_fresh(const weft_old_head *head) {
    double age = weft_clock_now() - head->fetched;
    return head->fetched > 0 &&
           age < (head->failure.status == WEFT_OK ? OLD_HEAD_SECONDS : OLD_HEAD_RETRY_SECONDS);
}

static void answer_old_head(weft_relay_reader *reader) {
    weft_relay *relay = reader->relay;
    weft_old_head *head = find_place(relay, reader->epoch);
    if (relay->over) {
        weft_reader_fail(reader, &(weft_relay_failure){WEFT_CANCELLED, "the relay is ending"});
    } else if (head == NULL) {
        weft_reader_fail(reader, &(weft_relay_failure){WEFT_REMOTE_FAILED,
                                                       "too many heads of earlier epochs are asked for at "
                                                       "once; ask again"});
    } else if (is_fresh(head) && head->failure.status == WEFT_OK) {
        answer_memory(reader, head->data, head->size);
    } else if (is_fresh(head)) {
        weft_reader_fail(reader, &head->failure);
    } else {
        head->wanted = !head->loading;
        pthread_cond_signal(&relay->work);
        weft_reader_suspend(reader, &relay->lookups);
    }
}

static void answer_head(weft_relay_reader *reader) {
    weft_relay *relay = reader->relay;
    weft_relay_failure failure = failure_of_absence(reader->key);
    if (relay->generation == 0 && !relay->asked) {
        failure = failure_of_silence(relay);
        weft_reader_fail(reader, &failure);
    } else if (relay->generation == 0 || reader->epoch > relay->info.epoch) {
        weft_reader_fail(reader, &failure);
    } else if (reader->epoch == relay->info.epoch) {
        answer_memory(reader, relay->data, relay->size);
    } else {
        answer_old_head(reader);
    }
}

weft_old_head *weft_lookup_choose(weft_relay *relay) {
    for (size_t i = 0; i < WEFT_RELAY_OLD_HEADS; i++) {
        weft_old_head *head = &relay->old_heads[i];
        if (head->wanted) {
            head->wanted = false;
            head->loading = true;
            return head;
        }
    }
    return NULL;
}

static weft_status check_head(weft_relay *relay, weft_context *context, uint64_t epoch, const uint8_t *data,
                              size_t size) {
    weft_head_info info = {.size = sizeof info};
    weft_status status = weft_head_inspect(context, data, size, relay->options.trusted, &info);
    if (status != WEFT_OK) {
        return status;
    }
    return info.epoch == epoch && strcmp(info.run, relay->catalog.run) == 0
               ? WEFT_OK
               : weft_fail(context, WEFT_NOT_FOUND, "what lies there is not the head of epoch %llu",
                           (unsigned long long)epoch);
}

/* What was written down when the store could be reached. */
static weft_status read_kept(weft_relay *relay, weft_context *context, const char *key, uint64_t epoch,
                             uint8_t data[WEFT_HEAD_MAX], size_t *size_out) {
    weft_status status = weft_relay_cache_read(&relay->cache, context, key, data, WEFT_HEAD_MAX, size_out);
    return status == WEFT_OK ? check_head(relay, context, epoch, data, *size_out) : status;
}

static weft_status read_head(weft_relay *relay, weft_context *context, uint64_t epoch,
                             uint8_t data[WEFT_HEAD_MAX], size_t *size_out) {
    char key[WEFT_HEAD_KEY];
    weft_head_key(epoch, key);
    weft_status status = weft_sync_head_read(context, relay->upstream, epoch, NULL, data, size_out, NULL);
    if (status == WEFT_OK) {
        status = check_head(relay, context, epoch, data, *size_out);
        if (status == WEFT_OK) {
            (void)weft_relay_cache_write(&relay->cache, context, key, data, *size_out);
        }
        return status;
    }
    if (status == WEFT_NOT_FOUND) {
        return status;
    }
    return read_kept(relay, context, key, epoch, data, size_out) == WEFT_OK ? WEFT_OK : status;
}

void weft_lookup_fetch(weft_relay *relay, weft_context *context, weft_old_head *head) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size = 0;
    weft_status status = read_head(relay, context, head->epoch, data, &size);
    pthread_mutex_lock(&relay->mutex);
    head->failure.status = status;
    snprintf(head->failure.text, sizeof head->failure.text, "%s", weft_context_error(context));
    head->fetched = weft_clock_now();
    head->loading = false;
    if (status == WEFT_OK) {
        memcpy(head->data, data, size);
        head->size = size;
    }
    for (weft_relay_reader **link = &relay->lookups; *link != NULL;) {
        weft_relay_reader *reader = *link;
        if (reader->epoch == head->epoch) {
            *link = reader->next;
            reader->hooks.resume(reader->hooks.opaque);
        } else {
            link = &reader->next;
        }
    }
    pthread_mutex_unlock(&relay->mutex);
}

/* ---- the walk ---- */

/* The walk has passed what a reader that came in the middle of it asks for, and if objects had to be
 * forgotten meanwhile, that may have been among them: it needs a walk of its own. */
static bool has_seen_all(const weft_relay *relay, const weft_relay_reader *reader) {
    return reader->generation <= relay->walk.generation &&
           (reader->walk < relay->walk.number || relay->walk.prunes == relay->catalog.prunes);
}

/* Resumes those whose keys are known now, and with `failure` all that the walk was for. True if somebody
 * still waits for a walk. */
static bool answer_lookups(weft_relay *relay, const weft_relay_failure *failure) {
    bool waiting = false;
    for (weft_relay_reader **link = &relay->lookups; *link != NULL;) {
        weft_relay_reader *reader = *link;
        bool known = reader->epoch == 0 && weft_relay_catalog_find(&relay->catalog, reader->key) != NULL;
        bool over = reader->epoch == 0 && failure != NULL && has_seen_all(relay, reader);
        if (over && !known) {
            weft_reader_fail(reader, failure);
        }
        if (known || over) {
            *link = reader->next;
            reader->hooks.resume(reader->hooks.opaque);
        } else {
            waiting = waiting || reader->epoch == 0;
            link = &reader->next;
        }
    }
    return waiting;
}

static bool end_walk(weft_relay *relay, const weft_relay_failure *failure) {
    relay->walk.active = false;
    return answer_lookups(relay, failure);
}

/* It cannot be read on, and who asks is told what it would be told of an object that is damaged: to go
 * another way. */
static bool give_up_walk(weft_relay *relay, const char *reason) {
    weft_relay_failure failure = {.status = WEFT_NOT_FOUND};
    snprintf(failure.text, sizeof failure.text, "%s", reason);
    if (relay->error[0] == '\0') {
        snprintf(relay->error, sizeof relay->error, "%s", reason);
    }
    return end_walk(relay, &failure);
}

/* One page. True if there is more to do at once. */
static bool step_walk(weft_relay *relay) {
    weft_relay_failure failure = {WEFT_NO_MEMORY, "the history has a page that is beyond all limits"};
    weft_relay_item *page = weft_relay_catalog_page(&relay->catalog, &relay->walk.cursor);
    if (page == NULL) {
        return end_walk(relay, &failure);
    }
    if (page->hopeless) {
        return give_up_walk(relay, "the history has a page that makes no sense");
    }
    if (!weft_relay_catalog_taught(&relay->catalog, page)) {
        const weft_flight *flight = weft_flight_want(relay, page);
        if (flight == NULL || flight->failure.status != WEFT_OK || flight->done) {
            return end_walk(relay, flight != NULL && !flight->done ? &flight->failure : &failure);
        }
        return false;
    }
    if (page->last >= relay->walk.below) {
        return give_up_walk(relay, "the history has a page that does not go back");
    }
    if (page->previous == NULL || page->first <= relay->floor) {
        failure = (weft_relay_failure){WEFT_NOT_FOUND, "the history does not name this object"};
        if (relay->walk.prunes == relay->catalog.prunes) {
            relay->walked = relay->walk.generation;
            relay->walked_prunes = relay->walk.prunes;
        }
        return end_walk(relay, &failure);
    }
    if (++relay->walk.pages >= WALK_PAGES) {
        return give_up_walk(relay, "the history is longer than a relay reads back");
    }
    relay->walk.below = page->first;
    relay->walk.cursor = *page->previous;
    return true;
}

void weft_lookup_walk(weft_relay *relay) {
    bool more = answer_lookups(relay, NULL);
    /* one that nobody waits for ends here: who comes next begins with the newest head. One that somebody
     * waits for goes on to its end, however many heads come meanwhile */
    relay->walk.active = relay->walk.active && more;
    while (more) {
        if (!relay->walk.active) {
            relay->walk.active = true;
            relay->walk.number++;
            relay->walk.generation = relay->generation;
            relay->walk.prunes = relay->catalog.prunes;
            relay->walk.cursor = relay->page;
            relay->walk.pages = 0;
            relay->walk.below = UINT64_MAX;
        }
        more = step_walk(relay);
    }
}

/* All of the history is known, and nothing was forgotten since. */
static bool is_walked(const weft_relay_reader *reader) {
    const weft_relay *relay = reader->relay;
    return relay->walked >= reader->generation && relay->walked_prunes == relay->catalog.prunes;
}

void weft_lookup_begin(weft_relay_reader *reader) {
    weft_relay *relay = reader->relay;
    weft_relay_failure failure = failure_of_absence(reader->key);
    if (reader->epoch > 0) {
        answer_head(reader);
    } else if (answer_known(reader)) {
        return;
    } else if (!relay->started) {
        failure = relay->asked ? failure : failure_of_silence(relay);
        weft_reader_fail(reader, &failure);
    } else if (is_walked(reader) || relay->over) {
        weft_reader_fail(reader, &failure);
    } else {
        reader->walk = relay->walk.number;
        weft_reader_suspend(reader, &relay->lookups);
        weft_lookup_walk(relay);
    }
}

void weft_lookup_dismiss(weft_relay *relay) {
    while (relay->lookups != NULL) {
        weft_relay_reader *reader = relay->lookups;
        relay->lookups = reader->next;
        weft_reader_fail(reader, &(weft_relay_failure){WEFT_CANCELLED, "the relay is ending"});
        reader->hooks.resume(reader->hooks.opaque);
    }
}
