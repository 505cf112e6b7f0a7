/* Putting a command into its cgroup; see child.h. */
#include "child.h"

#include <linux/sched.h>
#include <stdio.h>
#include <sys/syscall.h>

#define V1_MAX 16u

static int v1[V1_MAX];
static unsigned v1_count;
static int v2 = -1;

bool join_add_v1(int directory) {
    if (v1_count == V1_MAX)
        return false;
    v1[v1_count++] = directory;
    return true;
}

bool join_add_v2(int directory) {
    if (v2 >= 0)
        return false;
    v2 = directory;
    return true;
}

/* fork(2) without libc's bookkeeping, which a single thread that is about to exec has no use for. */
static pid_t plain_fork(void) {
    return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

/*
 * Born in the cgroup: a write to cgroup.procs would cost an RCU grace period on v2, and the command's first
 * instructions would be charged elsewhere. clone(2), CLONE_INTO_CGROUP, Linux 5.7.
 */
static pid_t fork_into(int leaf) {
    struct clone_args arguments = {
        .flags = CLONE_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .cgroup = (__u64)(unsigned)leaf,
    };
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

pid_t join_fork(const char *leaf, bool *cgroup) {
    *cgroup = false;
    if (leaf[0] == '\0' || (v2 < 0 && v1_count > 0))
        return plain_fork();

    *cgroup = true; /* without any directory: EBADF */
    int directory = openat(v2, leaf, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0)
        return -1;
    pid_t pid = fork_into(directory);
    if (pid == 0)
        return 0;
    int error = errno;
    close(directory);
    *cgroup = error != EAGAIN && error != ENOMEM;
    errno = error;
    return pid;
}

bool join_enter(const char *leaf) {
    if (leaf[0] == '\0')
        return true;
    char path[64];
    snprintf(path, sizeof path, "%s/tasks", leaf); /* all of us: one thread; needs no lock that others' forks hold */
    for (unsigned i = 0; i < v1_count; i++) {
        int fd = openat(v1[i], path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || RETRY(write(fd, "0", 1)) != 1) /* 0: the writing process, cgroups(7) */
            return false;
        close(fd);
    }
    return true;
}
