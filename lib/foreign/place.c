/* SPDX-License-Identifier: Apache-2.0
 *
 * place.c: names and directories: those that others have written, and those that we write.
 */
#include "format.h"

#include "../base/context.h"
#include "../tensor/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

bool weft_numbered(const char *name, const char *prefix, unsigned least, const char *suffix,
                   uint64_t *number_out) {
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0) {
        return false;
    }
    const char *cursor = name + length;
    uint64_t number = 0;
    unsigned digits = 0;
    for (; *cursor >= '0' && *cursor <= '9' && digits < 19; cursor++, digits++) {
        number = 10 * number + (uint64_t)(*cursor - '0');
    }
    *number_out = number;
    return digits >= least && digits > 0 && number <= INT64_MAX && strcmp(cursor, suffix) == 0;
}

bool weft_json_number(const json_t *value, uint64_t *number_out) {
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *number_out = (uint64_t)json_integer_value(value);
        return true;
    }
    return json_is_string(value) && weft_numbered(json_string_value(value), "", 1, "", number_out);
}

/* Both escape what is not ASCII, jansson with large letters and Python with small ones. */
char *weft_json_python(const json_t *value, size_t flags) {
    char *text = json_dumps(value, JSON_ENSURE_ASCII | flags);
    for (char *c = text; c != NULL && *c != 0; c++) {
        if (*c == '\\' && c[1] == 'u') {
            for (int i = 2; i < 6 && c[i] != 0; i++) {
                c[i] = c[i] >= 'A' && c[i] <= 'F' ? (char)(c[i] - 'A' + 'a') : c[i];
            }
        }
        c += *c == '\\' && c[1] != 0;
    }
    return text;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void release_names(weft_context *context, char **names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        weft_release(context, names[i]);
    }
    weft_release(context, names);
}

static weft_status collect_names(weft_context *context, DIR *stream, char ***names_out, size_t *count_out) {
    char **names = NULL;
    size_t count = 0, capacity = 0;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        if (count == capacity) {
            capacity = 2 * capacity + 16;
            char **more = weft_reallocate_array(context, names, capacity, sizeof *names);
            if (more == NULL) {
                release_names(context, names, count);
                return WEFT_NO_MEMORY;
            }
            names = more;
        }
        names[count] = weft_copy_text(context, entry->d_name, strlen(entry->d_name));
        if (names[count] == NULL) {
            release_names(context, names, count);
            return WEFT_NO_MEMORY;
        }
        count++;
    }
    if (count > 0) {
        qsort(names, count, sizeof *names, compare_names);
    }
    *names_out = names;
    *count_out = count;
    return WEFT_OK;
}

weft_status weft_directory_names(weft_context *context, const char *path, weft_name_function *visit,
                                 void *opaque) {
    DIR *stream = opendir(path);
    if (stream == NULL) {
        int error = errno;
        return error == ENOENT || error == ENOTDIR
                   ? weft_fail(context, WEFT_NOT_FOUND, "%s: there is no such directory", path)
                   : weft_fail_errno(context, error, "%s: cannot list", path);
    }
    char **names = NULL;
    size_t count = 0;
    weft_status status = collect_names(context, stream, &names, &count);
    closedir(stream);
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        status = visit(opaque, names[i]);
    }
    release_names(context, names, status == WEFT_NO_MEMORY && names == NULL ? 0 : count);
    return status;
}

bool weft_path_exists(weft_context *context, const char *directory, const char *name) {
    char *path = weft_path_join(context, directory, name);
    bool exists = path != NULL && access(path, F_OK) == 0;
    weft_release(context, path);
    return exists;
}

bool weft_path_is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* ---- writing ---- */

/* What cannot be removed stays, and the making of the directory will say why. A link that lies there is
 * removed itself: what it leads to is somebody else's. */
static void remove_temporary(const weft_new_directory *directory) {
    int descriptor = open(directory->temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = descriptor >= 0 ? fdopendir(descriptor) : NULL;
    for (struct dirent *entry; stream != NULL && (entry = readdir(stream)) != NULL;) {
        (void)unlinkat(descriptor, entry->d_name, 0);
    }
    if (stream != NULL) {
        closedir(stream);
    } else if (descriptor >= 0) {
        close(descriptor);
    }
    if (unlink(directory->temporary) != 0) {
        (void)rmdir(directory->temporary);
    }
}

static weft_status make_directory(weft_context *context, const char *path) {
    return mkdir(path, 0777) == 0 || errno == EEXIST
               ? WEFT_OK
               : weft_fail_errno(context, errno, "%s: cannot make", path);
}

weft_status weft_new_directory_open(weft_new_directory *directory, weft_context *context, const char *root,
                                    const char *name) {
    *directory = (weft_new_directory){.context = context, .root = -1};
    char *hidden = weft_join_texts(context, ".", name, ".tmp");
    directory->temporary = hidden != NULL ? weft_path_join(context, root, hidden) : NULL;
    directory->target = weft_path_join(context, root, name);
    weft_release(context, hidden);
    weft_status status =
        directory->temporary == NULL || directory->target == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    status = status == WEFT_OK ? make_directory(context, root) : status;
    if (status == WEFT_OK) {
        directory->root = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (directory->root < 0) {
            status = weft_fail_errno(context, errno, "%s: cannot open", root);
        } else if (flock(directory->root, LOCK_EX | LOCK_NB) != 0) {
            status = weft_fail(context, WEFT_BUSY, "%s: another process writes there", root);
        } else if (access(directory->target, F_OK) == 0) {
            status = weft_fail(context, WEFT_CONFLICT, "%s is there already", directory->target);
        }
    }
    if (status == WEFT_OK) {
        remove_temporary(directory);
        if (mkdir(directory->temporary, 0777) != 0) {
            status = weft_fail_errno(context, errno, "%s: cannot make", directory->temporary);
        }
    }
    if (status != WEFT_OK) {
        weft_release(context, directory->temporary);
        directory->temporary = NULL;
        weft_new_directory_close(directory);
    }
    return status;
}

weft_status weft_new_directory_finish(weft_new_directory *directory, bool durable) {
    int descriptor = durable ? open(directory->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    bool failed = durable && (descriptor < 0 || fsync(descriptor) != 0);
    int error = errno;
    if (descriptor >= 0) {
        close(descriptor);
    }
    if (failed) {
        return weft_fail_errno(directory->context, error, "%s: cannot sync", directory->temporary);
    }
    if (rename(directory->temporary, directory->target) != 0) {
        return weft_fail_errno(directory->context, errno, "%s: cannot be moved to its place",
                               directory->target);
    }
    weft_release(directory->context, directory->temporary);
    directory->temporary = NULL;
    if (durable && fsync(directory->root) != 0) {
        return weft_fail_errno(directory->context, errno, "%s: cannot sync", directory->target);
    }
    return WEFT_OK;
}

void weft_new_directory_close(weft_new_directory *directory) {
    if (directory->temporary != NULL) {
        remove_temporary(directory);
    }
    if (directory->root >= 0) {
        close(directory->root);
    }
    weft_release(directory->context, directory->temporary);
    weft_release(directory->context, directory->target);
    *directory = (weft_new_directory){.context = directory->context, .root = -1};
}
