/* SPDX-License-Identifier: Apache-2.0
 *
 * hostile.h: texts as nobody should give them, the same in every run: characters of every length, quotes
 * and control characters, and bytes that are no text, such as overlong forms, surrogates (which is what
 * Python's surrogateescape leaves) and characters that break off.
 */
#ifndef WEFT_TESTS_HOSTILE_H
#define WEFT_TESTS_HOSTILE_H

#include "models.h"

/* Fills `text`, of `size` bytes with its end, with a text that is shorter, and often as long as fits. One
 * in eight or so is not UTF-8. */
void hostile_text(dice *dice, char *text, size_t size);
/* The same with letters that may be in a name, and now and then one that may not. */
void hostile_name(dice *dice, const char *letters, char *text, size_t size);

/* Pairs of key and value, ended by NULL, that stay until hostile_labels_free. Now and then a key comes
 * twice, or the last has no value. */
char **hostile_labels(dice *dice, size_t most_pairs, size_t most_bytes);
void hostile_labels_free(char **labels);

#endif
