/* SPDX-License-Identifier: Apache-2.0
 *
 * convert_files.c: conversions between foreign places, patches and checkpoints.
 */
#include "convert.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what is what ---- */

static bool ends_in(const char *text, const char *ending) {
    size_t length = strlen(text), tail = strlen(ending);
    return length >= tail && strcmp(text + length - tail, ending) == 0;
}

static bool has_file(const char *directory, const char *name) {
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    return length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0;
}

static convert_kind classify_existing(weft_command *command, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) {
        return CONVERT_NOTHING;
    }
    if (S_ISDIR(info.st_mode)) {
        weft_foreign *foreign = NULL;
        const weft_foreign_options options = {.size = sizeof options, .assume_base = true};
        if (has_file(path, "heads")) {
            return CONVERT_STORE;
        }
        if (has_file(path, "model.safetensors") || has_file(path, "model.safetensors.index.json")) {
            return CONVERT_CHECKPOINT;
        }
        weft_status status = weft_foreign_open(command->context, path, &options, &foreign);
        weft_foreign_close(foreign);
        return status == WEFT_UNSUPPORTED ? CONVERT_NOTHING : CONVERT_FOREIGN;
    }
    return CONVERT_NOTHING;
}

convert_kind convert_classify(weft_command *command, const char *text, const char **path_out) {
    static const struct {
        const char *scheme;
        convert_kind kind;
    } schemes[] = {
        {"store:", CONVERT_STORE}, {"patch:", CONVERT_PATCH}, {"checkpoint:", CONVERT_CHECKPOINT}};
    *path_out = text;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        size_t length = strlen(schemes[i].scheme);
        if (strncmp(text, schemes[i].scheme, length) == 0) {
            *path_out = text + length;
            return schemes[i].kind;
        }
    }
    if (foreign_named(text)) {
        return CONVERT_FOREIGN;
    }
    if (strstr(text, "://") != NULL) {
        return CONVERT_STORE;
    }
    convert_kind kind = classify_existing(command, text);
    if (kind != CONVERT_NOTHING) {
        return kind;
    }
    return ends_in(text, ".safetensors")                      ? CONVERT_CHECKPOINT
           : ends_in(text, ".weft") || strcmp(text, "-") == 0 ? CONVERT_PATCH
                                                              : CONVERT_NOTHING;
}

/* ---- what they share ---- */

int convert_open(convert_arguments *arguments, weft_foreign **foreign_out) {
    weft_command *command = &arguments->command;
    weft_store_options reached;
    const weft_foreign_options options = {
        .size = sizeof options, .assume_base = arguments->assume_base, .store = &reached};
    weft_patience patience = {0};
    weft_status status = WEFT_OK;
    int code = remote_options(&arguments->remote, &reached);
    if (code != EXIT_DONE) {
        return code;
    }
    do {
        status = weft_foreign_open(command->context, arguments->paths[0], &options, foreign_out);
        if (status != WEFT_OK) {
            code = arguments->follow ? patience_meet(&patience, command, status)
                                     : command_fail(command, NULL, status);
        }
    } while (status != WEFT_OK && code == EXIT_DONE);
    return code;
}

weft_foreign_write_options convert_write_options(const convert_arguments *arguments) {
    return (weft_foreign_write_options){
        .size = sizeof(weft_foreign_write_options),
        .encoding = (weft_foreign_encoding)arguments->encoding,
        .checksum = (weft_foreign_checksum)arguments->checksum,
        .level = (int)arguments->level,
        .shard_bytes = arguments->shard_bytes,
        .durable = arguments->durable,
    };
}

/* An apply wants memory that it may write to; this one is never committed. */
static weft_status pretend_writable(weft_context *context, const weft_table *table, weft_table **own_out) {
    weft_table *own;
    weft_status status = weft_table_create(context, &own);
    for (size_t i = 0; status == WEFT_OK && i < weft_table_count(table); i++) {
        weft_tensor tensor = *weft_table_at(table, i);
        tensor.writable = true;
        status = weft_table_add(own, &tensor);
    }
    if (status == WEFT_OK) {
        *own_out = own;
    } else {
        weft_table_destroy(own);
    }
    return status;
}

