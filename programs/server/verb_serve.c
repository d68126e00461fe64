/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_serve.c: `weft serve DIR` and `weft serve STORE --cache DIR`: arguments, and the life of the server.
 * What it answers is in serve_*.c.
 */
#include "../cli/remote.h"
#include "serve.h"

#include <errno.h>
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
    "  /v1/list?prefix=followers\n"
    "                 the reports of followers, a line of JSON for each\n"
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
    "--stop-seconds, and exits with 0. A second signal ends it at once. SIGHUP has it read its token files "
    "again, without an interruption; what cannot be read changes nothing. Certificates are read at the "
    "start only.\n"
    "\nWhere everybody may read, the status of a relay does not tell where STORE lies, nor what its errors "
    "say: stderr does, and so does the status where reading needs a token.\n"
    "\nExamples:\n"
    "  weft serve /srv/run-7\n"
    "  weft serve /srv/run-7 --listen [::1]:0 --url-file url\n"
    "  (umask 077; openssl rand -hex 32 > token)\n"
    "  weft serve /srv/run-7 --listen 0.0.0.0:8477 --write-token-file token \\\n"
    "      --tls-cert fullchain.pem --tls-key privkey.pem\n"
    "  curl -sS http://127.0.0.1:8477/v1/status\n"
    "  weft serve https://trainer:8477 --cache /var/cache/run-7 --cache-bytes 50G \\\n"
    "      --trust run.pub --token-file token --listen 10.0.0.5:8477\n"
    "  weft serve s3://bucket/run-7 --cache /var/cache/run-7\n"
    "\nExit codes: 0 ended by a signal, 1 failed, 2 wrong usage.\n";

typedef struct serve_arguments {
    weft_command command;
    weft_remote remote;    /* of a relay */
    const char *directory; /* of the store, or what is relayed */
    const char *cache;     /* NULL: it is no relay */
    uint64_t cache_bytes;
    const char *listen;
    const char *hosts[HOSTS_MAX + 1]; /* and the one in `listen` */
    size_t host_count;
    const char *url_file;
    const char *read_token_file;
    const char *write_token_file;
    serve_certificate certificate;
    bool read_only;
    bool no_reports;
    bool is_volatile;
    uint64_t max_object;
    uint64_t max_connections;
    uint64_t max_watchers;
    uint64_t idle_seconds;
    uint64_t watch_seconds;
    uint64_t stop_seconds;
} serve_arguments;

/* ---- arguments ---- */

static void parse_host(struct argp_state *state, const weft_option *option, char *text) {
    serve_arguments *arguments = option->into;
    if (arguments->host_count == HOSTS_MAX || strchr(text, ':') != NULL) {
        argp_error(state, "--host takes a name without a port, at most %d times", HOSTS_MAX);
    }
    arguments->hosts[arguments->host_count++] = text;
}

static void check_arguments(struct argp_state *state, void *input) {
    const serve_arguments *arguments = input;
    const weft_remote *remote = &arguments->remote;
    if (arguments->directory == NULL) {
        argp_error(state, arguments->cache != NULL ? "give the store to relay"
                                                   : "give the directory of the store");
    }
    if (arguments->cache != NULL && arguments->write_token_file != NULL) {
        argp_error(state, "a relay is read-only: --cache and --write-token-file exclude each other");
    }
    if (arguments->cache != NULL && (arguments->is_volatile || arguments->max_object != 0)) {
        argp_error(state, "a relay takes no objects: --volatile and --max-object are not for --cache");
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

static int open_store(serve_arguments *arguments, serve_server *server) {
    return arguments->cache != NULL ? open_relay(arguments, server) : open_directory(arguments, server);
}

/* ---- the daemon ---- */

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

static void count_connection(void *opaque, struct MHD_Connection *connection, void **state,
                             enum MHD_ConnectionNotificationCode code) {
    serve_server *server = opaque;
    (void)connection;
    (void)state;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        atomic_fetch_add(&server->metrics.connections, 1);
    } else {
        atomic_fetch_sub(&server->metrics.connections, 1);
    }
}

/* Every connection takes a descriptor, and another while it is sent an object. */
static void raise_descriptors(weft_command *command, unsigned connections) {
    struct rlimit limit;
    rlim_t wanted = 2 * (rlim_t)connections + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) {
        return;
    }
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
        command_note(command, "warning: %u connections need %lu open files; raise the limit (ulimit -n)",
                     connections, (unsigned long)wanted);
    }
}

