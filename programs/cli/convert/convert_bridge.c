/* SPDX-License-Identifier: Apache-2.0
 *
 * convert_bridge.c: between a store and a foreign place. On the trainer's side its deltas become versions
 * of a run; on the engine's side the versions become deltas again, in a directory such as the engine
 * expects.
 *
 * Both sides keep the state that they are at in a checkpoint of their own, the mirror. On the trainer's
 * side it is the publisher's, and is only read here.
 */
#include "convert.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what the run says ---- */

/* A version of the history, and what its labels say. */
typedef struct known_version {
    uint64_t wanted;  /* 0: the newest; or */
    uint64_t foreign; /* the version of the place that is looked for, if `by_label` */
    bool by_label;
    const weft_digest
        *digest; /* or a version in this state, if it is not NULL; of several, `foreign` if it is one */
    bool found;
    uint64_t version;
    bool labelled;
    weft_foreign_format format;
    weft_foreign_write_options options;
} known_version;

static bool look_at(void *opaque, const weft_log_entry *entry) {
    known_version *known = opaque;
    weft_foreign_write_options options = {.size = sizeof options};
    weft_foreign_format format = WEFT_FOREIGN_ANY;
    bool labelled = weft_foreign_labels(entry->labels, &format, &options);
    bool named = labelled && options.version == known->foreign;
    bool wanted = known->digest != NULL ? weft_digest_equal(known->digest, &entry->digest)
                  : known->by_label     ? named
                                        : known->wanted == 0 || entry->version == known->wanted;
    if (wanted && (!known->found || named)) {
        known->found = true;
        known->version = entry->version;
        known->labelled = labelled;
        known->format = format;
        known->options = options;
    }
    return known->digest != NULL ? !(wanted && named) : !wanted;
}

static weft_status find_version(convert_arguments *arguments, known_version *known) {
    return weft_log_walk(arguments->command.context, arguments->remote.store, arguments->remote.trusted,
                         look_at, known);
}

static int need_mirror(convert_arguments *arguments) {
    return arguments->mirror != NULL
               ? EXIT_DONE
               : command_error(
                     &arguments->command, EXIT_USAGE,
                     "say with --mirror where to keep the checkpoint that the bridge is at; it is made "
                     "if it does not exist, and continued from after a restart");
}

/* ---- from a foreign place to a store ---- */

typedef struct inbound {
    convert_arguments *arguments;
    weft_foreign *foreign;
    weft_publisher *publisher;
    weft_model mirror;
    const weft_model *base;
    uint64_t at; /* version of the place that the run is at */
    bool lost;   /* the store was not reached: the run has to be opened again */
    weft_patience patience;
} inbound;

/* What a follower could not publish, because the store was not reached, it does again: whether it was
 * published is known when the run is opened again. */
static int run_failed(inbound *in, weft_status status) {
    weft_command *command = &in->arguments->command;
    in->lost = in->arguments->follow && status == WEFT_REMOTE_FAILED;
    return in->lost ? patience_meet(&in->patience, command, status) : command_fail(command, NULL, status);
}

static int tell_published(inbound *in, const weft_publish_result *result, uint64_t base) {
    return convert_tell(in->arguments, "version", in->at, base,
                        json_pack("{s:I, s:I, s:I, s:I}", "published", (json_int_t)result->version,
                                  "changed", (json_int_t)result->changed, "patch_bytes",
                                  (json_int_t)result->patch_bytes, "uploaded_bytes",
                                  (json_int_t)result->uploaded_bytes));
}

