/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_runs.c: the life of one run that is served, and a server of many: the directories in a root, each a
 * store under its name.
 *
 * A run is a serve_server of its own, with its store, watch, history, reports and counters. What all of
 * them share (connections, threads for the disk, tokens, the access log) belongs to the site, which is a
 * serve_server too; one that serves a single run is its own site. Runs are found when the server starts,
 * when they are asked for and when somebody lists them, and stay open until the end. Their number is
 * bounded, since each has threads.
 */
#include "serve.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const double LOOK_SECONDS = 1.0;

/* ---- one run ---- */

bool serve_run_open(serve_server *server) {
    serve_training_open(&server->training, server);
    if (!serve_history_open(&server->history, server)) {
        serve_training_close(&server->training);
        return false;
    }
    bool watches = serve_watch_open(&server->watch, server);
    bool reports = watches && serve_reports_open(&server->reports, server);
    if (reports && serve_onward_open(&server->onward, server)) {
        atomic_store(&server->reports.hands_on, true);
        return true;
    }
    if (reports) {
        serve_reports_close(&server->reports);
    }
    if (watches) {
        serve_watch_dismiss(&server->watch);
        serve_watch_close(&server->watch);
    }
    serve_history_finish(&server->history);
    serve_history_close(&server->history);
    serve_training_close(&server->training);
    return false;
}

void serve_run_dismiss(serve_server *server) {
    serve_watch_dismiss(&server->watch);
}

void serve_run_finish(serve_server *server) {
    server->source->stop(server);
    serve_history_finish(&server->history);
}

void serve_run_close(serve_server *server) {
    atomic_store(&server->reports.hands_on, false);
    serve_onward_close(&server->onward);
    serve_reports_close(&server->reports);
    serve_watch_close(&server->watch);
    serve_history_close(&server->history);
    serve_training_close(&server->training);
}

/* ---- who may write ---- */

bool serve_run_read_only(const serve_server *server, bool read_only) {
    bool reads = serve_tokens_needed(server, false);
    bool writes = serve_tokens_needed(server, true);
    return read_only || server->relay != NULL || (!writes && !(server->loopback && !reads));
}

/* ---- opening one of many ---- */

bool serve_run_name_valid(const char *name) {
    return weft_follower_name_valid(name) && strcmp(name, "v1") != 0 && strcmp(name, "metrics") != 0;
}