static unsigned choose_threads(const weft_command *command, unsigned connections) {
    unsigned threads = command->threads;
    if (threads == 0) {
        threads = weft_context_threads(command->context);
        threads = threads < 2 ? 2 : threads > 8 ? 8 : threads;
    }
    return threads < connections ? threads : connections;
}

static struct MHD_Daemon *start_daemon(serve_server *server, const serve_listener *listener,
                                       const serve_certificate *certificate) {
    enum { CONNECTION_MEMORY = 64 << 10, MEMORY_INCREMENT = 16 << 10, TLS_ITEMS = 2 };
    struct MHD_OptionItem tls[TLS_ITEMS + 1] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, certificate->certificate},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, certificate->key},
        {MHD_OPTION_END, 0, NULL},
    };
    bool has_tls = certificate->certificate != NULL;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     (has_tls ? MHD_USE_TLS : 0);
    unsigned threads = choose_threads(server->command, server->max_connections);
    struct MHD_Daemon *result = MHD_start_daemon(
        flags, 0, NULL, NULL, serve_request_handle, server, MHD_OPTION_EXTERNAL_LOGGER, log_startup,
        &startup_log, MHD_OPTION_LISTEN_SOCKET, listener->socket, MHD_OPTION_NOTIFY_COMPLETED,
        serve_request_complete, server, MHD_OPTION_NOTIFY_CONNECTION, count_connection, server,
        MHD_OPTION_UNESCAPE_CALLBACK, leave_escaped, NULL, MHD_OPTION_CONNECTION_LIMIT,
        server->max_connections, MHD_OPTION_CONNECTION_TIMEOUT, server->idle_seconds,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        MHD_OPTION_CONNECTION_MEMORY_INCREMENT, (size_t)MEMORY_INCREMENT, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_THREAD_POOL_SIZE, threads > 1 ? threads : 0, MHD_OPTION_ARRAY,
        has_tls ? tls : tls + TLS_ITEMS, MHD_OPTION_END);
    atomic_store(&startup_log.closed, true);
    return result;
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
static void stop_daemon(serve_server *server, struct MHD_Daemon *daemon, int listening) {
    atomic_store(&server->stopping, true);
    shutdown(listening, SHUT_RDWR);
    serve_watch_dismiss(&server->watch);
    wait_for_transfers(server);
    server->source->stop(server);
    serve_jobs_finish(&server->jobs);
    serve_history_finish(&server->history);
    MHD_stop_daemon(daemon);
}

/* ---- life ---- */

static int write_url(weft_command *command, const char *path, const char *url) {
    if (path == NULL) {
        return EXIT_DONE;
    }
    /* Whoever waits for the file finds it whole. */
    char temporary[4096];
    int length = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *file = (size_t)length < sizeof temporary ? fopen(temporary, "we") : NULL;
    bool failed = file == NULL || fprintf(file, "%s\n", url) < 0;
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
        command_note(command,
                     "warning: without TLS, everything on the way can read%s and change what is sent; use "
                     "--tls-cert and --tls-key",
                     tokens || server->write_tokens.needed ? " the tokens" : "");
    }
    if (!listener->loopback && !tokens) {
        command_note(
            command,
            "warning: everybody who reaches this address can read the weights; use --read-token-file");
    }
    command_note(command, "%s %s %s (%s, %s)", server->url, server->relay != NULL ? "relays" : "serves",
                 weft_store_url(server->store), tokens ? "reading needs a token" : "readable by all",
                 server->read_only             ? "read-only"
                 : server->write_tokens.needed ? "writing needs a token"
                                               : "writable by all");
}

/* So that tokens can be given and taken back without an interruption. A file that cannot be read, or is
 * empty, changes nothing: it must not open the server to everybody. */
