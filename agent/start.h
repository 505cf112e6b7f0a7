/*
 * The payload of START: what to run, as whom, where.
 *
 * Both functions are pure (no I/O, no allocation): the results point into the payload.
 */
#pragma once

#include "base.h"

struct start {
    bool stdin_pipe;
    uint32_t uid, gid;
    uint32_t nofile;  /* RLIMIT_NOFILE, 0 = as the agent was started */
    uint32_t window;  /* first credit of stdout and of stderr, bytes */
    const char *leaf; /* cgroup to join, [a-z0-9]{1,32}, or "" */
    const char *cwd;
    uint32_t argc, envc;
    const char *args, *env; /* argc and envc strings, one after the other */
};

struct vectors {
    char **sh; /* one free slot before argv, for /bin/sh when the file is a script without #! */
    char **argv, **envp;
};

/* NULL, or why the payload is not a START (then *start is unspecified). */
const char *start_parse(const uint8_t *payload, size_t length, struct start *start);

/* Fills slots, of which there must be argc + envc + 3, with the NULL-terminated arrays execve(2) wants. */
struct vectors start_vectors(const struct start *start, char **slots);
