/* The stage and everything mounted on it: host trees, layers, overlays. */
#include "launch.h"
#include "kernel.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool is_kind(const struct op *op, void (*check)(struct op *))
{
	return op->kind->check == check;
}

static bool is_mount_source(const struct op *op)
{
	return is_kind(op, check_tree) || is_kind(op, check_idtree) || strcmp(op->kind->name, "cgroupdir") == 0;
}

static struct stat stat_fd(int fd)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		fail(errno);
	return st;
}

/* The file of fd found again by its name, which makes it a file of the current mount namespace; unprivileged callers
 * need that, since open_tree(2) refuses to clone a mount of the namespace they came from. A name can be moved or covered
 * between the two looks, so the result must be the same inode of the same device. proc(5): /proc/self/fd/N. */
static int find_again(int fd)
{
	char link[32], path[PATH_MAX];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, path, sizeof path);
	if (length < 0)
		fail(errno);
	if (length == (ssize_t)sizeof path)
		fail(ENAMETOOLONG);
	path[length] = '\0';
	int again = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (again < 0)
		fail(errno);
	struct stat was = stat_fd(fd), is = stat_fd(again);
	if (was.st_dev != is.st_dev || was.st_ino != is.st_ino)
		refuse("the name of this fd leads to another file");
	return again;
}

/* The user namespace that only carries an id map. mount_setattr(2): the map's first column is the id on disk, the second
 * the id it is shown as; any other id is shown as the overflow id and cannot be written. */
static int idmap(const struct op *op)
{
	char uid_map[48], gid_map[48];
	snprintf(uid_map, sizeof uid_map, "%u %u 1\n", op->id[0], op->id[2]);
	snprintf(gid_map, sizeof gid_map, "%u %u 1\n", op->id[1], op->id[3]);
	return new_userns(uid_map, gid_map);
}

/* The detached clone for one tree, idtree or cgroupdir, with its final flags. open_tree(2), mount_setattr(2).
 * Propagation is cut before anything is mounted on the clone: a clone of a shared mount is a peer of it, and what
 * happens on a peer happens on the host. */
static int detached_clone(const struct op *op, bool by_name)
{
	struct mount_change change = {.set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, .propagation = MS_PRIVATE};
	unsigned depth = is_kind(op, check_tree) ? AT_RECURSIVE : 0;
	int source = by_name ? find_again(op->fd) : op->fd;
	int mount = open_tree_clone(source, depth);
	if (mount < 0)
		fail(errno);
	if (by_name)
		close(source);
	if (op->read_only)
		change.set |= MOUNT_ATTR_RDONLY;
	if (is_kind(op, check_idtree)) {
		change.set |= MOUNT_ATTR_IDMAP;
		change.userns_fd = (uint64_t)idmap(op);
	}
	if (change_mount(mount, depth, &change) < 0) {
		if (errno == EINVAL && is_kind(op, check_idtree))
			refuse("its file system does not support idmapped mounts");
		fail(errno);
	}
	if (is_kind(op, check_idtree))
		close((int)change.userns_fd);
	return mount;
}

static void take_sources(const struct op *stage, bool by_name)
{
	for (struct op *op = ops; op < ops + op_count; op++) {
		if (!is_mount_source(op))
			continue;
		current = op;
		op->mount = detached_clone(op, by_name);
	}
	current = stage;
}

void check_stage(struct op *op)
{
	if (op->word[0][0] != '/')
		refuse("not an absolute path");
}

/* stage DIR: a mount namespace of our own (unshare(2)), nothing of it shared with the host (mount_namespaces(7)), and a
 * small tmpfs(5) on DIR as the place where all names begin.
 * The sources of later ops are cloned here: with CAP_SYS_ADMIN still in the host's namespace and by fd, exactly the
 * mounts that the caller opened; after `userns` or `userns-self` in the new namespace and by name. Both before the
 * tmpfs covers DIR, below which a source may lie. */
