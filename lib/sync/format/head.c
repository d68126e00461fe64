/* SPDX-License-Identifier: Apache-2.0
 *
 * head.c: heads to bytes and back, and finding the newest.
 */
#include "head.h"
#include "../../base/sized.h"

#include "../../base/context.h"
#include "../../store/key.h"
#include "../../tensor/json.h"
#include "pack.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    JSON_DEPTH = 6,
    JSON_CONTAINERS = 64,
    JSON_BYTES = 16384, /* of what is packed in a head */
};

static const char SIGNED_PREFIX[] = "weft head\n";
static const char HASH_LINE[] = "sha256 ";
static const char SIGNATURE_LINE[] = "ed25519 ";

void weft_sync_head_close(weft_sync_head *head, weft_context *context) {
    weft_record_close(&head->newest, context);
}

void weft_head_key(uint64_t epoch, char key[WEFT_HEAD_KEY]) {
    snprintf(key, WEFT_HEAD_KEY, "heads/%08llu", (unsigned long long)epoch);
}

bool weft_sync_head_unsettled(const weft_sync_head *head) {
    return head->sequence == 1 && head->epoch > 1;
}

uint64_t weft_sync_head_version(const weft_sync_head *head) {
    return head->started ? head->newest.version : 0;
}

bool weft_sync_head_newer(const weft_sync_head *head, uint64_t epoch, uint64_t sequence) {
    return head->epoch > epoch || (head->epoch == epoch && head->sequence > sequence);
}

/* ---- writing ---- */

/* What readers would refuse about a head, or NULL. */
static const char *head_fault(const weft_sync_head *head) {
    if (!weft_sync_name_valid(head->run) || !weft_sync_name_valid(head->writer) || head->epoch == 0 ||
        head->epoch > INT64_MAX || head->sequence > INT64_MAX) {
        return "its run, its place or its writer";
    }
    const char *fault = head->started ? weft_blob_fault(&head->page) : NULL;
    return fault == NULL && head->started ? weft_record_fault(&head->newest) : fault;
}

static json_t *format_json(const weft_sync_head *head) {
    unsigned format = head->format != 0 ? head->format : WEFT_HISTORY_FORMAT;
    json_t *json = weft_json_with(json_object(), "weft", weft_count_json(format));
    json = weft_json_with(json, "kind", json_string("head"));
    json = weft_json_with(json, "run", json_string(head->run));
    json = weft_json_with(json, "epoch", weft_count_json(head->epoch));
    json = weft_json_with(json, "sequence", weft_count_json(head->sequence));
    json = weft_json_with(json, "writer", json_string(head->writer));
    if (head->started) {
        json = weft_json_with(json, "page", weft_blob_format(&head->page));
        json = weft_json_with(json, "newest", weft_record_format(&head->newest));
    }
    return json;
}

/* What is signed begins with words that nothing else of ours begins with, so that a signature means a head
 * and nothing else. */
static weft_status write_signed_text(weft_writer *text, const void *json, size_t size) {
    weft_writer_bytes(text, SIGNED_PREFIX, sizeof SIGNED_PREFIX - 1);
    weft_writer_bytes(text, json, size);
    return weft_writer_failed(text) ? WEFT_NO_MEMORY : WEFT_OK;
}

static weft_status append_signature(weft_context *context, const weft_key *key, size_t json_size,
                                    weft_writer *writer) {
    uint8_t signature[WEFT_SIGNATURE_BYTES];
    char hex[2 * WEFT_SIGNATURE_BYTES + 1];
    weft_writer text;
    weft_writer_open(&text, context);
    weft_status status = write_signed_text(&text, writer->data, json_size);
    if (status == WEFT_OK) {
        status = weft_key_sign(context, key, text.data, text.size, signature);
    }
    weft_writer_close(&text);
    if (status == WEFT_OK) {
        weft_hex_format(signature, sizeof signature, hex);
        weft_writer_bytes(writer, SIGNATURE_LINE, sizeof SIGNATURE_LINE - 1);
        weft_writer_bytes(writer, hex, sizeof hex - 1);
        weft_writer_u8(writer, '\n');
    }
    return status;
}

/* Puts the packed text of a head in the place of the text, if that is shorter. The head stays a line of
 * JSON that says which format it is: who does not know how to unpack it can tell that from damage. */