static void read_tokens_again(serve_arguments *arguments, serve_server *server) {
    weft_command *command = &arguments->command;
    int code = EXIT_DONE;
    if (arguments->read_token_file != NULL) {
        code = serve_tokens_reload(server, arguments->read_token_file, &server->read_tokens);
    }
    if (arguments->write_token_file != NULL) {
        int second = serve_tokens_reload(server, arguments->write_token_file, &server->write_tokens);
        code = code != EXIT_DONE ? code : second;
    }
    bool any = server->read_tokens.needed || server->write_tokens.needed;
    command_note(command, "%s",
                 !any                ? "a hangup: there are no tokens to read again; serving on"
                 : code == EXIT_DONE ? "a hangup: tokens were read again"
                                     : "a hangup: where tokens could not be read, those from before stay");
}

/* Waits for the signal that ends the server. A second one ends the process at once. */
static void wait_for_signal(serve_arguments *arguments, serve_server *server, const sigset_t *signals) {
    for (int number = 0; number != SIGINT && number != SIGTERM;) {
        if (sigwait(signals, &number) == 0 && number == SIGHUP) {
            read_tokens_again(arguments, server);
        }
    }
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, signals, NULL);
}

/* How many of the server's parts with threads are open. Each needs those before it. */
typedef enum thread_count {
    THREADS_NONE,
    THREADS_JOBS,
    THREADS_HISTORY,
    THREADS_WATCH, /* pokes the history */
    THREADS_REPORTS,
    THREADS_ALL,
} thread_count;

static thread_count open_threads(serve_server *server) {
    serve_training_open(&server->training, server);
    if (!serve_page_open(&server->page) || !serve_jobs_open(&server->jobs)) {
        return THREADS_NONE;
    }
    if (!serve_history_open(&server->history, server)) {
        return THREADS_JOBS;
    }
    if (!serve_watch_open(&server->watch, server)) {
        return THREADS_HISTORY;
    }
    if (!serve_reports_open(&server->reports, server)) {
        return THREADS_WATCH;
    }
    return serve_onward_open(&server->onward, server) ? THREADS_ALL : THREADS_REPORTS;
}

/* Of a server that was never asked anything. */
static void finish_threads(serve_server *server, thread_count opened) {
    if (opened >= THREADS_WATCH) {
        serve_watch_dismiss(&server->watch);
    }
    server->source->stop(server);
    if (opened >= THREADS_JOBS) {
        serve_jobs_finish(&server->jobs);
    }
    if (opened >= THREADS_HISTORY) {
        serve_history_finish(&server->history);
    }
}

static void close_threads(serve_server *server, thread_count opened) {
    if (opened >= THREADS_ALL) {
        serve_onward_close(&server->onward);
    }
    if (opened >= THREADS_REPORTS) {
        serve_reports_close(&server->reports);
    }
    if (opened >= THREADS_WATCH) {
        serve_watch_close(&server->watch);
    }
    if (opened >= THREADS_HISTORY) {
        serve_history_close(&server->history);
    }
    if (opened >= THREADS_JOBS) {
        serve_jobs_close(&server->jobs);
    }
    serve_training_close(&server->training);
}

static int serve_with_daemon(serve_arguments *arguments, serve_server *server,
                             const serve_listener *listener, const sigset_t *signals) {
    weft_command *command = &arguments->command;
    bool tls = arguments->certificate.certificate != NULL;
    struct MHD_Daemon *daemon = start_daemon(server, listener, &arguments->certificate);
    if (daemon == NULL) {
        finish_threads(server, THREADS_ALL);
        close(listener->socket);
        return command_error(command, EXIT_FAILED, "cannot start the server: %s",
                             startup_log.text[0] != 0 ? startup_log.text
                                                      : "libmicrohttpd does not say why");
    }
    announce(server, listener, tls);
    int code = write_url(command, arguments->url_file, server->url);
    if (code == EXIT_DONE) {
        wait_for_signal(arguments, server, signals);
        command_note(command, "ending");
    }
    stop_daemon(server, daemon, listener->socket);
    return code;
}

