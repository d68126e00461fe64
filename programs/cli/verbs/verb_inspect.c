/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_inspect.c: `weft inspect FILE`: what a patch or a checkpoint says about itself, without reading
 * the weights.
 */
#include "../command.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char doc[] = "Show what a patch or a checkpoint says about itself.\v"
                          "FILE is a patch ('-' for stdin), a safetensors file, or a checkpoint directory. "
                          "The weights of a checkpoint are not read: see weft digest and weft verify.\n"
                          "\nExamples:\n"
                          "  weft inspect 42.weft --buckets --label step\n"
                          "  weft inspect model/ --tensors\n"
                          "  weft inspect 42.weft --json | jq .changed\n" HELP_EXIT_CODES;

enum { LABEL_MAX = 32 };

typedef struct inspect_arguments {
    weft_command command;
    const char *path;
    bool tensors;
    bool buckets;
    const char *labels[LABEL_MAX];
    size_t label_count;
} inspect_arguments;

static void parse_label(struct argp_state *state, const weft_option *option, char *text) {
    inspect_arguments *arguments = option->into;
    if (arguments->label_count == LABEL_MAX) {
        argp_error(state, "at most %d labels", LABEL_MAX);
    }
    arguments->labels[arguments->label_count++] = text;
}

/* ---- patches ---- */

static const char *fate_name(weft_fate fate) {
    switch (fate) {
    case WEFT_FATE_KEPT:
        return "kept";
    case WEFT_FATE_ADDED:
        return "added";
    case WEFT_FATE_REMOVED:
        return "removed";
    case WEFT_FATE_REPLACED:
        return "replaced";
    }
    return "unknown";
}

static const char *coding_name(weft_coding coding) {
    switch (coding) {
    case WEFT_CODING_FAST:
        return "fast";
    case WEFT_CODING_SMALL:
        return "small";
    case WEFT_CODING_DIFFERENCE:
        return "difference";
    case WEFT_CODING_VALUES:
        return "values";
    case WEFT_CODING_PACKED_STEPS:
        return "packed steps";
    case WEFT_CODING_PACKED_VALUES:
        return "packed values";
    case WEFT_CODING_SMALLEST:
        return "smallest";
    case WEFT_CODING_RICE:
        return "rice steps";
    }
    return "unknown";
}

static json_t *tensor_json(const weft_tensor *tensor) {
    json_t *json = json_object();
    json_object_set_new(json, "name", json_string(tensor->name));
    json_object_set_new(json, "dtype", json_string(weft_dtype_name(tensor->dtype)));
    json_object_set_new(json, "shape", json_shape(tensor));
    json_object_set_new(json, "bytes", json_count(tensor->bytes));
    return json;
}

static void print_tensor(const weft_tensor *tensor, const char *fate) {
    char shape[SHAPE_SIZE], size[TEXT_SIZE];
    printf("  %-9s%-8s %-20s %10s  ", fate, weft_dtype_name(tensor->dtype), text_shape(tensor, shape),
           text_bytes(tensor->bytes, size));
    text_print(stdout, tensor->name);
    putchar('\n');
}

static json_t *bucket_json(const weft_bucket_info *bucket) {
    json_t *json = json_object();
    json_object_set_new(json, "coding", json_string(coding_name(bucket->coding)));
    json_object_set_new(json, "offset", json_count(bucket->offset));
    json_object_set_new(json, "bytes", json_count(bucket->bytes));
    json_object_set_new(json, "units", json_count(bucket->units));
    json_object_set_new(json, "changed", json_count(bucket->changed));
    json_object_set_new(json, "first_tensor", json_count(bucket->first_tensor));
    json_object_set_new(json, "last_tensor", json_count(bucket->last_tensor));
    return json;
}

static void print_bucket(const weft_patch *patch, uint64_t index, const weft_bucket_info *bucket) {
    char size[TEXT_SIZE], changed[TEXT_SIZE], units[TEXT_SIZE];
    printf("  %6llu  %-10s %10s  %12s of %12s  ", (unsigned long long)index, coding_name(bucket->coding),
           text_bytes(bucket->bytes, size), text_count(bucket->changed, changed),
           text_count(bucket->units, units));
    weft_fate fate;
    text_print(stdout, weft_patch_tensor(patch, bucket->first_tensor, &fate)->name);
    if (bucket->last_tensor != bucket->first_tensor) {
        fputs(" … ", stdout);
        text_print(stdout, weft_patch_tensor(patch, bucket->last_tensor, &fate)->name);
    }
    putchar('\n');
}