static weft_status pack_text(weft_context *context, weft_writer *text) {
    weft_writer packed;
    weft_writer line;
    weft_writer_open(&packed, context);
    weft_writer_open(&line, context);
    weft_status status = weft_pack(context, text->data, text->size, &packed);
    if (status == WEFT_OK) {
        size_t size = weft_base85_size(packed.size);
        char *room = weft_allocate(context, size + 1);
        if (room != NULL) {
            weft_base85_format(packed.data, packed.size, room);
            json_t *json = weft_json_with(json_object(), "weft", weft_count_json(WEFT_HISTORY_FORMAT));
            json = weft_json_with(json, "kind", json_string("head"));
            weft_json_write(&line, weft_json_with(json, "packed", json_stringn(room, size)));
        }
        bool failed = room == NULL || weft_writer_failed(&line);
        status = failed ? weft_json_no_memory(context, "a head") : WEFT_OK;
        weft_release(context, room);
    }
    if (status == WEFT_OK && line.size < text->size) {
        weft_writer longer = *text;
        *text = line;
        line = longer;
    }
    weft_writer_close(&line);
    weft_writer_close(&packed);
    return status;
}

static weft_status format_head(weft_context *context, const weft_sync_head *head, const weft_key *key,
                               weft_writer *writer) {
    static const weft_json_bounds bounds = {JSON_BYTES, JSON_DEPTH, JSON_CONTAINERS};
    weft_hash hash;
    char hex[WEFT_HASH_TEXT];
    const char *fault = head_fault(head);
    if (fault != NULL) {
        return weft_sync_unwritable(context, "a head", fault);
    }
    weft_json_write(writer, format_json(head));
    if (weft_writer_failed(writer)) {
        return weft_json_no_memory(context, "a head");
    }
    weft_status status =
        weft_json_check(context, "a head", (const char *)writer->data, writer->size, &bounds);
    if (status == WEFT_OK && head->format != WEFT_SYNC_FORMAT) {
        status = pack_text(context, writer);
    }
    size_t json_size = writer->size;
    if (status == WEFT_OK) {
        status = weft_hash_compute(context, writer->data, json_size, &hash);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_hex_format(hash.bytes, sizeof hash.bytes, hex);
    weft_writer_u8(writer, '\n');
    weft_writer_bytes(writer, HASH_LINE, sizeof HASH_LINE - 1);
    weft_writer_bytes(writer, hex, sizeof hex - 1);
    weft_writer_u8(writer, '\n');
    if (key != NULL) {
        status = append_signature(context, key, json_size, writer);
    }
    return status == WEFT_OK && weft_writer_failed(writer) ? WEFT_NO_MEMORY : status;
}

weft_status weft_sync_head_format(weft_context *context, const weft_sync_head *head, const weft_key *key,
                                  uint8_t data[WEFT_HEAD_MAX], size_t *size_out) {
    weft_writer writer;
    weft_writer_open(&writer, context);
    weft_status status = format_head(context, head, key, &writer);
    if (status == WEFT_OK && writer.size > WEFT_HEAD_MAX) {
        status = weft_fail(context, WEFT_LIMIT_EXCEEDED,
                           "the head would take %zu bytes, more than the %d of a head: use shorter labels",
                           writer.size, WEFT_HEAD_MAX);
    }
    if (status == WEFT_OK) {
        memcpy(data, writer.data, writer.size);
        *size_out = writer.size;
    }
    weft_writer_close(&writer);
    return status;
}

/* ---- reading ---- */

/* Takes the line "<name><hexadecimal>\n" off the front. */
static bool take_line(const char **cursor, const char *end, const char *name, uint8_t *bytes, size_t size) {
    size_t length = strlen(name);
    char hex[2 * WEFT_SIGNATURE_BYTES + 1];
    if ((size_t)(end - *cursor) < length + 2 * size + 1 || memcmp(*cursor, name, length) != 0 ||
        (*cursor)[length + 2 * size] != '\n') {
        return false;
    }
    memcpy(hex, *cursor + length, 2 * size);
    hex[2 * size] = '\0';
    *cursor += length + 2 * size + 1;
    return weft_hex_parse(hex, bytes, size);
}

static weft_status check_signature(weft_context *context, const char *where, const weft_key *trusted,
                                   const char *json, size_t size, bool is_signed,
                                   const uint8_t *signature) {
    char key[WEFT_KEY_TEXT];
    weft_key_format(trusted, key);
    if (!is_signed) {
        return weft_fail(context, WEFT_SIGNATURE_MISMATCH,
                         "%s: the head is not signed, and only heads signed by %.16s… are trusted", where,
                         key);
    }
    weft_writer text;
    weft_writer_open(&text, context);
    weft_status status = write_signed_text(&text, json, size);
    bool good = status == WEFT_OK && weft_key_check(trusted, text.data, text.size, signature);
    weft_writer_close(&text);
    if (status != WEFT_OK || good) {
        return status;
    }
    return weft_fail(context, WEFT_SIGNATURE_MISMATCH,
                     "%s: the head is not signed by the trusted key %.16s…; nothing was believed. If the "
                     "publisher has a new key, give its public half",
                     where, key);
}

static weft_status parse_json(weft_context *context, const char *where, const json_t *json,
                              weft_sync_head *head) {
    weft_status status = WEFT_OK;
    uint64_t format = 0;
    if (!weft_json_count(json, "weft", &format) ||
        !weft_json_text(json, "run", head->run, sizeof head->run) ||
        !weft_json_count(json, "epoch", &head->epoch) ||
        !weft_json_count(json, "sequence", &head->sequence) ||
        !weft_json_text(json, "writer", head->writer, sizeof head->writer)) {
        return weft_fail(context, WEFT_MALFORMED, "%s: the head lacks something", where);
    }
    head->format = (unsigned)format;
    const json_t *newest = json_object_get(json, "newest");
    if (newest != NULL) {
        status = weft_blob_parse(context, where, json_object_get(json, "page"), &head->page);
        if (status == WEFT_OK) {
            status = weft_record_parse(context, where, newest, &head->newest);
        }
        head->started = status == WEFT_OK;
    }
    const char *fault = status == WEFT_OK ? head_fault(head) : NULL;
    if (fault != NULL) {
        weft_sync_head_close(head, context);
        status = weft_sync_malformed(context, where, fault);
    }
    return status;
}

/* The JSON of a head: what is packed in the line, or the line itself. */
static weft_status read_line(weft_context *context, const char *where, const char *text, size_t size,
                             json_t **json_out) {
    json_t *line;
    weft_status status =
        weft_sync_parse(context, where, "head", text, size, JSON_DEPTH, JSON_CONTAINERS, &line);
    const json_t *packed = status == WEFT_OK ? json_object_get(line, "packed") : NULL;
    if (packed == NULL) {
        *json_out = status == WEFT_OK ? line : NULL;
        return status;
    }
    uint8_t frame[WEFT_HEAD_MAX];
    size_t frame_size = 0;
    uint8_t *inner = NULL;
    size_t inner_size = 0;
    status =
        json_is_string(packed) && weft_base85_parse(json_string_value(packed), json_string_length(packed),
                                                    frame, sizeof frame, &frame_size)
            ? weft_unpack(context, where, frame, frame_size, JSON_BYTES, &inner, &inner_size)
            : weft_sync_malformed(context, where, "what is packed in the head");
    json_decref(line);
    if (status == WEFT_OK) {
        status = weft_sync_parse(context, where, "head", (const char *)inner, inner_size, JSON_DEPTH,
                                 JSON_CONTAINERS, json_out);
    }
    weft_release(context, inner);
    return status;
}

static weft_status damaged(weft_context *context, const char *where) {
    return weft_fail(context, WEFT_CHECKSUM_MISMATCH, "%s: the head was damaged on its way; fetch it again",
                     where);
}

weft_status weft_sync_head_parse(weft_context *context, const char *where, const void *data, size_t size,
                                 const weft_key *trusted, weft_sync_head *head) {
    *head = (weft_sync_head){0};
    const char *text = data;
    const char *line = size <= WEFT_HEAD_MAX && size > 0 ? memchr(text, '\n', size) : NULL;
    if (line == NULL) {
        return damaged(context, where);
    }
    size_t json_size = (size_t)(line - text);
    const char *cursor = line + 1;
    const char *end = text + size;
    weft_hash promised;
    weft_hash hash;
    uint8_t signature[WEFT_SIGNATURE_BYTES] = {0};
    bool hashed = take_line(&cursor, end, HASH_LINE, promised.bytes, sizeof promised.bytes);
    weft_status status = weft_hash_compute(context, text, json_size, &hash);
    if (status != WEFT_OK) {
        return status;
    }
    if (!hashed || !weft_hash_equal(&hash, &promised)) {
        return damaged(context, where);
    }
    head->is_signed = take_line(&cursor, end, SIGNATURE_LINE, signature, sizeof signature);
    if (cursor != end) {
        return damaged(context, where);
    }
    if (trusted != NULL) {
        status = check_signature(context, where, trusted, text, json_size, head->is_signed, signature);
    }
    json_t *json = NULL;
    if (status == WEFT_OK) {
        status = read_line(context, where, text, json_size, &json);
    }
    if (status == WEFT_OK) {
        status = parse_json(context, where, json, head);
    }
    json_decref(json);
    const char *run = trusted != NULL ? weft_key_run(trusted) : "";
    if (status == WEFT_OK && run[0] != '\0' && strcmp(run, head->run) != 0) {
        status = weft_fail(context, WEFT_SIGNATURE_MISMATCH,
                           "%s: the head is of run %s, and the key is trusted for run %s only", where,
                           head->run, run);
        weft_sync_head_close(head, context);
    }
    return status;
}

weft_head_info weft_sync_head_describe(const weft_sync_head *head) {
    weft_head_info info = {
        .size = sizeof info,
        .epoch = head->epoch,
        .sequence = head->sequence,
        .version = head->newest.version,
        .digest = head->newest.digest,
        .milliseconds = head->newest.milliseconds,
        .patch_bytes = head->newest.patched ? head->newest.patch.bytes : 0,
        .dense_bytes = head->newest.dense_bytes,
        .changed = head->newest.changed,
        .total = head->newest.total,
        .is_signed = head->is_signed,
        .format = head->format,
    };
    memcpy(info.run, head->run, sizeof info.run);
    return info;
}

weft_status weft_head_inspect(weft_context *context, const void *data, size_t size, const weft_key *trusted,
                              weft_head_info *info_out) {
    weft_context_clear(context);
    weft_sync_head head;
    weft_status status = weft_sized_check(context, info_out, "weft_head_info");
    if (status == WEFT_OK) {
        status = weft_sync_head_parse(context, "the head", data, size, trusted, &head);
    }
    if (status == WEFT_OK) {
        const weft_head_info info = weft_sync_head_describe(&head);
        weft_sized_write(&info, info_out, sizeof info);
        weft_sync_head_close(&head, context);
    }
    return status;
}

/* ---- finding ---- */

weft_status weft_sync_head_read(weft_context *context, weft_store *store, uint64_t epoch,
                                const weft_store_tag *unless, uint8_t data[WEFT_HEAD_MAX], size_t *size_out,
                                weft_store_tag *tag) {
    char key[WEFT_HEAD_KEY];
    weft_head_key(epoch, key);
    weft_store_get_request request = {
        .size = sizeof request,
        .key = key,
        .length = WEFT_HEAD_MAX,
        .buffer = data,
        .unless = unless != NULL && unless->text[0] != '\0' ? unless : NULL,
    };
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = weft_store_get(context, store, &request, &result);
    if (status != WEFT_OK) {
        return status;
    }
    if (result.unchanged) {
        return WEFT_MORE;
    }
    *size_out = (size_t)result.received;
    if (tag != NULL) {
        *tag = result.tag;
    }
    return WEFT_OK;
}

weft_status weft_head_exists(weft_context *context, weft_store *store, uint64_t epoch, bool *exists) {
    char key[WEFT_HEAD_KEY];
    uint64_t size;
    weft_head_key(epoch, key);
    weft_status status = weft_store_head(context, store, key, &size, NULL);
    *exists = status == WEFT_OK;
    return status == WEFT_NOT_FOUND ? WEFT_OK : status;
}

/* Epochs are numbered without gaps and their heads are never removed: doubling steps, then halving ones,
 * find the last. `low` exists, `high` (once found) does not. */
static weft_status last_epoch(weft_context *context, weft_store *store, uint64_t low, uint64_t *last_out) {
    uint64_t step = 1;
    bool exists = true;
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && exists && low + step > low) {
        status = weft_head_exists(context, store, low + step, &exists);
        if (status == WEFT_OK && exists) {
            low += step;
            step *= 2;
        }
    }
    uint64_t high = low + step;
    while (status == WEFT_OK && high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        status = weft_head_exists(context, store, middle, &exists);
        low = exists ? middle : low;
        high = exists ? high : middle;
    }
    *last_out = low;
    return status;
}

