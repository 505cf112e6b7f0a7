/* The ways the agent ends; see end.h. */
#include "end.h"

#include <stdio.h>

_Noreturn void end_quietly(void) {
    tree_kill_all();
    _exit(0);
}

_Noreturn void end_protocol(const char *what) {
    tree_kill_all();
    dprintf(STDERR_FILENO, "atoll-agent: protocol error: %s\n", what);
    _exit(1);
}

_Noreturn void end_errno(const char *what) {
    int error = errno;
    tree_kill_all();
    dprintf(STDERR_FILENO, "atoll-agent: %s: %s\n", what, strerror(error));
    _exit(1);
}

_Noreturn void end_usage(const char *what) {
    dprintf(STDERR_FILENO, "atoll-agent: %s (usage: agent [--seccomp FD] [--cgroup1 FD]... [--cgroup2 FD] "
                           "[--keep-caps HEXMASK])\n", what);
    _exit(2);
}