/* The first version of the run is the base itself. */
static int publish_base(inbound *in) {
    convert_arguments *arguments = in->arguments;
    char version[TEXT_SIZE];
    const weft_foreign_version *first = weft_foreign_at(in->foreign, 0);
    for (size_t i = 0; first != NULL && first->whole; i++) {
        first = weft_foreign_at(in->foreign, i);
    }
    in->at = arguments->base_version_given != NULL ? arguments->base_version
             : first != NULL                       ? first->base
                                                   : 0;
    weft_status status = weft_foreign_begin(in->foreign, in->at);
    if (status != WEFT_OK) {
        return command_fail(&arguments->command, NULL, status);
    }
    snprintf(version, sizeof version, "%llu", (unsigned long long)in->at);
    const char *labels[] = {"foreign.format", weft_foreign_format_name(weft_foreign_kind(in->foreign)),
                            "foreign.version", version, NULL};
    weft_publish_result result = {.size = sizeof result};
    status = weft_publisher_publish(in->publisher, labels, &result);
    return status == WEFT_OK ? tell_published(in, &result, in->at) : run_failed(in, status);
}

/* Which version the run is at already. */
static int find_place(inbound *in) {
    convert_arguments *arguments = in->arguments;
    if (weft_publisher_version(in->publisher) == 0) {
        return publish_base(in);
    }
    known_version known = {.options = {.size = sizeof known.options}};
    weft_status status = find_version(arguments, &known);
    if (status != WEFT_OK) {
        return run_failed(in, status);
    }
    if (!known.labelled) {
        return command_error(
            &arguments->command, EXIT_FAILED,
            "the newest version of %s does not come from a foreign place; use a store of its own",
            arguments->paths[1]);
    }
    in->at = known.options.version;
    status = weft_foreign_begin(in->foreign, in->at);
    return status == WEFT_OK ? EXIT_DONE : command_fail(&arguments->command, NULL, status);
}

static weft_status read_step(inbound *in, const weft_foreign_version *next, weft_foreign_step **step_out) {
    weft_context *context = in->arguments->command.context;
    if (!next->whole) {
        return weft_foreign_read(in->foreign, next->version, in->mirror.view, step_out);
    }
    weft_checkpoint *checkpoint = NULL;
    weft_view *view = NULL;
    weft_status status = weft_foreign_fetch(in->foreign, next->version, in->mirror.view);
    status =
        status == WEFT_OK ? weft_checkpoint_open(context, next->path, WEFT_OPEN_READ, &checkpoint) : status;
    status =
        status == WEFT_OK ? weft_view_create(context, weft_checkpoint_table(checkpoint), &view) : status;
    status = status == WEFT_OK ? convert_view_step(context, weft_checkpoint_table(in->mirror.checkpoint),
                                                   in->mirror.view, view, step_out)
                               : status;
    weft_view_destroy(view);
    weft_checkpoint_close(checkpoint);
    return status;
}

/* What a follower could not read it tries again: it may be half there, or another one by now. */
static int publish_next(inbound *in, const weft_foreign_version *next) {
    convert_arguments *arguments = in->arguments;
    weft_command *command = &arguments->command;
    weft_foreign_step *step = NULL;
    uint64_t version = next->version, base = in->at;
    char text[TEXT_SIZE];
    weft_publish_result result = {.size = sizeof result};
    weft_status status = read_step(in, next, &step);
    if (status != WEFT_OK && arguments->follow) {
        int code = patience_meet(&in->patience, command, status);
        status = code == EXIT_DONE ? weft_foreign_look(in->foreign) : WEFT_OK;
        return status == WEFT_OK ? code : patience_meet(&in->patience, command, status);
    }
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    patience_restore(&in->patience, command);
    size_t count;
    const weft_tensor_changes *changes = weft_foreign_step_changes(step, &count);
    snprintf(text, sizeof text, "%llu", (unsigned long long)version);
    const char *plain[] = {"foreign.format", weft_foreign_format_name(weft_foreign_kind(in->foreign)),
                           "foreign.version", text, NULL};
    const char *const *labels = next->whole ? plain : weft_foreign_step_labels(step);
    status = changes != NULL
                 ? weft_publisher_publish_changes(in->publisher, changes, count, labels, &result)
                 : WEFT_NO_MEMORY;
    weft_foreign_step_destroy(step);
    if (status != WEFT_OK) {
        return run_failed(in, status);
    }
    in->at = version;
    return tell_published(in, &result, base);
}