weft_status convert_patch_step(weft_context *context, const weft_patch *patch, const weft_table *table,
                               weft_foreign_step **step_out) {
    weft_table *own = NULL;
    weft_view *view = NULL;
    weft_sums *sums = NULL;
    weft_apply *apply = NULL;
    weft_foreign_step *step = NULL;
    weft_status status = pretend_writable(context, table, &own);
    status = status == WEFT_OK ? weft_view_create(context, own, &view) : status;
    status = status == WEFT_OK ? weft_sums_compute(context, view, &sums) : status;
    status = status == WEFT_OK ? weft_apply_create(context, patch, view, sums, &apply) : status;
    status = status == WEFT_OK ? weft_apply_prepare(apply) : status;
    status = status == WEFT_OK ? weft_foreign_step_create(context, &step) : status;
    status = status == WEFT_OK ? weft_apply_changes(apply, 0, weft_foreign_step_add, step) : status;
    if (apply != NULL) {
        weft_apply_destroy(apply);
    }
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    weft_table_destroy(own);
    if (status != WEFT_OK) {
        weft_foreign_step_destroy(step);
        return status;
    }
    *step_out = step;
    return WEFT_OK;
}

weft_status convert_view_step(weft_context *context, const weft_table *table, const weft_view *base,
                              const weft_view *next, weft_foreign_step **step_out) {
    weft_sink sink;
    weft_source source = {0};
    weft_patch *patch = NULL;
    const void *data;
    size_t size;
    weft_status status = weft_sink_open_memory(context, &sink);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_diff(context, base, next, NULL, &sink, NULL);
    weft_sink_memory(&sink, &data, &size);
    source.memory = data;
    source.size = size;
    status = status == WEFT_OK ? weft_patch_open(context, &source, &patch) : status;
    status = status == WEFT_OK ? convert_patch_step(context, patch, table, step_out) : status;
    if (patch != NULL) {
        weft_patch_close(patch);
    }
    weft_sink_abandon(&sink);
    return status;
}

int convert_tell(convert_arguments *arguments, const char *what, uint64_t version, uint64_t base,
                 json_t *more) {
    weft_command *command = &arguments->command;
    int code = EXIT_DONE;
    progress_clear(&command->progress);
    if (command->json) {
        json_t *json = json_object();
        json_object_set_new(json, what, json_count(version));
        json_object_set_new(json, "base", json_count(base));
        json_object_update(json, more);
        code = command_print_json_line(command, stdout, json);
    } else if (!command->quiet) {
        printf("%s %llu from %llu", what, (unsigned long long)version, (unsigned long long)base);
        const char *key;
        json_t *value;
        json_object_foreach(more, key, value) {
            if (json_is_integer(value)) {
                printf("  %s %lld", key, (long long)json_integer_value(value));
            }
        }
        putchar('\n');
        fflush(stdout);
    }
    json_decref(more);
    return code;
}

int convert_wait(convert_arguments *arguments) {
    command_sleep(arguments->poll_seconds > 0 ? arguments->poll_seconds : 0.5);
    return command_interrupted() == EXIT_DONE ? EXIT_DONE
                                              : command_fail(&arguments->command, NULL, WEFT_CANCELLED);
}

/* ---- to a checkpoint ---- */

static weft_status fill(weft_checkpoint *copy, const weft_checkpoint *base) {
    const weft_table *to = weft_checkpoint_table(copy), *from = weft_checkpoint_table(base);
    for (size_t i = 0; i < weft_table_count(to); i++) {
        const weft_tensor *tensor = weft_table_at(to, i);
        const weft_tensor *source = weft_table_at(from, (size_t)weft_table_find(from, tensor->name));
        if (tensor->bytes > 0) {
            memcpy(tensor->data, source->data, (size_t)tensor->bytes);
        }
    }
    return WEFT_OK;
}

