/* The stdin of a command; see stream.h. */
#include "stream.h"

#include <sys/epoll.h>
#include <sys/mman.h>

#include "channel.h"
#include "end.h"
#include "loop.h"

/* Credit goes back in halves of the window, so that a line typed costs the host no wake-up. */
#define RETURN_AT (STDIN_WINDOW / 2u)

bool input_open(struct stream *stream, int fd) {
    void *held = mmap(NULL, STDIN_WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (held == MAP_FAILED)
        return false;
    if (!loop_watch(SET_MAIN, fd, QUIET, stream_slot(stream), ROLE_STDIN)) {
        munmap(held, STDIN_WINDOW);
        return false;
    }
    stream->in.held = held;
    stream->in.fd = fd;
    return true;
}

void input_close(struct stream *stream) {
    struct input *in = &stream->in;
    if (in->fd < 0)
        return;
    loop_close(SET_MAIN, &in->fd);
    munmap(in->held, STDIN_WINDOW);
    in->head = in->tail = 0;
}

/* The bytes have left the agent's hands: written, or dropped because nobody can read them. */
static void release(struct stream *stream, uint32_t bytes) {
    struct input *in = &stream->in;
    in->returning += bytes;
    if (in->returning < RETURN_AT || in->ended || stream->status_fd >= 0)
        return;
    uint8_t credit[5] = {0};
    put_u32(credit + 1, in->returning);
    out_frame(stream->id, KIND_CREDIT, credit, sizeof credit);
    in->credit += in->returning;
    in->returning = 0;
}

/* Bytes the pipe took; all of them when the command has closed its end. */
static uint32_t put(struct stream *stream, const uint8_t *bytes, uint32_t count) {
    ssize_t size = RETRY(write(stream->in.fd, bytes, count));
    if (size >= 0)
        return (uint32_t)size;
    if (errno == EAGAIN)
        return 0;
    input_close(stream); /* EPIPE, pipe(7) */
    return count;
}

static void watch(struct stream *stream, uint32_t events) {
    loop_change(SET_MAIN, stream->in.fd, events, stream_slot(stream), ROLE_STDIN);
}

void input_data(struct stream *stream, const uint8_t *bytes, uint32_t count) {
    struct input *in = &stream->in;
    if (in->ended)
        end_protocol("stdin DATA after EOF");
    if (count > in->credit)
        end_protocol("stdin DATA beyond the credit");
    in->credit -= count;

    bool holding = in->fd >= 0 && in->head < in->tail;
    uint32_t taken = in->fd < 0 ? count : holding || count == 0 ? 0 : put(stream, bytes, count);
    uint32_t rest = count - taken;
    if (rest > 0) {
        /* held and rest together are within the window, so moving to the front always makes room */
        if (rest > STDIN_WINDOW - in->tail) {
            memmove(in->held, in->held + in->head, in->tail - in->head);
            in->tail -= in->head;
            in->head = 0;
        }
        memcpy(in->held + in->tail, bytes + taken, rest);
        in->tail += rest;
        if (!holding)
            watch(stream, EPOLLOUT);
    }
    release(stream, taken);
}

void input_started(struct stream *stream) {
    release(stream, 0);
}

void input_eof(struct stream *stream) {
    struct input *in = &stream->in;
    in->ended = true;
    if (in->head == in->tail)
        input_close(stream);
}

void input_event(struct stream *stream) {
    struct input *in = &stream->in;
    if (in->fd < 0 || in->head == in->tail)
        return;
    uint32_t held = in->tail - in->head, taken = put(stream, in->held + in->head, held);
    in->head += taken;
    if (taken == held) {
        in->head = in->tail = 0;
        if (in->fd >= 0 && in->ended)
            input_close(stream);
        else if (in->fd >= 0)
            watch(stream, QUIET);
    }
    release(stream, taken);
}