static int publish_all(inbound *in) {
    convert_arguments *arguments = in->arguments;
    weft_command *command = &arguments->command;
    foreign_follower place = {.command = command, .place = arguments->paths[0], .foreign = in->foreign};
    int code = EXIT_DONE;
    while (code == EXIT_DONE && !in->lost && (arguments->version == 0 || in->at < arguments->version)) {
        const weft_foreign_version *next = weft_foreign_after(in->foreign, in->at);
        if (next != NULL) {
            code = publish_next(in, next);
            continue;
        }
        place.info.version = in->at;
        code = foreign_stranded(&place, arguments->follow);
        if (!arguments->follow) {
            break;
        }
        code = convert_wait(arguments);
        weft_status status = code == EXIT_DONE ? weft_foreign_look(in->foreign) : WEFT_OK;
        if (status != WEFT_OK) {
            code = patience_meet(&in->patience, command, status);
        } else if (code == EXIT_DONE) {
            patience_restore(&in->patience, command);
        }
    }
    return code == EXIT_DONE && !in->lost
               ? foreign_reached(command, arguments->paths[0], in->at, arguments->version)
               : code;
}

/* Opens the run and publishes, until all is done or the store is lost. */
static int publish_run(inbound *in) {
    convert_arguments *arguments = in->arguments;
    weft_command *command = &arguments->command;
    const weft_publisher_options options = {.size = sizeof options,
                                            .profile = (weft_profile)arguments->profile,
                                            .container = weft_checkpoint_container(in->base->checkpoint),
                                            .mirror_path = arguments->mirror};
    weft_status status = weft_publisher_open(command->context, arguments->remote.store, in->base->view,
                                             &options, &in->publisher);
    in->lost = false;
    int code = status == WEFT_OK ? find_place(in) : run_failed(in, status);
    if (code == EXIT_DONE && !in->lost) {
        code = model_open(command, arguments->mirror, &in->mirror);
        code = code == EXIT_DONE ? publish_all(in) : code;
        model_close(&in->mirror);
    }
    weft_publisher_close(in->publisher);
    in->publisher = NULL;
    return code;
}

int convert_to_store(convert_arguments *arguments) {
    weft_command *command = &arguments->command;
    weft_model base = {0};
    inbound in = {.arguments = arguments, .base = &base};
    int code = need_mirror(arguments);
    if (code == EXIT_DONE && arguments->base == NULL) {
        code = command_error(command, EXIT_USAGE,
                             "give the checkpoint that the deltas begin from with --base");
    }
    code = code == EXIT_DONE ? convert_open(arguments, &in.foreign) : code;
    code = code == EXIT_DONE ? remote_open(&arguments->remote, arguments->paths[1]) : code;
    code = code == EXIT_DONE ? model_open(command, arguments->base, &base) : code;
    do {
        code = code == EXIT_DONE ? publish_run(&in) : code;
    } while (code == EXIT_DONE && in.lost);
    model_close(&base);
    weft_foreign_close(in.foreign);
    return code;
}

/* ---- from a store to a foreign place ---- */

typedef struct outbound {
    convert_arguments *arguments;
    weft_checkpoint *mirror;
    weft_view *view;
    weft_subscriber *subscriber;
    uint64_t version; /* of the run, that the mirror is at */
    uint64_t at;      /* what the place calls it */
    uint64_t taken;   /* a version of the place that is there, and is another one; 0: none */
} outbound;

