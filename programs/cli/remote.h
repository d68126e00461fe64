/* SPDX-License-Identifier: Apache-2.0
 *
 * remote.h: the options that all verbs on a STORE share, and the store that they lead to.
 */
#ifndef WEFT_PROGRAMS_CLI_REMOTE_H
#define WEFT_PROGRAMS_CLI_REMOTE_H

#include "command.h"

/* What a STORE may be, for every verb's --help. */
#define HELP_STORE                                                                                         \
    "A STORE is a directory, a URL http(s)://HOST[:PORT]/PATH, such as weft serve gives, or "              \
    "s3://BUCKET/PREFIX, with credentials from where AWS programs have them: AWS_ACCESS_KEY_ID and "       \
    "AWS_SECRET_ACCESS_KEY, a profile (AWS_PROFILE), a role of a web identity, a container or an "         \
    "instance "                                                                                            \
    "(AWS_REGION, AWS_ENDPOINT_URL, AWS_CA_BUNDLE, WEFT_S3_ADDRESSING=path|virtual, WEFT_S3_ENCRYPTION, "  \
    "WEFT_S3_KMS_KEY and WEFT_S3_STORAGE_CLASS where they are needed).\n"
/* What --trust is worth, for the verbs that read. */
#define HELP_TRUST                                                                                         \
    "\nWithout --trust, whoever can write to the store is believed. With it, every head must be signed "   \
    "by that key, and everything else is bound to the head by SHA-256. A key that signs several runs "     \
    "could be shown the head of another one: give --run too, or each run a key of its own.\n"

typedef struct weft_remote {
    weft_command *command;
    const char *token_file;
    const char *ca_file;
    const char *trust_file;
    const char *run; /* the one that the key is trusted for; NULL: any */
    double stall_seconds;
    unsigned attempts;
    unsigned transfers;   /* at once; 0: as many as a store makes by itself */
    bool volatile_writes; /* what is written need not outlast a power cut */
    char *token;
    weft_store *store;
    weft_key *trusted; /* NULL: whatever the store says is believed */
} weft_remote;

/* command_run for a verb on a store, whose options are in the form already; --trust too, if it `reads`.
 * What `run` opens with remote_open is closed after it. */
int remote_run(const weft_form *form, weft_remote *remote, bool reads, int argc, char **argv, void *input,
               int (*run)(void *input));

/* Parses the name of a follower into a const char *. */
void remote_parse_name(struct argp_state *state, const weft_option *option, char *text);
/* A name for the follower that keeps `path` on this host: always the same one. Returns `name`. */
const char *remote_make_name(const char *path, char name[WEFT_FOLLOWER_NAME]);

int remote_open(weft_remote *remote, const char *url);
/* What the options say of a store, for who opens one itself. */
int remote_options(weft_remote *remote, weft_store_options *options_out);
/* Warns if a file that holds a secret can be read by `others`: 077, or 007 where a group may be meant to.
 */
void remote_warn_readable(weft_command *command, const char *what, const char *path, unsigned others);
/* Opens a file of tokens, and warns if others can read it. NULL after saying why it cannot be opened. */
FILE *remote_open_token_file(weft_command *command, const char *path);
/* Reads a key; `secret` says which half is needed. */
int remote_read_key(weft_command *command, const char *path, bool secret, weft_key **key_out);

/* Labels (key, value, …, NULL) as a JSON object; NULL gives an empty one. */
json_t *remote_labels(const char *const *labels);
/* A version of a run as JSON; whether its objects are kept, which changes with time, is left out. */
json_t *remote_version(const weft_log_entry *entry);
/* A follower as JSON, heard of `age` seconds ago. */
json_t *remote_follower(const weft_follower *follower, double age);
/* "2026-10-04T12:00:00Z" from milliseconds since 1970, in UTC. Returns `text`. */
const char *remote_time(uint64_t milliseconds, char text[TEXT_SIZE]);

#endif
