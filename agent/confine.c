/* What the agent gives up and what it takes from commands; see confine.h. */
#include "confine.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "end.h"

#define FILTER_MAX 4096u /* instructions, BPF_MAXINSNS */
#define OOM_SCORE 500
#define OOM_SCORE_TEXT "500"
#define X32_BIT 0x40000000u

static bool filtered;

/* proc_pid_oom_score_adj(5) of this process; only ever raised. O_NONBLOCK in case it is not procfs. */
static void raise_oom_score(void) {
    char own[8] = {0};
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read(fd, own, sizeof own - 1) > 0 && strtol(own, NULL, 10) < OOM_SCORE)
        (void)!pwrite(fd, OOM_SCORE_TEXT, sizeof OOM_SCORE_TEXT - 1, 0);
    close(fd);
}

/* The raw call: libc refuses the two signals it uses itself, which may be inherited as ignored like any other. */
static void reset_signals(void) {
    const uint64_t action[4] = {0}; /* struct kernel_sigaction: SIG_DFL, no flags, empty mask */
    for (int signo = 1; signo <= 64; signo++)
        syscall(SYS_rt_sigaction, signo, action, NULL, sizeof(uint64_t));
}

void confine_start(void) {
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        end_errno("PR_SET_DUMPABLE");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        end_errno("PR_SET_NO_NEW_PRIVS");
    reset_signals();
    signal(SIGPIPE, SIG_IGN);
}

static void drop_from_bounding_set(uint64_t kept) {
    for (int cap = 0; cap < 64; cap++) {
        int bound = prctl(PR_CAPBSET_READ, cap, 0, 0, 0);
        if (bound < 0)
            break; /* beyond the last one this kernel knows, capabilities(7) */
        if (bound == 1 && (kept >> cap & 1) == 0 && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0)
            end_errno("PR_CAPBSET_DROP");
    }
}

void confine_capabilities(const uint64_t *kept) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (kept != NULL)
        drop_from_bounding_set(*kept);
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 || syscall(SYS_capget, &header, data) != 0)
        end_errno("cannot read the capabilities");
    for (unsigned i = 0; i < 2; i++) {
        if (kept != NULL)
            data[i].permitted = data[i].effective = (uint32_t)(*kept >> (32 * i));
        data[i].inheritable = 0;
    }
    if (syscall(SYS_capset, &header, data) != 0)
        end_errno("--keep-caps");
}

int confine_seccomp(int program) {
    size_t size = 0, room = (FILTER_MAX + 1) * sizeof(struct sock_filter);
    struct sock_filter *filter = malloc(room);
    if (filter == NULL)
        end_errno("--seccomp");
    for (ssize_t got = 1; got > 0 && size < room; size += (size_t)got) {
        got = RETRY(read(program, (char *)filter + size, room - size));
        if (got < 0)
            end_errno("--seccomp: cannot read the program");
    }
    close(program);
    if (size == 0 || size == room || size % sizeof *filter != 0) {
        errno = EINVAL;
        end_errno("--seccomp: not 1 to 4096 instructions");
    }
    struct sock_fprog code = {(unsigned short)(size / sizeof *filter), filter};
    int listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &code);
    if (listener < 0)
        end_errno("--seccomp: cannot install the filter");
    free(filter);
    filtered = true;
    return listener;
}

/*
 * A filter cannot see clone3's flags, which are in memory; with ENOSYS libc falls back to clone, whose flags
 * the host's filter does see. It is not in the host's filter because the agent itself needs clone3 (join.c).
 */
bool confine_child(void) {
    if (!filtered)
        return true;
    struct sock_filter no_clone3[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~X32_BIT),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1), /* the same number on every architecture */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog code = {sizeof no_clone3 / sizeof no_clone3[0], no_clone3};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &code) == 0;
}

/*
 * The files in /proc/self of a process that is not dumpable belong to root, proc(5). Without root all commands
 * have the agent's uid, and this child is already one of them in all but exec, so to be dumpable for a moment
 * opens nothing that they could not open after it.
 */
void confine_oom_score(bool root) {
    if (!root)
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    raise_oom_score();
    if (!root)
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

void confine_default_signals(void) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL); /* the only one the agent changed */
    sigprocmask(SIG_SETMASK, &none, NULL);
}