static uint64_t newest_written(convert_arguments *arguments) {
    weft_foreign *foreign = NULL;
    const weft_foreign_options options = {.size = sizeof options, .assume_base = true};
    uint64_t newest = 0;
    if (weft_foreign_open(arguments->command.context, arguments->paths[1], &options, &foreign) == WEFT_OK) {
        size_t count = weft_foreign_count(foreign);
        newest = count > 0 ? weft_foreign_at(foreign, count - 1)->version : 0;
    }
    weft_foreign_close(foreign);
    return newest;
}

static bool note_kept(void *opaque, const weft_log_entry *entry) {
    uint64_t *oldest = opaque;
    if (entry->kept) {
        *oldest = entry->version;
    }
    return entry->kept;
}

/* The version of the run where the bridge goes on: that of the newest directory, or the oldest that is
 * kept. */
static weft_status find_start(outbound *out, uint64_t *version_out) {
    convert_arguments *arguments = out->arguments;
    uint64_t written = newest_written(arguments);
    if (written > 0) {
        known_version known = {
            .by_label = true, .foreign = written, .options = {.size = sizeof known.options}};
        weft_status status = find_version(arguments, &known);
        *version_out = known.found ? known.version : written;
        return status;
    }
    *version_out = 0;
    return weft_log_walk(arguments->command.context, arguments->remote.store, arguments->remote.trusted,
                         note_kept, version_out);
}

/* The mirror is pulled whole if it is not there; a follower of live memory takes it from there. */
static weft_status make_mirror(outbound *out, uint64_t version) {
    weft_context *context = out->arguments->command.context;
    weft_subscriber *subscriber = NULL;
    const weft_subscriber_options options = {.size = sizeof options,
                                             .trusted = out->arguments->remote.trusted};
    weft_status status = weft_subscriber_open_file(context, out->arguments->remote.store,
                                                   out->arguments->mirror, &options, &subscriber);
    status = status == WEFT_OK ? weft_subscriber_pull(subscriber, version) : status;
    weft_subscriber_close(subscriber);
    return status;
}

/* Which version of the run the mirror holds, by its digest. Killed in the middle of a commit it holds none,
 * and is brought to that of the newest directory. */
static weft_status find_mirror(outbound *out) {
    convert_arguments *arguments = out->arguments;
    weft_context *context = arguments->command.context;
    weft_sums *sums = NULL;
    weft_status status = weft_sums_compute(context, out->view, &sums);
    if (status != WEFT_OK) {
        return status;
    }
    weft_digest digest = weft_sums_digest(sums);
    weft_sums_destroy(sums);
    known_version known = {
        .digest = &digest, .foreign = newest_written(arguments), .options = {.size = sizeof known.options}};
    status = find_version(arguments, &known);
    uint64_t start = known.version;
    if (status == WEFT_OK && !known.found) {
        status = find_start(out, &start);
        known = (known_version){.wanted = start, .options = {.size = sizeof known.options}};
        status = status == WEFT_OK ? find_version(arguments, &known) : status;
    }
    status = status == WEFT_OK ? weft_subscriber_pull(out->subscriber, start) : status;
    out->version = start;
    out->at = known.labelled ? known.options.version : start;
    return status;
}

static weft_status open_mirror(outbound *out) {
    weft_context *context = out->arguments->command.context;
    uint64_t start = 0;
    weft_status status = WEFT_OK;
    if (access(out->arguments->mirror, F_OK) != 0) {
        status = find_start(out, &start);
        status = status == WEFT_OK ? make_mirror(out, start) : status;
    }
    const weft_subscriber_options options = {.size = sizeof options,
                                             .trusted = out->arguments->remote.trusted};
    status = status == WEFT_OK
                 ? weft_checkpoint_open(context, out->arguments->mirror, WEFT_OPEN_WRITE, &out->mirror)
                 : status;
    status = status == WEFT_OK ? weft_view_create(context, weft_checkpoint_table(out->mirror), &out->view)
                               : status;
    status = status == WEFT_OK ? weft_subscriber_open(context, out->arguments->remote.store, out->view,
                                                      &options, &out->subscriber)
                               : status;
    return status == WEFT_OK ? find_mirror(out) : status;
}