/* Goes through the buckets once, for text or into `list`. */
static int show_buckets(inspect_arguments *arguments, const weft_patch *patch, json_t *list) {
    weft_command *command = &arguments->command;
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    for (uint64_t i = 0; i < info.buckets; i++) {
        weft_bucket_info bucket = {.size = sizeof bucket};
        weft_status status = weft_patch_bucket(command->context, patch, (size_t)i, &bucket);
        if (status != WEFT_OK) {
            return command_fail(command, arguments->path, status);
        }
        if (list != NULL) {
            json_array_append_new(list, bucket_json(&bucket));
        } else {
            print_bucket(patch, i, &bucket);
        }
    }
    return EXIT_DONE;
}

static json_t *labels_json(const inspect_arguments *arguments, const weft_patch *patch) {
    json_t *labels = json_object();
    for (size_t i = 0; i < weft_patch_label_count(patch); i++) {
        const char *key = weft_patch_label_key(patch, i);
        json_object_set_new(labels, key, json_string(weft_patch_label(patch, key)));
    }
    for (size_t i = 0; i < arguments->label_count; i++) {
        if (weft_patch_label(patch, arguments->labels[i]) == NULL) {
            json_object_set_new(labels, arguments->labels[i], json_null());
        }
    }
    return labels;
}

static json_t *patch_tensors_json(const weft_patch *patch) {
    json_t *tensors = json_array();
    for (size_t i = 0; i < weft_patch_tensor_count(patch); i++) {
        weft_fate fate;
        json_t *json = tensor_json(weft_patch_tensor(patch, i, &fate));
        json_object_set_new(json, "fate", json_string(fate_name(fate)));
        json_array_append_new(tensors, json);
    }
    return tensors;
}

static int print_patch_json(inspect_arguments *arguments, const weft_patch *patch) {
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    json_t *json = json_object();
    json_object_set_new(json, "kind", json_string("patch"));
    json_object_set_new(json, "version", json_count(info.version));
    json_object_set_new(json, "profile", json_string(text_profile(info.profile)));
    json_object_set_new(json, "patch_bytes", json_count(info.bytes));
    json_object_set_new(json, "dense_bytes", json_count(info.dense_bytes));
    json_object_set_new(json, "changed", json_count(info.changed));
    json_object_set_new(json, "total", json_count(info.total));
    json_object_set_new(json, "buckets", json_count(info.buckets));
    json_object_set_new(json, "tensors", json_count(weft_patch_tensor_count(patch)));
    json_object_set_new(json, "added", json_count(info.added));
    json_object_set_new(json, "removed", json_count(info.removed));
    json_object_set_new(json, "replaced", json_count(info.replaced));
    json_object_set_new(json, "base", json_digest(&info.base));
    json_object_set_new(json, "result", json_digest(&info.result));
    json_object_set_new(json, "new_container", json_boolean(weft_patch_container(patch) != NULL));
    json_object_set_new(json, "labels", labels_json(arguments, patch));
    if (arguments->tensors) {
        json_object_set_new(json, "tensor_list", patch_tensors_json(patch));
    }
    if (arguments->buckets) {
        json_t *buckets = json_array();
        int code = show_buckets(arguments, patch, buckets);
        json_object_set_new(json, "bucket_list", buckets);
        if (code != EXIT_DONE) {
            json_decref(json);
            return code;
        }
    }
    return command_print_json(&arguments->command, stdout, json);
}

static void print_label(const char *key, const char *value) {
    fputs("label     ", stdout);
    text_print(stdout, key);
    fputs(value != NULL ? " = " : " is not set", stdout);
    text_print(stdout, value != NULL ? value : "");
    putchar('\n');
}

