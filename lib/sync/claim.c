/* SPDX-License-Identifier: Apache-2.0
 *
 * claim.c: taking over a run, and moving its head.
 */
#include "claim.h"

#include "../base/clock.h"
#include "../base/context.h"
#include "leap.h"

#include <stdio.h>
#include <string.h>

enum { CLAIM_ATTEMPTS = 5, DAMAGE_ATTEMPTS = 4 };

/* ---- beginning an epoch ---- */

/* Reads the newest head, or makes the first one up. */
static weft_status find_head(weft_claim *claim, weft_sync_head *head) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    uint64_t epoch;
    weft_context *context = claim->context;
    weft_status status = WEFT_CHECKSUM_MISMATCH;
    for (int i = 0; i < DAMAGE_ATTEMPTS && status == WEFT_CHECKSUM_MISMATCH; i++) {
        status = weft_head_find(context, claim->store, 1, data, &size, &epoch);
        if (status == WEFT_OK) {
            status = weft_sync_head_parse(context, weft_store_url(claim->store), data, size, claim->trusted,
                                          head);
        }
        if (status == WEFT_OK && head->epoch != epoch) {
            weft_sync_head_close(head, context);
            status = weft_fail(context, WEFT_CHECKSUM_MISMATCH,
                               "%s: what lies under the name of epoch %llu's head is not that head",
                               weft_store_url(claim->store), (unsigned long long)epoch);
        }
    }
    if (status == WEFT_NOT_FOUND) {
        *head = (weft_sync_head){0};
        status = weft_hex_random(context, (WEFT_RUN_TEXT - 1) / 2, head->run);
    }
    if (status == WEFT_SIGNATURE_MISMATCH) {
        return weft_fail(context, status,
                         "%s: the run there was not signed by this key; to go on with it all the same, and "
                         "sign for what it holds, adopt it (--adopt)",
                         weft_store_url(claim->store));
    }
    return status;
}

static weft_status read_back(weft_claim *claim, uint64_t epoch, uint8_t *data, size_t *size,
                             weft_store_tag *tag) {
    return weft_sync_head_read(claim->context, claim->store, epoch, NULL, data, size, tag);
}

static bool same_bytes(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size) {
    return a_size == b_size && memcmp(a, b, a_size) == 0;
}

/* WEFT_CONFLICT: somebody else was faster; look again. */
static weft_status begin_epoch(weft_claim *claim) {
    weft_context *context = claim->context;
    char key[WEFT_HEAD_KEY];
    weft_head_key(claim->head.epoch, key);
    weft_status status =
        weft_sync_head_format(context, &claim->head, claim->key, claim->bytes, &claim->size);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_store_put_bytes(context, claim->store, key, claim->bytes, claim->size,
                                  WEFT_STORE_IF_ABSENT, NULL, &claim->tag);
    if (status != WEFT_UNSUPPORTED) {
        return status;
    }
    /* without conditional puts: look, write, and see whose head it is */
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_store_tag tag;
    status = read_back(claim, claim->head.epoch, data, &size, &tag);
    if (status != WEFT_NOT_FOUND) {
        return status == WEFT_OK ? WEFT_CONFLICT : status;
    }
    status = weft_store_put_bytes(context, claim->store, key, claim->bytes, claim->size, WEFT_STORE_ALWAYS,
                                  NULL, &claim->tag);
    if (status == WEFT_OK) {
        status = read_back(claim, claim->head.epoch, data, &size, &tag);
    }
    if (status == WEFT_OK && !same_bytes(data, size, claim->bytes, claim->size)) {
        status = WEFT_CONFLICT;
    }
    return status;
}

