/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_convert.c: `weft convert IN OUT`.
 */
#include "../convert/convert.h"

static const char doc[] =
    "Read deltas of another system, or write them. One of IN and OUT is FORMAT:PATH, such as "
    "slime:/updates; the "
    "other may be a store, a patch, or a checkpoint.\v"
    "Formats: slime (also miles, sglang, stitch, modelexpress), skyrl and arc2 are read and written; trl, "
    "prime, areal, "
    "pulse and grail are read.\n\n"
    "IN and OUT are told by their form: a URL is a store, NAME.weft a patch, NAME.safetensors a "
    "checkpoint, and a "
    "directory is what it holds. store:PATH, patch:PATH and checkpoint:PATH say it where that is not "
    "enough. "
    "doc/INTEROP.md lists the formats, and what each can prove.\n"
    "\nOf slime and skyrl, PATH may be s3://BUCKET/PREFIX or http(s)://HOST/PATH, to read from.\n"
    "\nTo a checkpoint: OUT is brought forward in place, version by version, and is whole at any instant; "
    "it is "
    "first copied from --base if it does not exist. weft pull and weft follow take FORMAT:PATH in the "
    "place of a "
    "STORE, too.\n"
    "\nTo a patch: one version, --version, against --base, which must be at its base.\n"
    "\nTo a store: each delta becomes a version of the run, and --base the first. From a store: each "
    "version "
    "becomes a delta. Together they are a bridge over a slow link. With --follow both go on for ever: what "
    "cannot be read yet is told once and tried again.\n"
    "\nEvery checksum that a format has is checked against the whole new state of each tensor before "
    "anything "
    "changes. A format that has none is read with --assume-base only: if the base is another one, the "
    "weights "
    "are wrong and nothing shows it.\n"
    "\nExamples:\n"
    "  weft convert slime:/updates worker.safetensors --base model.safetensors\n"
    "  weft convert slime:/updates 7.weft --version 7 --base step-6.safetensors\n"
    "  weft convert slime:s3://bucket/updates worker.safetensors \\\n"
    "      --base model.safetensors\n"
    "  weft convert --follow slime:/updates https://store.example/run-7 \\\n"
    "      --base model/ --mirror /data/mirror\n"
    "  weft convert --follow https://store.example/run-7 slime:/updates \\\n"
    "      --mirror /data/mirror\n"
    "  weft convert step-7.safetensors slime:/updates \\\n"
    "      --base step-6.safetensors --base-version 6\n" HELP_REMOTE_EXIT_CODES;

static int run(void *input) {
    convert_arguments *arguments = input;
    for (int i = 0; i < 2; i++) {
        arguments->kinds[i] =
            convert_classify(&arguments->command, arguments->paths[i], &arguments->paths[i]);
    }
    convert_kind in = arguments->kinds[0], out = arguments->kinds[1];
    if (in == CONVERT_FOREIGN && out == CONVERT_CHECKPOINT) {
        return convert_to_checkpoint(arguments);
    }
    if (in == CONVERT_FOREIGN && out == CONVERT_PATCH) {
        return convert_to_patch(arguments);
    }
    if (in == CONVERT_FOREIGN && out == CONVERT_STORE) {
        return convert_to_store(arguments);
    }
    if (in == CONVERT_STORE && out == CONVERT_FOREIGN) {
        return convert_from_store(arguments);
    }
    if ((in == CONVERT_PATCH || in == CONVERT_CHECKPOINT || in == CONVERT_FOREIGN) &&
        out == CONVERT_FOREIGN) {
        return convert_one(arguments);
    }
    return command_error(
        &arguments->command, EXIT_USAGE,
        "it cannot be told what to do with %s and %s; say what they are, as in slime:PATH, "
        "store:PATH, patch:PATH or checkpoint:PATH; one of them must be of another system",
        arguments->paths[0], arguments->paths[1]);
}

int verb_convert(int argc, char **argv) {
    convert_arguments arguments = {.profile = WEFT_PROFILE_SMALL};
    const weft_option options[] = {
        {"base", "CKPT", 1, "The checkpoint that the deltas begin from", .text = &arguments.base},
        {"base-version", "N", 1,
         "The version that --base or OUT is at, as the other system counts (default: the oldest base)",
         .number = &arguments.base_version, .given = &arguments.base_version_given},
        {"version", "N", 1, "Stop at version N, as the other system counts (default: the newest)",
         .number = &arguments.version, .least = 1},
        {"assume-base", NULL, 1, FOREIGN_ASSUME_BASE, .flag = &arguments.assume_base},
        {"follow", NULL, 2, "Go on with versions as they come, until interrupted",
         .flag = &arguments.follow},
        {"mirror", "CKPT", 2, "With a store: the checkpoint that holds the state that the bridge is at",
         .text = &arguments.mirror},
        {"poll", "TIME", 2, "Look for new versions at this interval (default: 0.5s)",
         .seconds = &arguments.poll_seconds},
        {"encoding", "xor|overwrite", 3, "How deltas are written (default: as they came, else xor)",
         .choice = &arguments.encoding, .words = "xor|overwrite", .given = &arguments.encoding_given},
        {"checksum", "NAME", 3,
         "xxh3-128, adler32, blake3 or sha256 (default: as they came, else xxh3-128)",
         .choice = &arguments.checksum, .words = "xxh3-128|adler32|blake3|sha256",
         .given = &arguments.checksum_given},
        {"level", "N", 3, "Of zstd (default: 1)", .number = &arguments.level, .most = 22},
        {"shard-bytes", "SIZE", 3, "Begin a new file before it exceeds this (default: one file)",
         .bytes = &arguments.shard_bytes},
        {"profile", PROFILE_WORDS, 3, "How patches are coded (default: small)",
         .choice = &arguments.profile, .words = PROFILE_WORDS},
        {"durable", NULL, 3, "What is written survives a power loss", .flag = &arguments.durable},
        {0},
    };
    const weft_form form = {"IN OUT",
                            doc,
                            {{options, NULL}},
                            .paths = {arguments.paths, 2, 2, "give what to read, and what to write"}};
    return remote_run(&form, &arguments.remote, true, argc, argv, &arguments, run);
}
