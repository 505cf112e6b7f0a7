/* What happens between fork and exec. In the child only async-signal-safe calls: it copies a running agent. */
#pragma once

#include "start.h"

#include <sys/resource.h>

struct child {
    const struct start *start;
    const struct vectors *vectors;
    int stdio[3];
    int status; /* where a failure is reported: u8 stage, u32 errno; exec closes it */
    struct rlimit nofile; /* as the agent was started */
};

/* child.c: becomes the command. */
_Noreturn void child_run(const struct child *child);

/*
 * run.c: execve(2) with a PATH search as execvpe(3) does it, but over the command's own environment. Returns
 * only on failure, with errno: EACCES if something was found but could not be executed, else ENOENT or why.
 */
void run(const struct vectors *vectors);

/*
 * join.c: cgroups(7), by clone3 into the leaf (v2) or by the child's own write (v1).
 * add: from the command line, a directory whose children are the leaves; false when there are too many.
 */
bool join_add_v1(int directory);
bool join_add_v2(int directory);
/* As fork(2), into leaf ("" = stay). When it fails *cgroup tells whether the cgroup was the reason. */
pid_t join_fork(const char *leaf, bool *cgroup);
/* In the child: enters the leaf of each v1 hierarchy. False with errno. */
bool join_enter(const char *leaf);
