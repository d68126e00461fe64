/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch.h: a temporary directory for one test, and files in it. Every call ends the test program with a
 * message if the surroundings fail it.
 */
#ifndef WEFT_TESTS_SCRATCH_H
#define WEFT_TESTS_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

typedef struct scratch {
    char directory[256];
    char paths[8][512];
    unsigned next;
} scratch;

/* A new directory under TMPDIR or /tmp. */
void scratch_open(scratch *scratch);
/* One in memory, under WEFT_TEST_MEMORY if that is set: for tests of what is done with a store or a file,
 * and not of the file system, which may take most of the time of those that make thousands of them. */
void scratch_open_volatile(scratch *scratch);
/* Removes it with all that is in it. */
void scratch_close(scratch *scratch);
/* "<directory>/<name>"; valid for the next seven calls. */
const char *scratch_path(scratch *scratch, const char *name);
void scratch_write(scratch *scratch, const char *name, const void *data, size_t size);
/* The whole file, to be freed by the caller. */
void *scratch_read(scratch *scratch, const char *name, size_t *size_out);
/* Flips a bit of the last byte but one of the file at a path: of a seal, or of a checksum. */
void scratch_flip(const char *path);
bool scratch_exists(scratch *scratch, const char *name);
void scratch_make_directory(scratch *scratch, const char *name);
/* Entries of a subdirectory ("" for the directory itself), hidden ones too. */
size_t scratch_count(scratch *scratch, const char *name);

#endif
