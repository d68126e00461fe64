/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor.h: what the files of `weft doctor` share.
 */
#ifndef WEFT_PROGRAMS_CLI_VERBS_DOCTOR_H
#define WEFT_PROGRAMS_CLI_VERBS_DOCTOR_H

#include "../remote.h"

/* What requests to a paid store cost; prices in dollars. */
typedef struct doctor_prices {
    double interval_seconds; /* between two versions */
    uint64_t workers_per_relay;
    double get_price; /* of a thousand GETs and HEADs */
    double put_price; /* of a thousand PUTs */
} doctor_prices;

/* The table of requests and price a day. */
int doctor_cost(weft_command *command, const doctor_prices *prices);

#endif
