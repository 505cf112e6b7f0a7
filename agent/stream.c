/* Streams: the table, output and the end of a command; see stream.h. */
#include "stream.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "channel.h"
#include "end.h"
#include "lazy.h"
#include "loop.h"

static struct stream table[STREAMS_MAX];
static uint32_t top; /* slots from here on are free */
static uint32_t count;

#define CHUNK (DATA_MAX - FRAME_HEADER - 1) /* with its header it is just what an empty pipe takes, pipe(7) */
static uint8_t *chunk; /* holds output between read and writev, never longer */
static size_t chunk_peak;

uint32_t stream_count(void) {
    return count;
}

uint32_t stream_slot(const struct stream *stream) {
    return (uint32_t)(stream - table);
}

struct stream *stream_at(uint32_t slot) {
    return table[slot].id != 0 ? &table[slot] : NULL;
}

struct stream *stream_find(uint32_t id) {
    for (struct stream *s = table; s < table + top; s++)
        if (s->id == id)
            return s;
    return NULL;
}

struct stream *stream_claim(uint32_t id) {
    struct stream *free_slot = table;
    while (free_slot < table + top && free_slot->id != 0)
        free_slot++;
    if (free_slot == table + STREAMS_MAX)
        return NULL;
    if (free_slot == table + top)
        top++;
    count++;
    *free_slot = (struct stream){.id = id, .status_fd = -1, .out = {{.fd = -1}, {.fd = -1}}, .in = {.fd = -1}};
    return free_slot;
}

void stream_release(struct stream *stream) {
    loop_close(SET_MAIN, &stream->status_fd);
    loop_close(SET_OUTPUTS, &stream->out[0].fd);
    loop_close(SET_OUTPUTS, &stream->out[1].fd);
    input_close(stream);
    stream->id = 0;
    count--;
    while (top > 0 && table[top - 1].id == 0)
        top--;
}

void stream_error(uint32_t id, enum stage stage, int error) {
    const char *text = strerror(error);
    uint32_t length = (uint32_t)strnlen(text, 95);
    uint8_t payload[100] = {(uint8_t)stage};
    put_u32(payload + 1, (uint32_t)error);
    memcpy(payload + 5, text, length);
    out_frame(id, KIND_ERROR, payload, 5 + length);
}

/* Sends EXITED when it is due and frees the stream when nothing more can come. */
static void settle(struct stream *stream) {
    if (stream->reaped && !stream->exited_sent && stream->out[0].owed == 0 && stream->out[1].owed == 0) {
        out_frame(stream->id, KIND_EXITED, stream->exited, sizeof stream->exited);
        stream->exited_sent = true;
    }
    if (stream->exited_sent && stream->out[0].fd < 0 && stream->out[1].fd < 0)
        stream_release(stream);
}

/* Without credit the pipe is only watched for its end, which needs none. */
static void watch_output(struct stream *stream, unsigned i) {
    if (stream->out[i].fd >= 0)
        loop_change(SET_OUTPUTS, stream->out[i].fd, stream->out[i].credit > 0 ? (uint32_t)EPOLLIN : QUIET,
                    stream_slot(stream), i == 0 ? ROLE_STDOUT : ROLE_STDERR);
}

/* True once exec has succeeded (STARTED is sent before anything else); false if unknown yet or the stream is over. */
static bool resolve(struct stream *stream) {
    if (stream->status_fd < 0)
        return true;
    uint8_t report[5];
    ssize_t size = RETRY(read(stream->status_fd, report, sizeof report));
    if (size < 0 && errno == EAGAIN)
        return false;
    if (size == (ssize_t)sizeof report) {
        stream_error(stream->id, (enum stage)report[0], (int)get_u32(report + 1));
        stream_release(stream);
        return false;
    }
    loop_close(SET_MAIN, &stream->status_fd);
    uint8_t pid[4];
    put_u32(pid, (uint32_t)stream->pid);
    out_frame(stream->id, KIND_STARTED, pid, sizeof pid);
    for (unsigned i = 0; i < 2; i++)
        if (stream->out[i].credit == 0)
            watch_output(stream, i); /* again: its only event may have come too early */
    input_started(stream);
    return true;
}

static void end_output(struct stream *stream, unsigned i) {
    uint8_t fd = (uint8_t)(i + 1);
    loop_close(SET_OUTPUTS, &stream->out[i].fd);
    stream->out[i].owed = 0;
    out_frame(stream->id, KIND_EOF, &fd, 1);
}

