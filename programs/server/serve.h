/* SPDX-License-Identifier: Apache-2.0
 *
 * serve.h: the parts of `weft serve`: one server, its requests, and who does what for them.
 *
 * libmicrohttpd's threads (epoll, a few of them) read and write sockets and call us; what they call must
 * not wait. What waits for a disk to sync runs on the threads of serve_jobs.c, and who waits for a head is
 * suspended and costs no thread at all (serve_watch.c). A request belongs to one thread at a time: it
 * passes from libmicrohttpd to a job or to the watch when it is suspended, and back when it is resumed.
 */
#ifndef WEFT_PROGRAMS_SERVER_SERVE_H
#define WEFT_PROGRAMS_SERVER_SERVE_H

#include "../../lib/store/directory.h"
#include "../../lib/sync/format/report.h"
#include "../cli/remote.h"
#include "page.h"

#include <gnutls/abstract.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

typedef struct serve_server serve_server;
typedef struct serve_request serve_request;
typedef struct serve_certificate serve_certificate;
typedef struct serve_head serve_head;

/* ---- where objects come from ----
 *
 * A directory of the server's own (serve_objects.c), or another store that it relays (serve_relay.c). */
typedef struct serve_source {
    /* The newest head; `least` is an epoch that was there before, or 0. `epoch_out` is that of its key. */
    weft_status (*find_head)(serve_server *server, weft_context *context, uint64_t least, serve_head *found,
                             uint64_t *epoch_out);
    /* GET and HEAD of an object; called again when the request was suspended and resumed. */
    enum MHD_Result (*get)(serve_request *request);
    /* What there is to tell of it besides. */
    void (*add_status)(serve_server *server, json_t *json);
    void (*print_metrics)(serve_server *server, FILE *out);
    /* A report that was kept, or a batch of them, goes on from here, which may take long. NULL: it goes
     * nowhere. */
    weft_status (*hand_on)(serve_server *server, weft_context *context, const char *key, const void *data,
                           size_t size);
    /* From now on no request is suspended for it. */
    void (*stop)(serve_server *server);
} serve_source;

extern const serve_source serve_directory_source;
extern const serve_source serve_relay_source;

/* ---- serve_tokens.c: who may do what ---- */

enum { TOKEN_HASH = 32 };

/* Of tokens only the SHA-256 is kept: all have the same length, and a comparison tells nothing of where two
 * differ. */
typedef struct serve_tokens {
    uint8_t (*hashes)[TOKEN_HASH];
    size_t count;
    atomic_bool needed; /* there are some, and from then on always will be */
    struct stat file;   /* as it was when it was last looked at */
} serve_tokens;

/* One token per line; empty lines and the ends of lines do not count. Warns if others can read the file. */
int serve_tokens_read(weft_command *command, const char *path, serve_tokens *tokens);
void serve_tokens_close(serve_tokens *tokens);
/* Reads the file again, while requests are answered; if that fails, what was read before stays. */
int serve_tokens_reload(serve_server *server, const char *path, serve_tokens *tokens);
/* True if the file is another than at the last look, or was written to. What is not there is no change:
 * whoever replaces a file may take it away for a moment. */
bool serve_tokens_changed(const char *path, serve_tokens *tokens);

/* 0 if the request may read, or write; else the code of the refusal: 401 or 403. `known_out`: it came with
 * a token that is valid, whether one is needed or not. */
unsigned serve_tokens_refusal(serve_server *server, struct MHD_Connection *connection, bool writes,
                              bool *known_out);
/* True if who reads, or writes, has to send one. */
bool serve_tokens_needed(const serve_server *server, bool writes);

/* ---- serve_connections.c: who is connected, for how long, and who has to go ---- */

/* What a connection has shown of itself; those of less go first. */
typedef enum serve_standing {
    STANDING_NONE,  /* no whole request yet, or one that was refused */
    STANDING_HEARD, /* a request that needs no token */
    STANDING_TOKEN, /* one with a token that is valid */
} serve_standing;