static weft_status find_last(weft_context *context, weft_store *store, uint64_t least_epoch,
                             weft_stored_head *stored) {
    uint64_t epoch = least_epoch > 0 ? least_epoch : 1;
    bool exists;
    weft_status status = weft_head_exists(context, store, epoch, &exists);
    if (status == WEFT_OK && !exists) {
        weft_store_traits traits = {.size = sizeof traits};
        weft_store_traits_of(store, &traits);
        bool nowhere = traits.directory != NULL && access(traits.directory, F_OK) != 0;
        return weft_fail(context, WEFT_NOT_FOUND, "%s: nothing was published here yet (%s)",
                         weft_store_url(store),
                         nowhere      ? "there is no such directory"
                         : epoch == 1 ? "no head"
                                      : "no head of the epoch that was seen before");
    }
    if (status == WEFT_OK) {
        status = last_epoch(context, store, epoch, &epoch);
    }
    if (status == WEFT_OK) {
        status =
            weft_sync_head_read(context, store, epoch, NULL, stored->data, &stored->size, &stored->tag);
    }
    stored->epoch = epoch;
    stored->last = epoch;
    return status;
}

weft_status weft_head_find(weft_context *context, weft_store *store, uint64_t least_epoch, uint8_t *data,
                           size_t *size_out, uint64_t *epoch_out) {
    weft_context_clear(context);
    weft_stored_head stored;
    weft_status status = find_last(context, store, least_epoch, &stored);
    if (status == WEFT_OK) {
        memcpy(data, stored.data, stored.size);
        *size_out = stored.size;
        *epoch_out = stored.epoch;
    }
    return status;
}

