/* What the launcher's files share: the op being run, how to fail, how to read an argument.
 *
 * One op is one word of argv and a fixed number of words after it; main.c owns the table and the order, the other files
 * own the functions. Every function either succeeds or ends the process through fail(): a half-built sandbox
 * disappears with the process, because everything in it hangs on the process's namespaces. */
#ifndef ATOLL_LAUNCH_H
#define ATOLL_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { EXIT_LAUNCH = 125, OPS_MAX = 512, FD_MAX = 1 << 20, KEPT_FD_MAX = 255, ID_FLOOR = 65536 };

struct op;

struct kind {
	const char *name;
	int words;                     /* how many argv words follow the name */
	int subject;                   /* which of them an error message shows; -1: none */
	bool staged;                   /* its names lie below the stage, so `stage` must have run */
	void (*check)(struct op *);    /* reads the arguments; runs for all ops before the first one acts */
	void (*run)(struct op *);
};

struct op {
	const struct kind *kind;
	char **word;
	int fd;                        /* the inherited fd it works on, if it names one */
	int to;                        /* keep, cgroupdir: the number that the program will see */
	int mount;                     /* tree, idtree, cgroupdir: the detached clone (see op_stage) */
	bool read_only;
	unsigned id[4];
	uint64_t size[2];
	mode_t mode;
};

/* main.c */
extern struct op ops[];
extern int op_count;
extern const struct op *current;
extern pid_t parent;                                  /* who started the launcher, read first of all */
_Noreturn void fail(int error);                       /* "atoll-launch: OP ARG: strerror", exit 125 */
_Noreturn void refuse(const char *why);               /* the same with words of our own */
_Noreturn void fail_at(const char *step, const char *what, int error);   /* for a step that is no op */
int number_fd(const char *text);
uint64_t number(const char *text, uint64_t least, uint64_t most);

/* ids.c */
int new_userns(const char *uid_map, const char *gid_map);
void reap_helpers(void);
void check_userns(struct op *), op_userns(struct op *), op_userns_self(struct op *);

/* files.c */
void check_name(const char *name);
void own_filesystem(int fd);
int mountpoint(const char *name, mode_t type);
void check_dir(struct op *), op_dir(struct op *);
void check_file(struct op *), op_file(struct op *);
void check_symlink(struct op *), op_symlink(struct op *);

/* mounts.c */
void check_stage(struct op *), op_stage(struct op *);
void check_tree(struct op *), op_tree(struct op *);
void check_idtree(struct op *);
void check_layer(struct op *), op_layer(struct op *);
void check_pts(struct op *), op_pts(struct op *);
void check_overlay(struct op *), op_overlay(struct op *);

/* exec.c */
void check_write(struct op *), op_write(struct op *);
void check_cpus(struct op *), op_cpus(struct op *);
void check_keep(struct op *);
void op_cgroupns(struct op *);
void check_program(struct op *), run_program(struct op *);
void reset_process(void);

#endif
