/* What every file of the agent includes first. */
#pragma once

#define _GNU_SOURCE 1 /* the same value as -D_GNU_SOURCE, so that both may be given */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The call again when a signal cut it short, signal(7). */
#define RETRY(call)                                                                                          \
    __extension__({                                                                                          \
        ssize_t result_;                                                                                     \
        do                                                                                                   \
            result_ = (ssize_t)(call);                                                                       \
        while (result_ < 0 && errno == EINTR);                                                               \
        result_;                                                                                             \
    })
