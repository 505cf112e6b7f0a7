/* What happens between fork and exec; see child.h. */
#include "child.h"

#include <grp.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "confine.h"
#include "frame.h"

#define STATUS_FD 3
#define KEEP_ID UINT32_MAX /* to setresuid(2) -1 means "as it is", which would be root */

/* Reports to the agent over the status pipe and dies. */
static _Noreturn void fail(int status, enum stage stage) {
    uint8_t report[5] = {(uint8_t)stage};
    put_u32(report + 1, (uint32_t)errno);
    (void)RETRY(write(status, report, sizeof report));
    _exit(127);
}

/* fds 0, 1, 2 and the status pipe at 3; nothing else of the agent survives. */
static bool take_stdio(const struct child *child) {
    for (int i = 0; i < 3; i++)
        if (dup2(child->stdio[i], i) < 0)
            return false;
    if (child->status != STATUS_FD && dup3(child->status, STATUS_FD, O_CLOEXEC) < 0)
        return false;
    return syscall(SYS_close_range, STATUS_FD + 1, ~0u, 0) == 0;
}

static bool set_limit(const struct child *child) {
    struct rlimit nofile = child->nofile;
    if (child->start->nofile != 0)
        nofile.rlim_cur = nofile.rlim_max = child->start->nofile;
    return setrlimit(RLIMIT_NOFILE, &nofile) == 0;
}

/*
 * With the pipes its own the command may reopen them as /dev/stdin, /dev/stdout and /dev/stderr; their mode is
 * 0600. Best effort: it needs CAP_CHOWN, and a command that does not reopen them does not care.
 */
static void give_pipes(const struct start *start) {
    for (int fd = start->stdin_pipe ? 0 : 1; fd < 3; fd++)
        (void)!fchown(fd, start->uid, start->gid);
}

static bool become(const struct start *start) {
    if (start->uid == KEEP_ID || start->gid == KEEP_ID) {
        errno = EINVAL;
        return false;
    }
    if (start->uid == getuid() && start->gid == getgid())
        return true;
    give_pipes(start);
    return setgroups(1, &start->gid) == 0 && setresgid(start->gid, start->gid, start->gid) == 0
        && setresuid(start->uid, start->uid, start->uid) == 0;
}

_Noreturn void child_run(const struct child *child) {
    const struct start *start = child->start;
    int status = child->status;
    setsid();
    if (!join_enter(start->leaf))
        fail(status, STAGE_CGROUP);
    if (!take_stdio(child))
        fail(status, STAGE_RESOURCES);
    status = STATUS_FD;
    umask(022);
    bool root = geteuid() == 0;
    if (root)
        confine_oom_score(root);
    if (!become(start))
        fail(status, STAGE_CREDENTIALS);
    if (chdir(start->cwd) != 0)
        fail(status, STAGE_CWD);
    if (!confine_child())
        fail(status, STAGE_CONFINE);
    if (!root)
        confine_oom_score(root);
    if (!set_limit(child))
        fail(status, STAGE_CONFINE);

    confine_default_signals();
    run(child->vectors);
    fail(status, STAGE_EXEC);
}
