/* Reaping; see stream.h. */
#include "stream.h"

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include "end.h"

#define REAP_BATCH 64

static int signals = -1;
static bool waiting;

int reap_open(void) {
    /* Orphans come to the agent also when it is not the init of a pid namespace, prctl(2). */
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        end_errno("PR_SET_CHILD_SUBREAPER");
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    if (sigprocmask(SIG_SETMASK, &set, NULL) != 0)
        end_errno("sigprocmask");
    signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals < 0)
        end_errno("signalfd");
    return signals;
}

void reap_event(void) {
    struct signalfd_siginfo info; /* one at most: SIGCHLD does not queue, signal(7) */
    (void)RETRY(read(signals, &info, sizeof info));
    waiting = true;
}

bool reap_some(void) {
    for (int i = 0; waiting && i < REAP_BATCH; i++) {
        int status;
        struct rusage usage;
        pid_t pid = (pid_t)RETRY(wait4(-1, &status, WNOHANG, &usage));
        if (pid > 0)
            stream_reaped(pid, status, &usage);
        else
            waiting = false;
    }
    return waiting;
}