static int print_patch_text(inspect_arguments *arguments, const weft_patch *patch) {
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    char a[TEXT_SIZE], b[TEXT_SIZE], digest[WEFT_DIGEST_TEXT];
    printf("patch     format %u, profile %s, %s\n", info.version, text_profile(info.profile),
           text_bytes(info.bytes, a));
    printf("changed   %s of %s\n", text_count(info.changed, a), text_count(info.total, b));
    printf("tensors   %zu (%llu added, %llu removed, %llu replaced), %s\n", weft_patch_tensor_count(patch),
           (unsigned long long)info.added, (unsigned long long)info.removed,
           (unsigned long long)info.replaced, text_bytes(info.dense_bytes, a));
    printf("buckets   %s\n", text_count(info.buckets, a));
    printf("files     %s\n",
           weft_patch_container(patch) != NULL ? "carries the result's headers" : "as the base's");
    weft_digest_format(&info.base, digest);
    printf("base      %s\n", digest);
    weft_digest_format(&info.result, digest);
    printf("result    %s\n", digest);
    /* All labels, or those that were asked for. */
    for (size_t i = 0; i < arguments->label_count; i++) {
        print_label(arguments->labels[i], weft_patch_label(patch, arguments->labels[i]));
    }
    for (size_t i = 0; arguments->label_count == 0 && i < weft_patch_label_count(patch); i++) {
        const char *key = weft_patch_label_key(patch, i);
        print_label(key, weft_patch_label(patch, key));
    }
    for (size_t i = 0; arguments->tensors && i < weft_patch_tensor_count(patch); i++) {
        weft_fate fate;
        const weft_tensor *tensor = weft_patch_tensor(patch, i, &fate);
        print_tensor(tensor, fate_name(fate));
    }
    return arguments->buckets ? show_buckets(arguments, patch, NULL) : EXIT_DONE;
}

static int inspect_patch(inspect_arguments *arguments) {
    patch_file file;
    int code = patch_file_open(&arguments->command, arguments->path, &file);
    if (code != EXIT_DONE) {
        return code;
    }
    code = arguments->command.json ? print_patch_json(arguments, file.patch)
                                   : print_patch_text(arguments, file.patch);
    patch_file_close(&file);
    return code;
}

/* ---- checkpoints ---- */

/* All of __metadata__, over all files; the first file that has a key wins. */
static json_t *metadata_json(const weft_container *container) {
    json_t *all = json_object();
    for (size_t i = 0; i < container->file_count; i++) {
        json_t *header = json_loadb(container->files[i].header, container->files[i].header_bytes, 0, NULL);
        json_t *metadata = json_object_get(header, "__metadata__");
        if (json_is_object(metadata)) {
            json_object_update_missing(all, metadata);
        }
        json_decref(header);
    }
    return all;
}

typedef struct dtype_total {
    uint64_t tensors;
    uint64_t bytes;
} dtype_total;

enum { DTYPE_END = WEFT_DTYPE_C64 + 1 };

static void total_dtypes(const weft_table *table, dtype_total totals[DTYPE_END]) {
    memset(totals, 0, DTYPE_END * sizeof *totals);
    for (size_t i = 0; i < weft_table_count(table); i++) {
        const weft_tensor *tensor = weft_table_at(table, i);
        if (tensor->tied_to < 0) {
            totals[tensor->dtype].tensors++;
            totals[tensor->dtype].bytes += tensor->bytes;
        }
    }
}

static int print_checkpoint_json(inspect_arguments *arguments, const weft_checkpoint *checkpoint) {
    const weft_table *table = weft_checkpoint_table(checkpoint);
    const weft_container *container = weft_checkpoint_container(checkpoint);
    dtype_total totals[DTYPE_END];
    total_dtypes(table, totals);
    json_t *json = json_object(), *dtypes = json_object();
    for (int i = 0; i < DTYPE_END; i++) {
        if (totals[i].tensors > 0) {
            json_t *entry = json_object();
            json_object_set_new(entry, "tensors", json_count(totals[i].tensors));
            json_object_set_new(entry, "bytes", json_count(totals[i].bytes));
            json_object_set_new(dtypes, weft_dtype_name((weft_dtype)i), entry);
        }
    }
    json_object_set_new(json, "kind", json_string("checkpoint"));
    json_object_set_new(json, "sharded", json_boolean(container->sharded));
    json_object_set_new(json, "files", json_count(container->file_count));
    json_object_set_new(json, "tensors", json_count(weft_table_count(table)));
    json_object_set_new(json, "dense_bytes", json_count(weft_table_bytes(table)));
    json_object_set_new(json, "dtypes", dtypes);
    json_object_set_new(json, "metadata", metadata_json(container));
    if (arguments->tensors) {
        json_t *tensors = json_array();
        for (size_t i = 0; i < weft_table_count(table); i++) {
            json_array_append_new(tensors, tensor_json(weft_table_at(table, i)));
        }
        json_object_set_new(json, "tensor_list", tensors);
    }
    return command_print_json(&arguments->command, stdout, json);
}

