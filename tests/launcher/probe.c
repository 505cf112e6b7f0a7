/* What the launcher's tests do inside a sandbox when no shell tool does it plainly: one system call, its errno as the answer.
 *
 * Static, so that it runs whatever the root file system is. Every applet prints "ok" or the errno's name. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { JOIN_SESSION_KEYRING = 1, SEARCH = 10, SESSION_KEYRING = -3 };

static int answer(long result)
{
	puts(result < 0 ? strerrorname_np(errno) : "ok");
	return 0;
}

int main(int argc, char **argv)
{
	const char *applet = argc > 1 ? argv[1] : "";
	if (strcmp(applet, "hello") == 0)                    /* hello */
		return answer(0);
	if (strcmp(applet, "remount") == 0)                  /* remount PATH FLAGS: the flags of this mount only */
		return answer(mount("none", argv[2], NULL, MS_REMOUNT | MS_BIND | strtoul(argv[3], NULL, 10), NULL));
	if (strcmp(applet, "remount-fs") == 0)               /* remount-fs PATH OPTIONS: the file system itself */
		return answer(mount("none", argv[2], NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, argv[3]));
	if (strcmp(applet, "umount") == 0)                   /* umount PATH */
		return answer(umount2(argv[2], MNT_DETACH));
	if (strcmp(applet, "bind") == 0)                     /* bind FROM TO: without the mounts below FROM */
		return answer(mount(argv[2], argv[3], NULL, MS_BIND, NULL));
	if (strcmp(applet, "with-key") == 0) {               /* with-key PROGRAM ARG...: a session keyring with one key */
		if (syscall(SYS_keyctl, JOIN_SESSION_KEYRING, NULL) < 0 ||
		    syscall(SYS_add_key, "user", "atoll-test", "secret", 6, SESSION_KEYRING) < 0)
			return answer(-1);
		execv(argv[2], argv + 2);
		return answer(-1);
	}
	if (strcmp(applet, "find-key") == 0)                 /* find-key */
		return answer(syscall(SYS_keyctl, SEARCH, SESSION_KEYRING, "user", "atoll-test", 0));
	return 2;
}
