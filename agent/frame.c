/* The frame codec; see frame.h. */
#include "frame.h"

#define ROUTE_STREAM 1u /* the stream field names a command, never 0 */
#define ROUTE_AGENT 2u  /* the stream field is 0 */

/* The frames a host may send, with the sizes their payloads may have. Absent kinds have route 0. */
static const struct {
    uint32_t least, most;
    unsigned route;
} from_host[] = {
    [KIND_START] = {17, FRAME_MAX, ROUTE_STREAM},
    [KIND_DATA] = {1, 1 + DATA_MAX, ROUTE_STREAM},
    [KIND_EOF] = {1, 1, ROUTE_STREAM},
    [KIND_CREDIT] = {5, 5, ROUTE_STREAM},
    [KIND_SIGNAL] = {2, 2, ROUTE_STREAM},
    [KIND_PING] = {8, 8, ROUTE_AGENT},
    [KIND_CONFINED] = {0, 0, ROUTE_AGENT},
    [KIND_SHUTDOWN] = {0, 0, ROUTE_AGENT},
};

uint32_t get_u32(const uint8_t *from) {
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

void put_u32(uint8_t *to, uint32_t value) {
    for (unsigned i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

void put_u64(uint8_t *to, uint64_t value) {
    put_u32(to, (uint32_t)value);
    put_u32(to + 4, (uint32_t)(value >> 32));
}

void frame_header(uint8_t *to, uint32_t length, uint32_t stream, enum kind kind) {
    put_u32(to, length);
    put_u32(to + 4, stream);
    to[8] = (uint8_t)kind;
}

static const char *check_fields(enum kind kind, const uint8_t *payload) {
    switch (kind) {
    case KIND_DATA:
    case KIND_EOF:
        return payload[0] == 0 ? NULL : "a host sends to fd 0 only";
    case KIND_CREDIT:
        return payload[0] == 1 || payload[0] == 2 ? NULL : "CREDIT is for fd 1 or 2";
    case KIND_SIGNAL:
        if (payload[0] < 1 || payload[0] > 64)
            return "SIGNAL number out of range";
        if (payload[1] > SCOPE_TREE)
            return "SIGNAL scope unknown";
        return payload[1] == SCOPE_TREE && payload[0] != SIGKILL ? "a tree can only be killed" : NULL;
    default:
        return NULL;
    }
}

const char *frame_decode(const uint8_t *bytes, size_t count, struct frame *frame, size_t *used) {
    *used = 0;
    if (count < FRAME_HEADER)
        return NULL;

    uint32_t length = get_u32(bytes), stream = get_u32(bytes + 4);
    uint8_t kind = bytes[8];
    if (length > FRAME_MAX)
        return "frame too long";
    if (kind >= sizeof from_host / sizeof from_host[0] || from_host[kind].route == 0)
        return "frame kind unknown";
    if ((stream == 0) != (from_host[kind].route == ROUTE_AGENT))
        return "stream id does not fit the frame kind";
    if (length < from_host[kind].least || length > from_host[kind].most)
        return "payload size does not fit the frame kind";
    if (count - FRAME_HEADER < length)
        return NULL;

    *frame = (struct frame){stream, (enum kind)kind, bytes + FRAME_HEADER, length};
    const char *wrong = check_fields(frame->kind, frame->payload);
    if (wrong == NULL)
        *used = FRAME_HEADER + length;
    return wrong;
}
