/* What the agent gives up for itself at start, and what it takes from every command. */
#pragma once

#include "base.h"

/*
 * First thing: no dumps (so that /proc/PID/{fd,mem,...} and ptrace of the agent are closed to guest
 * root, which has the same uid), no new privileges, default signals.
 */
void confine_start(void);
/*
 * Ambient and inheritable sets become empty. With kept, permitted and effective become exactly that, and
 * the rest leaves the bounding set.
 */
void confine_capabilities(const uint64_t *kept);
/* Reads, closes and installs a program with a listener, seccomp_unotify(2); returns the listener's fd. */
int confine_seccomp(int program);

/* In the child: clone3 fails with ENOSYS when there is a filter. False with errno. */
bool confine_child(void);
/* In the child: SIGPIPE and the signal mask as a program expects them. */
void confine_default_signals(void);

/*
 * In the child: makes the command a better victim for the OOM killer than the agent, best effort. As root this
 * must precede the change of user; otherwise it must come last before exec, when nothing is left to confine.
 * (To raise the agent's own score around fork is cheaper, but fork is when a full cgroup picks its victim.)
 */
void confine_oom_score(bool root);
