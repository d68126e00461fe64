/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor_cost.c: `weft doctor --cost`: what the workers of a run ask of a paid store in a day.
 *
 * Reckoned, not measured: by the pauses between looks that a follower makes (doc/architecture/following.md)
 * and the objects that a version is. Relays are followers too, and the workers behind them cost nothing but
 * their reports, which a relay hands on.
 */
#include "doctor.h"

#include <math.h>

static const double DAY = 86400;
/* A follower's looks, as lib/sync/follow/follow.c has them. */
static const double LOOK_SHARE = 0.09;
static const double LOOK_LEAST = 0.5;
static const double LOOK_MOST = 10;
static const double SEARCH_LOOKS = 5;
static const double SEARCH_LEAST = 5;
static const double SEARCH_MOST = 30;
/* of a store where requests are paid for; and one for each version */
static const double REPORT_SECONDS = 60;

typedef struct requests {
    double gets;
    double puts;
} requests;

static double clamp(double value, double least, double most) {
    return value < least ? least : value > most ? most : value;
}

/* Of one follower in a day: looks, searches for later epochs, and a patch for each version. */
static double gets_a_day(double interval) {
    double pause = clamp(LOOK_SHARE * interval, LOOK_LEAST, LOOK_MOST);
    double search = clamp(SEARCH_LOOKS * pause, SEARCH_LEAST, SEARCH_MOST);
    return DAY / pause + DAY / search + DAY / interval;
}

static double reports_a_day(double interval) {
    return DAY / (interval < REPORT_SECONDS ? interval : REPORT_SECONDS);
}

static requests count(const doctor_prices *prices, uint64_t workers, bool relayed) {
    double readers = relayed ? ceil((double)workers / (double)prices->workers_per_relay) : (double)workers;
    return (requests){.gets = readers * gets_a_day(prices->interval_seconds),
                      .puts = (double)workers * reports_a_day(prices->interval_seconds)};
}

static double price_of(const doctor_prices *prices, const requests *requests) {
    return requests->gets / 1000 * prices->get_price + requests->puts / 1000 * prices->put_price;
}

static json_t *row_json(uint64_t workers, bool relayed, const requests *requests, double price) {
    json_t *json = json_object();
    json_object_set_new(json, "workers", json_count(workers));
    json_object_set_new(json, "relayed", json_boolean(relayed));
    json_object_set_new(json, "gets", json_count((uint64_t)requests->gets));
    json_object_set_new(json, "puts", json_count((uint64_t)requests->puts));
    json_object_set_new(json, "price", json_real(price));
    return json;
}

int doctor_cost(weft_command *command, const doctor_prices *prices) {
    static const uint64_t crowds[] = {1, 100, 10000};
    json_t *rows = json_array();
    if (!command->json) {
        printf("a day of a version each %g s; $%g for 1,000 GETs, $%g for 1,000 PUTs; %llu workers to a "
               "relay\n",
               prices->interval_seconds, prices->get_price, prices->put_price,
               (unsigned long long)prices->workers_per_relay);
        printf("%8s  %-8s %14s %14s %11s\n", "workers", "relays", "GETs", "PUTs", "dollars");
    }
    for (size_t i = 0; i < 2 * sizeof crowds / sizeof *crowds; i++) {
        uint64_t workers = crowds[i / 2];
        bool relayed = i % 2 != 0;
        requests requests = count(prices, workers, relayed);
        double price = price_of(prices, &requests);
        if (command->json) {
            json_array_append_new(rows, row_json(workers, relayed, &requests, price));
            continue;
        }
        char crowd[TEXT_SIZE];
        char gets[TEXT_SIZE];
        char puts[TEXT_SIZE];
        printf("%8s  %-8s %14s %14s %11.2f\n", text_count(workers, crowd), relayed ? "with" : "without",
               text_count((uint64_t)requests.gets, gets), text_count((uint64_t)requests.puts, puts), price);
    }
    if (!command->json) {
        json_decref(rows);
        return EXIT_DONE;
    }
    json_t *json = json_object();
    json_object_set_new(json, "interval_seconds", json_real(prices->interval_seconds));
    json_object_set_new(json, "workers_per_relay", json_count(prices->workers_per_relay));
    json_object_set_new(json, "price_get", json_real(prices->get_price));
    json_object_set_new(json, "price_put", json_real(prices->put_price));
    json_object_set_new(json, "days", rows);
    return command_print_json(command, stdout, json);
}
