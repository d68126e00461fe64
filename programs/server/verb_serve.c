/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_serve.c: `weft serve DIR` and `weft serve STORE --cache DIR`: arguments, and the life of the server.
 * What it answers is in serve_*.c.
 */
#include "../base/notify.h"
#include "../cli/remote.h"
#include "serve.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS_MAX = 32 };

static const char doc[] =
    "Serve a store over HTTP or HTTPS: publishers put, workers get and wait for the next version. With "
    "--cache, relay another store to many workers.\v"
    "DIR is a store on disk; it is made if it does not exist. The same directory may be written by `weft "
    "publish DIR` at the same time: long polls notice those versions too.\n"
    "\nA relay (--cache) fetches each object of STORE once, however many ask for it. It checks every chunk "
    "against the history and passes it on while the rest is still in flight. It serves what it has while "
    "STORE is unreachable. It is read-only, and may relay another relay. " HELP_STORE
    "\nFollowers check everything themselves, whatever a relay sends. With --trust the relay refuses heads "
    "that the key has not signed, so that nobody can make it fetch and keep what is not the run's.\n"
    "\nPaths:\n"
    "  /KEY           objects: GET and HEAD (with ranges, ETag, If-None-Match),\n"
    "                 PUT (with If-None-Match: *, If-Match), DELETE\n"
    "  /v1/watch?after=N&seconds=S\n"
    "                 long poll for a version above N: 200 and its head, or 204\n"
    "  /v1/status     what is here, who follows, and what was done, as JSON\n"
    "  /v1/followers  the reports of followers, a line of JSON for each; a relay\n"
    "                 puts many at once\n"
    "  /v1/list?prefix=followers\n"
    "                 their names and ages; with another room, such as patches,\n"
    "                 its objects, for those who may write\n"
    "  /v1/history?since=N&limit=M\n"
    "                 the newest versions (2048 at most) above N, as JSON\n"
    "  /v1/train?from=N\n"
    "                 the steps of a trainer from N on, as JSON\n"
    "  /metrics       the status for Prometheus\n"
    "  /              in a browser, a page for people: the newest version, the\n"
    "                 patches before it as a plot, followers, errors; it keeps\n"
    "                 itself up to date, and asks for a token if one is needed\n"
    "\nWho may write: with --write-token-file, clients that send a token of it. Without, everybody, but "
    "only if the address is a loopback one and there is no read token; else the server is read-only. Every "
    "reader may put a report, /followers/NAME: a small object, checked, of which at most 4096 are kept. "
    "Tokens are sent as 'Authorization: Bearer TOKEN' and can be read on the way unless TLS is used.\n"
    "\nOn a loopback address, what needs no token is answered only if the Host of the request is an "
    "address, 'localhost', the name in --listen or one of --host: else any page in a browser on this "
    "machine could have it under a name of its own. A proxy in front that hands the Host of its clients on "
    "needs --host.\n"
    "\nSIGINT and SIGTERM end the server: it accepts no more, ends long polls, lets transfers finish for "
    "--stop-seconds, and exits with 0. A second signal ends it at once. Token files are read again when "
    "they change, and at SIGHUP, which also opens the access log anew, without an interruption; what "
    "cannot "
    "be read changes nothing. So are the certificate and its key.\n"
    "\nWhere everybody may read, the status of a relay does not tell where STORE lies, nor what its errors "
    "say: stderr does, and so does the status where reading needs a token.\n"
    "\nMany runs: with --runs, each directory in DIR that holds a store is served under its name, as "
    "http://HOST/NAME, with everything above; / lists them (for people and in a browser), /v1/runs as "
    "JSON, "
    "and /metrics has the numbers of all with the label 'run'. A name has 1 to 64 of A-Z a-z 0-9 . _ -, no "
    "dot first. A run that is not there begins with the first object that is put into it by who may write "
    "to "
    "the whole server. At most 256 are served. Tokens of the server open all runs, those in --run-tokens "
    "one.\n"
    "\nThe access log has a line for each request that has ended: in the combined format of web servers, "
    "with the seconds that it took and the run's name (or '-') behind it, or as JSON. It has no tokens, "
    "and paths without "
    "their query.\n" HELP_SETTINGS(
        "serve",
        "SERVE") "\nExamples:\n"
                 "  weft serve /srv/run-7\n"
                 "  weft serve /srv/run-7 --listen [::1]:0 --url-file url\n"
                 "  (umask 077; openssl rand -hex 32 > token)\n"
                 "  weft serve /srv/run-7 --listen 0.0.0.0:8477 --write-token-file token \\\n"
                 "      --tls-cert fullchain.pem --tls-key privkey.pem\n"
                 "  curl -sS http://127.0.0.1:8477/v1/status\n"
                 "  weft serve https://trainer:8477 --cache /var/cache/run-7 --cache-bytes 50G \\\n"
                 "      --trust run.pub --token-file token --listen 10.0.0.5:8477\n"
                 "  weft serve s3://bucket/run-7 --cache /var/cache/run-7\n"
                 "  weft serve /srv/runs --runs\n"
                 "  weft serve --config /etc/weft/serve/run-7.toml\n"
                 "\nExit codes: 0 ended by a signal, 1 failed, 2 wrong usage.\n";

