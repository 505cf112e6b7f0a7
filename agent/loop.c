/*
 * The event loop: one thread, level-triggered epoll(7), every handler bounded so that none starves another.
 *
 * An event is a hint: handlers try the non-blocking operation and believe its result, so a stale event for a
 * slot that was reused in the same turn does no harm. The pipes commands write to are in a set of their own,
 * which is disabled as a whole while the channel to the host is full.
 */
#include "loop.h"

#include <sys/epoll.h>

#include "channel.h"
#include "end.h"
#include "stream.h"

#define BATCH 32
#define ROLE_BITS 3u /* an event's tag is slot << ROLE_BITS | role */

static int sets[2];

static int control(enum set set, int operation, int fd, uint32_t events, uint32_t slot, enum role role) {
    struct epoll_event event = {
        .events = events == QUIET ? (uint32_t)EPOLLET : events,
        .data.u64 = (uint64_t)slot << ROLE_BITS | role,
    };
    return epoll_ctl(sets[set], operation, fd, &event);
}

bool loop_watch(enum set set, int fd, uint32_t events, uint32_t slot, enum role role) {
    return control(set, EPOLL_CTL_ADD, fd, events, slot, role) == 0;
}

void loop_change(enum set set, int fd, uint32_t events, uint32_t slot, enum role role) {
    control(set, EPOLL_CTL_MOD, fd, events, slot, role);
}

void loop_close(enum set set, int *fd) {
    if (*fd < 0)
        return;
    epoll_ctl(sets[set], EPOLL_CTL_DEL, *fd, NULL);
    close(*fd);
    *fd = -1;
}

static void dispatch(uint64_t tag);

/* One chunk from each command that has output, until the channel is full. */
static void read_outputs(void) {
    struct epoll_event events[BATCH];
    int count = epoll_wait(sets[SET_OUTPUTS], events, BATCH, 0);
    for (int i = 0; i < count && !out_blocked(); i++)
        dispatch(events[i].data.u64);
}

static void dispatch_stream(struct stream *stream, enum role role) {
    if (role == ROLE_STATUS)
        stream_status_event(stream);
    else if (role == ROLE_STDIN)
        input_event(stream);
    else
        stream_output_event(stream, role == ROLE_STDOUT ? 0 : 1);
}

static void dispatch(uint64_t tag) {
    enum role role = (enum role)(tag & ((1u << ROLE_BITS) - 1));
    struct stream *stream = stream_at((uint32_t)(tag >> ROLE_BITS));
    if (role == ROLE_HOST_OUT) {
        out_event();
        stream_unblocked();
    } else if (role == ROLE_HOST_IN)
        channel_read();
    else if (role == ROLE_CHILDREN)
        reap_event();
    else if (role == ROLE_OUTPUTS)
        read_outputs();
    else if (stream != NULL) /* it may have ended earlier in this turn */
        dispatch_stream(stream, role);
}

/* Watches what the state of the output queue allows; asks the kernel only when that changed. */
static void follow_queue(void) {
    static bool was_blocked, was_full;
    bool blocked = out_blocked(), full = out_full();
    if (blocked != was_blocked) {
        loop_change(SET_MAIN, STDOUT_FILENO, blocked ? (uint32_t)EPOLLOUT : QUIET, 0, ROLE_HOST_OUT);
        loop_change(SET_MAIN, sets[SET_OUTPUTS], blocked ? QUIET : (uint32_t)EPOLLIN, 0, ROLE_OUTPUTS);
    }
    if (full != was_full)
        loop_change(SET_MAIN, STDIN_FILENO, full ? QUIET : (uint32_t)EPOLLIN, 0, ROLE_HOST_IN);
    was_blocked = blocked;
    was_full = full;
}

static void trim_when_idle(void) {
    if (stream_count() > 0)
        return;
    channel_trim();
    stream_trim();
    out_trim();
}

static void open_sets(void) {
    for (int i = 0; i < 2; i++)
        if ((sets[i] = epoll_create1(EPOLL_CLOEXEC)) < 0)
            end_errno("epoll_create1");
    if (!loop_watch(SET_MAIN, STDIN_FILENO, EPOLLIN, 0, ROLE_HOST_IN)
        || !loop_watch(SET_MAIN, STDOUT_FILENO, QUIET, 0, ROLE_HOST_OUT)
        || !loop_watch(SET_MAIN, reap_open(), EPOLLIN, 0, ROLE_CHILDREN)
        || !loop_watch(SET_MAIN, sets[SET_OUTPUTS], EPOLLIN, 0, ROLE_OUTPUTS))
        end_errno("cannot watch the channel (it must be a pipe)");
}

_Noreturn void loop_run(void) {
    open_sets();
    for (;;) {
        bool more_frames = channel_process();
        bool more_children = reap_some();
        int timeout = out_flush();
        follow_queue();
        trim_when_idle();
        /* No event tells of what is left over: frames when the flush made room for answers, and children. */
        if (more_children || (more_frames && !out_full()))
            timeout = 0;

        struct epoll_event events[BATCH];
        int count = epoll_wait(sets[SET_MAIN], events, BATCH, timeout);
        if (count < 0 && errno != EINTR)
            end_errno("epoll_wait");
        for (int i = 0; i < count; i++)
            dispatch(events[i].data.u64);
    }
}
