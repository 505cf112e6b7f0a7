/* Killing process trees through /proc; see end.h. */
#include "end.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/mman.h>

#define STOP_PASSES 32 /* a tree that forks faster than this many walks is killed as far as it is seen */
#define KILL_PASSES 8
#define PID_LIMIT (4u << 20) /* above every pid, proc_sys_kernel(5) */

struct tree {
    pid_t root;
    bool by_parent, by_session; /* what belongs: root and its descendants; the session root made */
    uint8_t *member;            /* indexed by pid, found so far */
};

struct process {
    pid_t pid, parent, session;
    char state;
};

/* proc_pid_stat(5). The program's name in it may hold any character, so the fields start after the last ')'. */
static bool read_stat(int proc, const char *name, struct process *process) {
    char path[32], text[512];
    snprintf(path, sizeof path, "%.20s/stat", name);
    int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false; /* gone since the directory was read, or no process */
    ssize_t size = RETRY(read(fd, text, sizeof text - 1));
    close(fd);
    if (size <= 0)
        return false;
    text[size] = '\0';
    const char *fields = strrchr(text, ')');
    process->pid = (pid_t)strtol(name, NULL, 10);
    return fields != NULL && process->pid > 0 && (unsigned)process->pid < PID_LIMIT
        && sscanf(fields, ") %c %d %*d %d", &process->state, &process->parent, &process->session) == 3;
}

static bool belongs(const struct tree *tree, const struct process *process) {
    return tree->member[process->pid] /* known before its parent died and it became the agent's */
        || (tree->by_parent && (process->pid == tree->root || tree->member[process->parent]))
        || (tree->by_session && process->session == tree->root);
}

/*
 * Signals what belongs and has not obeyed yet; returns how many. /proc lists parents nearly always before
 * their children; a child listed first is found by the next walk.
 */
static unsigned walk(struct tree *tree, int signo) {
    const char *obeyed = signo == SIGSTOP ? "TtZX" : "ZX";
    unsigned signalled = 0;
    DIR *proc = opendir("/proc");
    if (proc == NULL)
        return 0;
    struct process process;
    for (struct dirent *entry; (entry = readdir(proc)) != NULL;) {
        if (!read_stat(dirfd(proc), entry->d_name, &process) || !belongs(tree, &process))
            continue;
        tree->member[process.pid] = 1;
        if (process.pid != getpid() && strchr(obeyed, process.state) == NULL && kill(process.pid, signo) == 0)
            signalled++;
    }
    closedir(proc);
    return signalled;
}

/*
 * Stops the tree before killing it: a stopped parent neither forks nor leaves orphans, so once a walk finds
 * nothing new the whole tree is known.
 */
static void kill_found(struct tree tree) {
    tree.member = mmap(NULL, PID_LIMIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (tree.member == MAP_FAILED)
        return;
    for (int i = 0; i < STOP_PASSES && walk(&tree, SIGSTOP) > 0; i++)
        continue;
    for (int i = 0; i < KILL_PASSES && walk(&tree, SIGKILL) > 0; i++)
        continue;
    munmap(tree.member, PID_LIMIT);
}

void tree_kill(pid_t leader, bool present) {
    kill_found((struct tree){.root = leader, .by_parent = present, .by_session = true});
    kill(-leader, SIGKILL); /* what can be done without /proc */
    if (present)
        kill(leader, SIGKILL);
}

void tree_kill_all(void) {
    if (getpid() == 1)
        kill(-1, SIGKILL); /* reaches everything but init itself, kill(2) */
    else
        kill_found((struct tree){.root = getpid(), .by_parent = true});
}
