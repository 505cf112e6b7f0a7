/*
 * atoll-agent: the first process of a sandbox. It starts commands for the host and carries their bytes, over
 * the two pipes that are its stdin and stdout. README.md has the order in which to read the files.
 */
#include "channel.h"
#include "child.h"
#include "confine.h"
#include "end.h"
#include "loop.h"
#include "stream.h"

struct options {
    int seccomp; /* fd of the program, or -1 */
    bool limit_capabilities;
    uint64_t capabilities;
};

static uint64_t parse_number(const char *text, int base, const char *what) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, base);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-')
        end_usage(what);
    return value;
}

/* An inherited fd; no command may inherit it in turn. */
static int parse_fd(const char *text, const char *what) {
    uint64_t fd = parse_number(text, 10, what);
    if (fd < 3 || fd > INT32_MAX || fcntl((int)fd, F_SETFD, FD_CLOEXEC) != 0)
        end_usage(what);
    return (int)fd;
}

static struct options parse(int argc, char **argv) {
    struct options options = {.seccomp = -1};
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1]; /* argv[argc] is NULL */
        if (value == NULL)
            end_usage("an option lacks its value");
        if (strcmp(name, "--seccomp") == 0)
            options.seccomp = parse_fd(value, "--seccomp: not an open fd");
        else if (strcmp(name, "--cgroup1") == 0) {
            if (!join_add_v1(parse_fd(value, "--cgroup1: not an open fd")))
                end_usage("--cgroup1 given too often");
        } else if (strcmp(name, "--cgroup2") == 0) {
            if (!join_add_v2(parse_fd(value, "--cgroup2: not an open fd")))
                end_usage("--cgroup2 given twice");
        } else if (strcmp(name, "--keep-caps") == 0) {
            options.capabilities = parse_number(value, 16, "--keep-caps: not a hexadecimal mask");
            options.limit_capabilities = true;
        } else
            end_usage("unknown option");
    }
    return options;
}

/* The channel and stderr; pipes of commands must never land on these numbers. */
static void check_channel(void) {
    for (int fd = 0; fd < 3; fd++) {
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || (fd < 2 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0))
            end_usage("fds 0, 1 and 2 must be open");
    }
}

int main(int argc, char **argv) {
    check_channel();
    struct options options = parse(argc, argv);
    confine_start();
    if (chdir("/") != 0)
        end_errno("/");
    spawn_open();
    stream_open();
    confine_capabilities(options.limit_capabilities ? &options.capabilities : NULL);
    channel_open(options.seccomp >= 0 ? confine_seccomp(options.seccomp) : -1);
    loop_run();
}
