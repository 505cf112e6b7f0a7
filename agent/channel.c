/* The channel from the host; see channel.h. */
#include "channel.h"

#include "end.h"
#include "lazy.h"
#include "stream.h"

#define READ_MAX 65536u
#define COMPACT_AT (2u * READ_MAX) /* keeps long input in the same few pages */

#define ROOM (FRAME_HEADER + FRAME_MAX + READ_MAX)

static uint8_t *buffer; /* ROOM bytes, used from head to tail */
static size_t head, tail, peak;

static bool confined;
static int listener = -1;

void channel_open(int listener_fd) {
    buffer = lazy_map(ROOM, false);
    out_open();
    listener = listener_fd;
    uint8_t hello[9];
    hello[0] = PROTOCOL_VERSION;
    put_u32(hello + 1, (uint32_t)getpid());
    put_u32(hello + 5, (uint32_t)listener);
    out_frame(0, KIND_HELLO, hello, sizeof hello);
}

void channel_read(void) {
    if (head == tail) {
        head = tail = 0;
    } else if (head > 0 && tail > COMPACT_AT) {
        memmove(buffer, buffer + head, tail - head);
        tail -= head;
        head = 0;
    }
    size_t room = ROOM - tail;
    if (room == 0) /* whole frames are waiting for the output queue */
        return;
    ssize_t count = RETRY(read(STDIN_FILENO, buffer + tail, room < READ_MAX ? room : READ_MAX));
    if (count == 0)
        end_quietly();
    if (count < 0) {
        if (errno != EAGAIN)
            end_errno("cannot read from the host");
        return;
    }
    tail += (size_t)count;
    if (tail > peak)
        peak = tail;
}

static void take_confined(void) {
    if (confined)
        end_protocol("CONFINED twice");
    confined = true;
    if (listener >= 0)
        close(listener);
}

static void take_start(const struct frame *frame) {
    const char *wrong = !confined ? "START before CONFINED"
        : stream_find(frame->stream) != NULL ? "START reuses a live stream"
        : spawn(frame);
    if (wrong != NULL)
        end_protocol(wrong);
}

static void take_for_stream(struct stream *stream, const struct frame *frame) {
    const uint8_t *payload = frame->payload;
    if (frame->kind == KIND_DATA)
        input_data(stream, payload + 1, frame->length - 1);
    else if (frame->kind == KIND_EOF)
        input_eof(stream);
    else if (frame->kind == KIND_CREDIT)
        stream_credit(stream, payload[0] - 1, get_u32(payload + 1));
    else
        stream_signal(stream, payload[0], (enum scope)payload[1]);
}

static void take(const struct frame *frame) {
    struct stream *stream = stream_find(frame->stream);
    if (frame->kind == KIND_START)
        take_start(frame);
    else if (frame->kind == KIND_PING)
        out_frame(0, KIND_PONG, frame->payload, frame->length);
    else if (frame->kind == KIND_CONFINED)
        take_confined();
    else if (frame->kind == KIND_SHUTDOWN)
        end_quietly();
    else if (stream != NULL) /* otherwise it crossed the stream's end on the way */
        take_for_stream(stream, frame);
}

bool channel_process(void) {
    while (!out_full()) {
        struct frame frame;
        size_t used;
        const char *wrong = frame_decode(buffer + head, tail - head, &frame, &used);
        if (wrong != NULL)
            end_protocol(wrong);
        if (used == 0)
            return false;
        take(&frame);
        head += used;
    }
    return true;
}

void channel_trim(void) {
    if (head == tail)
        lazy_trim(buffer, &peak);
}
