/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_connections.c: all connections that are open, and which of them are cut.
 *
 * libmicrohttpd cuts a connection on which nothing moves. That is no bound for one on which a byte moves
 * now and then, so a thread looks at all of them: a header has to be there in time, a body has to come and
 * an answer has to be taken at a least rate. And when connections are short, those that have shown least of
 * themselves go, the oldest first: a client that has just come and sends its token at once is served,
 * however many others sit there with half a header.
 *
 * A connection is cut by shutting its socket down. libmicrohttpd finds that out, as if the client had gone,
 * and tells us before it closes the descriptor; so under the mutex a descriptor in the list is that socket.
 * Connections that are suspended, or whose request is being worked on, are never cut.
 */
#include "serve.h"

#include "../../lib/base/clock.h"

#include <math.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { ADDRESS_BYTES = 16 };

/* Between looks at the clock. */
static const double LOOK_SECONDS = 0.5;
/* from a connection to its request, on a long way */
static const double GRACE_SECONDS = 0.5;

struct serve_connection {
    serve_connection *previous, *next;
    int socket;
    uint8_t address[ADDRESS_BYTES];
    serve_standing standing;
    bool busy; /* between a request's header and the end of its answer */
    bool leaving;
    double since;    /* when it came, or its last request ended */
    double begun;    /* when the present request's header, or its answer, was there */
    double deadline; /* INFINITY: it waits for us */
};

/* ---- cutting ---- */

static void cut(serve_connections *connections, serve_connection *connection,
                atomic_uint_fast64_t *counter) {
    connection->leaving = true;
    connections->leaving++;
    atomic_fetch_add(counter, 1);
    shutdown(connection->socket, SHUT_RDWR);
}

static bool same_address(const serve_connection *a, const serve_connection *b) {
    return memcmp(a->address, b->address, ADDRESS_BYTES) == 0;
}

/* Whether `other` goes before `found`: who has shown less, and of equals who has been silent for longer. */
static bool goes_first(const serve_connection *other, const serve_connection *found) {
    return found == NULL || other->standing < found->standing ||
           (other->standing == found->standing && other->since < found->since);
}

/* Of all connections, or of those of one address, that have been silent since before a moment. What is
 * being answered stays, unless it is a refusal. */
static serve_connection *find_dispensable(const serve_connections *connections,
                                          const serve_connection *alike, double before) {
    serve_connection *found = NULL;
    for (serve_connection *other = connections->first; other != NULL; other = other->next) {
        bool idle = !other->busy || (other->standing == STANDING_NONE && other->deadline < INFINITY);
        bool counts = !other->leaving && other->since < before;
        if (idle && counts && (alike == NULL || same_address(other, alike)) && goes_first(other, found)) {
            found = other;
        }
    }
    return found;
}

static size_t count_alike(const serve_connections *connections, const serve_connection *alike) {
    size_t count = 0;
    for (const serve_connection *other = connections->first; other != NULL; other = other->next) {
        count += !other->leaving && same_address(other, alike);
    }
    return count;
}

/* Some places are kept free, because a new client is only accepted into one. */
static size_t room_of(const serve_connections *connections) {
    size_t spare = connections->most / 16 > 4 ? connections->most / 16 : 4;
    return connections->most - spare;
}

/* Who has just come gets a moment for its request, while there is still a place for the next one. An
 * address that has too many loses one, be it the new one; and so does who comes where there is no place, as
 * happens only if the server listens in several places, each of which has places for all. */
static void make_room(serve_connections *connections, serve_connection *fresh) {
    serve_connection *victim = NULL;
    size_t size = atomic_load(&connections->count) - connections->leaving;
    if (count_alike(connections, fresh) > connections->most_per_address) {
        victim = find_dispensable(connections, fresh, INFINITY);
    } else if (size > room_of(connections)) {
        double grace = size < connections->most ? GRACE_SECONDS : 0;
        victim = find_dispensable(connections, NULL, fresh->since - grace);
        victim = victim == NULL && size > connections->most ? fresh : victim;
    }
    if (victim != NULL) {
        cut(connections, victim, &connections->evicted);
    }
}

/* ---- the clock ---- */

static void cut_late(serve_connections *connections) {
    double now = clock_seconds();
    for (serve_connection *other = connections->first; other != NULL; other = other->next) {
        if (!other->leaving && other->deadline <= now) {
            cut(connections, other, &connections->late);
        }
    }
}

static void *watch_clock(void *opaque) {
    serve_connections *connections = opaque;
    pthread_mutex_lock(&connections->mutex);
    while (!connections->closing) {
        cut_late(connections);
        (void)weft_condition_wait(&connections->wake, &connections->mutex, clock_seconds() + LOOK_SECONDS);
    }
    pthread_mutex_unlock(&connections->mutex);
    return NULL;
}

/* ---- coming and going ---- */

