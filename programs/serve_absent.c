/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_absent.c: stands for `weft serve` in a build without libmicrohttpd, and says what is missing.
 */
#include "cli/command.h"

int verb_serve(int argc, char **argv) {
    (void)argc;
    fprintf(stderr, "%s: this weft was built without a server; install libmicrohttpd and build again\n",
            argv[0]);
    return EXIT_USAGE;
}