typedef struct serve_connection serve_connection;

typedef struct serve_connections {
    unsigned most;             /* connections at once */
    unsigned most_per_address; /* of one address, tokens or not */
    double idle_seconds;
    double request_seconds;
    double least_rate; /* bytes per second */
    atomic_uint_fast64_t count;
    atomic_uint_fast64_t late;    /* cut because a request or an answer took too long */
    atomic_uint_fast64_t evicted; /* cut to make room */
    pthread_mutex_t mutex;        /* of what follows */
    pthread_cond_t wake;
    serve_connection *first, *last; /* in order of arrival */
    size_t leaving;                 /* cut, and not gone yet */
    bool closing;
    pthread_t thread;
} serve_connections;

/* The members up to `count` are set before. */
bool serve_connections_open(serve_connections *connections);
void serve_connections_close(serve_connections *connections);
/* A callback of libmicrohttpd; its opaque pointer is the server. */
void serve_connections_note(void *opaque, struct MHD_Connection *connection, void **state,
                            enum MHD_ConnectionNotificationCode code);
/* The header of a request is there; so many bytes of its body have come; all of it is there, and until it
 * is answered nothing is expected of the client; an answer of so many bytes is sent, or a piece of one
 * whose bytes come one after the other; it was sent. */
void serve_connections_begin(serve_request *request, serve_standing standing);
void serve_connections_receive(serve_request *request);
void serve_connections_work(serve_request *request);
void serve_connections_answer(serve_request *request);
void serve_connections_pass(serve_request *request, size_t size);
void serve_connections_end(serve_request *request);

/* ---- serve_metrics.c: what is counted ---- */

typedef enum serve_method {
    METHOD_GET,
    METHOD_HEAD,
    METHOD_PUT,
    METHOD_DELETE,
    METHOD_OTHER,
    METHOD_COUNT,
} serve_method;

typedef enum serve_route { ROUTE_OBJECT, ROUTE_WATCH, ROUTE_INFO, ROUTE_COUNT } serve_route;

enum { CODE_COUNT = 22, BUCKET_COUNT = 10, ERROR_COUNT = 8, ERROR_TEXT = 300 };

typedef struct serve_histogram {
    atomic_uint_fast64_t buckets[BUCKET_COUNT]; /* not cumulative; the last one has no upper bound */
    atomic_uint_fast64_t microseconds;
} serve_histogram;

typedef struct serve_error {
    double at; /* seconds since 1970 */
    char text[ERROR_TEXT];
} serve_error;

typedef struct serve_metrics {
    double started;
    atomic_uint_fast64_t requests[METHOD_COUNT][CODE_COUNT];
    atomic_uint_fast64_t cut; /* requests that ended without an answer being sent whole */
    atomic_uint_fast64_t sent, received;
    atomic_uint_fast64_t active; /* requests being worked on */
    serve_histogram seconds[ROUTE_COUNT];
    pthread_mutex_t mutex; /* of what follows, and of stderr */
    serve_error errors[ERROR_COUNT];
    uint64_t error_count;
    double printed; /* when an error was last printed */
} serve_metrics;