typedef struct serve_arguments {
    weft_command command;
    weft_remote remote;    /* of a relay */
    const char *directory; /* of the store, or what is relayed */
    const char *cache;     /* NULL: it is no relay */
    uint64_t cache_bytes;
    const char *listens[SERVE_LISTENERS];
    size_t listen_count;
    const char *hosts[HOSTS_MAX + SERVE_LISTENERS]; /* and those in `listens` */
    size_t host_count;
    const char *url_file;
    const char *read_token_file;
    const char *write_token_file;
    serve_certificate certificate;
    bool read_only;
    bool no_reports;
    bool is_volatile;
    uint64_t max_object;
    uint64_t max_bytes;
    uint64_t max_connections; /* 0: as many as the limit of open files allows */
    uint64_t max_per_address; /* 0: half of them */
    uint64_t max_watchers;    /* 0: three quarters of them */
    uint64_t idle_seconds;
    uint64_t request_seconds;
    uint64_t least_rate; /* 0: 4 KiB/s */
    uint64_t watch_seconds;
    uint64_t stop_seconds;
    bool runs;
    const char *run_tokens;
    const char *access_log;
    unsigned access_json;
} serve_arguments;

/* ---- arguments ---- */

static void parse_host(struct argp_state *state, const weft_option *option, char *text) {
    serve_arguments *arguments = option->into;
    if (arguments->host_count == HOSTS_MAX || strchr(text, ':') != NULL) {
        argp_error(state, "--host takes a name without a port, at most %d times", HOSTS_MAX);
    }
    arguments->hosts[arguments->host_count++] = text;
}

static void parse_listen(struct argp_state *state, const weft_option *option, char *text) {
    serve_arguments *arguments = option->into;
    if (arguments->listen_count == SERVE_LISTENERS) {
        argp_error(state, "--listen is given at most %d times", SERVE_LISTENERS);
    }
    arguments->listens[arguments->listen_count++] = text;
}

static void check_arguments(struct argp_state *state, void *input) {
    const serve_arguments *arguments = input;
    const weft_remote *remote = &arguments->remote;
    if (arguments->directory == NULL) {
        argp_error(state, arguments->cache != NULL ? "give the store to relay"
                                                   : "give the directory of the store");
    }
    if (arguments->cache != NULL && arguments->runs) {
        argp_error(state, "a relay is of one run: --cache and --runs exclude each other");
    }
    if (arguments->run_tokens != NULL && !arguments->runs) {
        argp_error(state, "--run-tokens goes with --runs");
    }
    if (arguments->cache != NULL && arguments->write_token_file != NULL) {
        argp_error(state, "a relay is read-only: --cache and --write-token-file exclude each other");
    }
    if (arguments->cache != NULL &&
        (arguments->is_volatile || arguments->max_object != 0 || arguments->max_bytes != 0)) {
        argp_error(state, "a relay takes no objects: --volatile, --max-object and --max-bytes are not for "
                          "--cache, whose size --cache-bytes bounds");
    }
    if (arguments->cache == NULL &&
        (arguments->cache_bytes != 0 || remote->token_file != NULL || remote->ca_file != NULL ||
         remote->trust_file != NULL || remote->stall_seconds != 0 || remote->attempts != 0)) {
        argp_error(state,
                   "--cache-bytes, --trust and the options of a STORE are for a relay; give --cache");
    }
    if ((arguments->certificate.certificate_path == NULL) != (arguments->certificate.key_path == NULL)) {
        argp_error(state, "--tls-cert and --tls-key belong together");
    }
    if (arguments->read_only && arguments->write_token_file != NULL) {
        argp_error(state, "--read-only and --write-token-file exclude each other");
    }
}

/* ---- the store ---- */

