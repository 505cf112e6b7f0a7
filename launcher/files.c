/* Names below the stage and what the launcher itself creates there: directories, files, symbolic links, mount points.
 *
 * Names are taken byte for byte and walked one component at a time, never through a symbolic link. Things are created only
 * in file systems that this process mounted (stage, layers, overlays): a name that strays into an attached host tree
 * is an error, never a change to the host. What has no ids of its own takes the owner of the directory it is made in. */
#include "launch.h"
#include "kernel.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

enum { OWN_MAX = 32 };

static dev_t own[OWN_MAX];
static int own_count;

/* Relative, canonical, below: no empty component, no "." and no "..". */
void check_name(const char *name)
{
	if (strlen(name) >= PATH_MAX)
		fail(ENAMETOOLONG);
	for (const char *part = name;; part++) {
		size_t length = strcspn(part, "/");
		if (length == 0 || (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.'))
			refuse("not a relative name without . and ..");
		if (length > NAME_MAX)
			fail(ENAMETOOLONG);
		part += length;
		if (!*part)
			return;
	}
}

/* fstat(2), for AT_FDCWD too. */
static struct stat status(int fd)
{
	struct stat st;
	if (fstatat(fd, "", &st, AT_EMPTY_PATH) < 0)
		fail(errno);
	return st;
}

static void leave(int at)
{
	if (at != AT_FDCWD)
		close(at);
}

/* Notes that the file system of fd was mounted here, so that things may be created in it. */
void own_filesystem(int fd)
{
	if (own_count == OWN_MAX)
		fail(ENOSPC);
	own[own_count++] = status(fd).st_dev;
}

/* The status of a directory in which, or on which, the launcher is about to change something. */
static struct stat own_status(int fd)
{
	struct stat st = status(fd);
	for (int i = 0; i < own_count; i++)
		if (own[i] == st.st_dev)
			return st;
	refuse("lies in an attached tree: nothing is created there");
}

/* mkdir(2) in the directory `at`, owned like it. */
static void make_dir(int at, const char *name)
{
	struct stat above = own_status(at);
	if (mkdirat(at, name, 0755) < 0 || fchownat(at, name, above.st_uid, above.st_gid, AT_SYMLINK_NOFOLLOW) < 0)
		fail(errno);
}

/* Opens the directory NAME of `at`. open(2): O_DIRECTORY|O_NOFOLLOW makes a symbolic link ENOTDIR. */
static int open_dir(int at, const char *name, int access)
{
	return openat(at, name, access | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* The same, made if it is missing; leaves `at`. */
static int step(int at, const char *name)
{
	int fd = open_dir(at, name, O_PATH);
	if (fd < 0 && errno == ENOENT) {
		make_dir(at, name);
		fd = open_dir(at, name, O_PATH);
	}
	if (fd < 0)
		fail(errno);
	leave(at);
	return fd;
}

/* Opens the directory that holds NAME's last component, making what is missing, and points *last at that component. */
static int parent_of(const char *name, const char **last)
{
	char part[NAME_MAX + 1];
	int at = AT_FDCWD;
	for (const char *slash; (slash = strchr(name, '/')); name = slash + 1) {
		size_t length = (size_t)(slash - name);
		if (length > NAME_MAX)
			fail(ENAMETOOLONG);
		memcpy(part, name, length);
		part[length] = '\0';
		at = step(at, part);
	}
	*last = name;
	return at;
}

/* The place NAME as an O_PATH fd for a mount of that type (S_IFDIR or S_IFREG), created if missing. */
int mountpoint(const char *name, mode_t type)
{
	const char *last;
	int at = parent_of(name, &last);
	/* open(2): O_PATH|O_NOFOLLOW opens a symbolic link itself, so the type is compared below */
	int fd = openat(at, last, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0) {
		leave(at);
	} else if (errno == ENOENT && type == S_IFDIR) {
		fd = step(at, last);
	} else if (errno == ENOENT) {
		own_status(at);
		fd = openat(at, last, O_RDONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
		leave(at);
	}
	if (fd < 0)
		fail(errno);
	if ((status(fd).st_mode & S_IFMT) != type)
		fail(type == S_IFDIR ? ENOTDIR : EISDIR);
	return fd;
}

/* The words MODE UID GID. Ids are those of the user namespace in force when the op runs; -1, chown(2)'s "no change",
 * is out of range. */
static void check_owner(struct op *op)
{
	const char *mode = op->word[1];
	size_t length = strlen(mode);
	if (length == 0 || length > 5 || strspn(mode, "01234567") != length)
		refuse("mode is not octal");
	for (; *mode; mode++)
		op->mode = op->mode * 8 + (mode_t)(*mode - '0');
	if (op->mode > 01777)
		refuse("mode above 1777");
	op->id[0] = (unsigned)number(op->word[2], 0, UINT32_MAX - 1);
	op->id[1] = (unsigned)number(op->word[3], 0, UINT32_MAX - 1);
}

void check_dir(struct op *op)
{
	check_name(op->word[0]);
	check_owner(op);
}

/* dir NAME MODE UID GID: mkdir(2), its mode exact because the umask is 0, of NAME and what is missing above it; an
 * existing NAME, for instance a layer's root, gets the mode and the ids. */
void op_dir(struct op *op)
{
	const char *last;
	int at = parent_of(op->word[0], &last);
	int fd = open_dir(at, last, O_RDONLY);
	if (fd >= 0) {
		own_status(fd);
		if (fchown(fd, op->id[0], op->id[1]) < 0 || fchmod(fd, op->mode) < 0)
			fail(errno);
		close(fd);
	} else {
		if (errno != ENOENT)
			fail(errno);
		own_status(at);
		if (mkdirat(at, last, op->mode) < 0 || fchownat(at, last, op->id[0], op->id[1], AT_SYMLINK_NOFOLLOW) < 0)
			fail(errno);
	}
	leave(at);
}

void check_file(struct op *op)
{
	check_dir(op);
}

/* file NAME MODE UID GID TEXT: open(2) with O_EXCL: never an existing file, never through a link. */
void op_file(struct op *op)
{
	const char *last, *text = op->word[4];
	int at = parent_of(op->word[0], &last);
	own_status(at);
	int fd = openat(at, last, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, op->mode);
	if (fd < 0)
		fail(errno);
	for (size_t left = strlen(text); left;) {
		ssize_t done = write(fd, text, left);
		if (done < 0)
			fail(errno);
		text += done;
		left -= (size_t)done;
	}
	if (fchown(fd, op->id[0], op->id[1]) < 0)
		fail(errno);
	close(fd);
	leave(at);
}

void check_symlink(struct op *op)
{
	check_name(op->word[1]);
}

/* symlink TARGET NAME: symlink(2); TARGET is any text, resolved only by the guest. */
void op_symlink(struct op *op)
{
	const char *last;
	int at = parent_of(op->word[1], &last);
	struct stat above = own_status(at);
	if (symlinkat(op->word[0], at, last) < 0 ||
	    fchownat(at, last, above.st_uid, above.st_gid, AT_SYMLINK_NOFOLLOW) < 0)
		fail(errno);
	leave(at);
}
