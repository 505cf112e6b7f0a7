/* execve(2) with a PATH search; see child.h. */
#include "child.h"

#include <limits.h>

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

static const char *search_path(char *const *env) {
    for (; *env != NULL; env++)
        if (strncmp(*env, "PATH=", 5) == 0)
            return *env + 5;
    return DEFAULT_PATH;
}

/* A file that is executable but no known format is a script for sh, execvp(3). */
static void try(const char *file, const struct vectors *vectors) {
    execve(file, vectors->argv, vectors->envp);
    if (errno != ENOEXEC)
        return;
    vectors->sh[0] = (char *)"/bin/sh";
    vectors->sh[1] = (char *)file; /* over argv[0] */
    execve(vectors->sh[0], vectors->sh, vectors->envp);
}

/* What may be wrong with one directory of the path without ending the search. */
static bool is_skipped(int error) {
    return error == ENOENT || error == ENOTDIR || error == EACCES || error == ESTALE || error == ENODEV
        || error == ETIMEDOUT;
}

void run(const struct vectors *vectors) {
    const char *name = vectors->argv[0];
    if (name[0] == '\0' || strchr(name, '/') != NULL) {
        try(name, vectors);
        return;
    }

    char file[PATH_MAX];
    size_t name_size = strlen(name) + 1;
    bool denied = false;
    const char *directory = search_path(vectors->envp), *end;
    do {
        end = strchrnul(directory, ':');
        size_t length = (size_t)(end - directory);
        if (length + 1 + name_size <= sizeof file) {
            memcpy(file, directory, length);
            if (length > 0) /* an empty element is the working directory */
                file[length++] = '/';
            memcpy(file + length, name, name_size);
            try(file, vectors);
            denied = denied || errno == EACCES;
            if (!is_skipped(errno))
                return;
        }
        directory = end + 1;
    } while (*end != '\0');
    errno = denied ? EACCES : ENOENT;
}