static int make_directory(weft_command *command, const char *path) {
    struct stat info;
    if (strstr(path, "://") != NULL) {
        return command_error(command, EXIT_USAGE,
                             "serve takes a directory, not the URL %s; to relay that, give --cache DIR",
                             path);
    }
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return command_error(command, EXIT_FAILED, "cannot make the directory %s: %s", path,
                             strerror(errno));
    }
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return command_error(command, EXIT_FAILED, "%s is not a directory", path);
    }
    return EXIT_DONE;
}

static int open_directory(serve_arguments *arguments, serve_server *server) {
    weft_command *command = &arguments->command;
    weft_store_options store_options = {.size = sizeof store_options,
                                        .volatile_writes = arguments->is_volatile};
    int code = make_directory(command, arguments->directory);
    if (code != EXIT_DONE) {
        return code;
    }
    void *files = NULL;
    weft_status status =
        weft_directory_open(command->context, arguments->directory, &store_options, &files);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    status = weft_store_create(command->context, arguments->directory, &weft_directory_operations, files,
                               &server->store);
    if (status != WEFT_OK) {
        weft_directory_operations.close(files);
        return command_fail(command, NULL, status);
    }
    server->files = files;
    server->source = &serve_directory_source;
    return EXIT_DONE;
}

static void tell_news(void *opaque) {
    serve_server *server = opaque;
    if (atomic_load(&server->watches)) {
        serve_watch_poke(&server->watch);
    }
}

static int open_relay(serve_arguments *arguments, serve_server *server) {
    weft_command *command = &arguments->command;
    arguments->remote.transfers = WEFT_RELAY_TRANSFERS;
    int code = remote_open(&arguments->remote, arguments->directory);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_relay_options relay_options = {
        .size = sizeof relay_options,
        .trusted = arguments->remote.trusted,
        .cache_bytes = arguments->cache_bytes,
        .news = tell_news,
        .opaque = server,
    };
    weft_status status = weft_relay_open(command->context, arguments->remote.store, arguments->cache,
                                         &relay_options, &server->relay);
    if (status == WEFT_OK) {
        status = weft_relay_store(command->context, server->relay, &server->store);
    }
    server->directory = arguments->cache;
    server->source = &serve_relay_source;
    return status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
}

/* The root; what is in it is opened when the server has its address. */
static int open_runs(serve_arguments *arguments, serve_server *server, serve_runs *runs) {
    *runs = (serve_runs){.site = server,
                         .root = arguments->directory,
                         .tokens = arguments->run_tokens,
                         .read_only = arguments->read_only,
                         .is_volatile = arguments->is_volatile};
    pthread_mutex_init(&runs->mutex, NULL);
    server->runs = runs;
    server->source = &serve_directory_source;
    return make_directory(&arguments->command, arguments->directory);
}

static int open_store(serve_arguments *arguments, serve_server *server) {
    static serve_runs runs;
    if (arguments->runs) {
        return open_runs(arguments, server, &runs);
    }
    return arguments->cache != NULL ? open_relay(arguments, server) : open_directory(arguments, server);
}

/* ---- the daemons ---- */

typedef struct serve_listeners {
    serve_listener items[SERVE_LISTENERS];
    struct MHD_Daemon *daemons[SERVE_LISTENERS]; /* NULL before they are started; each closes its socket */
    size_t count;
} serve_listeners;

static void close_listeners(const serve_listeners *listeners) {
    for (size_t i = 0; i < listeners->count; i++) {
        close(listeners->items[i].socket);
    }
}

static int open_listeners(serve_arguments *arguments, serve_listeners *listeners) {
    bool tls = arguments->certificate.certificate_path != NULL;
    int code = EXIT_DONE;
    if (arguments->listen_count == 0) {
        arguments->listens[arguments->listen_count++] = "127.0.0.1:8477";
    }
    while (code == EXIT_DONE && listeners->count < arguments->listen_count) {
        code = serve_listener_open(&arguments->command, arguments->listens[listeners->count], tls,
                                   &listeners->items[listeners->count]);
        listeners->count += code == EXIT_DONE;
    }
    if (code != EXIT_DONE) {
        close_listeners(listeners);
    }
    return code;
}

/* libmicrohttpd's last words before it refused to start. Later it tells of clients that went away, which is
 * no news. */
typedef struct daemon_log {
    atomic_bool closed;
    char text[200];
} daemon_log;

static daemon_log startup_log;

static void log_startup(void *opaque, const char *format, va_list arguments) {
    daemon_log *log = opaque;
    if (!atomic_load(&log->closed)) {
        vsnprintf(log->text, sizeof log->text, format, arguments);
    }
}