void serve_metrics_open(serve_metrics *metrics);
void serve_metrics_close(serve_metrics *metrics);
/* Counts a request that has ended. */
void serve_metrics_count(serve_metrics *metrics, const serve_request *request, bool whole);
/* A failure of the server's own, kept for the status and printed on stderr, at most once per second. */
void serve_report(serve_server *server, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Where a relay fetches is told only where every reader has sent a token. */
bool serve_tells_where(const serve_server *server);
/* For clients: where the directory lies is nobody's business, so of its path only the last part is left;
 * and of what may say where a relay fetches nothing is, unless that is told. */
void serve_text_hide(const serve_server *server, const char *text, char *hidden, size_t capacity);
/* One number for Prometheus. */
void serve_print_metric(FILE *out, const char *name, const char *type, const char *help, double value);
/* The numbers of one run for Prometheus, and those of the site. */
char *serve_metrics_text(serve_server *server, size_t *size_out);
void serve_metrics_print_site(FILE *out, serve_server *site);
/* The bodies of /metrics, /v1/status and /; NULL if there is no memory. The caller frees them. */
char *serve_text_metrics(serve_request *request, size_t *size_out);
char *serve_text_status(serve_request *request, size_t *size_out);
char *serve_text_welcome(serve_request *request, size_t *size_out);

/* ---- serve_access.c: a line for every request ---- */

enum { ACCESS_BYTES = 1 << 20, SERVE_TARGET = 300, SERVE_WORD = 15 };

typedef struct serve_access {
    const char *path; /* "-": stdout; NULL: there is none */
    unsigned json;    /* else the combined format */
    serve_server *server;
    int descriptor; /* of the thread */
    bool complained;
    atomic_bool again;     /* it is to be opened again */
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t wake;
    char *lines, *spare; /* what is to be written, and what is being written */
    size_t used;
    uint64_t lost; /* lines for which there was no room */
    bool closing;
    pthread_t thread;
} serve_access;

/* `path` and `json` are set before. */
int serve_access_open(weft_command *command, serve_access *access, serve_server *server);
/* Writes what there is. */
void serve_access_close(serve_access *access);
void serve_access_note(serve_access *access, const serve_request *request, bool whole);
/* The next line goes into a new file, if the old one was moved away. */
void serve_access_reopen(serve_access *access);

/* ---- serve_jobs.c: work that waits for a disk ---- */

enum { JOB_THREADS = 4 };

typedef struct serve_jobs {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    serve_request *first, *last;
    pthread_t threads[JOB_THREADS];
    size_t thread_count;
    bool closing;
} serve_jobs;

bool serve_jobs_open(serve_jobs *jobs);
/* Suspends the connection of a request and has request->job called by another thread, which then resumes
 * it. Once the threads have finished, it calls the job itself and returns false: nothing is suspended. */
bool serve_jobs_defer(serve_jobs *jobs, serve_request *request);
/* Does what is there, and ends the threads. */
void serve_jobs_finish(serve_jobs *jobs);
void serve_jobs_close(serve_jobs *jobs);

/* ---- serve_watch.c: the newest head, and who waits for it ---- */

struct serve_head {
    bool known;
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_head_info info;
};

typedef struct serve_watch {
    serve_server *server;
    weft_context *context; /* of the thread */
    pthread_mutex_t mutex;
    serve_head head;
    serve_request *waiting; /* a list through request->next, in no order */
    size_t count;
    bool closing;
    bool complained; /* about a head that cannot be read, since one could be */
    int notifier;    /* inotify; -1: there is none, and looking now and then must do */
    int poke;        /* an eventfd */
    pthread_t thread;
} serve_watch;

bool serve_watch_open(serve_watch *watch, serve_server *server);

typedef enum serve_verdict {
    VERDICT_HEAD,      /* answer with `head_out` */
    VERDICT_NONE,      /* nothing newer: 204 */
    VERDICT_FULL,      /* too many wait already: 503 */
    VERDICT_SUSPENDED, /* call again when resumed */
} serve_verdict;
/* Suspends the request unless there is something newer than request->after, or no time or room to wait. */
serve_verdict serve_watch_ask(serve_watch *watch, serve_request *request, serve_head *head_out);
/* There may be a new head. */
void serve_watch_poke(serve_watch *watch);
serve_head serve_watch_head(serve_watch *watch, size_t *watchers_out);
/* Sends those who wait away, and from now on nobody waits. */
void serve_watch_dismiss(serve_watch *watch);
void serve_watch_close(serve_watch *watch);

/* ---- serve_history.c: the newest versions ---- */

enum { HISTORY_MAX = 2048 };

typedef struct serve_version {
    uint64_t version;
    weft_digest digest;
    char *text; /* JSON */
} serve_version;

typedef struct serve_history {
    serve_server *server;
    /* of the thread */
    weft_context *context;
    weft_head_info seen;   /* when the history was last read */
    bool complete;         /* it was read without a failure */
    pthread_mutex_t mutex; /* of what follows; of the versions only the thread changes anything */
    pthread_cond_t wake;
    bool poked;
    atomic_bool closing;
    serve_version *versions; /* ascending, without gaps */
    size_t count;
    uint64_t generation;    /* counts up whenever versions that were told before may have changed */
    char error[ERROR_TEXT]; /* why the history could not be read; empty: it could */
    pthread_t thread;
} serve_history;

bool serve_history_open(serve_history *history, serve_server *server);
/* The head has moved, or is gone. */
void serve_history_poke(serve_history *history);
/* Ends the thread; requests may still be answered. */
void serve_history_finish(serve_history *history);
void serve_history_close(serve_history *history);
/* What there is, for the status: whether it is worth asking for more. */
json_t *serve_history_summary(serve_history *history);
/* The body of /v1/history. */
char *serve_text_history(serve_request *request, size_t *size_out);

/* ---- serve_training.c: the steps of a trainer ---- */

typedef struct serve_training {
    serve_server *server;
    pthread_mutex_t mutex; /* of what follows */
    weft_store_tag tag;    /* of what was read last */
    json_t *told;          /* or NULL, if there is nothing, or nothing that makes sense */
    char error[ERROR_TEXT];
} serve_training;

void serve_training_open(serve_training *training, serve_server *server);
void serve_training_close(serve_training *training);
/* A job: looks whether there is something new. */
void serve_training_look(serve_request *request);
/* The body of /v1/train. */
char *serve_text_training(serve_request *request, size_t *size_out);

/* ---- serve_page.c: the page at / ---- */

typedef struct serve_page {
    char policy[PAGE_POLICY];
} serve_page;

/* False if there is no SHA-256 to be had. */
bool serve_page_open(serve_page *page);
/* True if the request is a browser's, for /. The page holds no data: it needs no token, and asks for one
 * where the data does. */
bool serve_page_wanted(const serve_request *request);
bool serve_accepts_html(const serve_request *request);
enum MHD_Result serve_page_answer(serve_request *request);

/* ---- serve_reports.c: what followers tell of themselves ---- */

enum { SHOWN_MAX = 256 };

typedef struct serve_known serve_known;

typedef struct serve_reports {
    serve_server *server;
    weft_context *context; /* of the thread and of the store */
    weft_store *store;     /* where reports go, and are read: the directory, unsynced */
    double swept;          /* when those that are too old were removed */
    double disk_at;        /* of the thread: when the directory is next written and read */
    double disk_pause;     /* how long it was left alone before that */
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t wake;
    weft_fleet fleet;   /* as it was last arranged */
    double read;        /* when that was */
    serve_known *known; /* the newest of each follower, put here or found in the directory */
    size_t known_count, known_room;
    size_t left_out; /* objects in the directory that are no reports */
    bool poked;
    bool closing;
    bool complained;      /* about a report that could not be written, since one could be */
    atomic_bool hands_on; /* serve_onward is open */
    pthread_t thread;
} serve_reports;

bool serve_reports_open(serve_reports *reports, serve_server *server);
void serve_reports_close(serve_reports *reports);
/* True if what lies under the key is a report, or nothing. */
bool serve_reports_concern(const char *key);
/* A put of a report: before its body, a piece of that, and after it, as with objects. */
void serve_report_begin(serve_request *request);
void serve_report_append(serve_request *request, const char *data, size_t size);
enum MHD_Result serve_report_end(serve_request *request);
/* True if the request puts many of them. Its body is taken, and ended, in the same way. */
bool serve_reports_batch(const serve_request *request);
void serve_batch_begin(serve_request *request);
void serve_batch_append(serve_request *request, const char *data, size_t size);
enum MHD_Result serve_batch_end(serve_request *request);
/* GET and HEAD of a report. */
enum MHD_Result serve_report_get(serve_request *request);
/* A report was removed from the directory. */
void serve_report_forget(serve_reports *reports, const char *key);
/* The body of /v1/list?prefix=followers: a line of JSON for each. */
char *serve_text_reports(serve_request *request, size_t *size_out);
/* All of them, for /v1/followers: a job makes the text, which takes long, and hands it over. */
void serve_reports_collect(serve_request *request);
char *serve_text_batch(serve_request *request, size_t *size_out);
/* For the status: the followers, of many the first SHOWN_MAX. */
json_t *serve_reports_list(serve_reports *reports);

typedef struct serve_fleet {
    size_t reports;
    size_t left_out;
    size_t live; /* the rest is of these */
    size_t failed;
    uint64_t least_version, greatest_version;
    uint64_t most_lag;
} serve_fleet;

serve_fleet serve_reports_count(serve_reports *reports);

/* ---- serve_quota.c: how many bytes a store may hold ---- */

typedef struct serve_quota {
    pthread_mutex_t mutex;
    uint64_t most; /* 0: any */
    uint64_t used;
    double counted; /* when; 0: never */
} serve_quota;

void serve_quota_open(serve_quota *quota, uint64_t most);
void serve_quota_close(serve_quota *quota);
/* Whether the object that was received may be put in place. WEFT_NO_SPACE: no. A job. */
weft_status serve_quota_take(serve_request *request);

/* ---- serve_list.c: the objects of a room ---- */

/* Reads what is asked for, and refuses who may not. */
void serve_list_begin(serve_request *request);
/* A job. */
void serve_list_collect(serve_request *request);
char *serve_text_list(serve_request *request, size_t *size_out);

/* ---- serve_onward.c: reports on their way to the store that is relayed ---- */

typedef struct serve_errand serve_errand;

typedef struct serve_onward {
    serve_server *server;
    weft_context *context; /* of the thread */
    atomic_bool closing;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t wake;
    serve_errand *first; /* in order of arrival, one for each follower */
    size_t count;
    pthread_t thread;
    double batches; /* of the thread: when the next store is asked again whether it takes batches */
} serve_onward;

bool serve_onward_open(serve_onward *onward, serve_server *server);
void serve_onward_close(serve_onward *onward);
/* Returns at once: the report, which came `age` seconds ago, goes on from here when it can, or not at all.
 */
void serve_onward_add(serve_onward *onward, const weft_follower *follower, double age);

/* ---- serve_request.c: from the first byte to the last ---- */

struct serve_request {
    serve_server *server;
    struct MHD_Connection *connection;
    serve_connection *place; /* among all connections */
    /* as it was sent, cut if it is too long */
    char word[SERVE_WORD + 1]; /* the method */
    char target[SERVE_TARGET + 1];
    char version[SERVE_WORD + 1];
    weft_context *context; /* this request's own */
    serve_method method;
    serve_route route;
    double started;
    char run[WEFT_FOLLOWER_NAME]; /* of many: the name in the path, or "" */
    bool lacks_run;               /* there is none of that name */
    bool lacks_slash;             /* the path is that name alone */
    char key[WEFT_STORE_KEY_MAX + 1];
    uint64_t expected; /* bytes of the body; UINT64_MAX: not announced */
    uint64_t received;
    uint64_t discarded;
    /* an answer that is already decided, while the rest of the body is discarded */
    unsigned refusal; /* 0: none */
    const char *refusal_text;
    /* the answer */
    unsigned code; /* 0: none was given yet */
    uint64_t body; /* bytes of the answer */
    /* a put or a removal */
    weft_directory_draft *draft;
    bool replaces;
    void (*job)(serve_request *request);
    bool job_done;
    weft_status status;
    weft_store_tag tag;
    time_t modified;     /* of the object that is answered with; 0: not said */
    serve_request *next; /* in the list of jobs, or of who waits */
    /* a report */
    char report[WEFT_REPORT_MAX];
    weft_follower follower; /* what it says */
    char *batch;            /* many of them, as they come or go */
    size_t batch_size;
    bool is_whole; /* all of it was read */
    /* an object that comes over a relay */
    weft_relay_reader *reader;
    uint64_t offset; /* of the answer's first byte */
    bool comes;      /* its bytes are sent as they come, at a pace that is not the client's */
    /* a watch, or a part of the history or of a training */
    uint64_t after;
    uint64_t limit;
    double deadline; /* 0: not waited yet */
    /* a listing */
    char list_prefix[WEFT_STORE_KEY_MAX + 1];
    char list_after[WEFT_STORE_KEY_MAX + 1];
};

/* Callbacks of libmicrohttpd. */
enum MHD_Result serve_request_handle(void *opaque, struct MHD_Connection *connection, const char *url,
                                     const char *method, const char *version, const char *data,
                                     size_t *data_size, void **state);
void serve_request_complete(void *opaque, struct MHD_Connection *connection, void **state,
                            enum MHD_RequestTerminationCode ending);

/* The value of a field, or NULL. */
const char *serve_field(const serve_request *request, const char *name);
/* Decides the answer now; it is sent when the body was read, or at once if that would be too much. */
void serve_refuse(serve_request *request, unsigned code, const char *text);
/* Sends an answer, which it takes. NULL: there was no memory for it. */
enum MHD_Result serve_answer(serve_request *request, unsigned code, struct MHD_Response *response);
enum MHD_Result serve_answer_text(serve_request *request, unsigned code, const char *text);
enum MHD_Result serve_answer_empty(serve_request *request, unsigned code);
/* The code for a failure of the store. */
unsigned serve_status_code(weft_status status);
/* Reports what the last call with the request's context said, if the failure is the server's own. */
void serve_report_status(serve_request *request, weft_status status);
struct MHD_Response *serve_response_empty(void);
void serve_response_tag(struct MHD_Response *response, const weft_store_tag *tag);

/* ---- serve_objects.c: GET, HEAD, PUT and DELETE of objects ---- */

/* The bytes of an object, as the body of an answer. */
typedef struct serve_body serve_body;
struct serve_body {
    uint64_t size; /* of the object */
    /* `length` bytes from `offset`; NULL if there is no memory. */
    struct MHD_Response *(*make)(serve_request *request, const serve_body *body, uint64_t offset,
                                 uint64_t length);
    /* Bytes from `offset` can be had: WEFT_MORE if the request was suspended until they can. NULL: always.
     */
    weft_status (*await)(serve_request *request, uint64_t offset);
    int descriptor; /* of the whole object, which is closed when it was not used; -1: there is none */
};

/* Answers a GET or HEAD: ranges and conditions are told from request->tag and the size. */
enum MHD_Result serve_object_send(serve_request *request, const serve_body *body);
enum MHD_Result serve_object_fail(serve_request *request, weft_status status);
/* A body that goes from a descriptor to the socket. */
serve_body serve_body_of_file(int descriptor, uint64_t size);

/* Before the body. */
void serve_object_begin(serve_request *request);
/* A piece of a put's body. */
void serve_object_append(serve_request *request, const char *data, size_t size);
/* After the body, and again when a job is done. */
enum MHD_Result serve_object_end(serve_request *request);

/* ---- serve_runs.c: one run, and many of them ---- */

enum { RUNS_MAX = 256 };

typedef struct serve_runs {
    serve_server *site;
    const char *root;
    const char *tokens; /* a directory with NAME.read and NAME.write; or NULL */
    bool read_only;
    bool is_volatile;
    pthread_mutex_t mutex; /* of what follows */
    serve_server *items[RUNS_MAX];
    size_t count;
    double next; /* when the root may be looked at again */
    bool closing;
} serve_runs;

/* A run's threads; its store and counters are open. False if they cannot be had. In the end those who wait
 * are dismissed, then all is finished that may suspend a request, and when no request is left it is closed.
 */
bool serve_run_open(serve_server *server);
void serve_run_dismiss(serve_server *server);
void serve_run_finish(serve_server *server);
void serve_run_close(serve_server *server);
/* Whether nothing may be put, `read_only` being what was asked for. */
bool serve_run_read_only(const serve_server *server, bool read_only);

bool serve_run_name_valid(const char *name);
/* The run of that name, which is opened if it is there, and made if `make` says so; or NULL. */
serve_server *serve_runs_find(serve_runs *runs, const char *name, bool make);
/* Opens what is in the root. */
void serve_runs_scan(serve_runs *runs);
/* A job: the same, if the last time is long enough ago. */
void serve_runs_look(serve_request *request);
/* Whether a token file of a run has changed, or is there now; and all of them read again. */
bool serve_runs_changed(serve_runs *runs);
bool serve_runs_reload(serve_runs *runs);
void serve_runs_dismiss(serve_runs *runs);
void serve_runs_finish(serve_runs *runs);
void serve_runs_close(serve_runs *runs);
/* The bodies of /v1/runs, / and /metrics. */
char *serve_text_runs(serve_request *request, size_t *size_out);
char *serve_text_site(serve_request *request, size_t *size_out);
char *serve_text_site_metrics(serve_request *request, size_t *size_out);

/* ---- the server ---- */

struct serve_server {
    serve_server *site; /* itself; of one of many runs, the server that has all of them */
    const char *name;   /* of one of many runs; else NULL */
    serve_runs *runs;   /* of a site with many; else NULL */
    weft_command *command;
    weft_context *context; /* of one of many runs, for its store */
    const char *directory;
    const char *url;
    const char *const *hosts; /* names that it goes by */
    size_t host_count;
    bool loopback;
    atomic_bool read_only;
    bool no_reports;
    uint64_t max_object;
    serve_quota quota;
    const serve_certificate *certificate; /* of a site; NULL: no TLS */
    unsigned max_watchers;
    atomic_uint watching; /* of the site: those who wait, of all runs */
    double watch_seconds;
    double stop_seconds;
    atomic_bool stopping;
    pthread_rwlock_t tokens_lock; /* of what is in them, once requests are answered */
    serve_tokens read_tokens;
    serve_tokens write_tokens;
    const serve_source *source;
    void *files;         /* the directory itself, for descriptors and drafts; NULL if it is a relay */
    weft_store *store;   /* over `files`, or over the relay */
    weft_relay *relay;   /* or NULL */
    atomic_bool watches; /* the watch may be poked */
    serve_metrics metrics;
    serve_connections connections;
    serve_access access;
    serve_jobs jobs;
    serve_watch watch;
    serve_history history;
    serve_training training;
    serve_page page;
    serve_reports reports;
    serve_onward onward;
};

/* ---- serve_listen.c: a listening socket and a certificate, to start with ---- */

enum { SERVE_DEFAULT_PORT = 8477, SERVE_URL = 300, SERVE_NAME = 256, SERVE_LISTENERS = 8 };

typedef struct serve_listener {
    int socket;
    char url[SERVE_URL];   /* with the port that the kernel chose */
    char name[SERVE_NAME]; /* as it was given, without the port; may be empty */
    bool loopback;
} serve_listener;

int serve_listener_open(weft_command *command, const char *address, bool tls, serve_listener *listener);

/* ---- serve_certificate.c ---- */

struct serve_certificate {
    const char *certificate_path; /* NULL: no TLS */
    const char *key_path;
    _Atomic int64_t not_after; /* since 1970, in seconds */
    /* as they were when they were last looked at */
    struct stat certificate_file;
    struct stat key_file;
    bool pending; /* they have changed since they were read */
};

/* Reads both and makes sure that they belong together; handshakes use them from then on. If that fails,
 * those before stay in use. */
int serve_certificate_read(weft_command *command, serve_certificate *certificate);
/* True if one of the files is another than at the last look, or was written to. */
bool serve_certificate_changed(serve_certificate *certificate);
/* When no connection is left. */
void serve_certificate_close(void);
/* What libmicrohttpd asks in each handshake. */
extern gnutls_certificate_retrieve_function2 *const serve_certificate_retrieve;

#endif
