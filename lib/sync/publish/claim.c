/* SPDX-License-Identifier: Apache-2.0
 *
 * claim.c: remembering who wrote last, taking over a run, and moving its head.
 */
#include "claim.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../follow/watermark.h"
#include "../format/history.h"
#include "../format/leap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* a writer that publishes all the time may move its head between our look and our seal more than once */
enum { CLAIM_ATTEMPTS = 20, DAMAGE_ATTEMPTS = 4 };

/* ---- identity ---- */

/* The file is locked, so it is written where it lies. One that a crash has torn names nobody: the next
 * writer then begins an epoch of its own, which is always right. */
enum { TEXT_BYTES = 128 };

weft_status weft_identity_open(weft_identity *identity, weft_context *context, const char *mirror_path) {
    *identity = (weft_identity){.context = context, .file = -1};
    if (mirror_path == NULL) {
        return WEFT_OK;
    }
    char *mark;
    weft_status status = weft_watermark_path(identity->context, mirror_path, &mark);
    if (status != WEFT_OK) {
        return status;
    }
    size_t size = strlen(mark) + 16;
    identity->path = weft_allocate(identity->context, size);
    if (identity->path != NULL) {
        snprintf(identity->path, size, "%s-writer", mark);
    }
    weft_release(identity->context, mark);
    if (identity->path == NULL) {
        return WEFT_NO_MEMORY;
    }
    identity->file = open(identity->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (identity->file < 0) {
        return weft_fail_errno(context, errno, "%s: cannot create", identity->path);
    }
    if (flock(identity->file, LOCK_EX | LOCK_NB) != 0) {
        return weft_fail(context, WEFT_BUSY,
                         "another process is publishing with the mirror at %s; wait for it, or choose "
                         "another place for this one",
                         mirror_path);
    }
    return WEFT_OK;
}

void weft_identity_close(weft_identity *identity) {
    if (identity->file >= 0) {
        close(identity->file);
    }
    weft_release(identity->context, identity->path);
}

static int format_identity(const weft_sync_head *head, char text[TEXT_BYTES]) {
    return snprintf(text, TEXT_BYTES, "%s %llu %s\n", head->run, (unsigned long long)head->epoch,
                    head->writer);
}

bool weft_identity_owns(const weft_identity *identity, const weft_sync_head *head) {
    char expected[TEXT_BYTES];
    char found[TEXT_BYTES];
    int length = format_identity(head, expected);
    ssize_t count = identity->file >= 0 ? pread(identity->file, found, sizeof found, 0) : -1;
    return count == length && memcmp(found, expected, (size_t)length) == 0;
}

weft_status weft_identity_keep(const weft_identity *identity, const weft_sync_head *head) {
    if (identity->file < 0) {
        return WEFT_OK;
    }
    char text[TEXT_BYTES];
    int length = format_identity(head, text);
    if (ftruncate(identity->file, 0) != 0 ||
        pwrite(identity->file, text, (size_t)length, 0) != (ssize_t)length) {
        return weft_fail_errno(identity->context, errno, "%s: cannot write", identity->path);
    }
    return WEFT_OK;
}

/* ---- beginning an epoch ---- */

/* Reads the newest head, or makes the first one up. */
static weft_status find_head(weft_claim *claim, weft_stored_head *stored, weft_sync_head *head) {
    weft_context *context = claim->context;
    weft_status status = WEFT_CHECKSUM_MISMATCH;
    for (int i = 0; i < DAMAGE_ATTEMPTS && status == WEFT_CHECKSUM_MISMATCH; i++) {
        status = weft_sync_head_newest(context, claim->store, claim->trusted, stored, head);
    }
    if (status == WEFT_NOT_FOUND) {
        *head = (weft_sync_head){0};
        *stored = (weft_stored_head){.size = 0};
        status = weft_hex_random(context, (WEFT_RUN_TEXT - 1) / 2, head->run);
    }
    if (status == WEFT_SIGNATURE_MISMATCH) {
        return weft_fail(context, status,
                         "%s: the run there was not signed by this key; to go on with it all the same, and "
                         "sign for what it holds, adopt it (--adopt)",
                         weft_store_url(claim->store));
    }
    if (status == WEFT_CHECKSUM_MISMATCH || status == WEFT_MALFORMED) {
        return weft_fail(context, status,
                         "%.511s; if it stays so, weft repair %s tells what that costs, and mends it",
                         weft_context_error(context), weft_store_url(claim->store));
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

/* Writes the head of the epoch that ends once more, in our name, if it is still the one that was found
 * (WEFT_CONFLICT: it is not). Where a put cannot tell, the epoch stays open. */
static weft_status seal_epoch(weft_claim *claim, const weft_stored_head *found) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    char key[WEFT_HEAD_KEY];
    weft_store_tag tag;
    weft_head_key(found->last, key);
    if (found->tag.text[0] == '\0') {
        return WEFT_OK;
    }
    weft_sync_head last = claim->head;
    last.epoch = found->last;
    last.sequence++;
    weft_status status = weft_sync_head_format(claim->context, &last, claim->key, data, &size);
    if (status == WEFT_OK) {
        status = weft_store_put_bytes(claim->context, claim->store, key, data, size, WEFT_STORE_IF_SAME,
                                      &found->tag, &tag);
    }
    claim->sealed = status == WEFT_OK;
    return status == WEFT_UNSUPPORTED ? WEFT_OK : status;
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

/* Writes the present head once more, with the next sequence, in the place of the one with `tag`: whatever
 * of ours is still on its way to that place is refused from then on. */
static weft_status renew_head(weft_claim *claim, const weft_store_tag *tag) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    char key[WEFT_HEAD_KEY];
    weft_sync_head head = claim->head;
    head.sequence = ++claim->issued;
    weft_head_key(head.epoch, key);
    weft_status status = weft_sync_head_format(claim->context, &head, claim->key, data, &size);
    if (status == WEFT_OK) {
        status = weft_store_put_bytes(claim->context, claim->store, key, data, size, WEFT_STORE_IF_SAME,
                                      tag, &claim->tag);
    }
    if (status == WEFT_OK) {
        claim->head.sequence = head.sequence;
        memcpy(claim->bytes, data, size);
        claim->size = size;
    }
    return status;
}

/* What its followers read is what a run was written in so far. */
static weft_status choose_format(weft_claim *claim) {
    unsigned found = claim->head.format;
    if (found > claim->format && claim->format != 0) {
        return weft_fail(
            claim->context, WEFT_INVALID_ARGUMENT,
            "%s: the run there is of format %u already, and does not go back to %u; begin a new "
            "run, in another store",
            weft_store_url(claim->store), found, claim->format);
    }
    unsigned asked = claim->format != 0 ? claim->format : found;
    claim->head.format = asked != 0 ? asked : WEFT_HISTORY_FORMAT;
    return WEFT_OK;
}

static weft_status take_once(weft_claim *claim, const weft_identity *identity) {
    weft_stored_head found;
    weft_sync_head_close(&claim->head, claim->context);
    claim->head = (weft_sync_head){0};
    claim->sealed = false;
    claim->fenced = false;
    weft_status status = find_head(claim, &found, &claim->head);
    if (status == WEFT_OK) {
        status = choose_format(claim);
    }
    if (status != WEFT_OK) {
        return status;
    }
    /* what is adopted is signed for by the first head of an epoch of its own */
    bool adopting = claim->key != NULL && claim->trusted == NULL;
    bool current = claim->head.epoch == found.last;
    if (!adopting && current && weft_identity_owns(identity, &claim->head) && found.tag.text[0] != '\0') {
        /* a head that a process before us has left on its way must not arrive any more */
        claim->issued = claim->head.sequence;
        status = renew_head(claim, &found.tag);
        if (status != WEFT_UNSUPPORTED) {
            return status;
        }
    }
    status = weft_hex_random(claim->context, (WEFT_WRITER_TEXT - 1) / 2, claim->head.writer);
    if (status == WEFT_OK && found.last > 0) {
        status = seal_epoch(claim, &found);
    }
    claim->head.epoch = found.last + 1;
    claim->head.sequence = 1;
    claim->issued = 1;
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

static weft_status fail_fenced(weft_claim *claim) {
    claim->fenced = true;
    return weft_fail(claim->context, WEFT_CONFLICT,
                     "%s: another publisher has taken over this run (it had epoch %llu here); nothing was "
                     "published, and this publisher is finished",
                     weft_store_url(claim->store), (unsigned long long)claim->head.epoch);
}

static bool puts_have_conditions(const weft_claim *claim) {
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(claim->store, &traits);
    return traits.conditional && claim->tag.text[0] != '\0';
}

weft_status weft_claim_check(weft_claim *claim) {
    if (claim->fenced) {
        return fail_fenced(claim);
    }
    char key[WEFT_HEAD_KEY];
    uint64_t size;
    weft_store_tag tag;
    weft_head_key(claim->head.epoch + 1, key);
    weft_status status = weft_store_head(claim->context, claim->store, key, &size, &tag);
    if (status == WEFT_OK) {
        return fail_fenced(claim);
    }
    return status == WEFT_NOT_FOUND ? WEFT_OK : status;
}

static void adopt_head(weft_claim *claim, weft_claim_move *move) {
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

/* ---- whether a head has counted ---- */

static weft_status find_version(void *opaque, const weft_blob *blob, const weft_page *page) {
    (void)blob;
    const weft_record *wanted = opaque;
    for (size_t i = 0; i < page->record_count; i++) {
        const weft_record *record = &page->records[i];
        if (record->version == wanted->version) {
            bool same = record->epoch == wanted->epoch && record->milliseconds == wanted->milliseconds &&
                        weft_digest_equal(&record->digest, &wanted->digest);
            return same ? WEFT_OK : WEFT_NOT_FOUND;
        }
    }
    return page->linked ? WEFT_MORE : WEFT_NOT_FOUND;
}

/* Somebody else has taken over: looks whether the version of a move is in the history from then on. While
 * that one has only claimed, it may have looked before our head was there. */
static weft_status find_in_history(weft_claim *claim, const weft_claim_move *move, bool *found_out) {
    weft_stored_head stored;
    weft_sync_head head;
    weft_record wanted = move->head.newest;
    weft_status status = find_head(claim, &stored, &head);
    if (status != WEFT_OK) {
        return status;
    }
    bool settled = stored.epoch == stored.last && !weft_sync_head_unsettled(&head);
    status = WEFT_NOT_FOUND;
    if (settled && weft_sync_head_version(&head) >= wanted.version) {
        status = weft_history_walk(claim->context, claim->store, &head, NULL, find_version, &wanted);
    }
    weft_sync_head_close(&head, claim->context);
    bool found = status == WEFT_OK;
    if (found) {
        /* that head counts only if nobody has begun a later epoch from before it */
        char key[WEFT_HEAD_KEY];
        uint64_t size;
        weft_store_tag tag;
        weft_head_key(stored.last + 1, key);
        status = weft_store_head(claim->context, claim->store, key, &size, &tag);
    }
    *found_out = found && status == WEFT_NOT_FOUND;
    return status == WEFT_OK || status == WEFT_NOT_FOUND ? fail_fenced(claim) : status;
}

static bool names_page(const weft_sync_head *head, const weft_sync_head *other) {
    return head->started == other->started &&
           (!head->started || strcmp(head->page.key, other->page.key) == 0);
}

/* Judges what lies in the place of our head, and is neither that head nor the move. WEFT_OK: a head of ours
 * that says the same as the present one. What another writer put there fences us; if it repeats the move,
 * that is published (`taken_out`). WEFT_CHECKSUM_MISMATCH: it was damaged on its way. */
static weft_status judge_other(weft_claim *claim, const weft_claim_move *move, const uint8_t *data,
                               size_t size, bool *taken_out) {
    weft_sync_head head;
    *taken_out = false;
    weft_status status =
        weft_sync_head_parse(claim->context, weft_store_url(claim->store), data, size, NULL, &head);
    if (status == WEFT_CHECKSUM_MISMATCH || status == WEFT_NO_MEMORY) {
        return status;
    }
    if (status != WEFT_OK) {
        return fail_fenced(claim);
    }
    bool ours = strcmp(head.writer, claim->head.writer) == 0;
    bool same = ours && head.sequence <= claim->issued && names_page(&head, &claim->head);
    *taken_out = move != NULL && names_page(&head, &move->head);
    weft_sync_head_close(&head, claim->context);
    return same ? WEFT_OK : fail_fenced(claim);
}

/* Reads what lies in the place of our head. `written_out`: the move, or a seal of it. WEFT_OK otherwise:
 * the present head, whose tag is known now. */
static weft_status look_at_own(weft_claim *claim, weft_claim_move *move, bool *written_out) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_store_tag tag;
    weft_status status = read_back(claim, claim->head.epoch, data, &size, &tag);
    if (status == WEFT_OK && same_bytes(data, size, move->bytes, move->size)) {
        *written_out = true;
    } else if (status == WEFT_OK && !same_bytes(data, size, claim->bytes, claim->size)) {
        status = judge_other(claim, move, data, size, written_out);
    }
    if (status == WEFT_OK) {
        claim->tag = tag;
    }
    return status;
}

/* The head is in its place, where puts have no conditions. Who took over meanwhile has seen it, or is seen
 * here. */
static weft_status confirm_head(weft_claim *claim, const weft_claim_move *move, bool *written_out) {
    weft_status status = weft_claim_check(claim);
    *written_out = status == WEFT_OK;
    return claim->fenced ? find_in_history(claim, move, written_out) : status;
}

/* Takes back what may still be on its way: with the present head renewed, it cannot arrive any more. */
static weft_status resolve_by_condition(weft_claim *claim, weft_claim_move *move, bool *written_out) {
    weft_status status = renew_head(claim, &claim->tag);
    if (status == WEFT_CONFLICT) {
        status = look_at_own(claim, move, written_out);
        if (status == WEFT_OK && !*written_out) {
            status = renew_head(claim, &claim->tag);
        }
        if (status == WEFT_CONFLICT && !claim->fenced) {
            status = weft_fail(claim->context, WEFT_REMOTE_FAILED,
                               "%s shows an older head than the one that lies there; try again when it has "
                               "caught up",
                               weft_store_url(claim->store));
        }
    }
    return status;
}

/* Without conditions there is only the look: what is not there counts as never sent. */
static weft_status resolve_by_look(weft_claim *claim, weft_claim_move *move, bool *written_out) {
    weft_status status = look_at_own(claim, move, written_out);
    if (claim->fenced) {
        return find_in_history(claim, move, written_out);
    }
    return status == WEFT_OK && *written_out ? confirm_head(claim, move, written_out) : status;
}

weft_status weft_claim_resolve(weft_claim *claim, weft_claim_move *move, bool *written_out) {
    weft_status status = WEFT_CHECKSUM_MISMATCH;
    *written_out = false;
    for (int i = 0; i < DAMAGE_ATTEMPTS && status == WEFT_CHECKSUM_MISMATCH; i++) {
        status = puts_have_conditions(claim) ? resolve_by_condition(claim, move, written_out)
                                             : resolve_by_look(claim, move, written_out);
    }
    if (*written_out) {
        adopt_head(claim, move);
    }
    return *written_out ? WEFT_OK : status;
}

/* The place where the head is still the one that this writer wrote. */
static weft_status check_own(weft_claim *claim) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_store_tag tag;
    bool taken;
    weft_status status = read_back(claim, claim->head.epoch, data, &size, &tag);
    if (status == WEFT_OK && !same_bytes(data, size, claim->bytes, claim->size)) {
        status = judge_other(claim, NULL, data, size, &taken);
    }
    return status == WEFT_CHECKSUM_MISMATCH ? WEFT_OK : status;
}

static weft_status put_head(weft_claim *claim, const weft_claim_move *move) {
    char key[WEFT_HEAD_KEY];
    weft_head_key(claim->head.epoch, key);
    weft_store_tag tag = claim->tag;
    bool conditional = puts_have_conditions(claim);
    weft_status status = conditional ? WEFT_OK : check_own(claim);
    if (status == WEFT_OK) {
        status =
            weft_store_put_bytes(claim->context, claim->store, key, move->bytes, move->size,
                                 conditional ? WEFT_STORE_IF_SAME : WEFT_STORE_ALWAYS, &tag, &claim->tag);
    }
    return status;
}

/* What became of a put: it has taken effect, it was refused, or that is to be found out. WEFT_CONFLICT,
 * without being fenced: the store took our own head for another one. */
static weft_status settle_put(weft_claim *claim, weft_claim_move *move, weft_status put,
                              bool *written_out) {
    weft_status status = put;
    if (put == WEFT_OK) {
        *written_out = true;
        status = puts_have_conditions(claim) ? WEFT_OK : confirm_head(claim, move, written_out);
    } else if (put == WEFT_CONFLICT) {
        status = look_at_own(claim, move, written_out);
        status = status == WEFT_OK && !*written_out ? WEFT_CONFLICT : status;
    } else {
        return weft_claim_resolve(claim, move, written_out);
    }
    if (*written_out) {
        adopt_head(claim, move);
    }
    return status;
}

static weft_status commit_once(weft_claim *claim, weft_claim_move *move, bool *unknown_out) {
    bool written = false;
    *unknown_out = false;
    weft_status put = put_head(claim, move);
    if (put != WEFT_OK && claim->fenced) {
        return put;
    }
    weft_failure failure = weft_failure_keep(claim->context, put);
    weft_status status = settle_put(claim, move, put, &written);
    if (written) {
        return WEFT_OK;
    }
    *unknown_out = status != WEFT_OK && status != WEFT_CONFLICT;
    bool known = put == WEFT_OK || put == WEFT_CONFLICT || claim->fenced;
    return known ? status : weft_failure_tell(claim->context, &failure);
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

/* Where the epoch before could not be sealed, its writer may have published between our look and our claim.
 * From the claim on it finds us; so what it has is taken along, and the claim becomes a head that counts.
 */
static weft_status settle_epoch(weft_claim *claim) {
    weft_stored_head stored;
    weft_sync_head last = {0};
    if (claim->sealed || !weft_sync_head_unsettled(&claim->head)) {
        return WEFT_OK;
    }
    weft_status status = weft_sync_head_settled(claim->context, claim->store, claim->trusted,
                                                claim->head.epoch - 1, &stored, &last);
    if (status != WEFT_OK && status != WEFT_SIGNATURE_MISMATCH) {
        return status;
    }
    weft_claim_move move;
    bool unknown;
    /* before the first version there is nothing that could be behind */
    status = last.started ? weft_claim_prepare(claim, &last.page, &last.newest, &move) : WEFT_MORE;
    if (status == WEFT_OK) {
        status = weft_claim_commit(claim, &move, &unknown);
        weft_claim_drop(claim, &move);
    }
    weft_sync_head_close(&last, claim->context);
    return status == WEFT_MORE ? WEFT_OK : status;
}

weft_status weft_claim_take(weft_claim *claim, weft_context *context, weft_store *store,
                            const weft_key *key, bool adopt_any, unsigned format,
                            const weft_identity *identity) {
    *claim = (weft_claim){.context = context,
                          .store = store,
                          .key = key,
                          .trusted = adopt_any ? NULL : key,
                          .format = format};
    weft_status status = WEFT_CONFLICT;
    for (int i = 0; i < CLAIM_ATTEMPTS && status == WEFT_CONFLICT; i++) {
        status = i > 0 ? weft_clock_sleep(context, 0.01 * i) : WEFT_OK;
        if (status == WEFT_OK) {
            status = take_once(claim, identity);
        }
        if (status == WEFT_OK) {
            status = settle_epoch(claim);
        }
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
