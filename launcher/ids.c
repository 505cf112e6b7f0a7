/* User namespaces: how the launcher stops being kernel uid 0, and the id maps of idmapped mounts. */
#include "launch.h"
#include "kernel.h"

#include <errno.h>
#include <grp.h>
#include <linux/securebits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		fail_at(current->kind->name, path, errno);
	/* user_namespaces(7): a map is written with a single write(2) */
	if (write(fd, text, strlen(text)) < 0)
		fail_at(current->kind->name, path, errno);
	close(fd);
}

static pid_t helpers[OPS_MAX];
static int helper_count;
static int gate = -1;

/* A new user namespace with the given maps, as a fd. user_namespaces(7): the maps must be written from the parent
 * namespace by a process with CAP_SETUID and CAP_SETGID there, so a helper is the one that enters the new namespace.
 * All it does is wait for the gate, a pipe, to close; should this process die, the gate closes as well. */
int new_userns(const char *uid_map, const char *gid_map)
{
	char path[64];
	int pipe[2];
	if (pipe2(pipe, O_CLOEXEC) < 0)
		fail(errno);
	/* clone(2): no CLONE_VM and no new stack, hence like fork(2), but born inside the namespace */
	pid_t helper = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
	if (helper < 0)
		fail(errno);
	if (helper == 0) {
		char byte;
		close(pipe[1]);
		_exit(read(pipe[0], &byte, 1) != 0);
	}
	gate = pipe[1];
	helpers[helper_count++] = helper;
	snprintf(path, sizeof path, "/proc/%d/uid_map", helper);
	put(path, uid_map);
	snprintf(path, sizeof path, "/proc/%d/gid_map", helper);
	put(path, gid_map);
	snprintf(path, sizeof path, "/proc/%d/ns/user", helper);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		fail(errno);
	close(pipe[0]);
	close(pipe[1]);
	gate = -1;
	return fd;
}

/* wait(2) for the helpers, as late as possible: by then they have ended beside the launcher's own work. Neither the
 * program nor, after a failure, the host's init is left with children that it knows nothing of. */
void reap_helpers(void)
{
	if (gate >= 0)
		close(gate);
	for (int i = 0; i < helper_count; i++)
		waitpid(helpers[i], NULL, 0);
}

void check_userns(struct op *op)
{
	op->id[0] = (unsigned)number(op->word[0], ID_FLOOR, UINT32_MAX - 1);
	op->id[1] = (unsigned)number(op->word[1], 1, UINT32_MAX - op->id[0]);
}

/* A user namespace of the host's id OWNER. The kernel charges what it counts per user (inotify instances, pending signals,
 * bytes of message queues; user_namespaces(7), /proc/sys/user in namespaces(7)) to the owner of the namespace as well:
 * owned by root, a guest could use up what the daemons of the host may have. capabilities(7), SECBIT_NO_SETUID_FIXUP: the
 * change of the effective uid takes no capability; setns(2) into the namespace clears the flag. */
static int new_userns_of(unsigned owner, const char *map)
{
	if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0 || setresuid((uid_t)-1, owner, (uid_t)-1) < 0)
		fail(errno);
	int fd = new_userns(map, map);
	if (setresuid((uid_t)-1, 0, (uid_t)-1) < 0)
		fail(errno);
	return fd;
}

/* userns BASE COUNT: from here on uid and gid 0 are the host's BASE, with every capability, but only over what the new
 * namespace owns. */
void op_userns(struct op *op)
{
	char map[48];
	uid_t real, effective, saved;
	snprintf(map, sizeof map, "0 %u %u\n", op->id[0], op->id[1]);
	int fd = new_userns_of(op->id[0], map);
	/* setns(2) leaves the ids alone: they are still the host's 0, which the map does not contain, until setresuid(2) */
	if (setns(fd, CLONE_NEWUSER) < 0)
		fail(errno);
	close(fd);
	if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
		fail(errno);
	/* getresuid(2) answers 0 only for an id that the map contains, i.e. for the host's BASE */
	if (getresuid(&real, &effective, &saved) < 0 || real || effective || saved)
		refuse("uid is not 0 in the new namespace");
	/* mount_namespaces(7): a mount namespace owned by a less privileged user namespace locks the mounts it starts
	 * with: none can be unmounted alone, or lose a read-only, nosuid or nodev flag */
	if (unshare(CLONE_NEWNS) < 0)
		fail(errno);
	/* namespaces(7), /proc/sys/user: the limit of this namespace; no process in it can make a user namespace, in which
	 * it would be root again with a fresh set of capabilities. Writing asks for CAP_SYS_RESOURCE in the namespace. */
	put("/proc/sys/user/max_user_namespaces", "0\n");
}

/* userns-self: the one map an unprivileged user may write (user_namespaces(7)): own id, with setgroups(2) given up.
 * Nested user namespaces stay possible: bubblewrap makes one (and then forbids more, --disable-userns). */
void op_userns_self(struct op *op)
{
	(void)op;
	char map[32];
	uid_t uid = geteuid();
	gid_t gid = getegid();
	if (uid == 0)
		refuse("would run as kernel uid 0");
	if (unshare(CLONE_NEWUSER) < 0)
		fail(errno);
	put("/proc/self/setgroups", "deny");
	snprintf(map, sizeof map, "0 %u 1\n", uid);
	put("/proc/self/uid_map", map);
	snprintf(map, sizeof map, "0 %u 1\n", gid);
	put("/proc/self/gid_map", map);
}
