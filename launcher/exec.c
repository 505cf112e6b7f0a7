/* The process itself: control groups, processors, inherited fds, and the last steps before exec. */
#include "launch.h"
#include "kernel.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { CPUS_MAX = 8192, CPU_WORD = 8 * sizeof(unsigned long) };

extern char **environ;

void check_write(struct op *op)
{
	op->fd = number_fd(op->word[0]);
}

/* write FD TEXT: one write(2), as cgroups(7) asks for cgroup.procs and cgroup.subtree_control. */
void op_write(struct op *op)
{
	const char *text = op->word[1];
	ssize_t done = write(op->fd, text, strlen(text));
	if (done < 0)
		fail(errno);
	if (done != (ssize_t)strlen(text))
		refuse("short write");
	close(op->fd);
}

/* cgroupns: cgroup_namespaces(7): the cgroups this process is in now become the root that the sandbox sees. */
void op_cgroupns(struct op *op)
{
	(void)op;
	if (unshare(CLONE_NEWCGROUP) < 0)
		fail(errno);
}

static void read_cpus(const char *list, unsigned long *mask)
{
	char text[8];
	do {
		size_t length = strcspn(list, ",");
		if (length >= sizeof text)
			refuse("not a processor number");
		memcpy(text, list, length);
		text[length] = '\0';
		unsigned cpu = (unsigned)number(text, 0, CPUS_MAX - 1);
		mask[cpu / CPU_WORD] |= 1UL << cpu % CPU_WORD;
		list += length;
	} while (*list++);
}

void check_cpus(struct op *op)
{
	unsigned long mask[CPUS_MAX / CPU_WORD] = {0};
	read_cpus(op->word[0], mask);
}

/* cpus LIST: sched_setaffinity(2) on a mask of our own, since cpu_set_t ends at 1024 processors. */
void op_cpus(struct op *op)
{
	unsigned long mask[CPUS_MAX / CPU_WORD] = {0};
	read_cpus(op->word[0], mask);
	if (syscall(SYS_sched_setaffinity, 0, sizeof mask, mask) < 0)
		fail(errno);
}

/* keep FD N, cgroupdir FD N */
void check_keep(struct op *op)
{
	op->fd = number_fd(op->word[0]);
	op->to = (int)number(op->word[1], 3, KEPT_FD_MAX);
	for (const struct op *other = ops; other < op; other++)
		if (other->to == op->to)
			refuse("number given twice");
}

/* What a program inherits without asking. signal(7): ignored signals and the mask; with SIGCHLD ignored, waitpid(2) would
 * fail here too. keyctl(2): the session keyring gives its holder the keys in it, whatever the uid; joined while
 * still the caller, so that the new one is in no sandbox's quota. Kernels without keys answer ENOSYS. */
void reset_process(void)
{
	sigset_t none;
	sigemptyset(&none);
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	if (sigprocmask(SIG_SETMASK, &none, NULL) < 0)
		fail_at("signal mask", NULL, errno);
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS)
		fail_at("session keyring", NULL, errno);
	/* core(5): a program in core_pattern is started as root of the host for every crash, whatever the limit, except at 1.
	 * Set here, where the hard limit may still be raised to that; the filter keeps guests from changing it. */
	struct rlimit core = {1, 1};
	setrlimit(RLIMIT_CORE, &core);
	umask(0);
}

/* Puts every kept fd at its number and marks all others close-on-exec; returns where the program's own fd
 * (0: it has none) is now.
 * In two steps, because a number asked for may at this moment be another fd that is still needed: fcntl(2) F_DUPFD
 * to above all of them first, dup2(2), which clears FD_CLOEXEC, after close_range(2). */
static int place_fds(int program)
{
	for (int i = 0; i < op_count; i++) {
		struct op *op = &ops[i];
		if (!op->to)
			continue;
		current = op;
		op->fd = fcntl(op->mount < 0 ? op->fd : op->mount, F_DUPFD_CLOEXEC, KEPT_FD_MAX + 1);
		if (op->fd < 0)
			fail(errno);
	}
	if (program && (program = fcntl(program, F_DUPFD_CLOEXEC, KEPT_FD_MAX + 1)) < 0)
		fail(errno);
	if (syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
		fail_at("close_range", NULL, errno);
	for (int i = 0; i < op_count; i++) {
		if (!ops[i].to)
			continue;
		current = &ops[i];
		if (dup2(ops[i].fd, ops[i].to) < 0)
			fail(errno);
	}
	return program;
}

/* PROGRAM: an absolute path, or fd:N for an inherited fd. */
void check_program(struct op *op)
{
	const char *path = op->word[0];
	if (strncmp(path, "fd:", 3) == 0)
		op->fd = number_fd(path + 3);
	else if (path[0] != '/')
		refuse("neither an absolute path nor fd:N");
}

/* Becomes the program: execve(2) of a path, or execveat(2) of a fd, for a program that the sandbox's uid cannot reach by
 * name or that the stage has covered. */
void run_program(struct op *op)
{
	reap_helpers();
	op->fd = place_fds(op->fd);
	current = op;
	umask(022);
	/* PR_SET_PDEATHSIG(2const): every change of credentials clears it, hence only now. A parent that died earlier shows
	 * in getppid(2) answering another process. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		fail(errno);
	if (getppid() != parent)
		refuse("the process that started this one is gone");
	if (op->fd)
		syscall(SYS_execveat, op->fd, "", op->word, environ, AT_EMPTY_PATH);
	else
		execve(op->word[0], op->word, environ);
	fail(errno);
}
