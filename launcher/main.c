/* atoll-launch: sets one sandbox up out of the ops in argv and becomes the program after `--`.
 *
 *     atoll-launch OP WORD... OP WORD... -- PROGRAM ARG...
 *
 * Called only by Atoll's host side, which composes argv; README.md has the ops and their order. All arguments are
 * read and judged before the first op acts. Nothing here outlives exec except the namespaces, the kept fds and the ids. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct kind kinds[] = {
	/* name        words subject staged check          run */
	{"write",        2,  0, false, check_write,   op_write},
	{"cgroupns",     0, -1, false, NULL,          op_cgroupns},
	{"cpus",         1,  0, false, check_cpus,    op_cpus},
	{"stage",        1,  0, false, check_stage,   op_stage},
	{"layer",        3,  0, true,  check_layer,   op_layer},
	{"pts",          2,  0, true,  check_pts,     op_pts},
	{"dir",          4,  0, true,  check_dir,     op_dir},
	{"file",         5,  0, true,  check_file,    op_file},
	{"symlink",      2,  1, true,  check_symlink, op_symlink},
	{"tree",         3,  1, true,  check_tree,    op_tree},
	{"idtree",       7,  1, true,  check_idtree,  op_tree},
	{"cgroupdir",    2,  0, true,  check_keep,    NULL},
	{"overlay",      5,  0, true,  check_overlay, op_overlay},
	{"userns",       2,  0, false, check_userns,  op_userns},
	{"userns-self",  0, -1, false, NULL,          op_userns_self},
	{"keep",         2,  0, false, check_keep,    NULL},
};

static const struct kind program_kind = {"exec", 1, 0, false, check_program, run_program};

struct op ops[OPS_MAX];
int op_count;
const struct op *current;
pid_t parent;

/* Writes one line to stderr; bytes that could end the line or start an escape sequence become \xNN. */
_Noreturn static void say(const char *step, const char *what, const char *why)
{
	char shown[4 * 200 + 1] = "";
	size_t used = 0;
	for (const char *c = what; c && *c && used < sizeof shown - 5; c++) {
		if ((unsigned char)*c < ' ' || (unsigned char)*c > '~' || *c == '\\')
			used += (size_t)snprintf(shown + used, 5, "\\x%02x", (unsigned char)*c);
		else
			shown[used++] = *c;
	}
	dprintf(STDERR_FILENO, "atoll-launch: %s%s%.*s: %s\n", step, what ? " " : "", (int)used, shown, why);
	reap_helpers();
	_exit(EXIT_LAUNCH);
}

void fail_at(const char *step, const char *what, int error)
{
	say(step, what, strerror(error));
}

void refuse(const char *why)
{
	int subject = current->kind->subject;
	say(current->kind->name, subject < 0 ? NULL : current->word[subject], why);
}

void fail(int error)
{
	refuse(strerror(error));
}

/* Decimal digits only: no sign, no space, no 0x, nothing that strtoull(3) would forgive. */
uint64_t number(const char *text, uint64_t least, uint64_t most)
{
	uint64_t value = 0;
	if (!*text)
		refuse("empty number");
	for (; *text; text++) {
		unsigned digit = (unsigned)*text - '0';
		if (digit > 9 || digit > most || value > (most - digit) / 10)
			refuse("not a number in range");
		value = value * 10 + digit;
	}
	if (value < least)
		refuse("not a number in range");
	return value;
}

/* An inherited fd; 0, 1 and 2 belong to the program and are no op's business. */
int number_fd(const char *text)
{
	int fd = (int)number(text, 3, FD_MAX);
	if (fcntl(fd, F_GETFD) < 0)
		fail(errno);
	return fd;
}

static const struct kind *find_kind(const char *name)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (strcmp(kinds[i].name, name) == 0)
			return &kinds[i];
	say("unknown op", name, "see launcher/README.md");
}

static bool is(const struct op *op, const char *name)
{
	return strcmp(op->kind->name, name) == 0;
}

/* Fills ops[] from argv; what follows `--` becomes the last op. */
static struct op parse(char **argv)
{
	struct op program = {.kind = &program_kind, .mount = -1};
	bool staged = false, mapped = false;
	while (*argv && strcmp(*argv, "--") != 0) {
		if (op_count == OPS_MAX)
			fail_at("argv", NULL, E2BIG);
		struct op *op = &ops[op_count];
		op->kind = find_kind(*argv++);
		op->word = argv;
		op->mount = -1;
		for (int i = 0; i < op->kind->words; i++)
			if (!*argv++)
				say(op->kind->name, NULL, "words missing");
		current = op;
		op_count++;
		if (op->kind->staged && !staged)
			refuse("needs `stage` before it");
		if ((is(op, "stage") && staged) || (op->kind->run == op_userns && mapped) ||
		    (op->kind->run == op_userns_self && mapped))
			refuse("more than once");
		staged = staged || is(op, "stage");
		mapped = mapped || op->kind->run == op_userns || op->kind->run == op_userns_self;
		if (op->kind->check)
			op->kind->check(op);
	}
	if (!*argv || !argv[1])
		say("argv", NULL, "no program after --");
	program.word = argv + 1;
	current = &program;
	check_program(&program);
	/* A user namespace that maps ids from 65536 up, or our own unprivileged id, is the only way for a root caller to
	 * stop being kernel uid 0; capabilities dropped later do not help, since files of /proc and /sys ask for the uid. */
	uid_t real, effective, saved;
	if (getresuid(&real, &effective, &saved) < 0)
		fail_at("uid", NULL, errno);
	if (!mapped && (!real || !effective || !saved))
		say("refused", NULL, "would run as kernel uid 0");
	return program;
}

int main(int argc, char **argv)
{
	(void)argc;
	parent = getppid();
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			fail_at("stdio", NULL, errno);
	struct op program = parse(argv + 1);
	reset_process();
	for (int i = 0; i < op_count; i++) {
		current = &ops[i];
		if (current->kind->run)
			current->kind->run(&ops[i]);
	}
	current = &program;
	run_program(&program);
}
