/* SPDX-License-Identifier: Apache-2.0
 *
 * repair.h: what the files of weft_repair_run share: the state of a look at a damaged run, what was found,
 * and what takes the place of pages that are damaged.
 *
 * A page is JSON of what also stands elsewhere: the pages of the versions before it, which retire but stay
 * for a while, repeat its records; so do the nodes of leaps and the heads of epochs; and a patch tells in
 * its footer between which states it leads. Often the very bytes can be made again, which their hash
 * proves.
 */
#ifndef WEFT_SYNC_REPAIR_REPAIR_H
#define WEFT_SYNC_REPAIR_REPAIR_H

#include "../format/head.h"

enum { WEFT_REPAIR_TEXT = 512 };

typedef struct weft_repair_note {
    weft_repair_kind kind;
    char key[WEFT_KEY_SIZE];
    char wrong[WEFT_REPAIR_TEXT];
    char effect[WEFT_REPAIR_TEXT];
    char remedy[WEFT_REPAIR_TEXT];
    uint64_t first;
    uint64_t last;
    bool mendable;
    bool mended;
} weft_repair_note;

/* What a listing tells of an object of a version. */
typedef struct weft_repair_entry {
    char key[WEFT_KEY_SIZE];
    uint64_t epoch;
    uint64_t version;
    uint64_t size;
    double age;
} weft_repair_entry;

typedef struct weft_repair_room {
    const char *name;
    bool read;
    weft_repair_entry *entries; /* by version, highest first; of one version the youngest first */
    size_t count;
} weft_repair_room;

typedef enum weft_repair_head_state {
    WEFT_REPAIR_HEAD_GOOD,
    WEFT_REPAIR_HEAD_MISSING,
    WEFT_REPAIR_HEAD_JUNK,
    WEFT_REPAIR_HEAD_FOREIGN, /* of an old epoch, whole, and not signed by who is trusted: passed over */
} weft_repair_head_state;

typedef struct weft_repair_head {
    weft_repair_head_state state;
    weft_sync_head head; /* if it is good */
    weft_hash hash;      /* of its bytes */
    weft_store_tag tag;
} weft_repair_head;

/* A page of the history, from the newest back. */
typedef struct weft_repair_link {
    weft_blob blob;  /* as the head or the page after it names it */
    weft_page *made; /* what takes its place; NULL: it is sound */
    bool exact;      /* `made` has the very bytes that `blob` names */
    bool cut;        /* nothing could be made, and nothing is known of what lies before it */
} weft_repair_link;

typedef struct weft_repair {
    weft_context *context;
    weft_store *store;
    weft_repair_options options;
    char run[WEFT_RUN_TEXT]; /* "": no head says */
    bool listed;             /* the store can be listed */
    weft_repair_room rooms[6];
    weft_repair_head *heads; /* of the epochs from 1 on */
    size_t head_count;
    bool is_signed;
    bool lost_head;      /* the newest epoch's head must be written again */
    bool unproven;       /* what is to be written was found, and nothing that is signed vouches for it */
    weft_sync_head head; /* the newest state that could be established */
    weft_repair_link *links;
    size_t link_count;
    bool full; /* one of the links names the anchors */
    weft_repair_note *notes;
    size_t note_count;
    weft_repair_result result;
} weft_repair;

/* True if an object is damaged or missing, and not merely out of reach. */
bool weft_repair_damage(weft_status status);

/* The next note, to be filled in; NULL if there is no memory. */
weft_repair_note *weft_repair_add_note(weft_repair *repair, weft_repair_kind kind, const char *key);

/* Reads the heads of all epochs, establishes the newest state, and notes the heads that are wrong. */
weft_status weft_repair_find_state(weft_repair *repair);
/* There is none under its key, or what lies there is none. */
bool weft_repair_head_broken(const weft_repair_head *head);
/* Writes what was made for what was found. */
weft_status weft_repair_mend(weft_repair *repair);

/* What a room ("pages") holds. Empty if the store has no listing. */
weft_status weft_repair_list(weft_repair *repair, const char *room, const weft_repair_room **room_out);
/* Reads an object of a known size whole; the caller releases the data. */
weft_status weft_repair_read(weft_repair *repair, const char *key, uint64_t size, uint64_t most,
                             uint8_t **data_out, weft_hash *hash_out);
/* A page of which only the key is known, if it is one of this run. The blob describes it. Of a run that is
 * not known yet, any will do. */
weft_status weft_repair_read_page(weft_repair *repair, const weft_repair_entry *entry, weft_blob *blob,
                                  weft_page **page_out);

/* Where a page is to be made. */
typedef struct weft_repair_gap {
    uint64_t last;         /* the version that it ends with */
    bool proven;           /* the state of that version is known: */
    weft_digest digest;    /* this one */
    uint64_t milliseconds; /* of the record after it, and so are these */
    uint64_t epoch;
    uint64_t floor;
    const weft_record *newest; /* of the head's page: what the head says of its version; else NULL */
} weft_repair_gap;

/* The first version of the page that ends with a version, if all is regular. */
uint64_t weft_repair_first(unsigned format, uint64_t last);

/* Makes the page that a blob names out of what can be found. `lost` takes the versions of which nothing
 * could be found, as the first and the last; 0: none. */
weft_status weft_repair_make_page(weft_repair *repair, const weft_blob *blob, const weft_repair_gap *gap,
                                  weft_page **page_out, bool *exact_out, uint64_t lost[2]);
/* Gives the newest full page, if it was made, the anchors that can be found. */
weft_status weft_repair_find_anchors(weft_repair *repair);
/* The page of a link, sound or made. To be released if the link has made none. */
weft_status weft_repair_open_link(weft_repair *repair, size_t index, weft_page **page_out);
void weft_repair_close_link(weft_repair *repair, size_t index, weft_page *page);

/* What an object is whose description was lost. WEFT_MORE: it is no patch. `record`, which may be NULL,
 * takes what a patch tells of its version. */
weft_status weft_repair_describe(weft_repair *repair, const weft_repair_entry *entry, weft_object *object,
                                 weft_digest *base, weft_digest *digest, weft_record *record);
/* True if all of an object is there, as far as can be told without reading it (with `deep`: is sound). */
weft_status weft_repair_is_there(weft_repair *repair, const weft_object *object, bool *there);
/* Looks at everything that the kept versions need, and notes what is wrong with it. */
weft_status weft_repair_check_kept(weft_repair *repair);

#endif
