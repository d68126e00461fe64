/* SPDX-License-Identifier: Apache-2.0
 *
 * foreign.c: the public calls: which format a place has, its versions, and reading and writing one.
 */
#include "format.h"

#include "../base/context.h"
#include "../base/sized.h"
#include "../tensor/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const weft_foreign_reader *const readers[] = {
    &weft_foreign_slime, &weft_foreign_skyrl, &weft_foreign_arc2,  &weft_foreign_trl,
    &weft_foreign_prime, &weft_foreign_areal, &weft_foreign_pulse, &weft_foreign_grail,
};
enum { READERS = sizeof readers / sizeof *readers };

/* Names that lead to a format, besides its own. */
static const struct {
    const char *name;
    weft_foreign_format format;
} aliases[] = {
    {"miles", WEFT_FOREIGN_SLIME},
    {"sglang", WEFT_FOREIGN_SLIME},
    {"stitch", WEFT_FOREIGN_SLIME},
    {"modelexpress", WEFT_FOREIGN_SLIME},
};

static const weft_foreign_reader *find_reader(weft_foreign_format format) {
    for (size_t i = 0; i < READERS; i++) {
        if (readers[i]->format == format) {
            return readers[i];
        }
    }
    return NULL;
}

const char *weft_foreign_format_name(weft_foreign_format format) {
    const weft_foreign_reader *reader = find_reader(format);
    return reader != NULL ? reader->name : NULL;
}

/* What follows "NAME:" or "NAME://", or NULL. */
static const char *behind_scheme(const char *place, const char *name) {
    size_t length = strlen(name);
    if (strncmp(place, name, length) != 0 || place[length] != ':') {
        return NULL;
    }
    const char *path = place + length + 1;
    return strncmp(path, "//", 2) == 0 ? path + 2 : path;
}

weft_foreign_format weft_foreign_place(const char *place, const char **path_out) {
    weft_foreign_format format = WEFT_FOREIGN_ANY;
    const char *path = NULL;
    for (size_t i = 0; i < READERS && path == NULL; i++) {
        path = behind_scheme(place, readers[i]->name);
        format = readers[i]->format;
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases && path == NULL; i++) {
        path = behind_scheme(place, aliases[i].name);
        format = aliases[i].format;
    }
    if (path_out != NULL) {
        *path_out = path != NULL ? path : place;
    }
    return path != NULL ? format : WEFT_FOREIGN_ANY;
}

/* ---- what lies there ---- */

/* The first that is not below a version: a place may have many, and is looked at often. */
static size_t find_place(const weft_foreign *foreign, uint64_t version) {
    size_t low = 0, high = foreign->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (foreign->versions[middle].version < version) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool weft_foreign_known(const weft_foreign *foreign, uint64_t version) {
    size_t place = find_place(foreign, version);
    return place < foreign->count && foreign->versions[place].version == version;
}

bool weft_foreign_listed(const weft_foreign *foreign, const char *path) {
    bool listed = false;
    for (size_t i = 0; i < foreign->count && !listed; i++) {
        listed = strcmp(foreign->versions[i].path, path) == 0;
    }
    return listed;
}

weft_status weft_foreign_changed(const weft_foreign *foreign, const weft_foreign_version *version) {
    return weft_fail(foreign->context, WEFT_CONFLICT, "%s has changed since it was listed", version->path);
}

/* What is gone, or is another version by now, leaves the list: the next look sees what is there instead. */
static void forget(weft_foreign *foreign, uint64_t version) {
    size_t place = find_place(foreign, version);
    char *path = (char *)(uintptr_t)foreign->versions[place].path;
    weft_remote_forget(foreign, path);
    weft_release(foreign->context, path);
    foreign->count--;
    memmove(foreign->versions + place, foreign->versions + place + 1,
            (foreign->count - place) * sizeof *foreign->versions);
}

weft_status weft_foreign_add(weft_foreign *foreign, uint64_t version, uint64_t base, bool whole,
                             char *path) {
    weft_status status = path == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK && foreign->count == foreign->capacity) {
        size_t capacity = 2 * foreign->capacity + 16;
        weft_foreign_version *versions =
            weft_reallocate_array(foreign->context, foreign->versions, capacity, sizeof *foreign->versions);
        status = versions == NULL ? WEFT_NO_MEMORY : WEFT_OK;
        foreign->versions = versions != NULL ? versions : foreign->versions;
        foreign->capacity = versions != NULL ? capacity : foreign->capacity;
    }
    if (status != WEFT_OK) {
        weft_release(foreign->context, path);
        return status;
    }
    size_t place = find_place(foreign, version);
    memmove(foreign->versions + place + 1, foreign->versions + place,
            (foreign->count - place) * sizeof *foreign->versions);
    foreign->versions[place] = (weft_foreign_version){version, base, whole, path};
    foreign->count++;
    return WEFT_OK;
}