/* Paths and arguments are decoded by our own rules, from what was really sent. */
static size_t leave_escaped(void *opaque, struct MHD_Connection *connection, char *text) {
    (void)opaque;
    (void)connection;
    return strlen(text);
}

/* Every connection takes a descriptor, and another while it is sent an object. As many connections as the
 * limit of open files allows are enough for most, so nobody has to choose a number. */
static unsigned choose_connections(weft_command *command, uint64_t wanted) {
    enum { OTHER_FILES = 64, LEAST = 16, MOST = 16384 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return wanted != 0 ? (unsigned)wanted : LEAST;
    }
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    rlim_t room = limit.rlim_max > OTHER_FILES ? (limit.rlim_max - OTHER_FILES) / 2 : 0;
    if (wanted > room) {
        command_warn(command, "%llu connections need %llu open files; raise the limit (ulimit -n)",
                     (unsigned long long)wanted, (unsigned long long)(2 * wanted + OTHER_FILES));
    }
    if (wanted != 0) {
        return (unsigned)wanted;
    }
    return room > MOST ? MOST : room > LEAST ? (unsigned)room : LEAST;
}

static unsigned choose_threads(const weft_command *command, unsigned connections) {
    unsigned threads = command->threads;
    if (threads == 0) {
        threads = weft_context_threads(command->context);
        threads = threads < 2 ? 2 : threads > 8 ? 8 : threads;
    }
    return threads < connections ? threads : connections;
}

/* One for each address, all over the same server. */
static struct MHD_Daemon *start_daemon(serve_server *server, const serve_listener *listener,
                                       const serve_certificate *certificate) {
    enum { CONNECTION_MEMORY = 64 << 10, MEMORY_INCREMENT = 16 << 10 };
    bool has_tls = certificate->certificate_path != NULL;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     (has_tls ? MHD_USE_TLS : 0);
    unsigned threads = choose_threads(server->command, server->connections.most);
    struct MHD_Daemon *result = MHD_start_daemon(
        flags, 0, NULL, NULL, serve_request_handle, server, MHD_OPTION_EXTERNAL_LOGGER, log_startup,
        &startup_log, MHD_OPTION_LISTEN_SOCKET, listener->socket, MHD_OPTION_NOTIFY_COMPLETED,
        serve_request_complete, server, MHD_OPTION_NOTIFY_CONNECTION, serve_connections_note, server,
        MHD_OPTION_UNESCAPE_CALLBACK, leave_escaped, NULL, MHD_OPTION_CONNECTION_LIMIT,
        server->connections.most, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)server->connections.idle_seconds,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        MHD_OPTION_CONNECTION_MEMORY_INCREMENT, (size_t)MEMORY_INCREMENT, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_THREAD_POOL_SIZE, threads > 1 ? threads : 0,
        has_tls ? MHD_OPTION_HTTPS_CERT_CALLBACK : MHD_OPTION_END, serve_certificate_retrieve,
        MHD_OPTION_END);
    return result;
}

static void dismiss_runs(serve_server *server) {
    if (server->runs != NULL) {
        serve_runs_dismiss(server->runs);
    } else {
        serve_run_dismiss(server);
    }
}

static void finish_runs(serve_server *server) {
    if (server->runs != NULL) {
        serve_runs_finish(server->runs);
    } else {
        serve_run_finish(server);
    }
}

/* Lets transfers that are under way finish, for a while. */
static void wait_for_transfers(serve_server *server) {
    double until = clock_seconds() + server->stop_seconds;
    while (atomic_load(&server->metrics.active) > 0 && clock_seconds() < until) {
        struct timespec pause = {.tv_nsec = 10000000};
        nanosleep(&pause, NULL);
    }
}

/* Nothing may be suspended when the daemon is stopped, and nothing is after the watch and the jobs have
 * ended. Who comes now is turned away by the kernel, since nothing listens any more; MHD_quiesce_daemon
 * would do the same, but it and a thread of the pool may both take the socket out of that thread's epoll
 * set, and then whoever comes second ends the process (0.9.75). The daemon closes the socket. */
static void stop_daemons(serve_server *server, const serve_listeners *listeners) {
    atomic_store(&server->stopping, true);
    for (size_t i = 0; i < listeners->count; i++) {
        shutdown(listeners->items[i].socket, SHUT_RDWR);
    }
    dismiss_runs(server);
    wait_for_transfers(server);
    finish_runs(server);
    serve_jobs_finish(&server->jobs);
    for (size_t i = 0; i < listeners->count; i++) {
        if (listeners->daemons[i] != NULL) {
            MHD_stop_daemon(listeners->daemons[i]);
        } else {
            close(listeners->items[i].socket);
        }
    }
}