static void close_mirror(outbound *out) {
    weft_subscriber_close(out->subscriber);
    weft_view_destroy(out->view);
    weft_checkpoint_close(out->mirror);
    *out = (outbound){.arguments = out->arguments};
}

static bool same_changes(const weft_view *view, const weft_tensor_changes *a,
                         const weft_tensor_changes *b) {
    int64_t tensor = weft_view_find(view, a->tensor);
    size_t width = tensor >= 0 ? weft_dtype_width(weft_view_at(view, (size_t)tensor)->dtype) : 0;
    return strcmp(a->tensor, b->tensor) == 0 && a->count == b->count && width > 0 &&
           memcmp(a->units, b->units, (size_t)a->count * sizeof *a->units) == 0 &&
           memcmp(a->values, b->values, (size_t)a->count * width) == 0;
}

/* A version that is there already changes exactly what is prepared: a bridge that was killed before its
 * commit has written it. */
static bool is_written(outbound *out, uint64_t version, const weft_tensor_changes *changes, size_t count) {
    weft_context *context = out->arguments->command.context;
    const weft_foreign_options options = {.size = sizeof options, .assume_base = true};
    weft_foreign *foreign = NULL;
    weft_foreign_step *there = NULL;
    size_t found = 0, same = 0;
    bool follows = false;
    weft_status status = weft_foreign_open(context, out->arguments->paths[1], &options, &foreign);
    for (size_t i = 0; status == WEFT_OK && i < weft_foreign_count(foreign); i++) {
        const weft_foreign_version *listed = weft_foreign_at(foreign, i);
        follows = follows || (listed->version == version && listed->base == out->at);
    }
    status = status == WEFT_OK ? weft_foreign_read(foreign, version, out->view, &there) : status;
    const weft_tensor_changes *others = status == WEFT_OK ? weft_foreign_step_changes(there, &found) : NULL;
    for (size_t i = 0; i < count && others != NULL; i++) {
        for (size_t j = 0; j < found; j++) {
            same += same_changes(out->view, &changes[i], &others[j]);
        }
    }
    weft_foreign_step_destroy(there);
    weft_foreign_close(foreign);
    return others != NULL && follows && same == count && found == count;
}

/* Writes what is prepared, as a delta of what was written last. */
static weft_status write_prepared(outbound *out, uint64_t version, weft_foreign_write_options *options,
                                  weft_foreign_written *written) {
    convert_arguments *arguments = out->arguments;
    weft_context *context = arguments->command.context;
    known_version known = {.wanted = version, .options = convert_write_options(arguments)};
    weft_status status = find_version(arguments, &known);
    *options = convert_write_options(arguments);
    options->version = known.labelled ? known.options.version : version;
    options->base = out->at;
    options->container = weft_checkpoint_container(out->mirror);
    bool same = known.labelled && known.format == weft_foreign_place(arguments->paths[1], NULL);
    if (same && arguments->encoding_given == NULL) {
        options->encoding = known.options.encoding;
    }
    if (same && arguments->checksum_given == NULL) {
        options->checksum = known.options.checksum;
    }
    weft_foreign_step *step = NULL;
    status = status == WEFT_OK ? weft_foreign_step_create(context, &step) : status;
    status = status == WEFT_OK ? weft_subscriber_changes(out->subscriber, 0, weft_foreign_step_add, step)
                               : status;
    if (status == WEFT_OK) {
        size_t count;
        const weft_tensor_changes *changes = weft_foreign_step_changes(step, &count);
        status = changes != NULL ? weft_foreign_write(context, arguments->paths[1], options, out->view,
                                                      changes, count, written)
                                 : WEFT_NO_MEMORY;
        if (status == WEFT_CONFLICT && is_written(out, options->version, changes, count)) {
            status = WEFT_OK;
        } else if (status == WEFT_CONFLICT) {
            out->taken = options->version;
        }
    }
    weft_foreign_step_destroy(step);
    return status;
}