/* OUT is a copy of BASE if there is nothing yet. */
static int seed(convert_arguments *arguments) {
    weft_command *command = &arguments->command;
    weft_model base;
    weft_checkpoint *copy = NULL;
    if (access(arguments->paths[1], F_OK) == 0) {
        return EXIT_DONE;
    }
    if (arguments->base == NULL) {
        return command_error(
            command, EXIT_USAGE,
            "%s does not exist; give the checkpoint that the deltas begin from with --base",
            arguments->paths[1]);
    }
    int code = model_open(command, arguments->base, &base);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_status status = weft_checkpoint_create(command->context, arguments->paths[1],
                                                weft_checkpoint_container(base.checkpoint), &copy);
    if (status == WEFT_OK) {
        status = fill(copy, base.checkpoint);
        status = status == WEFT_OK ? weft_checkpoint_finish(copy, arguments->durable) : status;
    }
    model_close(&base);
    return status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
}

int convert_to_checkpoint(convert_arguments *arguments) {
    weft_command *command = &arguments->command;
    foreign_follower follower = {.command = command,
                                 .place = arguments->paths[0],
                                 .out = arguments->paths[1],
                                 .assume_base = arguments->assume_base,
                                 .durable = arguments->durable};
    weft_patience patience = {0};
    int code = convert_open(arguments, &follower.foreign);
    code = code == EXIT_DONE ? seed(arguments) : code;
    if (code != EXIT_DONE) {
        foreign_follow_close(&follower);
        return code;
    }
    const weft_foreign_replica_options options = {.size = sizeof options,
                                                  .durable = arguments->durable,
                                                  .version = arguments->base_version,
                                                  .version_given = arguments->base_version_given != NULL};
    weft_status status = weft_foreign_replica_open(command->context, follower.foreign, follower.out,
                                                   &options, &follower.replica);
    code = status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
    while (code == EXIT_DONE && (arguments->version == 0 || follower.info.version < arguments->version)) {
        status = foreign_follow(&follower);
        if (status < 0) {
            code = arguments->follow ? patience_meet(&patience, command, status)
                                     : command_fail(command, NULL, status);
            continue;
        }
        patience_restore(&patience, command);
        if (status == WEFT_OK) {
            code = foreign_follow_print(&follower);
            continue;
        }
        code = foreign_stranded(&follower, arguments->follow);
        if (!arguments->follow) {
            break;
        }
        code = convert_wait(arguments);
    }
    code = code == EXIT_DONE && !arguments->follow
               ? foreign_reached(command, arguments->paths[0], follower.info.version, arguments->version)
               : code;
    foreign_follow_close(&follower);
    return code;
}

/* ---- one version ---- */

/* The version that --version names, or the only one that leads on from the base. */
static int choose_version(convert_arguments *arguments, const weft_foreign *foreign,
                          const weft_foreign_version **version_out) {
    const weft_foreign_version *found = NULL;
    for (size_t i = 0; i < weft_foreign_count(foreign); i++) {
        const weft_foreign_version *version = weft_foreign_at(foreign, i);
        bool wanted = arguments->version == 0 || version->version == arguments->version;
        found = wanted && !version->whole ? version : found;
    }
    if (found == NULL) {
        return command_error(&arguments->command, EXIT_FAILED, "%s has no such delta", arguments->paths[0]);
    }
    *version_out = found;
    return EXIT_DONE;
}

static int need_base(convert_arguments *arguments, weft_model *base) {
    if (arguments->base == NULL) {
        return command_error(&arguments->command, EXIT_USAGE,
                             "give the checkpoint that the delta is to be put on with --base");
    }
    return model_open(&arguments->command, arguments->base, base);
}

