/* How things end: process trees, and the agent, which first kills everything it started. */
#pragma once

#include "base.h"

/* The host asked for it or is gone: exit 0. */
_Noreturn void end_quietly(void);
/* The host broke the protocol: one line on stderr, exit 1. */
_Noreturn void end_protocol(const char *what);
/* The agent cannot work here (errno says why): one line on stderr, exit 1. */
_Noreturn void end_errno(const char *what);
/* A wrong command line: one line on stderr, exit 2. Nothing has been started yet. */
_Noreturn void end_usage(const char *what);

/*
 * For hosts without a cgroup per command. SIGKILLs the session that leader made and, while the leader has not
 * been reaped (present), the leader and its descendants. A process that left the session and then lost its
 * parent is not found: only a cgroup or the pid namespace holds that.
 */
void tree_kill(pid_t leader, bool present);
/* SIGKILLs every process of the pid namespace, or, when the agent is not its init, all its descendants. */
void tree_kill_all(void);