static bool is_drained(int fd) {
    int pending = 0;
    struct pollfd state = {.fd = fd};
    return poll(&state, 1, 0) == 1 && (state.revents & POLLHUP) != 0 && ioctl(fd, FIONREAD, &pending) == 0
        && pending == 0;
}

static void read_output(struct stream *stream, unsigned i) {
    struct output *output = &stream->out[i];
    ssize_t size = RETRY(read(output->fd, chunk, output->credit < CHUNK ? output->credit : CHUNK));
    if (size > 0) {
        uint32_t bytes = (uint32_t)size;
        if (bytes > chunk_peak)
            chunk_peak = bytes;
        output->credit -= bytes;
        output->owed -= output->owed < bytes ? output->owed : bytes;
        out_data(stream->id, (uint8_t)(i + 1), chunk, bytes);
        if (output->credit == 0)
            watch_output(stream, i);
    } else if (size < 0 && errno == EAGAIN) {
        output->owed = 0;
    } else {
        end_output(stream, i);
    }
}

/*
 * Sends what EXITED waits for, as far as credit and channel allow. It does not wait for events, for there is
 * none when another process has taken the bytes: a command may read its own pipe.
 */
static void drain(struct stream *stream) {
    for (unsigned i = 0; i < 2; i++)
        while (stream->out[i].owed > 0 && stream->out[i].credit > 0 && !out_blocked())
            read_output(stream, i);
    settle(stream);
}

void stream_unblocked(void) {
    for (struct stream *s = table; s < table + top; s++)
        if (s->id != 0 && s->reaped && !s->exited_sent)
            drain(s);
}

void stream_output_event(struct stream *stream, unsigned i) {
    if (!resolve(stream) || stream->out[i].fd < 0)
        return;
    if (stream->out[i].credit > 0)
        read_output(stream, i);
    else if (is_drained(stream->out[i].fd))
        end_output(stream, i);
    settle(stream);
}

void stream_status_event(struct stream *stream) {
    if (resolve(stream))
        settle(stream);
}

void stream_credit(struct stream *stream, unsigned i, uint32_t bytes) {
    struct output *output = &stream->out[i];
    bool had_none = output->credit == 0;
    output->credit += bytes;
    if (had_none && bytes > 0)
        watch_output(stream, i);
    if (stream->reaped && !stream->exited_sent)
        drain(stream);
}

static uint64_t microseconds(struct timeval time) {
    return (uint64_t)time.tv_sec * 1000000u + (uint64_t)time.tv_usec;
}

void stream_reaped(pid_t pid, int status, const struct rusage *usage) {
    struct stream *stream = table;
    while (stream < table + top && (stream->id == 0 || stream->reaped || stream->pid != pid))
        stream++;
    if (stream == table + top)
        return; /* an orphan, or a child whose START failed */

    bool exited = WIFEXITED(status);
    stream->exited[0] = exited ? 0 : 1;
    stream->exited[1] = (uint8_t)(exited ? WEXITSTATUS(status) : WTERMSIG(status));
    put_u64(stream->exited + 2, microseconds(usage->ru_utime));
    put_u64(stream->exited + 10, microseconds(usage->ru_stime));
    put_u64(stream->exited + 18, (uint64_t)usage->ru_maxrss);
    stream->reaped = true;
    for (unsigned i = 0; i < 2; i++) {
        int pending = 0;
        if (stream->out[i].fd >= 0 && ioctl(stream->out[i].fd, FIONREAD, &pending) == 0 && pending > 0)
            stream->out[i].owed = (uint32_t)pending;
    }
    if (resolve(stream)) /* its end of the status pipe is closed, so this decides */
        drain(stream);
}

void stream_signal(struct stream *stream, int signo, enum scope scope) {
    /* A pid is the leader's only until it is reaped; its group and session may live on. */
    bool present = !stream->reaped;
    if (scope == SCOPE_TREE)
        tree_kill(stream->pid, present);
    else if (scope == SCOPE_LEADER || (kill(-stream->pid, signo) != 0 && errno == ESRCH)) {
        /* the group: the child may not have called setsid yet */
        if (present)
            kill(stream->pid, signo);
    }
}

void stream_open(void) {
    chunk = lazy_map(CHUNK, false);
}

void stream_trim(void) {
    lazy_trim(chunk, &chunk_peak);
}
