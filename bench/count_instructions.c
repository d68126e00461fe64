/* SPDX-License-Identifier: Apache-2.0
 *
 * count_instructions.c: a plugin of qemu-user that counts the instructions that a program executes, and
 * prints their number to stderr as it ends; with by=symbol also those of each function that had a hundredth
 * of them or more. Debian has plugins in qemu but not their header: what is needed of version 1 of the
 * interface is declared here.
 *
 *   qemu-aarch64 -plugin libcount_instructions.so[,by=symbol] PROGRAM
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { QEMU_PLUGIN_INLINE_ADD_U64 = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                           void (*callback)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int operation, void *counter,
                                              uint64_t amount);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*callback)(qemu_plugin_id_t, void *),
                                    void *opaque);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *instruction);

extern const int qemu_plugin_version;
const int qemu_plugin_version = 1;
int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int count, char **words);

enum { FUNCTIONS = 8192 };

/* The first is for what has no name, or no place in the table. */
static struct function {
    const char *name;
    uint64_t instructions;
} functions[FUNCTIONS] = {{"others", 0}};
static int by_symbol;

/* Blocks are translated one at a time, so that nobody else looks. */
static struct function *function_named(const char *name) {
    if (!by_symbol || name == NULL || name[0] == 0) {
        return functions;
    }
    for (size_t i = 1; i < FUNCTIONS; i++) {
        if (functions[i].name == NULL) {
            functions[i].name = strdup(name);
        }
        if (functions[i].name != NULL && strcmp(functions[i].name, name) == 0) {
            return &functions[i];
        }
    }
    return functions;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    struct function *function = function_named(qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(tb, 0)));
    qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &function->instructions,
                                             qemu_plugin_tb_n_insns(tb));
}

static void ended(qemu_plugin_id_t id, void *opaque) {
    (void)id;
    (void)opaque;
    uint64_t all = 0;
    for (size_t i = 0; i < FUNCTIONS; i++) {
        all += functions[i].instructions;
    }
    for (size_t i = 0; i < FUNCTIONS && by_symbol; i++) {
        if (functions[i].instructions > all / 100) {
            fprintf(stderr, "%14" PRIu64 " %s\n", functions[i].instructions, functions[i].name);
        }
    }
    fprintf(stderr, "instructions: %" PRIu64 "\n", all);
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int count, char **words) {
    (void)info;
    by_symbol = count > 0 && strcmp(words[0], "by=symbol") == 0;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