static int serve_with_threads(serve_arguments *arguments, serve_server *server,
                              const serve_listener *listener, const sigset_t *signals) {
    thread_count opened = open_threads(server);
    int code = EXIT_FAILED;
    if (opened == THREADS_ALL) {
        atomic_store(&server->watches, true);
        serve_watch_poke(&server->watch);
        code = serve_with_daemon(arguments, server, listener, signals);
    } else {
        command_error(&arguments->command, EXIT_FAILED, "cannot start the server's threads");
        finish_threads(server, opened);
        close(listener->socket);
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

static int serve_store(serve_arguments *arguments, serve_server *server, const sigset_t *signals) {
    serve_listener listener = {.socket = -1};
    bool tls = arguments->certificate.certificate != NULL;
    int code = serve_listener_open(&arguments->command, arguments->listen, tls, &listener);
    if (code != EXIT_DONE) {
        return code;
    }
    server->url = listener.url;
    server->loopback = listener.loopback;
    arguments->hosts[arguments->host_count++] = listener.name;
    server->hosts = arguments->hosts;
    server->host_count = arguments->host_count;
    server->read_only =
        arguments->read_only || server->relay != NULL ||
        (!server->write_tokens.needed && !(listener.loopback && !server->read_tokens.needed));
    raise_descriptors(&arguments->command, server->max_connections);
    serve_metrics_open(&server->metrics);
    code = serve_with_threads(arguments, server, &listener, signals);
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

static int run(void *input) {
    serve_arguments *arguments = input;
    /* Static, since a thread that cannot be joined any more must not find it gone. */
    static serve_server server;
    server.command = &arguments->command;
    server.directory = arguments->directory;
    server.no_reports = arguments->no_reports;
    server.max_object = arguments->max_object != 0 ? arguments->max_object : (uint64_t)1 << 40;
    server.max_connections = (unsigned)arguments->max_connections;
    server.max_watchers = (unsigned)(arguments->max_watchers != 0 ? arguments->max_watchers
                                                                  : arguments->max_connections / 4 * 3);
    server.idle_seconds = (unsigned)arguments->idle_seconds;
    server.watch_seconds = (double)arguments->watch_seconds;
    server.stop_seconds = (double)arguments->stop_seconds;
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
    serve_certificate_close(&arguments->certificate);
    serve_tokens_close(&server.read_tokens);
    serve_tokens_close(&server.write_tokens);
    return code;
}

int verb_serve(int argc, char **argv) {
    serve_arguments arguments = {
        .listen = "127.0.0.1:8477",
        .max_connections = 512,
        .idle_seconds = 30,
        .watch_seconds = 30,
        .stop_seconds = 5,
    };
    const weft_option options[] = {
        {"listen", "ADDR:PORT", 1,
         "Where to listen (default: 127.0.0.1:8477); port 0 leaves the choice to the kernel", .letter = 'l',
         .text = &arguments.listen},
        {"url-file", "FILE", 1, "Write the URL into FILE once the server answers",
         .text = &arguments.url_file},
        {"host", "NAME", 1,
         "A name under which this server is asked, besides its address; may be given several times",
         .parse = parse_host, .into = &arguments},
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
        {"cache", "DIR", 3, "Relay STORE, and cache what was fetched in DIR", .text = &arguments.cache},
        {"cache-bytes", "SIZE", 3,
         "Cache at most SIZE (default: 10G); the least recently used is evicted first",
         .bytes = &arguments.cache_bytes},
        {"max-object", "SIZE", 3, "Refuse larger objects (default: 1T)", .bytes = &arguments.max_object},
        {"max-connections", "N", 3,
         "At most N connections at once (default: 512); others wait to be accepted",
         .number = &arguments.max_connections, .least = 16, .most = 65536},
        {"max-watchers", "N", 3,
         "At most N long polls for a version (default: three quarters of the connections)",
         .number = &arguments.max_watchers, .least = 1, .most = 65536},
        {"idle-seconds", "S", 3, "Cut connections on which nothing moved for S seconds (default: 30)",
         .number = &arguments.idle_seconds, .least = 1, .most = 86400},
        {"watch-seconds", "S", 3, "Answer a long poll after at most S seconds (default: 30)",
         .number = &arguments.watch_seconds, .least = 1, .most = 86400},
        {"stop-seconds", "S", 3, "At the end, let transfers finish for at most S seconds (default: 5)",
         .number = &arguments.stop_seconds, .most = 86400},
        {"volatile", NULL, 3, "Do not sync files: quicker puts that a power cut may take back",
         .flag = &arguments.is_volatile},
        {0},
    };
    const weft_form form = {"DIR\nSTORE --cache DIR",
                            doc,
                            {{options, NULL}},
                            .paths = {&arguments.directory, 0, 1, NULL},
                            .check = check_arguments};
    return remote_run(&form, &arguments.remote, true, argc, argv, &arguments, run);
}