weft_status weft_foreign_look(weft_foreign *foreign) {
    weft_context_clear(foreign->context);
    weft_status status = foreign->remote != NULL ? weft_remote_look(foreign) : WEFT_OK;
    if (status == WEFT_OK) {
        status = foreign->reader->list(foreign);
        weft_remote_heed(foreign, status);
    }
    return status;
}

weft_status weft_foreign_begin(weft_foreign *foreign, uint64_t version) {
    weft_context_clear(foreign->context);
    if (foreign->remote == NULL || version <= foreign->from) {
        return WEFT_OK;
    }
    foreign->from = version;
    return weft_foreign_look(foreign);
}

static weft_status find_format(weft_context *context, const char *path,
                               const weft_foreign_reader **reader) {
    for (size_t i = 0; i < READERS; i++) {
        if (readers[i]->detect(context, path)) {
            *reader = readers[i];
            return WEFT_OK;
        }
    }
    return weft_fail(context, WEFT_UNSUPPORTED,
                     "%s: this is no format that is known; name it, as in slime:%s", path, path);
}

weft_status weft_foreign_open(weft_context *context, const char *place, const weft_foreign_options *options,
                              weft_foreign **foreign_out) {
    weft_context_clear(context);
    weft_foreign_options own;
    weft_status status = weft_sized_read(context, options, &own, sizeof own, "weft_foreign_options");
    if (status != WEFT_OK) {
        return status;
    }
    const char *path;
    const weft_foreign_reader *reader = find_reader(weft_foreign_place(place, &path));
    struct stat info;
    bool remote = reader != NULL && weft_remote_named(path);
    if (behind_scheme(place, "arc3") != NULL) {
        return weft_fail(
            context, WEFT_UNSUPPORTED,
            "%s: who reads ARC3 unpickles it, which runs whatever the sender wants; it is not read here. "
            "Let the trainer write arc_v2",
            place);
    }
    if (reader == NULL && weft_remote_named(path)) {
        return weft_fail(context, WEFT_UNSUPPORTED,
                         "%s: name the format of a place in a bucket, as in slime:%s", path, path);
    }
    if (!remote && stat(path, &info) != 0) {
        return weft_fail(context, WEFT_NOT_FOUND, "%s: there is nothing", path);
    }
    if (!remote && reader != NULL && reader->marker != NULL && !S_ISDIR(info.st_mode)) {
        return weft_fail(context, WEFT_NOT_FOUND, "%s: this is no directory, which versions of %s lie in",
                         path, reader->name);
    }
    status = reader == NULL ? find_format(context, path, &reader) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    if (!reader->proves && !own.assume_base) {
        return weft_fail(
            context, WEFT_UNSUPPORTED,
            "%s: the format %s does not say which weights it belongs to; if the base is another "
            "one, the result is wrong and nothing shows it. To believe that it is the right one, "
            "say so: --assume-base, or assume_base",
            path, reader->name);
    }
    weft_foreign *foreign = weft_allocate_zeroed(context, 1, sizeof *foreign);
    if (foreign == NULL) {
        return WEFT_NO_MEMORY;
    }
    foreign->context = context;
    foreign->reader = reader;
    foreign->options = own;
    foreign->options.store = NULL; /* the caller's */
    if (remote) {
        status = weft_remote_open(foreign, path, own.store);
    } else {
        foreign->root = weft_copy_text(context, path, strlen(path));
        status = foreign->root == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    }
    status = status == WEFT_OK ? weft_foreign_look(foreign) : status;
    if (status != WEFT_OK) {
        weft_foreign_close(foreign);
        return status;
    }
    *foreign_out = foreign;
    return WEFT_OK;
}

void weft_foreign_close(weft_foreign *foreign) {
    if (foreign == NULL) {
        return;
    }
    for (size_t i = 0; i < foreign->count; i++) {
        weft_release(foreign->context, (char *)(uintptr_t)foreign->versions[i].path);
    }
    weft_remote_close(foreign);
    weft_release(foreign->context, foreign->versions);
    weft_release(foreign->context, foreign->root);
    weft_release(foreign->context, foreign);
}

weft_foreign_format weft_foreign_kind(const weft_foreign *foreign) {
    return foreign->reader->format;
}

size_t weft_foreign_count(const weft_foreign *foreign) {
    return foreign->count;
}

const weft_foreign_version *weft_foreign_at(const weft_foreign *foreign, size_t index) {
    return index < foreign->count ? &foreign->versions[index] : NULL;
}

