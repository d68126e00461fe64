/* SPDX-License-Identifier: Apache-2.0
 *
 * parts_message.h: what the processes that publish the parts of a version tell each other, as objects in
 * the store. doc/FORMAT.md specifies the bytes; each message ends with a SHA-256 of what is before it,
 * because nothing else names it with its hash, and with a key it is signed, together with the run and the
 * place where it lies: else whoever can write the store could have the coordinator sign what he has put.
 *
 *   call      from the coordinator to all; the one of an epoch is written again and again
 *   holding   answers the call to join: the buckets that a member has all of
 *   roll      the members, and which of them owns each bucket
 *   manifest  answers the call for a version: the frames that a member has put into the store
 */
#ifndef WEFT_SYNC_PARTS_PARTS_MESSAGE_H
#define WEFT_SYNC_PARTS_PARTS_MESSAGE_H

#include "../../patch/diff/part.h"
#include "../../store/rendezvous.h"
#include "../format/record.h"

enum {
    WEFT_PARTS_MAX = 1024,
    WEFT_PART_NAME = 17,    /* of calls and of members: 16 hexadecimal digits */
    WEFT_PART_TEXT = 512,   /* why something failed */
    WEFT_CALL_BYTES = 2048, /* at most */
    WEFT_MESSAGE_BYTES = 64 << 20,
};

typedef enum weft_call_kind {
    WEFT_CALL_JOIN = 1,    /* tell what you hold */
    WEFT_CALL_PATCH = 2,   /* put what has changed since the version before */
    WEFT_CALL_WHOLE = 3,   /* put everything */
    WEFT_CALL_DONE = 4,    /* the version is published */
    WEFT_CALL_FAILED = 5,  /* it is not */
    WEFT_CALL_UNKNOWN = 6, /* nobody knows yet: the next call tells */
    WEFT_CALL_CLOSED = 7,  /* the coordinator has ended */
} weft_call_kind;

typedef struct weft_call {
    weft_call_kind kind;
    uint64_t number;           /* of the calls of an epoch, ascending */
    uint64_t turn;             /* of the coordinator's publishes: all calls for one have the same */
    char name[WEFT_PART_NAME]; /* answers bear it in their keys, so that none is taken for another's */
    char roll[WEFT_PART_NAME]; /* the name of the call to join that the members have answered */
    uint64_t version;          /* that is being made, or was */
    bool sums;                 /* PATCH: tell the sums of what you start from, too */
    bool anchor;               /* DONE: and put everything once more, for an anchor of this version */
    weft_digest base;          /* PATCH: the state to start from */
    int32_t status;            /* FAILED: a weft_status */
    char text[WEFT_PART_TEXT];
    uint64_t wait; /* milliseconds that the coordinator may wait for followers before its next call */
} weft_call;

typedef struct weft_part_holding {
    char member[WEFT_PART_NAME];
    uint64_t index;
    uint64_t count;
    weft_hash plan; /* of all that must be agreed on */
    bool *held;     /* owned, like all arrays here */
    size_t bucket_count;
} weft_part_holding;

typedef struct weft_part_roll {
    char (*members)[WEFT_PART_NAME];
    size_t member_count;
    uint16_t *owners; /* of each bucket */
    size_t bucket_count;
} weft_part_roll;

typedef struct weft_part_manifest {
    char member[WEFT_PART_NAME];
    int32_t status; /* a weft_status; WEFT_BASE_MISMATCH: this member has nothing to start from */
    char text[WEFT_PART_TEXT];
    weft_texts labels;
    weft_object piece; /* the frames; with nothing to put, nothing */
    weft_part_frame *frames;
    size_t frame_count;
    weft_sum *moves; /* of each tensor; of a whole version the sums themselves */
    weft_sum *sums;  /* if they were asked for; else NULL */
    size_t tensor_count;
} weft_part_manifest;

void weft_part_holding_close(weft_part_holding *holding, weft_context *context);
void weft_part_roll_close(weft_part_roll *roll, weft_context *context);
void weft_part_manifest_close(weft_part_manifest *manifest, weft_context *context);

void weft_call_write(const weft_call *call, weft_writer *writer);
void weft_part_holding_write(const weft_part_holding *holding, weft_writer *writer);
void weft_part_roll_write(const weft_part_roll *roll, weft_writer *writer);
void weft_part_manifest_write(const weft_part_manifest *manifest, weft_writer *writer);

/* Appends signature and hash. */
weft_status weft_message_close(weft_context *context, const weft_message_seal *seal, weft_writer *writer);
/* Checks both; the first `size_out` bytes are what was written. WEFT_CHECKSUM_MISMATCH: damaged on its way.
 * WEFT_SIGNATURE_MISMATCH: by somebody who does not have the key. */
weft_status weft_message_open(weft_context *context, const weft_message_seal *seal, const void *data,
                              size_t size, size_t *size_out);

/* Of opened messages. Counts of buckets and tensors must be the expected ones. */
weft_status weft_call_read(weft_context *context, const void *data, size_t size, weft_call *call);
weft_status weft_part_holding_read(weft_context *context, const void *data, size_t size,
                                   size_t bucket_count, weft_part_holding *holding);
weft_status weft_part_roll_read(weft_context *context, const void *data, size_t size, size_t bucket_count,
                                weft_part_roll *roll);
weft_status weft_part_manifest_read(weft_context *context, const void *data, size_t size,
                                    size_t bucket_count, size_t tensor_count, weft_part_manifest *manifest);

#endif