/* Prepares the next version, or the oldest that is kept if that is gone. */
static weft_status prepare_next(outbound *out, uint64_t *version) {
    *version = out->version + 1;
    weft_status status = weft_subscriber_prepare(out->subscriber, *version);
    if (status == WEFT_NOT_FOUND) {
        *version = 0;
        status = weft_log_walk(out->arguments->command.context, out->arguments->remote.store,
                               out->arguments->remote.trusted, note_kept, version);
        status = status == WEFT_OK ? weft_subscriber_prepare(out->subscriber, *version) : status;
    }
    return status;
}

/* One version on. WEFT_MORE: there is none. */
static weft_status write_next(outbound *out, int *code_out) {
    weft_foreign_write_options options;
    weft_foreign_written written = {.size = sizeof written};
    weft_subscriber_info before = {.size = sizeof before}, after = {.size = sizeof after};
    uint64_t version = 0, base = out->at;
    weft_subscriber_describe(out->subscriber, &before);
    weft_status status = weft_subscriber_wait(out->subscriber, out->arguments->follow ? 1 : 0.001, NULL);
    if (status != WEFT_OK) {
        return status;
    }
    status = prepare_next(out, &version);
    if (status != WEFT_OK) {
        return status < 0 ? status : WEFT_UNSUPPORTED;
    }
    status = write_prepared(out, version, &options, &written);
    status = status == WEFT_OK ? weft_subscriber_commit(out->subscriber) : status;
    if (status == WEFT_OK) {
        out->version = version;
        out->at = options.version;
        weft_subscriber_describe(out->subscriber, &after);
        *code_out = convert_tell(out->arguments, "version", options.version, base,
                                 json_pack("{s:I, s:I, s:I, s:I}", "published", (json_int_t)version,
                                           "tensors", (json_int_t)written.tensors, "bytes",
                                           (json_int_t)written.bytes, "fetched_bytes",
                                           (json_int_t)(after.fetched_bytes - before.fetched_bytes)));
    }
    return status;
}

int convert_from_store(convert_arguments *arguments) {
    weft_command *command = &arguments->command;
    outbound out = {.arguments = arguments};
    int code = need_mirror(arguments);
    code = code == EXIT_DONE ? remote_open(&arguments->remote, arguments->paths[0]) : code;
    if (code != EXIT_DONE) {
        return code;
    }
    weft_patience patience = {0};
    weft_status status;
    do { /* who follows may be there before the first version, or before the store */
        status = open_mirror(&out);
        if (status != WEFT_OK) {
            close_mirror(&out);
            code = arguments->follow ? patience_meet(&patience, command, status)
                                     : command_fail(command, NULL, status);
        }
    } while (status != WEFT_OK && code == EXIT_DONE);
    while (code == EXIT_DONE && (arguments->version == 0 || out.at < arguments->version)) {
        status = write_next(&out, &code);
        if (out.taken != 0) {
            code = command_error(
                command, EXIT_FAILED,
                "%s has a version %llu already, and it is not what version %llu of the run "
                "changes: somebody else writes there. Remove it, or give the bridge a "
                "directory of its own",
                arguments->paths[1], (unsigned long long)out.taken, (unsigned long long)out.version + 1);
        } else if (status < 0 && arguments->follow) {
            code = patience_meet(&patience, command, status);
        } else if (status < 0) {
            code = command_fail(command, NULL, status);
        } else {
            patience_restore(&patience, command);
            if (status == WEFT_MORE && !arguments->follow) {
                break;
            }
            code = code == EXIT_DONE && status == WEFT_MORE ? convert_wait(arguments) : code;
        }
    }
    code = code == EXIT_DONE ? foreign_reached(command, arguments->paths[0], out.at, arguments->version)
                             : code;
    close_mirror(&out);
    return code;
}