/* ---- life ---- */

static int write_urls(weft_command *command, const char *path, const serve_listeners *listeners) {
    if (path == NULL) {
        return EXIT_DONE;
    }
    /* Whoever waits for the file finds it whole. */
    char temporary[4096];
    int length = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *file = (size_t)length < sizeof temporary ? fopen(temporary, "we") : NULL;
    bool failed = file == NULL;
    for (size_t i = 0; i < listeners->count && !failed; i++) {
        failed = fprintf(file, "%s\n", listeners->items[i].url) < 0;
    }
    failed |= file != NULL && fclose(file) != 0;
    if (failed || rename(temporary, path) != 0) {
        return command_error(command, EXIT_FAILED, "cannot write the URL into %s: %s", path,
                             strerror(errno));
    }
    return EXIT_DONE;
}

static void announce(const serve_server *server, const serve_listener *listener, bool tls) {
    weft_command *command = server->command;
    bool tokens = server->read_tokens.needed;
    if (!listener->loopback && !tls) {
        command_warn(command,
                     "without TLS, everything on the way can read%s and change what is sent; use "
                     "--tls-cert and --tls-key",
                     tokens || server->write_tokens.needed ? " the tokens" : "");
    }
    if (!listener->loopback && !tokens) {
        command_warn(command,
                     "everybody who reaches this address can read the weights; use --read-token-file");
    }
    command_note(command, "%s %s %s (%s, %s)", listener->url,
                 server->relay != NULL  ? "relays"
                 : server->runs != NULL ? "serves the runs in"
                                        : "serves",
                 server->runs != NULL ? server->directory : weft_store_url(server->store),
                 tokens ? "reading needs a token" : "readable by all",
                 server->read_only             ? "read-only"
                 : server->write_tokens.needed ? "writing needs a token"
                                               : "writable by all");
}

/* So that tokens can be given and taken back without an interruption. A file that cannot be read, or is
 * empty, changes nothing: it must not open the server to everybody. */
static void read_again(serve_arguments *arguments, serve_server *server, const char *why) {
    weft_command *command = &arguments->command;
    int code = EXIT_DONE;
    serve_access_reopen(&server->access);
    if (arguments->read_token_file != NULL) {
        code = serve_tokens_reload(server, arguments->read_token_file, &server->read_tokens);
    }
    if (arguments->write_token_file != NULL) {
        int second = serve_tokens_reload(server, arguments->write_token_file, &server->write_tokens);
        code = code != EXIT_DONE ? code : second;
    }
    if (server->runs != NULL && !serve_runs_reload(server->runs)) {
        code = EXIT_FAILED;
    }
    if (arguments->certificate.pending) {
        bool renewed = serve_certificate_read(command, &arguments->certificate) == EXIT_DONE;
        command_note(command, "%s: %s", why,
                     renewed ? "the certificate was read again"
                             : "the certificate could not be read, and the one from before stays");
    }
    bool any = server->read_tokens.needed || server->write_tokens.needed || arguments->run_tokens != NULL;
    command_note(command, "%s: %s", why,
                 !any                ? "there are no tokens to read again; serving on"
                 : code == EXIT_DONE ? "tokens were read again"
                                     : "where tokens could not be read, those from before stay");
}

/* All are looked at, so that one change is told once. */
static bool have_files_changed(serve_arguments *arguments, serve_server *server) {
    bool read_changed = serve_tokens_changed(arguments->read_token_file, &server->read_tokens);
    bool write_changed = serve_tokens_changed(arguments->write_token_file, &server->write_tokens);
    bool run_changed = server->runs != NULL && serve_runs_changed(server->runs);
    bool certificate_changed = serve_certificate_changed(&arguments->certificate);
    return read_changed || write_changed || run_changed || certificate_changed;
}

/* What the parts say is asked for with their locks, so that one that hangs keeps this from being told. */
static void tell_supervisor(serve_server *server) {
    size_t watchers = 0;
    if (server->runs != NULL) {
        notify_alive();
        notify_status("%u watching", atomic_load(&server->watching));
        return;
    }
    serve_head head = serve_watch_head(&server->watch, &watchers);
    serve_fleet fleet = serve_reports_count(&server->reports);
    notify_alive();
    notify_status("version %llu, %zu followers live, %zu watching", (unsigned long long)head.info.version,
                  fleet.live, watchers);
}

