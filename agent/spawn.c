/* Starting a command, the parent's side: pipes, watches, fork; see stream.h. */
#include "stream.h"

#include <sys/epoll.h>

#include "child.h"
#include "end.h"
#include "lazy.h"
#include "loop.h"

static int dev_null = -1; /* opened before the guest could put something else in its place */
static struct rlimit nofile;
/* A START's payload and, after it, the vectors: every string of the payload is at least one byte of it. */
#define SCRATCH (FRAME_MAX + (FRAME_MAX + 4) * sizeof(char *))
static uint8_t *scratch;

void spawn_open(void) {
    dev_null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (dev_null < 0)
        end_errno("/dev/null");
    if (getrlimit(RLIMIT_NOFILE, &nofile) != 0)
        end_errno("RLIMIT_NOFILE");
    /* 1024 streams need 3 fds each; commands get the old limit back. */
    struct rlimit raised = {nofile.rlim_max, nofile.rlim_max};
    setrlimit(RLIMIT_NOFILE, &raised);
    /* Inherited by all commands. core(5): 1 is too small for a file and, unlike 0, keeps the host's dump program away. */
    struct rlimit none = {1, 1};
    if (setrlimit(RLIMIT_CORE, &none) != 0) {
        none.rlim_cur = none.rlim_max = 0; /* never refused */
        setrlimit(RLIMIT_CORE, &none);
    }
    scratch = lazy_map(SCRATCH, true);
}

/* A pipe whose ours end (0 reads, 1 writes) does not block; the other is the command's, which expects to. */
static bool open_pipe(int ours, int *mine, int *theirs) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return false;
    fcntl(fds[ours], F_SETFL, O_NONBLOCK);
    *mine = fds[ours];
    *theirs = fds[1 - ours];
    return true;
}

/* The command's stdout or stderr: the stream gets one end, *theirs is the other. */
static bool open_output(struct stream *stream, unsigned i, uint32_t window, int *theirs) {
    struct output *output = &stream->out[i];
    output->credit = window;
    return open_pipe(0, &output->fd, theirs)
        && loop_watch(SET_OUTPUTS, output->fd, window > 0 ? (uint32_t)EPOLLIN : QUIET, stream_slot(stream),
                      i == 0 ? ROLE_STDOUT : ROLE_STDERR);
}

static bool open_stdin(struct stream *stream, const struct start *start, int *theirs) {
    stream->in.credit = STDIN_WINDOW;
    if (!start->stdin_pipe) {
        *theirs = dev_null;
        return true;
    }
    int mine;
    if (!open_pipe(1, &mine, theirs))
        return false;
    if (input_open(stream, mine))
        return true;
    int error = errno;
    close(mine);
    errno = error;
    return false;
}

static bool open_all(struct stream *stream, struct child *child) {
    const struct start *start = child->start;
    return open_pipe(0, &stream->status_fd, &child->status)
        && loop_watch(SET_MAIN, stream->status_fd, EPOLLIN, stream_slot(stream), ROLE_STATUS)
        && open_output(stream, 0, start->window, &child->stdio[1])
        && open_output(stream, 1, start->window, &child->stdio[2])
        && open_stdin(stream, start, &child->stdio[0]);
}

static void close_all(struct child *child) {
    const int fds[4] = {child->stdio[0], child->stdio[1], child->stdio[2], child->status};
    for (int i = 0; i < 4; i++)
        if (fds[i] >= 0 && fds[i] != dev_null)
            close(fds[i]);
}

/* 0, or an errno and the stage it belongs to. */
static int start_child(struct stream *stream, struct child *child, enum stage *stage) {
    bool cgroup;
    *stage = STAGE_RESOURCES;
    if (!open_all(stream, child))
        return errno;
    stream->pid = join_fork(child->start->leaf, &cgroup);
    if (stream->pid == 0)
        child_run(child);
    if (stream->pid > 0)
        return 0;
    *stage = cgroup ? STAGE_CGROUP : STAGE_RESOURCES;
    return errno;
}

const char *spawn(const struct frame *frame) {
    /* The channel's buffer is not inherited by children, so what they need of the payload goes to scratch. */
    struct start start;
    memcpy(scratch, frame->payload, frame->length);
    const char *wrong = start_parse(scratch, frame->length, &start);
    if (wrong != NULL)
        return wrong;
    size_t aligned = (frame->length + sizeof(char *) - 1) / sizeof(char *) * sizeof(char *);
    struct vectors vectors = start_vectors(&start, (char **)(void *)(scratch + aligned));

    struct stream *stream = stream_claim(frame->stream);
    if (stream == NULL) {
        stream_error(frame->stream, STAGE_RESOURCES, EAGAIN);
        return NULL;
    }
    struct child child = {
        .start = &start, .vectors = &vectors, .stdio = {-1, -1, -1}, .status = -1, .nofile = nofile};
    enum stage stage;
    int error = start_child(stream, &child, &stage);
    close_all(&child);
    if (error != 0) {
        stream_error(stream->id, stage, error);
        stream_release(stream);
    }
    size_t used = aligned + (start.argc + start.envc + 3) * sizeof(char *);
    lazy_trim(scratch, &used);
    return NULL;
}
