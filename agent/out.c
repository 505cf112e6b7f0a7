/* The channel to the host; see channel.h. */
#include "channel.h"

#include <poll.h>
#include <sys/uio.h>
#include <time.h>

#include "end.h"
#include "lazy.h"

#define GATHER 2048u     /* DATA up to this size is gathered rather than written at once */
#define FLUSH_AT 16384u  /* gathered bytes that do not wait for the end of the turn */
#define FULL_AT 65536u   /* queued bytes at which host frames are left unread */
#define HOLD_NS 1000000  /* how long STARTED and EOF may wait for company */
/*
 * FULL_AT, one refused DATA frame, and what 1024 streams can add while the host is not read: STARTED, EXITED,
 * two CREDITs, or an ERROR of at most 100 bytes each. Less than 384 KiB in all.
 */
#define ROOM (512u * 1024u)

static uint8_t *queue; /* ROOM bytes, used from head to tail */
static size_t head, tail, peak;
static bool blocked, urgent;
static int64_t held_since; /* when the first frame came into the empty queue */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void append(const void *bytes, size_t count) {
    if (count > ROOM - tail) {
        memmove(queue, queue + head, tail - head);
        tail -= head;
        head = 0;
        if (count > ROOM - tail) { /* ruled out by the sum above */
            errno = ENOBUFS;
            end_errno("output queue");
        }
    }
    memcpy(queue + tail, bytes, count);
    tail += count;
    if (tail > peak)
        peak = tail;
}

/* Writes the queue and then bytes; what the pipe does not take is, or stays, queued. */
static void write_out(const uint8_t *bytes, size_t count) {
    size_t queued = tail - head;
    struct iovec parts[2] = {{queue + head, queued}, {(uint8_t *)bytes, count}};
    ssize_t result = RETRY(writev(STDOUT_FILENO, parts, 2));
    if (result < 0 && errno == EPIPE)
        end_quietly();
    if (result < 0 && errno != EAGAIN)
        end_errno("cannot write to the host");
    size_t written = result > 0 ? (size_t)result : 0;
    blocked = written < queued + count;
    if (written < queued) {
        head += written;
        append(bytes, count);
    } else {
        head = tail = 0;
        append(bytes + (written - queued), count - (written - queued));
    }
}

static void flush(void) {
    if (head < tail)
        write_out(queue, 0);
    urgent = false;
}

int out_flush(void) {
    if (!blocked && !urgent && head < tail && now_ns() - held_since < HOLD_NS)
        return 1;
    flush();
    return -1;
}

static void append_header(uint32_t length, uint32_t stream, enum kind kind) {
    uint8_t header[FRAME_HEADER];
    if (head == tail)
        held_since = now_ns();
    if (kind != KIND_STARTED && kind != KIND_EOF)
        urgent = true;
    frame_header(header, length, stream, kind);
    append(header, sizeof header);
}

void out_frame(uint32_t stream, enum kind kind, const void *payload, uint32_t length) {
    append_header(length, stream, kind);
    append(payload, length);
}

void out_data(uint32_t stream, uint8_t fd, const uint8_t *bytes, uint32_t count) {
    append_header(count + 1, stream, KIND_DATA);
    append(&fd, 1);
    if (count > GATHER && !blocked) {
        write_out(bytes, count);
        return;
    }
    append(bytes, count);
    if (tail - head >= FLUSH_AT && !blocked)
        flush();
}

void out_event(void) {
    /* With nothing queued no write would tell that nobody reads, pipe(7). */
    struct pollfd host = {.fd = STDOUT_FILENO};
    if (poll(&host, 1, 0) == 1 && (host.revents & POLLERR) != 0)
        end_quietly();
    flush();
}

bool out_blocked(void) {
    return blocked;
}

bool out_full(void) {
    return tail - head >= FULL_AT;
}

void out_open(void) {
    queue = lazy_map(ROOM, false);
}

void out_trim(void) {
    if (head == tail)
        lazy_trim(queue, &peak);
}