/* Waits for the signal that ends the server. A second one ends the process at once. */
static void wait_for_signal(serve_arguments *arguments, serve_server *server, const sigset_t *signals) {
    const struct timespec pause = {.tv_sec = 1};
    for (int number = 0; number != SIGINT && number != SIGTERM;) {
        number = sigtimedwait(signals, NULL, &pause);
        bool changed = have_files_changed(arguments, server);
        if (number == SIGHUP || changed) {
            read_again(arguments, server, number == SIGHUP ? "a hangup" : "a file has changed");
        }
        tell_supervisor(server);
    }
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, signals, NULL);
}

/* How many of the server's parts with threads are open. Each needs those before it. */
typedef enum thread_count { THREADS_NONE, THREADS_CONNECTIONS, THREADS_JOBS, THREADS_ALL } thread_count;

static bool open_all_runs(serve_server *server) {
    if (server->runs == NULL) {
        return serve_run_open(server);
    }
    serve_runs_scan(server->runs);
    return true;
}

static thread_count open_threads(serve_server *server) {
    if (!serve_page_open(&server->page) || !serve_connections_open(&server->connections)) {
        return THREADS_NONE;
    }
    if (!serve_jobs_open(&server->jobs)) {
        return THREADS_CONNECTIONS;
    }
    return open_all_runs(server) ? THREADS_ALL : THREADS_JOBS;
}

/* Of a server that was never asked anything. */
static void finish_threads(serve_server *server, thread_count opened) {
    if (opened == THREADS_ALL) {
        dismiss_runs(server);
        finish_runs(server);
    } else {
        server->source->stop(server);
    }
    if (opened >= THREADS_JOBS) {
        serve_jobs_finish(&server->jobs);
    }
}

static void close_threads(serve_server *server, thread_count opened) {
    if (opened == THREADS_ALL && server->runs != NULL) {
        serve_runs_close(server->runs);
    } else if (opened == THREADS_ALL) {
        serve_run_close(server);
    }
    if (opened >= THREADS_JOBS) {
        serve_jobs_close(&server->jobs);
    }
    if (opened >= THREADS_CONNECTIONS) {
        serve_connections_close(&server->connections);
    }
}

static bool start_daemons(serve_arguments *arguments, serve_server *server, serve_listeners *listeners) {
    bool started = true;
    for (size_t i = 0; i < listeners->count && started; i++) {
        listeners->daemons[i] = start_daemon(server, &listeners->items[i], &arguments->certificate);
        started = listeners->daemons[i] != NULL;
    }
    atomic_store(&startup_log.closed, true);
    return started;
}

static int serve_with_daemons(serve_arguments *arguments, serve_server *server, serve_listeners *listeners,
                              const sigset_t *signals) {
    weft_command *command = &arguments->command;
    bool tls = arguments->certificate.certificate_path != NULL;
    int code = EXIT_DONE;
    if (!start_daemons(arguments, server, listeners)) {
        code =
            command_error(command, EXIT_FAILED, "cannot start the server: %s",
                          startup_log.text[0] != 0 ? startup_log.text : "libmicrohttpd does not say why");
    }
    for (size_t i = 0; i < listeners->count && code == EXIT_DONE; i++) {
        announce(server, &listeners->items[i], tls);
    }
    if (code == EXIT_DONE) {
        code = write_urls(command, arguments->url_file, listeners);
    }
    if (code == EXIT_DONE) {
        notify_ready();
        tell_supervisor(server);
        wait_for_signal(arguments, server, signals);
        notify_stopping();
        command_note(command, "ending");
    }
    stop_daemons(server, listeners);
    return code;
}

static int serve_with_threads(serve_arguments *arguments, serve_server *server, serve_listeners *listeners,
                              const sigset_t *signals) {
    thread_count opened = open_threads(server);
    int code = EXIT_FAILED;
    if (opened == THREADS_ALL) {
        if (server->runs == NULL) {
            atomic_store(&server->watches, true);
            serve_watch_poke(&server->watch);
        }
        code = serve_with_daemons(arguments, server, listeners, signals);
    } else {
        command_error(&arguments->command, EXIT_FAILED, "cannot start the server's threads");
        finish_threads(server, opened);
        close_listeners(listeners);
    }
    close_threads(server, opened);
    return code;
}