const weft_foreign_version *weft_foreign_after(const weft_foreign *foreign, uint64_t version) {
    const weft_foreign_version *found = NULL;
    for (size_t i = 0; i < foreign->count; i++) {
        const weft_foreign_version *candidate = &foreign->versions[i];
        if (candidate->version > version && !candidate->whole && candidate->base == version) {
            found = candidate;
        }
    }
    for (size_t i = foreign->count; i > 0 && found == NULL; i--) {
        const weft_foreign_version *candidate = &foreign->versions[i - 1];
        if (candidate->whole && candidate->version > version) {
            found = candidate;
        }
    }
    return found;
}

/* ---- reading and writing ---- */

static weft_status label_version(const weft_foreign *foreign, const weft_foreign_version *version,
                                 weft_foreign_step *step) {
    weft_status status = weft_step_label(step, "foreign.format", foreign->reader->name);
    status = status == WEFT_OK ? weft_step_label_number(step, "foreign.version", version->version) : status;
    return status == WEFT_OK ? weft_step_label_number(step, "foreign.base", version->base) : status;
}

static weft_status find_version(const weft_foreign *foreign, uint64_t version,
                                const weft_foreign_version **found_out) {
    size_t place = find_place(foreign, version);
    if (place == foreign->count || foreign->versions[place].version != version) {
        return weft_fail(foreign->context, WEFT_NOT_FOUND, "%s has no version %llu",
                         weft_foreign_where(foreign), (unsigned long long)version);
    }
    *found_out = &foreign->versions[place];
    return WEFT_OK;
}

/* What the files of a version can take: positions and values in full may take several times what they
 * change, and a small model has files that are mostly headers. */
static uint64_t largest_version(const weft_view *base) {
    enum { LARGEST = 8 };
    uint64_t bytes = 0;
    for (size_t i = 0; i < weft_view_count(base); i++) {
        bytes += weft_view_at(base, i)->bytes;
    }
    return LARGEST * bytes + (UINT64_C(64) << 20);
}

weft_status weft_foreign_fetch(weft_foreign *foreign, uint64_t version, const weft_view *base) {
    const weft_foreign_version *found = NULL;
    weft_context_clear(foreign->context);
    weft_status status = find_version(foreign, version, &found);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_remote_fetch(foreign, found, largest_version(base));
    if (status == WEFT_OK && access(found->path, F_OK) != 0) {
        status = weft_fail(foreign->context, WEFT_NOT_FOUND, "%s is gone", found->path);
    }
    if (status == WEFT_NOT_FOUND || status == WEFT_CONFLICT) {
        forget(foreign, version);
    }
    return status;
}

weft_status weft_foreign_read(weft_foreign *foreign, uint64_t version, const weft_view *base,
                              weft_foreign_step **step_out) {
    weft_context *context = foreign->context;
    const weft_foreign_version *found = NULL;
    weft_status status = weft_foreign_fetch(foreign, version, base);
    status = status == WEFT_OK ? find_version(foreign, version, &found) : status;
    if (status != WEFT_OK) {
        return status;
    }
    if (found->whole) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "%s is a checkpoint and no delta", found->path);
    }
    weft_foreign_step *step;
    status = weft_foreign_step_create(context, &step);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t largest = largest_version(base), limit = weft_context_limits(context)->stage_bytes;
    weft_foreign_plan plan = {.context = context,
                              .step = step,
                              .spelling = foreign->reader->spelling,
                              .most = largest < limit ? largest : limit};
    status = label_version(foreign, found, step);
    status = status == WEFT_OK ? foreign->reader->collect(foreign, found, &plan) : status;
    status = status == WEFT_OK ? weft_foreign_plan_decode(&plan, base) : status;
    weft_foreign_plan_close(&plan);
    if (status == WEFT_NOT_FOUND || status == WEFT_CONFLICT) {
        forget(foreign, version);
    }
    if (status != WEFT_OK) {
        weft_foreign_step_destroy(step);
        return status;
    }
    *step_out = step;
    return WEFT_OK;
}

static int compare_changes(const void *a, const void *b) {
    return strcmp(((const weft_tensor_changes *)a)->tensor, ((const weft_tensor_changes *)b)->tensor);
}

