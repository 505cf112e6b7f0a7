/* The event loop, and how an event names its handler. */
#pragma once

#include "base.h"

enum role {
    ROLE_HOST_IN,  /* fd 0 */
    ROLE_HOST_OUT, /* fd 1 */
    ROLE_CHILDREN, /* the signalfd */
    ROLE_OUTPUTS,  /* the set of all stdout and stderr pipes, nested in the main set */
    ROLE_STATUS,   /* from here on of the stream in the slot */
    ROLE_STDIN,
    ROLE_STDOUT,
    ROLE_STDERR,
};

enum set { SET_MAIN, SET_OUTPUTS };

/* Events of a watch that reports only a hang-up or error, once: an idle pipe must not make the loop spin. */
#define QUIET 0u

/* False with errno when the kernel refuses (ENOMEM, ENOSPC). */
bool loop_watch(enum set set, int fd, uint32_t events, uint32_t slot, enum role role);
/* Cannot fail for a watched fd. */
void loop_change(enum set set, int fd, uint32_t events, uint32_t slot, enum role role);
/*
 * Ends the watch, closes and sets *fd to -1 (which it may be already). Closing alone would leave the watch
 * alive while a forked child that has not called exec yet holds a copy, epoll(7), "Questions and answers".
 */
void loop_close(enum set set, int *fd);

/* Makes the sets and runs until the agent ends. */
_Noreturn void loop_run(void);