/* The head that this identity wrote, with its bytes and its tag. */
static weft_status go_on(weft_claim *claim, const weft_identity *identity) {
    weft_sync_head head;
    weft_status status = read_back(claim, claim->head.epoch, claim->bytes, &claim->size, &claim->tag);
    if (status == WEFT_OK) {
        status = weft_sync_head_parse(claim->context, weft_store_url(claim->store), claim->bytes,
                                      claim->size, claim->trusted, &head);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_sync_head_close(&claim->head, claim->context);
    claim->head = head;
    claim->issued = head.sequence;
    return weft_identity_owns(identity, &head) ? WEFT_OK : WEFT_CONFLICT;
}

static weft_status take_once(weft_claim *claim, const weft_identity *identity, uint64_t *sequence_out) {
    weft_sync_head_close(&claim->head, claim->context);
    claim->head = (weft_sync_head){0};
    weft_status status = find_head(claim, &claim->head);
    if (status != WEFT_OK) {
        return status;
    }
    *sequence_out = claim->head.sequence;
    /* what is adopted is signed for by the first head of an epoch of its own */
    bool adopting = claim->key != NULL && claim->trusted == NULL;
    if (!adopting && weft_identity_owns(identity, &claim->head)) {
        *sequence_out = UINT64_MAX;
        return go_on(claim, identity);
    }
    claim->head.epoch++;
    claim->head.sequence = 1;
    claim->issued = 1;
    status = weft_hex_random(claim->context, (WEFT_WRITER_TEXT - 1) / 2, claim->head.writer);
    return status == WEFT_OK ? begin_epoch(claim) : status;
}

void weft_claim_close(weft_claim *claim) {
    weft_sync_head_close(&claim->head, claim->context);
}

/* ---- moving the head ---- */

weft_status weft_claim_prepare(weft_claim *claim, const weft_blob *page, const weft_record *newest,
                               weft_claim_move *move) {
    move->head = claim->head;
    move->head.sequence = ++claim->issued;
    move->head.started = true;
    move->head.page = *page;
    weft_status status = weft_record_copy(claim->context, newest, &move->head.newest);
    if (status != WEFT_OK) {
        return status;
    }
    /* which objects retire is for the history alone */
    weft_texts_close(&move->head.newest.retired, claim->context);
    weft_leaps_close(&move->head.newest.leaps, claim->context);
    status = weft_sync_head_format(claim->context, &move->head, claim->key, move->bytes, &move->size);
    if (status != WEFT_OK) {
        weft_sync_head_close(&move->head, claim->context);
    }
    return status;
}

static weft_status fence(weft_claim *claim) {
    claim->fenced = true;
    return weft_fail(claim->context, WEFT_CONFLICT,
                     "%s: another publisher has taken over this run (it had epoch %llu here); nothing was "
                     "published, and this publisher is finished",
                     weft_store_url(claim->store), (unsigned long long)claim->head.epoch);
}

weft_status weft_claim_check(weft_claim *claim) {
    if (claim->fenced) {
        return fence(claim);
    }
    char key[WEFT_HEAD_KEY];
    uint64_t size;
    weft_store_tag tag;
    weft_head_key(claim->head.epoch + 1, key);
    weft_status status = weft_store_head(claim->context, claim->store, key, &size, &tag);
    if (status == WEFT_OK) {
        return fence(claim);
    }
    return status == WEFT_NOT_FOUND ? WEFT_OK : status;
}

static void adopt(weft_claim *claim, weft_claim_move *move) {
    weft_sync_head_close(&claim->head, claim->context);
    claim->head = move->head;
    memcpy(claim->bytes, move->bytes, move->size);
    claim->size = move->size;
    move->head = (weft_sync_head){0};
}

void weft_claim_drop(weft_claim *claim, weft_claim_move *move) {
    weft_sync_head_close(&move->head, claim->context);
    move->head = (weft_sync_head){0};
}

/* What another writer put there fences us. WEFT_OK: it is a head of ours, as a store shows it that is not
 * consistent yet, or one that was given up and has arrived after all (`late_out`). WEFT_CHECKSUM_MISMATCH:
 * it was damaged on its way. */
static weft_status judge_other(weft_claim *claim, const uint8_t *data, size_t size, bool *late_out) {
    weft_sync_head head;
    weft_status status =
        weft_sync_head_parse(claim->context, weft_store_url(claim->store), data, size, NULL, &head);
    if (status == WEFT_CHECKSUM_MISMATCH || status == WEFT_NO_MEMORY) {
        return status;
    }
    bool ours = false;
    if (status == WEFT_OK) {
        ours = strcmp(head.writer, claim->head.writer) == 0 && head.sequence <= claim->issued;
        *late_out = head.sequence > claim->head.sequence;
        weft_sync_head_close(&head, claim->context);
    }
    return ours ? WEFT_OK : fence(claim);
}

static weft_status resolve_once(weft_claim *claim, weft_claim_move *move, bool *written_out) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_store_tag tag;
    bool late = false;
    weft_status status = read_back(claim, claim->head.epoch, data, &size, &tag);
    if (status != WEFT_OK) {
        return status;
    }
    *written_out = same_bytes(data, size, move->bytes, move->size);
    if (!*written_out && !same_bytes(data, size, claim->bytes, claim->size)) {
        status = judge_other(claim, data, size, &late);
        if (status == WEFT_OK && !late) {
            status = weft_fail(claim->context, WEFT_REMOTE_FAILED,
                               "%s shows an older head than the one that was written last; try again when "
                               "it has caught up",
                               weft_store_url(claim->store));
        }
    }
    if (status == WEFT_OK) {
        claim->tag = tag;
    }
    return status;
}

weft_status weft_claim_resolve(weft_claim *claim, weft_claim_move *move, bool *written_out) {
    weft_status status = WEFT_CHECKSUM_MISMATCH;
    for (int i = 0; i < DAMAGE_ATTEMPTS && status == WEFT_CHECKSUM_MISMATCH; i++) {
        status = resolve_once(claim, move, written_out);
    }
    if (status == WEFT_OK && *written_out) {
        adopt(claim, move);
    }
    return status;
}