/* A head under another's name is as good as damaged. */
static weft_status parse_stored(weft_context *context, weft_store *store, const weft_key *trusted,
                                const weft_stored_head *stored, weft_sync_head *head) {
    const char *url = weft_store_url(store);
    weft_status status = weft_sync_head_parse(context, url, stored->data, stored->size, trusted, head);
    if (status != WEFT_OK || head->epoch == stored->epoch) {
        return status;
    }
    weft_sync_head_close(head, context);
    return weft_fail(context, WEFT_CHECKSUM_MISMATCH,
                     "%s: what lies under the name of epoch %llu's head is not that head", url,
                     (unsigned long long)stored->epoch);
}

/* Goes on to the head of the epoch before as long as what is at hand is only a claim. */
static weft_status walk_to_settled(weft_context *context, weft_store *store, const weft_key *trusted,
                                   weft_stored_head *stored, weft_sync_head *head) {
    weft_stored_head earlier = *stored;
    weft_status status = parse_stored(context, store, trusted, &earlier, head);
    bool unsettled = status == WEFT_OK && weft_sync_head_unsettled(head);
    while (unsettled) {
        weft_sync_head before;
        earlier.epoch--;
        status =
            weft_sync_head_read(context, store, earlier.epoch, NULL, earlier.data, &earlier.size, NULL);
        if (status == WEFT_OK) {
            status = parse_stored(context, store, trusted, &earlier, &before);
        }
        if (status != WEFT_OK) {
            break;
        }
        unsettled = weft_sync_head_unsettled(&before);
        weft_sync_head_close(unsettled ? &before : head, context);
        if (!unsettled) {
            *head = before;
            *stored = earlier;
        }
    }
    if (unsettled && (status == WEFT_NOT_FOUND || status == WEFT_SIGNATURE_MISMATCH)) {
        weft_context_clear(context);
        return WEFT_OK;
    }
    if (unsettled) {
        weft_sync_head_close(head, context);
    }
    return status;
}

weft_status weft_sync_head_settled(weft_context *context, weft_store *store, const weft_key *trusted,
                                   uint64_t epoch, weft_stored_head *stored, weft_sync_head *head) {
    stored->epoch = epoch;
    weft_status status =
        weft_sync_head_read(context, store, epoch, NULL, stored->data, &stored->size, NULL);
    return status == WEFT_OK ? walk_to_settled(context, store, trusted, stored, head) : status;
}

weft_status weft_sync_head_newest(weft_context *context, weft_store *store, const weft_key *trusted,
                                  weft_stored_head *stored, weft_sync_head *head) {
    weft_context_clear(context);
    weft_status status = find_last(context, store, 1, stored);
    return status == WEFT_OK ? walk_to_settled(context, store, trusted, stored, head) : status;
}