/* Names ascending, each once; of a format that wants all tensors, those without changes too. */
static weft_status sort_changes(weft_context *context, const weft_tensor_changes *changes, size_t count,
                                const weft_view *all, weft_tensor_changes **sorted_out, size_t *count_out) {
    size_t more = all != NULL ? weft_view_count(all) : 0;
    weft_tensor_changes *sorted = weft_allocate_array(context, count + more + 1, sizeof *sorted);
    if (sorted == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        sorted[i] = changes[i];
        if (changes[i].tensor == NULL) {
            weft_release(context, sorted);
            return weft_fail(context, WEFT_INVALID_ARGUMENT, "entry %zu of the changes names no tensor", i);
        }
    }
    qsort(sorted, count, sizeof *sorted, compare_changes);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(sorted[i - 1].tensor, sorted[i].tensor) == 0) {
            weft_release(context, sorted);
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "there are two entries for the changes of one tensor; join them");
        }
    }
    size_t given = count;
    for (size_t i = 0; i < more; i++) {
        const weft_tensor_changes none = {.tensor = weft_view_at(all, i)->name};
        if (bsearch(&none, sorted, given, sizeof *sorted, compare_changes) == NULL) {
            sorted[count++] = none;
        }
    }
    qsort(sorted, count, sizeof *sorted, compare_changes);
    *sorted_out = sorted;
    *count_out = count;
    return WEFT_OK;
}

weft_status weft_foreign_write(weft_context *context, const char *place,
                               const weft_foreign_write_options *options, const weft_view *base,
                               const weft_tensor_changes *changes, size_t count,
                               weft_foreign_written *written_out) {
    weft_context_clear(context);
    weft_foreign_write_options own;
    weft_foreign_written written = {.size = sizeof written};
    const char *root;
    const weft_foreign_reader *reader = find_reader(weft_foreign_place(place, &root));
    weft_status status = weft_sized_read(context, options, &own, sizeof own, "weft_foreign_write_options");
    status = status == WEFT_OK ? weft_sized_check(context, written_out, "weft_foreign_written") : status;
    if (status != WEFT_OK) {
        return status;
    }
    if (reader == NULL || reader->write == NULL) {
        return weft_fail(context, WEFT_UNSUPPORTED,
                         "%s: %s; slime:PATH, skyrl:PATH and arc2:PATH are written", place,
                         reader == NULL ? "name the format to write" : "this format is only read");
    }
    if (weft_remote_named(root)) {
        return weft_fail(
            context, WEFT_UNSUPPORTED,
            "%s: places in a bucket are read and not written; write to a directory, and copy it "
            "there, its index or manifest last",
            place);
    }
    weft_tensor_changes *sorted = NULL;
    status = sort_changes(context, changes, count, reader->complete ? base : NULL, &sorted, &count);
    if (status != WEFT_OK) {
        return status;
    }
    own.checksum = reader->adler32 ? WEFT_FOREIGN_ADLER32 : own.checksum;
    if (!reader->overwrites && own.encoding != WEFT_FOREIGN_XOR) {
        weft_release(context, sorted);
        return weft_fail(context, WEFT_UNSUPPORTED, "%s writes xor only", reader->name);
    }
    const weft_pack_options pack = {own.encoding, own.checksum, reader->spelling, own.level,
                                    reader->complete};
    weft_packed *packed = NULL;
    status = weft_pack_changes(context, base, sorted, count, &pack, &packed);
    if (status == WEFT_OK) {
        const weft_foreign_writing writing = {context, root, &own, base, sorted, packed, count};
        status = reader->write(&writing, &written);
        weft_packed_close(context, packed, count);
    }
    weft_release(context, sorted);
    if (status == WEFT_OK) {
        weft_sized_write(&written, written_out, sizeof written);
    }
    return status;
}

/* ---- labels ---- */

static const char *label(const char *const *labels, const char *key) {
    for (size_t i = 0; labels != NULL && labels[i] != NULL; i += 2) {
        if (strcmp(labels[i], key) == 0) {
            return labels[i + 1];
        }
    }
    return NULL;
}

bool weft_foreign_labels(const char *const *labels, weft_foreign_format *format_out,
                         weft_foreign_write_options *options) {
    const char *name = label(labels, "foreign.format");
    const char *version = label(labels, "foreign.version");
    const char *base = label(labels, "foreign.base");
    const char *encoding = label(labels, "foreign.encoding");
    const char *checksum = label(labels, "foreign.checksum");
    weft_foreign_write_options own;
    uint64_t number = 0, before = 0;
    if (name == NULL || version == NULL || !weft_numbered(version, "", 1, "", &number) ||
        (base != NULL && !weft_numbered(base, "", 1, "", &before)) ||
        weft_sized_read(NULL, options, &own, sizeof own, "") != WEFT_OK) {
        return false;
    }
    for (size_t i = 0; i < READERS; i++) {
        if (strcmp(readers[i]->name, name) == 0) {
            own.version = number;
            own.base = before;
            if (encoding != NULL) {
                own.encoding =
                    strcmp(encoding, "overwrite") == 0 ? WEFT_FOREIGN_OVERWRITE : WEFT_FOREIGN_XOR;
            }
            if (checksum != NULL) {
                (void)weft_checksum_parse(checksum, &own.checksum);
            }
            *format_out = readers[i]->format;
            weft_sized_write(&own, options, sizeof own);
            return true;
        }
    }
    return false;
}