static int read_secrets(serve_arguments *arguments, serve_server *server) {
    weft_command *command = &arguments->command;
    int code = EXIT_DONE;
    if (arguments->read_token_file != NULL) {
        code = serve_tokens_read(command, arguments->read_token_file, &server->read_tokens);
    }
    if (code == EXIT_DONE && arguments->write_token_file != NULL) {
        code = serve_tokens_read(command, arguments->write_token_file, &server->write_tokens);
    }
    if (code == EXIT_DONE && arguments->certificate.certificate_path != NULL) {
        code = serve_certificate_read(command, &arguments->certificate);
    }
    return code;
}

/* What only a loopback address may do is done if all are such addresses. */
static void name_server(serve_arguments *arguments, serve_server *server,
                        const serve_listeners *listeners) {
    server->url = listeners->items[0].url;
    server->loopback = true;
    for (size_t i = 0; i < listeners->count; i++) {
        server->loopback = server->loopback && listeners->items[i].loopback;
        arguments->hosts[arguments->host_count++] = listeners->items[i].name;
    }
    server->hosts = arguments->hosts;
    server->host_count = arguments->host_count;
    server->read_only = serve_run_read_only(server, arguments->read_only);
}

static int serve_store(serve_arguments *arguments, serve_server *server, const sigset_t *signals) {
    serve_listeners listeners = {0};
    int code = open_listeners(arguments, &listeners);
    if (code != EXIT_DONE) {
        return code;
    }
    name_server(arguments, server, &listeners);
    server->certificate = arguments->certificate.certificate_path != NULL ? &arguments->certificate : NULL;
    serve_metrics_open(&server->metrics);
    code = serve_access_open(&arguments->command, &server->access, server);
    if (code == EXIT_DONE) {
        code = serve_with_threads(arguments, server, &listeners, signals);
        serve_access_close(&server->access);
    } else {
        close_listeners(&listeners);
    }
    serve_metrics_close(&server->metrics);
    return code;
}

/* All threads inherit this, the relay's too: signals are for wait_for_signal alone. */
static void block_signals(sigset_t *signals) {
    sigemptyset(signals);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
}

/* The C library takes large blocks from the system and gives them back, but only until it has seen some:
 * then each thread keeps what it had. A relay's threads would keep the largest segments of their lives. */
static void give_memory_back(void) {
    enum { LARGE_BYTES = 1 << 20 };
    (void)mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
}

static int run(void *input) {
    serve_arguments *arguments = input;
    give_memory_back();
    /* Static, since a thread that cannot be joined any more must not find it gone. */
    static serve_server server;
    server.site = &server;
    server.command = &arguments->command;
    server.directory = arguments->directory;
    server.no_reports = arguments->no_reports;
    server.max_object = arguments->max_object != 0 ? arguments->max_object : (uint64_t)1 << 40;
    serve_quota_open(&server.quota, arguments->max_bytes);
    unsigned most = choose_connections(&arguments->command, arguments->max_connections);
    server.connections.most = most;
    server.connections.most_per_address =
        arguments->max_per_address != 0 ? (unsigned)arguments->max_per_address : most / 2;
    server.connections.idle_seconds = (double)arguments->idle_seconds;
    server.connections.request_seconds = (double)arguments->request_seconds;
    server.connections.least_rate = arguments->least_rate != 0 ? (double)arguments->least_rate : 4096;
    server.max_watchers = arguments->max_watchers != 0 ? (unsigned)arguments->max_watchers : most / 4 * 3;
    server.watch_seconds = (double)arguments->watch_seconds;
    server.stop_seconds = (double)arguments->stop_seconds;
    server.access.path = arguments->access_log;
    server.access.json = arguments->access_json;
    sigset_t signals;
    block_signals(&signals);
    pthread_rwlock_init(&server.tokens_lock, NULL);
    int code = read_secrets(arguments, &server);
    if (code == EXIT_DONE) {
        code = open_store(arguments, &server);
    }
    if (code == EXIT_DONE) {
        code = serve_store(arguments, &server, &signals);
    }
    weft_store_close(server.store);
    weft_relay_close(server.relay);
    serve_certificate_close();
    serve_tokens_close(&server.read_tokens);
    serve_tokens_close(&server.write_tokens);
    return code;
}