void op_stage(struct op *op)
{
	struct stat before, after;
	const char *dir = op->word[0];
	bool by_name = false;
	for (const struct op *earlier = ops; earlier < op; earlier++)
		by_name = by_name || earlier->kind->run == op_userns || earlier->kind->run == op_userns_self;
	if (!by_name)
		take_sources(op, false);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		fail(errno);
	if (by_name)
		take_sources(op, true);
	if (stat(dir, &before) < 0 || mount("tmpfs", dir, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755") < 0)
		fail(errno);
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fchdir(fd) < 0 || fstat(fd, &after) < 0)
		fail(errno);
	/* a mount on "/" is above the root of this process and not what its name leads to */
	if (after.st_dev == before.st_dev)
		refuse("cannot be mounted on");
	own_filesystem(fd);
	close(fd);
}

void check_tree(struct op *op)
{
	op->fd = number_fd(op->word[0]);
	check_name(op->word[1]);
	op->read_only = strcmp(op->word[2], "ro") == 0;
	if (!op->read_only && strcmp(op->word[2], "rw") != 0)
		refuse("neither ro nor rw");
}

/* idtree: U and G are any ids on disk; TOU and TOG are the host's ids and never root's. */
void check_idtree(struct op *op)
{
	check_tree(op);
	for (int i = 0; i < 4; i++)
		op->id[i] = (unsigned)number(op->word[3 + i], i < 2 ? 0 : ID_FLOOR, UINT32_MAX - 1);
}

/* tree FD NAME ro|rw, idtree FD NAME ro|rw U G TOU TOG: move_mount(2) of the clone that op_stage took. */
void op_tree(struct op *op)
{
	mode_t type = stat_fd(op->mount).st_mode & S_IFMT;
	if (type != S_IFDIR && type != S_IFREG)
		refuse("neither a directory nor a regular file");
	int target = mountpoint(op->word[1], type);
	if (attach_mount(op->mount, target) < 0)
		fail(errno);
	close(target);
	close(op->mount);
}

/* mount(2) on a fd: the path of proc(5) leads to the very place that mountpoint() walked to. */
static void mount_at(const char *name, const char *type, unsigned long flags, const char *options)
{
	char path[32];
	int target = mountpoint(name, S_IFDIR);
	snprintf(path, sizeof path, "/proc/self/fd/%d", target);
	if (mount(type, path, type, flags, options) < 0)
		fail(errno);
	close(target);
	int root = mountpoint(name, S_IFDIR);
	own_filesystem(root);
	close(root);
}

/* tmpfs(5): 0 would mean no limit at all, so it is out of range. */
void check_layer(struct op *op)
{
	check_name(op->word[0]);
	op->size[0] = number(op->word[1], 1, INT64_MAX);
	op->size[1] = number(op->word[2], 1, INT64_MAX);
}

/* layer NAME BYTES INODES: tmpfs(5). Run before `userns` it belongs to the host's user namespace, and not even
 * CAP_SYS_ADMIN inside the sandbox can remount it larger. */
void op_layer(struct op *op)
{
	char options[80];
	snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=755", (unsigned long long)op->size[0],
	         (unsigned long long)op->size[1]);
	mount_at(op->word[0], "tmpfs", MS_NOSUID | MS_NODEV, options);
}

void check_pts(struct op *op)
{
	check_name(op->word[0]);
	op->size[0] = number(op->word[1], 1, 1 << 20);
}

/* pts NAME MAX: an instance of devpts(5) with room for MAX terminals. Without a limit of its own, one sandbox could take
 * all that kernel.pty.max leaves to the sandboxes of the host. */
void op_pts(struct op *op)
{
	char options[80];
	snprintf(options, sizeof options, "newinstance,ptmxmode=666,mode=620,max=%llu", (unsigned long long)op->size[0]);
	mount_at(op->word[0], "devpts", MS_NOSUID | MS_NOEXEC, options);
}

/* mount(2) hands overlay one option string, in which : , \ have a meaning: only names without them are taken for the
 * three that go into it. */
void check_overlay(struct op *op)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_/-";
	for (int i = 0; i < 4; i++) {
		check_name(op->word[i]);
		if (i > 0 && (strlen(op->word[i]) > 512 || strspn(op->word[i], plain) != strlen(op->word[i])))
			refuse("lower, upper and work are made of A-Z a-z 0-9 _ / - only");
	}
	op->mode = strcmp(op->word[4], "userxattr") == 0;
	if (!op->mode && strcmp(op->word[4], "trusted") != 0)
		refuse("neither userxattr nor trusted");
}

/* overlay NAME LOWER UPPER WORK userxattr|trusted: the kernel's Documentation/filesystems/overlayfs.rst. The three paths
 * are relative to the stage, which is the working directory. redirect_dir and metacopy would make the overlay
 * believe paths and inode references that a guest can write into upper-layer attributes: off. */
void op_overlay(struct op *op)
{
	char options[2048];
	snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s,redirect_dir=nofollow,metacopy=off,index=off%s",
	         op->word[1], op->word[2], op->word[3], op->mode ? ",userxattr" : "");
	mount_at(op->word[0], "overlay", MS_NOSUID | MS_NODEV, options);
}