static bool is_directory(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The file of the run's own tokens of a kind, beside those of the site. False: there can be none. */
static bool token_path(const serve_runs *runs, const serve_server *run, const char *kind,
                       char path[PATH_MAX]) {
    return runs->tokens != NULL &&
           snprintf(path, PATH_MAX, "%s/%s.%s", runs->tokens, run->name, kind) < PATH_MAX;
}

/* A file that is there and cannot be used closes the run. */
static bool read_tokens(serve_runs *runs, serve_server *run, const char *kind, serve_tokens *tokens) {
    char path[PATH_MAX];
    struct stat info;
    if (!token_path(runs, run, kind, path)) {
        return runs->tokens == NULL;
    }
    if (lstat(path, &info) != 0 && errno == ENOENT) {
        return true;
    }
    return serve_tokens_read(run->command, path, tokens) == EXIT_DONE;
}

static bool open_files(serve_runs *runs, serve_server *run) {
    const weft_store_options options = {.size = sizeof options, .volatile_writes = runs->is_volatile};
    const weft_context_options context_options = {.size = sizeof context_options, .threads = 1};
    void *files = NULL;
    if (weft_context_create(&context_options, &run->context) != WEFT_OK ||
        weft_directory_open(run->context, run->directory, &options, &files) != WEFT_OK) {
        return false;
    }
    if (weft_store_create(run->context, run->directory, &weft_directory_operations, files, &run->store) !=
        WEFT_OK) {
        weft_directory_operations.close(files);
        return false;
    }
    run->files = files;
    run->source = &serve_directory_source;
    return true;
}

static void release_run(serve_server *run) {
    weft_store_close(run->store);
    weft_context_destroy(run->context);
    serve_tokens_close(&run->read_tokens);
    serve_tokens_close(&run->write_tokens);
    serve_quota_close(&run->quota);
    free((char *)run->directory);
    free((char *)run->name);
    free(run);
}

static serve_server *make_run(serve_runs *runs, const char *name) {
    const serve_server *site = runs->site;
    char *directory = NULL;
    serve_server *run = calloc(1, sizeof *run);
    if (run == NULL || asprintf(&directory, "%s/%s", runs->root, name) < 0) {
        free(run);
        return NULL;
    }
    run->site = runs->site;
    run->command = site->command;
    run->directory = directory;
    run->name = strdup(name);
    run->url = site->url;
    run->hosts = site->hosts;
    run->host_count = site->host_count;
    run->loopback = site->loopback;
    run->no_reports = site->no_reports;
    run->max_object = site->max_object;
    serve_quota_open(&run->quota, site->quota.most);
    run->max_watchers = site->max_watchers;
    run->watch_seconds = site->watch_seconds;
    return run;
}

/* With the lock. */
static serve_server *open_run(serve_runs *runs, const char *name) {
    serve_server *run = runs->count < RUNS_MAX ? make_run(runs, name) : NULL;
    if (run == NULL) {
        return NULL;
    }
    serve_metrics_open(&run->metrics);
    bool opened = run->name != NULL && read_tokens(runs, run, "read", &run->read_tokens) &&
                  read_tokens(runs, run, "write", &run->write_tokens) && open_files(runs, run);
    if (opened) {
        run->read_only = serve_run_read_only(run, runs->read_only);
        opened = serve_run_open(run);
    }
    if (!opened) {
        serve_report(runs->site, "the run %s cannot be served", name);
        serve_metrics_close(&run->metrics);
        release_run(run);
        return NULL;
    }
    runs->items[runs->count++] = run;
    return run;
}

static serve_server *find_open(const serve_runs *runs, const char *name) {
    for (size_t i = 0; i < runs->count; i++) {
        if (strcmp(runs->items[i]->name, name) == 0) {
            return runs->items[i];
        }
    }
    return NULL;
}

/* Only what holds heads is taken for a run. */
static bool holds_run(const serve_runs *runs, const char *name) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", runs->root, name);
    if (length >= (int)sizeof path - 8 || !is_directory(path)) {
        return false;
    }
    memcpy(path + length, "/heads", sizeof "/heads");
    return is_directory(path);
}

static bool make_directory(const serve_runs *runs, const char *name) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", runs->root, name);
    return length < (int)sizeof path && (mkdir(path, 0777) == 0 || errno == EEXIST) && is_directory(path);
}

serve_server *serve_runs_find(serve_runs *runs, const char *name, bool make) {
    pthread_mutex_lock(&runs->mutex);
    serve_server *run = find_open(runs, name);
    if (run == NULL && !runs->closing && runs->count < RUNS_MAX &&
        (holds_run(runs, name) || (make && make_directory(runs, name)))) {
        run = open_run(runs, name);
    }
    pthread_mutex_unlock(&runs->mutex);
    return run;
}

void serve_runs_look(serve_request *request) {
    serve_runs *runs = request->server->site->runs;
    pthread_mutex_lock(&runs->mutex);
    bool due = clock_seconds() >= runs->next;
    runs->next = clock_seconds() + LOOK_SECONDS;
    pthread_mutex_unlock(&runs->mutex);
    if (due) {
        serve_runs_scan(runs);
    }
}

