/* SPDX-License-Identifier: Apache-2.0
 *
 * command.h: what the verbs of the `weft` command share.
 *
 * Convention: a function that returns an int returns an exit code. If it is not EXIT_DONE, a message
 * has already been printed, and the caller only cleans up and passes the code on.
 */
#ifndef WEFT_PROGRAMS_CLI_COMMAND_H
#define WEFT_PROGRAMS_CLI_COMMAND_H

#include "options.h"

#include <jansson.h>
#include <stdio.h>
#include <weft/weft.h>

/* Pinned: scripts rely on them. A command that a signal ended exits with 128 + its number. */
enum {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_INTEGRITY = 3,
    EXIT_REMOTE = 4,
};

/* The part of every verb's --help that tells the exit codes. */
#define HELP_EXIT_CODES                                                                                    \
    "\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 damaged or not what was promised, 130 "              \
    "interrupted.\n"
/* The same for verbs on a STORE. */
#define HELP_REMOTE_EXIT_CODES                                                                             \
    "\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 damaged or not what was promised, 4 the store was "  \
    "not reached or refused, 130 interrupted.\n"
/* What a CKPT may be. */
#define HELP_CKPT                                                                                          \
    "A CKPT is a safetensors file, or a directory with model.safetensors or "                              \
    "model.safetensors.index.json.\n"

/* ---- progress.c: a bar on stderr for work that takes more than a second ---- */

typedef struct weft_progress {
    bool enabled;
    bool drawn;        /* something stands on the line */
    double started;    /* seconds, monotonic; 0 before the first report */
    double drawn_at;   /* when the bar was last drawn */
    const char *phase; /* of the last report */
    uint64_t done;     /* of the last report */
    double phase_started;
} weft_progress;

void progress_open(weft_progress *bar, bool enabled);
/* Draws if it is time to. */
void progress_report(weft_progress *bar, const char *phase, uint64_t done, uint64_t total);
/* Wipes the bar off the line. Call before anything else is printed to the terminal. */
void progress_clear(weft_progress *bar);

/* ---- command.c ---- */

typedef struct weft_command {
    const char *name; /* "weft diff", for messages */
    bool json;
    bool quiet;
    unsigned log_level;  /* a log_level, and one more; 0: not said */
    unsigned log_format; /* a log_format; before the arguments are read, 0 */
    unsigned threads;
    bool show_progress; /* even if stderr is no terminal */
    bool hide_progress;
    weft_progress progress;
    weft_context *context;
} weft_command;

/* A verb from beginning to end: parses the arguments into `input` (whose first member must be a command) by
 * the form and the options that all verbs have, creates the context, runs, and makes sure that the results
 * were written. Ends the process for --help and for wrong usage, as argp does. */
int command_run(const weft_form *form, int argc, char **argv, void *input, int (*run)(void *input));
/* Its two ends, for who has more to clear away while the context is there. */
int command_begin(const weft_form *form, int argc, char **argv, void *input);
int command_end(weft_command *command, int code);

/* Another context with `threads` threads and the same progress bar. */
int command_context(weft_command *command, unsigned threads, weft_context **context_out);

/* Prints why a library call failed, behind `path` if it is not NULL, and gives the exit code. */
int command_fail(weft_command *command, const char *path, weft_status status);
/* The same for a call with a context of its own. */
int command_fail_in(weft_command *command, const weft_context *context, const char *path,
                    weft_status status);
