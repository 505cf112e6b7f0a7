/*
 * The frame codec: u32 payload length | u32 stream | u8 kind | payload, little endian.
 *
 * Pure functions over buffers (no I/O, no allocation, no state), so that fuzz/ can drive them. Decoding accepts
 * exactly what a host may send; a frame that passes needs no further checks, START's payload excepted.
 */
#pragma once

#include "base.h"

#define PROTOCOL_VERSION 1u
#define FRAME_HEADER 9u
#define FRAME_MAX (1u << 20)
#define DATA_MAX 65536u     /* bytes of one DATA frame, without the fd */
#define STDIN_WINDOW 65536u /* credit a host has at START without being told */

enum kind {
    KIND_HELLO = 1,
    KIND_START = 2,
    KIND_STARTED = 3,
    KIND_DATA = 4,
    KIND_EOF = 5,
    KIND_CREDIT = 6,
    KIND_SIGNAL = 7,
    KIND_EXITED = 8,
    KIND_ERROR = 9,
    KIND_PING = 10,
    KIND_PONG = 11,
    KIND_CONFINED = 12,
    KIND_SHUTDOWN = 13,
};

enum scope { SCOPE_LEADER = 0, SCOPE_GROUP = 1, SCOPE_TREE = 2 };

/* Where a START failed; the host names these in its errors. */
enum stage {
    STAGE_RESOURCES = 1,
    STAGE_CGROUP = 2,
    STAGE_CREDENTIALS = 3,
    STAGE_CWD = 4,
    STAGE_EXEC = 5,
    STAGE_CONFINE = 6,
};

struct frame {
    uint32_t stream;
    enum kind kind;
    const uint8_t *payload;
    uint32_t length;
};

/*
 * Decodes the first frame of bytes. Returns NULL and sets *used to the frame's size, or to 0 when more bytes
 * are needed; returns the reason when the bytes can never become a frame that a host may send.
 */
const char *frame_decode(const uint8_t *bytes, size_t count, struct frame *frame, size_t *used);

/* Writes the FRAME_HEADER bytes that precede a payload of length bytes. */
void frame_header(uint8_t *to, uint32_t length, uint32_t stream, enum kind kind);

uint32_t get_u32(const uint8_t *from);
void put_u32(uint8_t *to, uint32_t value);
void put_u64(uint8_t *to, uint64_t value);