static void print_checkpoint_text(const inspect_arguments *arguments, const weft_checkpoint *checkpoint) {
    const weft_table *table = weft_checkpoint_table(checkpoint);
    const weft_container *container = weft_checkpoint_container(checkpoint);
    dtype_total totals[DTYPE_END];
    total_dtypes(table, totals);
    char size[TEXT_SIZE];
    printf("checkpoint  %zu file%s%s, %zu tensors, %s\n", container->file_count,
           container->file_count == 1 ? "" : "s", container->sharded ? " and an index" : "",
           weft_table_count(table), text_bytes(weft_table_bytes(table), size));
    for (int i = 0; i < DTYPE_END; i++) {
        if (totals[i].tensors > 0) {
            printf("dtype       %-12s %6llu tensors  %10s\n", weft_dtype_name((weft_dtype)i),
                   (unsigned long long)totals[i].tensors, text_bytes(totals[i].bytes, size));
        }
    }
    json_t *metadata = metadata_json(container), *value;
    const char *key;
    json_object_foreach(metadata, key, value) {
        fputs("metadata    ", stdout);
        text_print(stdout, key);
        fputs(" = ", stdout);
        text_print(stdout, json_is_string(value) ? json_string_value(value) : "?");
        putchar('\n');
    }
    json_decref(metadata);
    for (size_t i = 0; arguments->tensors && i < weft_table_count(table); i++) {
        const weft_tensor *tensor = weft_table_at(table, i);
        print_tensor(tensor, tensor->tied_to < 0 ? "" : "tied");
    }
}

static int inspect_checkpoint(inspect_arguments *arguments) {
    weft_model model;
    int code = model_open(&arguments->command, arguments->path, &model);
    if (code != EXIT_DONE) {
        return code;
    }
    if (arguments->command.json) {
        code = print_checkpoint_json(arguments, model.checkpoint);
    } else {
        print_checkpoint_text(arguments, model.checkpoint);
    }
    model_close(&model);
    return code;
}

/* A safetensors file opens with a length of eight bytes and then JSON; nothing else is tried as one. */
static bool is_checkpoint(const char *path) {
    if (strcmp(path, "-") == 0) {
        return false;
    }
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
        return S_ISDIR(status.st_mode);
    }
    char opening[9] = {0};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return false;
    }
    ssize_t got = read(descriptor, opening, sizeof opening);
    close(descriptor);
    return got == (ssize_t)sizeof opening && opening[8] == '{';
}

static int run(void *input) {
    inspect_arguments *arguments = input;
    return is_checkpoint(arguments->path) ? inspect_checkpoint(arguments) : inspect_patch(arguments);
}

int verb_inspect(int argc, char **argv) {
    inspect_arguments arguments = {0};
    const weft_option options[] = {
        {"tensors", NULL, 1, "List the tensors; of a patch, with what becomes of them",
         .flag = &arguments.tensors},
        {"buckets", NULL, 1, "List the buckets of a patch, checking each", .flag = &arguments.buckets},
        {"label", "KEY", 1, "Show only this label of a patch; may be repeated", .parse = parse_label,
         .into = &arguments},
        {0},
    };
    const weft_form form = {
        "FILE", doc, {{options, NULL}}, .paths = {&arguments.path, 1, 1, "give a patch or a checkpoint"}};
    return command_run(&form, argc, argv, &arguments, run);
}