/* Prints a message and returns `code`. */
int command_error(weft_command *command, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Talk on stderr, silenced by --quiet; so are warnings. */
void command_warn(weft_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Said only with --log-level debug. */
void command_debug(weft_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
void command_note(weft_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints the result of --json to `stream` and releases it. */
int command_print_json(weft_command *command, FILE *stream, json_t *json);
/* The same on one line, for results that come one by one. */
int command_print_json_line(weft_command *command, FILE *stream, json_t *json);

/* Exit code of a command that was interrupted, or EXIT_DONE if it was not. */
int command_interrupted(void);
/* Sleeps, but not beyond a signal. */
void command_sleep(double seconds);
/* Signal handlers: SIGINT and SIGTERM cancel, SIGPIPE and SIGXFSZ become errors, SIGBUS explains itself. */
void command_handle_signals(void);
/* From here on SIGHUP cancels too, unless nohup has it ignored: for who has things to clear away. */
void command_handle_hangup(void);

/* ---- log.c: what a process says of itself ---- */

typedef enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG } log_level;
typedef enum log_format { LOG_PLAIN = 1, LOG_TEXT, LOG_JSON } log_format;

bool log_wants(const weft_command *command, log_level level);
/* A line on stderr, if the level is wanted; of any thread. Control characters are shown as '?'. */
void log_write(const weft_command *command, log_level level, const char *path, const char *text);

/* ---- model.c: checkpoints and patches as arguments ---- */

typedef struct weft_model {
    weft_checkpoint *checkpoint;
    weft_view *view;
} weft_model;

/* Clears away what a killed in-place apply left at the path. */
int model_recover(weft_command *command, const char *path, bool *recovered_out);
/* Recovers, opens and views a checkpoint. */
int model_open(weft_command *command, const char *path, weft_model *model);
void model_close(weft_model *model);

typedef struct patch_file {
    weft_patch *patch;
    weft_source source;
} patch_file;

/* Opens a patch; "-" is stdin. */
int patch_file_open(weft_command *command, const char *path, patch_file *file);
void patch_file_close(patch_file *file);

/* A list of patches opened in order, from command-line arguments. */
typedef struct patch_list {
    size_t count;
    patch_file *files;
    const weft_patch **patches;
} patch_list;

int patch_list_open(weft_command *command, char *const *paths, size_t count, patch_list *list);
void patch_list_close(patch_list *list);

/* ---- output.c: where a patch is written ---- */

/* A file, as weft_sink_open_file makes it, or "-" for stdout. */
typedef struct weft_output {
    weft_sink sink;
    bool durable;
} weft_output;

int output_open(weft_command *command, weft_output *output, const char *path, bool durable);
int output_finish(weft_command *command, weft_output *output);
/* Removes what an output that was not finished has left. Harmless after output_finish. */
void output_close(weft_output *output);
/* Unlinks temporary files from a signal handler. */
void output_emergency(void);
/* Refuses an output that is the same file as an input. */
int output_guard(weft_command *command, const char *output_path, const char *input_path);

/* ---- scratch.c: directories for the time that a command runs ---- */

/* Makes one in `parent` (NULL: TMPDIR, or /tmp) whose name begins with `name`. */
int scratch_open(weft_command *command, const char *parent, const char *name, char **path_out);
/* Removes a directory with all that is in it. */
void scratch_remove(const char *path);
/* The same, and frees the path, which may be NULL. */
void scratch_close(char *path);
/* ${XDG_CACHE_HOME:-~/.cache}/weft/NAME, the caller's to free; NULL if there is no home. */
int cache_path(weft_command *command, const char *name, char **path_out);

/* ---- text.c: numbers for people ---- */

enum { TEXT_SIZE = 40 };
/* "12.3 MiB". Returns `text`. */
const char *text_bytes(uint64_t bytes, char text[TEXT_SIZE]);
/* "1,234,567". Returns `text`. */
const char *text_count(uint64_t count, char text[TEXT_SIZE]);
/* "[4096, 1024]". Returns `text`; long shapes end in "…". */
enum { SHAPE_SIZE = 128 };
const char *text_shape(const weft_tensor *tensor, char text[SHAPE_SIZE]);
/* Prints untrusted text with control characters shown as '?', so that a file cannot drive the
 * terminal. */
void text_print(FILE *stream, const char *text);
/* "8MiB", "64K", "1048576": powers of 1024 with or without "iB". False if it is no size. */
bool text_parse_bytes(const char *text, uint64_t *bytes_out);
/* "256M", "7.6B", "1T": powers of 1000. */
bool text_parse_count(const char *text, uint64_t *count_out);
bool text_parse_unsigned(const char *text, uint64_t maximum, uint64_t *value_out);
/* "12.3 ms", "4.56 s". Returns `text`. */
const char *text_seconds(double seconds, char text[TEXT_SIZE]);
/* "90", "80ms", "30s", "15m", "2h", "1d", fractions too. False if it is no length of time, or longer than a
 * hundred years. */
bool text_parse_seconds(const char *text, double *seconds_out);
/* "HOST:PORT", "[V6]:PORT", "HOST", ":PORT". The port stays as it was if none is named. */
bool text_split_address(const char *address, char *host, size_t host_size, uint64_t *port);
const char *text_profile(weft_profile profile);
/* The words of --profile, by number. */
#define PROFILE_WORDS "fast|small"

/* A digest, a shape or a 64-bit count as JSON. */
json_t *json_digest(const weft_digest *digest);
json_t *json_shape(const weft_tensor *tensor);
json_t *json_count(uint64_t count);
/* `numerator / denominator`, or null if the denominator is zero. */
json_t *json_ratio(double numerator, double denominator);

/* Seconds of the monotonic clock. */
double clock_seconds(void);

/* Labels K=V collected from the command line, in the form that the library takes. */
typedef struct weft_labels {
    const char **items; /* key, value, …, NULL */
    size_t count;       /* pointers, without the NULL */
} weft_labels;

/* Parses --label into a weft_labels; changes `text`. */
void labels_parse(struct argp_state *state, const weft_option *option, char *text);
void labels_close(weft_labels *labels);

/* Cuts PATTERN:DIM:PARTS collected from the command line. */
typedef struct weft_cuts {
    weft_cut *items;
    size_t count;
} weft_cuts;

/* Help for the option --cut of every verb that makes patches. */
#define HELP_CUT                                                                                           \
    "Cut the tensors that match PATTERN ('*' for any characters) into PARTS equal parts along "            \
    "dimension DIM, so that a tensor-parallel rank needs only the buckets of its part; with 1 part, each " \
    "such tensor has buckets of its own, for holders of some experts; may be repeated"

/* Parses --cut into a weft_cuts; changes `text`. */
void cuts_parse(struct argp_state *state, const weft_option *option, char *text);
void cuts_close(weft_cuts *cuts);

/* ---- the verbs, one file each ---- */

typedef struct weft_verb {
    const char *name;
    const char *arguments;
    const char *summary; /* NULL: --help does not list it */
    int (*run)(int argc, char **argv);
} weft_verb;

/* Those of the laboratory, up to one without a name: lab/lab_verbs.c, or lab_absent.c in a build without
 * it. */
extern const weft_verb lab_verbs[];

int verb_diff(int argc, char **argv);
int verb_apply(int argc, char **argv);
int verb_merge(int argc, char **argv);
int verb_convert(int argc, char **argv);
int verb_inspect(int argc, char **argv);
int verb_digest(int argc, char **argv);
int verb_verify(int argc, char **argv);
int verb_stats(int argc, char **argv);
int verb_publish(int argc, char **argv);
int verb_pull(int argc, char **argv);
int verb_follow(int argc, char **argv);
int verb_gc(int argc, char **argv);
int verb_repair(int argc, char **argv);
int verb_doctor(int argc, char **argv);
int verb_keygen(int argc, char **argv);
int verb_plan(int argc, char **argv);
int verb_log(int argc, char **argv);
int verb_fleet(int argc, char **argv);
int verb_serve(int argc, char **argv);
int verb_train(int argc, char **argv);
int verb_demo(int argc, char **argv);
int verb_bench(int argc, char **argv);

#endif