int verb_serve(int argc, char **argv) {
    serve_arguments arguments = {
        .idle_seconds = 30,
        .request_seconds = 20,
        .watch_seconds = 30,
        .stop_seconds = 5,
    };
    const weft_option options[] = {
        {"listen", "ADDR:PORT", 1,
         "Where to listen (default: 127.0.0.1:8477); port 0 leaves the choice to the kernel; may be given "
         "several times",
         .letter = 'l', .parse = parse_listen, .into = &arguments, .repeats = true},
        {"url-file", "FILE", 1,
         "Write the URL into FILE once the server answers; of several, each on a line",
         .text = &arguments.url_file},
        {"host", "NAME", 1,
         "A name under which this server is asked, besides its address; may be given several times",
         .parse = parse_host, .into = &arguments, .repeats = true},
        {"tls-cert", "FILE", 2, "Serve https with this certificate (PEM, chain included)",
         .text = &arguments.certificate.certificate_path},
        {"tls-key", "FILE", 2, "The certificate's private key (PEM)",
         .text = &arguments.certificate.key_path},
        {"read-token-file", "FILE", 2,
         "Readers must send one of the tokens in FILE, one per line (or a write token)",
         .text = &arguments.read_token_file},
        {"write-token-file", "FILE", 2, "Writers must send one of the tokens in FILE",
         .text = &arguments.write_token_file},
        {"read-only", NULL, 2, "Refuse PUT and DELETE, except for followers' reports",
         .flag = &arguments.read_only},
        {"no-reports", NULL, 2, "Refuse reports of followers", .flag = &arguments.no_reports},
        {"runs", NULL, 3, "DIR is a directory of stores: serve each under its name",
         .flag = &arguments.runs},
        {"run-tokens", "DIR", 3,
         "With --runs: tokens of a run NAME are in DIR/NAME.read and DIR/NAME.write, if these are there",
         .text = &arguments.run_tokens},
        {"cache", "DIR", 3, "Relay STORE, and cache what was fetched in DIR", .text = &arguments.cache},
        {"cache-bytes", "SIZE", 3,
         "Cache at most SIZE (default: 10G); the least recently used is evicted first",
         .bytes = &arguments.cache_bytes},
        {"max-object", "SIZE", 3, "Refuse larger objects (default: 1T)", .bytes = &arguments.max_object},
        {"max-bytes", "SIZE", 3,
         "Refuse objects when there are SIZE bytes in all; with --runs, in each run (default: any number)",
         .bytes = &arguments.max_bytes},
        {"max-connections", "N", 3,
         "At most N connections at once (default: as many as the limit of open files allows, up to 16384); "
         "idle ones make room, others wait to be accepted",
         .number = &arguments.max_connections, .least = 16, .most = 65536},
        {"max-per-address", "N", 3,
         "At most N connections of one address, or /64 network (default: half of all connections)",
         .number = &arguments.max_per_address, .least = 1, .most = 65536},
        {"max-watchers", "N", 3,
         "At most N long polls for a version (default: three quarters of the connections); others poll",
         .number = &arguments.max_watchers, .least = 1, .most = 65536},
        {"idle-seconds", "S", 3, "Cut connections on which nothing moved for S seconds (default: 30)",
         .number = &arguments.idle_seconds, .least = 1, .most = 86400},
        {"request-seconds", "S", 3,
         "Cut connections whose request takes longer than S seconds to come, and its body or its answer "
         "longer than S seconds and what --least-rate allows (default: 20)",
         .number = &arguments.request_seconds, .least = 1, .most = 86400},
        {"least-rate", "SIZE", 3, "Bytes per second at which bodies have to come and go (default: 4K)",
         .bytes = &arguments.least_rate},
        {"watch-seconds", "S", 3, "Answer a long poll after at most S seconds (default: 30)",
         .number = &arguments.watch_seconds, .least = 1, .most = 86400},
        {"stop-seconds", "S", 3, "At the end, let transfers finish for at most S seconds (default: 5)",
         .number = &arguments.stop_seconds, .most = 86400},
        {"access-log", "FILE", 3,
         "Write a line for every request to FILE, or to stdout if it is '-'; SIGHUP opens it again",
         .text = &arguments.access_log},
        {"access-format", "combined|json", 3, "How these lines are written (default: combined)",
         .choice = &arguments.access_json, .words = "combined|json"},
        {"volatile", NULL, 3, "Do not sync files: quicker puts that a power cut may take back",
         .flag = &arguments.is_volatile},
        {0},
    };
    const weft_form form = {"DIR\nDIR --runs\nSTORE --cache DIR",
                            doc,
                            {{options, NULL}},
                            .paths = {&arguments.directory, 0, 1, NULL},
                            .path_names = "store",
                            .check = check_arguments,
                            .settings = "serve"};
    return remote_run(&form, &arguments.remote, true, argc, argv, &arguments, run);
}