/* The place where the head is still the one that this writer wrote. */
static weft_status check_own(weft_claim *claim) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_store_tag tag;
    weft_status status = read_back(claim, claim->head.epoch, data, &size, &tag);
    if (status == WEFT_OK && !same_bytes(data, size, claim->bytes, claim->size)) {
        bool late;
        status = judge_other(claim, data, size, &late);
    }
    return status == WEFT_CHECKSUM_MISMATCH ? WEFT_OK : status;
}

static weft_status put_head(weft_claim *claim, const weft_claim_move *move) {
    char key[WEFT_HEAD_KEY];
    weft_head_key(claim->head.epoch, key);
    weft_store_tag tag = claim->tag;
    bool conditional = weft_store_conditional(claim->store) && tag.text[0] != '\0';
    weft_status status = conditional ? WEFT_OK : check_own(claim);
    if (status == WEFT_OK) {
        status =
            weft_store_put_bytes(claim->context, claim->store, key, move->bytes, move->size,
                                 conditional ? WEFT_STORE_IF_SAME : WEFT_STORE_ALWAYS, &tag, &claim->tag);
    }
    return status;
}

/* WEFT_CONFLICT, without being fenced: the store took our own head for another one. */
static weft_status commit_once(weft_claim *claim, weft_claim_move *move, bool *unknown_out) {
    *unknown_out = false;
    weft_status status = put_head(claim, move);
    if (status == WEFT_OK) {
        adopt(claim, move);
        return WEFT_OK;
    }
    if (claim->fenced) {
        return status;
    }
    /* the put may have taken effect all the same */
    char text[512];
    snprintf(text, sizeof text, "%s", weft_context_error(claim->context));
    bool written = false;
    weft_status resolved = weft_claim_resolve(claim, move, &written);
    if (written) {
        return WEFT_OK;
    }
    *unknown_out = resolved != WEFT_OK && !claim->fenced;
    if (claim->fenced || (resolved != WEFT_OK && status == WEFT_CONFLICT)) {
        return resolved;
    }
    return weft_fail(claim->context, status, "%s", text);
}

/* A head that was copied, or put back as it was, has another tag, which is known after the first try. */
weft_status weft_claim_commit(weft_claim *claim, weft_claim_move *move, bool *unknown_out) {
    weft_status status = commit_once(claim, move, unknown_out);
    if (status == WEFT_CONFLICT && !claim->fenced) {
        status = commit_once(claim, move, unknown_out);
    }
    if (status == WEFT_CONFLICT && !claim->fenced) {
        status = weft_fail(claim->context, WEFT_REMOTE_FAILED,
                           "%s takes the head that this publisher wrote for another one; try again",
                           weft_store_url(claim->store));
    }
    return status;
}

/* ---- taking over ---- */

/* Between our look and our claim the writer before us may have published once more; its readers should not
 * have to go back. Anything that it writes from now on is lost, and it will find out. */
static weft_status take_last(weft_claim *claim, uint64_t sequence_seen) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_sync_head last;
    weft_claim_move move;
    bool unknown;
    if (claim->head.epoch == 1 || sequence_seen == UINT64_MAX) {
        return WEFT_OK;
    }
    weft_status status =
        weft_sync_head_read(claim->context, claim->store, claim->head.epoch - 1, NULL, data, &size, NULL);
    if (status == WEFT_OK) {
        status = weft_sync_head_parse(claim->context, weft_store_url(claim->store), data, size,
                                      claim->trusted, &last);
    }
    if (status != WEFT_OK) {
        return status == WEFT_SIGNATURE_MISMATCH ? WEFT_OK : status;
    }
    if (last.epoch == claim->head.epoch - 1 && last.sequence > sequence_seen && last.started) {
        status = weft_claim_prepare(claim, &last.page, &last.newest, &move);
        if (status == WEFT_OK) {
            status = weft_claim_commit(claim, &move, &unknown);
            weft_claim_drop(claim, &move);
        }
    }
    weft_sync_head_close(&last, claim->context);
    return status;
}

weft_status weft_claim_take(weft_claim *claim, weft_context *context, weft_store *store,
                            const weft_key *key, bool adopt_any, const weft_identity *identity) {
    *claim =
        (weft_claim){.context = context, .store = store, .key = key, .trusted = adopt_any ? NULL : key};
    weft_status status = WEFT_CONFLICT;
    uint64_t sequence = 0;
    for (int i = 0; i < CLAIM_ATTEMPTS && status == WEFT_CONFLICT; i++) {
        status = i > 0 ? weft_clock_sleep(context, 0.02 * i) : WEFT_OK;
        if (status == WEFT_OK) {
            status = take_once(claim, identity, &sequence);
        }
    }
    if (status == WEFT_OK) {
        status = take_last(claim, sequence);
    }
    if (status == WEFT_OK) {
        status = weft_identity_keep(identity, &claim->head);
    }
    if (status == WEFT_CONFLICT) {
        status = weft_fail(context, WEFT_CONFLICT,
                           "%s: other publishers keep taking over this run; let one of them run alone",
                           weft_store_url(store));
    }
    return status;
}