void serve_runs_scan(serve_runs *runs) {
    DIR *directory = opendir(runs->root);
    for (struct dirent *entry = directory != NULL ? readdir(directory) : NULL; entry != NULL;
         entry = readdir(directory)) {
        if (serve_run_name_valid(entry->d_name)) {
            (void)serve_runs_find(runs, entry->d_name, false);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
}

/* ---- telling of them ---- */

static int compare_names(const void *a, const void *b) {
    return strcmp((*(serve_server *const *)a)->name, (*(serve_server *const *)b)->name);
}

/* In the order of their names; those that the request may read. */
static size_t copy_runs(serve_request *request, serve_server *copies[RUNS_MAX]) {
    serve_runs *runs = request->server->site->runs;
    pthread_mutex_lock(&runs->mutex);
    size_t count = 0;
    for (size_t i = 0; i < runs->count; i++) {
        bool known;
        if (serve_tokens_refusal(runs->items[i], request->connection, false, &known) == 0) {
            copies[count++] = runs->items[i];
        }
    }
    pthread_mutex_unlock(&runs->mutex);
    qsort(copies, count, sizeof copies[0], compare_names);
    return count;
}

static char *finish_text(FILE *out, char **text) {
    if (out == NULL) {
        return NULL;
    }
    if (fclose(out) != 0) {
        free(*text);
        return NULL;
    }
    return *text;
}

char *serve_text_runs(serve_request *request, size_t *size_out) {
    serve_server *runs[RUNS_MAX];
    size_t count = copy_runs(request, runs);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        size_t watchers = 0;
        serve_head head = serve_watch_head(&runs[i]->watch, &watchers);
        serve_fleet fleet = serve_reports_count(&runs[i]->reports);
        json_t *json = json_object();
        json_object_set_new(json, "name", json_string(runs[i]->name));
        json_object_set_new(json, "run", head.known ? json_string(head.info.run) : json_null());
        json_object_set_new(json, "version", json_count(head.info.version));
        json_object_set_new(json, "published_milliseconds", json_count(head.info.milliseconds));
        json_object_set_new(json, "watchers", json_count(watchers));
        json_object_set_new(json, "followers_live", json_count(fleet.live));
        json_object_set_new(json, "followers_failed", json_count(fleet.failed));
        json_object_set_new(json, "read_only", json_boolean(runs[i]->read_only));
        json_array_append_new(list, json);
    }
    json_t *all = json_object();
    json_object_set_new(all, "runs", list);
    char *text = json_dumps(all, JSON_INDENT(2));
    json_decref(all);
    *size_out = text != NULL ? strlen(text) : 0;
    return text;
}

/* Names are made of letters that need no escape, in HTML and anywhere. */
char *serve_text_site(serve_request *request, size_t *size_out) {
    serve_server *runs[RUNS_MAX];
    size_t count = copy_runs(request, runs);
    bool html = serve_accepts_html(request);
    char *text = NULL;
    FILE *out = open_memstream(&text, size_out);
    if (out == NULL) {
        return NULL;
    }
    fputs(html
              ? "<!DOCTYPE html>\n<html lang=\"en\"><head><meta "
                "charset=\"utf-8\"><title>weft</title></head><body>\n"
                "<h1>Runs</h1>\n<table border=\"1\" cellpadding=\"6\">\n<tr><th>run</th><th>version</th>"
                "<th>followers</th><th>failed</th></tr>\n"
              : "This server has weft stores, each under its name. /v1/runs has them as JSON, /metrics for "
                "Prometheus.\n\n",
          out);
    for (size_t i = 0; i < count; i++) {
        size_t watchers = 0;
        serve_head head = serve_watch_head(&runs[i]->watch, &watchers);
        serve_fleet fleet = serve_reports_count(&runs[i]->reports);
        if (html) {
            fprintf(out, "<tr><td><a href=\"%s/\">%s</a></td><td>%llu</td><td>%zu</td><td>%zu</td></tr>\n",
                    runs[i]->name, runs[i]->name, (unsigned long long)head.info.version, fleet.live,
                    fleet.failed);
        } else {
            fprintf(out, "  /%s/  version %llu, %zu live followers\n", runs[i]->name,
                    (unsigned long long)head.info.version, fleet.live);
        }
    }
    fputs(html ? "</table>\n</body></html>\n" : "", out);
    return finish_text(out, &text);
}

/* ---- metrics ---- */

/* A sample with the label `run` before its others: `NAME VALUE` or `NAME{LABELS} VALUE`. */
static void print_sample(FILE *out, const char *line, size_t length, const char *run) {
    size_t name = strcspn(line, "{ ");
    bool labels = line[name] == '{';
    const char *rest = line + name + labels;
    fprintf(out, "%.*s{run=\"%s\"%s%.*s", (int)name, line, run, labels ? "," : "}",
            (int)(line + length - rest), rest);
}

/* The samples of a family: the lines behind "# HELP FAMILY " and "# TYPE …" up to the next comment. */
static void print_family(FILE *out, const char *text, const char *header, size_t length, const char *run) {
    const char *found = text;
    while (found != NULL && strncmp(found, header, length) != 0) {
        found = strchr(found, '\n');
        found = found != NULL ? found + 1 : NULL;
    }
    bool comments = true;
    while (found != NULL && *found != '\0' && (*found != '#' || comments)) {
        size_t size = strcspn(found, "\n") + 1;
        comments =
            *found == '#' && (strncmp(found, header, length) == 0 || strncmp(found, "# TYPE", 6) == 0);
        if (*found != '#') {
            print_sample(out, found, size, run);
        }
        found += size;
    }
}

/* Families in the order of the first run, and of each the samples of all runs. */
static void merge_metrics(FILE *out, char **texts, serve_server **runs, size_t count) {
    const char *line = count > 0 ? texts[0] : "";
    while (*line != '\0') {
        size_t size = strcspn(line, "\n") + 1;
        if (*line == '#') {
            fwrite(line, 1, size, out);
        }
        if (strncmp(line, "# TYPE ", 7) == 0) {
            /* the header of the family, as its HELP line begins */
            char header[128];
            int length =
                snprintf(header, sizeof header, "# HELP %.*s ", (int)strcspn(line + 7, " "), line + 7);
            for (size_t i = 0; i < count; i++) {
                print_family(out, texts[i], header, (size_t)length, runs[i]->name);
            }
        }
        line += size;
    }
}

static char *print_runs(serve_request *request, serve_server **runs, size_t count, bool site,
                        size_t *size_out) {
    char *texts[RUNS_MAX] = {NULL};
    char *text = NULL;
    bool failed = false;
    for (size_t i = 0; i < count; i++) {
        size_t size = 0;
        texts[i] = serve_metrics_text(runs[i], &size);
        failed |= texts[i] == NULL;
    }
    FILE *out = failed ? NULL : open_memstream(&text, size_out);
    if (out != NULL) {
        if (site) {
            serve_metrics_print_site(out, request->server->site);
        }
        merge_metrics(out, texts, runs, count);
    }
    for (size_t i = 0; i < count; i++) {
        free(texts[i]);
    }
    return finish_text(out, &text);
}

char *serve_text_metrics(serve_request *request, size_t *size_out) {
    serve_server *server = request->server;
    if (server->name != NULL) {
        return print_runs(request, &server, 1, false, size_out);
    }
    return serve_metrics_text(server, size_out);
}

char *serve_text_site_metrics(serve_request *request, size_t *size_out) {
    serve_server *runs[RUNS_MAX];
    size_t count = copy_runs(request, runs);
    return print_runs(request, runs, count, true, size_out);
}

/* ---- all of them ---- */

bool serve_runs_changed(serve_runs *runs) {
    bool changed = false;
    char path[PATH_MAX];
    pthread_mutex_lock(&runs->mutex);
    for (size_t i = 0; i < runs->count; i++) {
        serve_server *run = runs->items[i];
        changed |= token_path(runs, run, "read", path) && serve_tokens_changed(path, &run->read_tokens);
        changed |= token_path(runs, run, "write", path) && serve_tokens_changed(path, &run->write_tokens);
    }
    pthread_mutex_unlock(&runs->mutex);
    return changed;
}

/* Where there was no file before, and is none now, there is nothing to read. */
static bool reload_tokens(serve_runs *runs, serve_server *run, const char *kind, serve_tokens *tokens) {
    char path[PATH_MAX];
    struct stat info;
    bool told = token_path(runs, run, kind, path) && (tokens->needed || lstat(path, &info) == 0);
    return !told || serve_tokens_reload(run, path, tokens) == EXIT_DONE;
}

bool serve_runs_reload(serve_runs *runs) {
    bool good = true;
    pthread_mutex_lock(&runs->mutex);
    for (size_t i = 0; i < runs->count; i++) {
        serve_server *run = runs->items[i];
        good &= reload_tokens(runs, run, "read", &run->read_tokens);
        good &= reload_tokens(runs, run, "write", &run->write_tokens);
        run->read_only = serve_run_read_only(run, runs->read_only);
    }
    pthread_mutex_unlock(&runs->mutex);
    return good;
}

void serve_runs_dismiss(serve_runs *runs) {
    pthread_mutex_lock(&runs->mutex);
    runs->closing = true;
    pthread_mutex_unlock(&runs->mutex);
    for (size_t i = 0; i < runs->count; i++) {
        serve_run_dismiss(runs->items[i]);
    }
}

void serve_runs_finish(serve_runs *runs) {
    for (size_t i = 0; i < runs->count; i++) {
        serve_run_finish(runs->items[i]);
    }
}

void serve_runs_close(serve_runs *runs) {
    for (size_t i = 0; i < runs->count; i++) {
        serve_run_close(runs->items[i]);
        serve_metrics_close(&runs->items[i]->metrics);
        release_run(runs->items[i]);
    }
    pthread_mutex_destroy(&runs->mutex);
}