int convert_to_patch(convert_arguments *arguments) {
    weft_command *command = &arguments->command;
    weft_foreign *foreign = NULL;
    weft_model base = {0};
    weft_output output = {0};
    const weft_foreign_version *version = NULL;
    weft_foreign_step *step = NULL;
    weft_diff_stats stats = {.size = sizeof stats};
    int code = convert_open(arguments, &foreign);
    code = code == EXIT_DONE ? need_base(arguments, &base) : code;
    code = code == EXIT_DONE ? choose_version(arguments, foreign, &version) : code;
    if (code == EXIT_DONE) {
        weft_status status = weft_foreign_read(foreign, version->version, base.view, &step);
        code = status == WEFT_OK ? output_open(command, &output, arguments->paths[1], arguments->durable)
                                 : command_fail(command, NULL, status);
    }
    if (code == EXIT_DONE) {
        size_t count;
        const weft_tensor_changes *changes = weft_foreign_step_changes(step, &count);
        const weft_diff_options options = {.size = sizeof options,
                                           .profile = (weft_profile)arguments->profile,
                                           .labels = weft_foreign_step_labels(step),
                                           .changes = changes,
                                           .change_count = count};
        weft_status status =
            changes != NULL ? weft_diff(command->context, base.view, NULL, &options, &output.sink, &stats)
                            : WEFT_NO_MEMORY;
        code = status == WEFT_OK ? output_finish(command, &output) : command_fail(command, NULL, status);
        output_close(&output);
    }
    if (code == EXIT_DONE && strcmp(arguments->paths[1], "-") != 0) {
        code = convert_tell(arguments, "version", version->version, version->base,
                            json_pack("{s:I, s:I}", "changed", (json_int_t)stats.changed, "bytes",
                                      (json_int_t)stats.patch_bytes));
    }
    weft_foreign_step_destroy(step);
    model_close(&base);
    weft_foreign_close(foreign);
    return code;
}

/* The changes of a patch or a checkpoint against the base, or of a foreign version. */
static int take_step(convert_arguments *arguments, const weft_model *base,
                     weft_foreign_write_options *options, weft_foreign_step **step_out) {
    weft_command *command = &arguments->command;
    weft_context *context = command->context;
    const weft_table *table = weft_checkpoint_table(base->checkpoint);
    weft_status status = WEFT_OK;
    int code = EXIT_DONE;
    if (arguments->kinds[0] == CONVERT_PATCH) {
        patch_file file;
        code = patch_file_open(command, arguments->paths[0], &file);
        if (code == EXIT_DONE) {
            status = convert_patch_step(context, file.patch, table, step_out);
            patch_file_close(&file);
        }
    } else if (arguments->kinds[0] == CONVERT_CHECKPOINT) {
        weft_model next;
        code = model_open(command, arguments->paths[0], &next);
        if (code == EXIT_DONE) {
            status = convert_view_step(context, table, base->view, next.view, step_out);
            model_close(&next);
        }
    } else {
        weft_foreign *foreign = NULL;
        const weft_foreign_version *version = NULL;
        code = convert_open(arguments, &foreign);
        code = code == EXIT_DONE ? choose_version(arguments, foreign, &version) : code;
        if (code == EXIT_DONE) {
            options->version = version->version;
            options->base = version->base;
            status = weft_foreign_read(foreign, version->version, base->view, step_out);
        }
        weft_foreign_close(foreign);
    }
    return code == EXIT_DONE && status != WEFT_OK ? command_fail(command, NULL, status) : code;
}

int convert_one(convert_arguments *arguments) {
    weft_command *command = &arguments->command;
    weft_model base = {0};
    weft_foreign_step *step = NULL;
    weft_foreign_write_options options = convert_write_options(arguments);
    weft_foreign_written written = {.size = sizeof written};
    int code = need_base(arguments, &base);
    code = code == EXIT_DONE ? take_step(arguments, &base, &options, &step) : code;
    if (code == EXIT_DONE) {
        if (options.version == 0) {
            options.base = arguments->base_version;
            options.version = arguments->version > 0 ? arguments->version : options.base + 1;
        }
        size_t count;
        options.container = weft_checkpoint_container(base.checkpoint);
        const weft_tensor_changes *changes = weft_foreign_step_changes(step, &count);
        weft_status status = changes != NULL
                                 ? weft_foreign_write(command->context, arguments->paths[1], &options,
                                                      base.view, changes, count, &written)
                                 : WEFT_NO_MEMORY;
        code = status == WEFT_OK
                   ? convert_tell(arguments, "version", options.version, options.base,
                                  json_pack("{s:I, s:I}", "tensors", (json_int_t)written.tensors, "bytes",
                                            (json_int_t)written.bytes))
                   : command_fail(command, NULL, status);
    }
    weft_foreign_step_destroy(step);
    model_close(&base);
    return code;
}