/* Of an address of version 6 the network counts: one host has all the addresses in it. */
static void read_address(const struct sockaddr *address, uint8_t bytes[ADDRESS_BYTES]) {
    memset(bytes, 0, ADDRESS_BYTES);
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        memcpy(bytes, &v4->sin_addr, sizeof v4->sin_addr);
    } else if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
        memcpy(bytes, &v6->sin6_addr, IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? ADDRESS_BYTES : 8);
    }
}

static void add(serve_connections *connections, struct MHD_Connection *connection, void **state) {
    int descriptor = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    serve_connection *fresh = calloc(1, sizeof *fresh);
    *state = fresh;
    atomic_fetch_add(&connections->count, 1);
    if (fresh == NULL) {
        shutdown(descriptor, SHUT_RDWR);
        return;
    }
    fresh->socket = descriptor;
    fresh->since = clock_seconds();
    fresh->deadline = fresh->since + connections->request_seconds;
    read_address(MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr,
                 fresh->address);
    pthread_mutex_lock(&connections->mutex);
    fresh->previous = connections->last;
    *(connections->last != NULL ? &connections->last->next : &connections->first) = fresh;
    connections->last = fresh;
    make_room(connections, fresh);
    pthread_mutex_unlock(&connections->mutex);
}

static void take_away(serve_connections *connections, serve_connection *gone) {
    pthread_mutex_lock(&connections->mutex);
    atomic_fetch_sub(&connections->count, 1);
    if (gone == NULL) {
        pthread_mutex_unlock(&connections->mutex);
        return;
    }
    *(gone->previous != NULL ? &gone->previous->next : &connections->first) = gone->next;
    *(gone->next != NULL ? &gone->next->previous : &connections->last) = gone->previous;
    connections->leaving -= gone->leaving;
    pthread_mutex_unlock(&connections->mutex);
    free(gone);
}

void serve_connections_note(void *opaque, struct MHD_Connection *connection, void **state,
                            enum MHD_ConnectionNotificationCode code) {
    serve_server *server = opaque;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        add(&server->connections, connection, state);
    } else {
        take_away(&server->connections, *state);
    }
}

/* ---- a request ---- */

void serve_connections_begin(serve_request *request, serve_standing standing) {
    serve_connections *connections = &request->server->site->connections;
    serve_connection *place = request->place;
    if (place != NULL) {
        pthread_mutex_lock(&connections->mutex);
        place->standing = standing;
        place->busy = true;
        place->begun = clock_seconds();
        place->deadline = place->begun + connections->request_seconds;
        pthread_mutex_unlock(&connections->mutex);
    }
}

static void set_deadline(serve_request *request, double seconds) {
    serve_connections *connections = &request->server->site->connections;
    if (request->place != NULL) {
        pthread_mutex_lock(&connections->mutex);
        request->place->deadline = request->place->begun + seconds;
        pthread_mutex_unlock(&connections->mutex);
    }
}

void serve_connections_receive(serve_request *request) {
    const serve_connections *connections = &request->server->site->connections;
    set_deadline(request,
                 connections->request_seconds + (double)request->received / connections->least_rate);
}

void serve_connections_work(serve_request *request) {
    set_deadline(request, INFINITY);
}

void serve_connections_answer(serve_request *request) {
    const serve_connections *connections = &request->server->site->connections;
    if (request->place != NULL && !request->comes) {
        request->place->begun = clock_seconds();
        set_deadline(request,
                     connections->request_seconds + (double)request->body / connections->least_rate);
    }
}

/* A body that comes from elsewhere has no time of its own: each piece has. */
void serve_connections_pass(serve_request *request, size_t size) {
    const serve_connections *connections = &request->server->site->connections;
    if (request->place != NULL) {
        request->place->begun = clock_seconds();
        set_deadline(request, connections->request_seconds + (double)size / connections->least_rate);
    }
}

/* The next request may begin at any time until the connection is idle for too long, and then has its own.
 */
void serve_connections_end(serve_request *request) {
    serve_connections *connections = &request->server->site->connections;
    serve_connection *place = request->place;
    if (place != NULL) {
        pthread_mutex_lock(&connections->mutex);
        place->busy = false;
        place->since = clock_seconds();
        place->deadline = place->since + connections->idle_seconds + connections->request_seconds;
        pthread_mutex_unlock(&connections->mutex);
    }
}

/* ---- life ---- */

bool serve_connections_open(serve_connections *connections) {
    weft_condition_open(&connections->wake);
    pthread_mutex_init(&connections->mutex, NULL);
    bool started = pthread_create(&connections->thread, NULL, watch_clock, connections) == 0;
    if (!started) {
        pthread_cond_destroy(&connections->wake);
        pthread_mutex_destroy(&connections->mutex);
    }
    return started;
}

void serve_connections_close(serve_connections *connections) {
    pthread_mutex_lock(&connections->mutex);
    connections->closing = true;
    pthread_cond_signal(&connections->wake);
    pthread_mutex_unlock(&connections->mutex);
    pthread_join(connections->thread, NULL);
    pthread_cond_destroy(&connections->wake);
    pthread_mutex_destroy(&connections->mutex);
}
