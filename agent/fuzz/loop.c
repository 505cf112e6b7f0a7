/*
 * Drives the fuzz target where there is no libFuzzer: loop COUNT [SEED] feeds it COUNT mutations of a small
 * corpus of valid input. Each input lies at the end of its own allocation, so that a sanitizer sees every
 * byte read beyond it.
 */
#include <stdio.h>

#include "frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MAX 600u

static uint64_t state;

/* xorshift64: the same inputs for the same seed on every machine. */
static uint32_t pick(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

static size_t add(uint8_t *to, uint32_t stream, enum kind kind, const void *payload, uint32_t length) {
    frame_header(to, length, stream, kind);
    memcpy(to + FRAME_HEADER, payload, length);
    return FRAME_HEADER + length;
}

/* A START payload, or a run of frames among which are all that a host sends. */
static size_t make_valid(uint8_t *to) {
    static const char start[] =
        "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0x12\0/tmp\0\3\0\0\0sh\0-c\0true\0\2\0\0\0PATH=/bin\0A=\n";
    if (pick(3) == 0) {
        memcpy(to, start, sizeof start);
        return sizeof start;
    }
    size_t size = add(to, 0, KIND_CONFINED, "", 0);
    for (uint32_t i = 0, count = 1 + pick(6); i < count; i++) {
        static const struct {
            enum kind kind;
            const char *payload;
            uint32_t length;
        } samples[] = {
            {KIND_START, start, sizeof start}, {KIND_DATA, "\0some bytes", 11}, {KIND_EOF, "", 1},
            {KIND_CREDIT, "\1\0\0\1\0", 5},    {KIND_SIGNAL, "\11\2", 2},       {KIND_PING, "12345678", 8},
            {KIND_SHUTDOWN, "", 0},
        };
        uint32_t which = pick(sizeof samples / sizeof samples[0]);
        uint32_t stream = samples[which].kind >= KIND_PING ? 0 : 1 + pick(3);
        size += add(to + size, stream, samples[which].kind, samples[which].payload, samples[which].length);
    }
    return size;
}

static size_t mutate(uint8_t *bytes, size_t size) {
    static const uint8_t edges[] = {0, 1, 2, 0x7f, 0x80, 0xff};
    for (uint32_t i = pick(5); i > 0 && size > 0; i--) {
        uint32_t at = pick((uint32_t)size), rest = (uint32_t)size - at, cut = 1 + pick(rest);
        switch (pick(5)) {
        case 0:
            bytes[at] ^= (uint8_t)(1u << pick(8));
            break;
        case 1:
            bytes[at] = edges[pick(sizeof edges)];
            break;
        case 2: /* remove a piece */
            memmove(bytes + at, bytes + at + cut, rest - cut);
            size -= cut;
            break;
        case 3: /* repeat a piece */
            if (size + cut <= INPUT_MAX) {
                memmove(bytes + at + cut, bytes + at, rest);
                size += cut;
            }
            break;
        default:
            put_u32(bytes + (rest < 4 ? 0 : at), pick(2) ? 0xffffffffu : pick(100)); /* INPUT_MAX has room */
        }
    }
    return size;
}

int main(int argc, char **argv) {
    uint8_t bytes[INPUT_MAX + 4];
    long count = argc > 1 ? strtol(argv[1], NULL, 10) : 20000;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 1;
    for (long i = 0; i < count; i++) {
        size_t size = mutate(bytes, make_valid(bytes));
        uint8_t *exact = malloc(size > 0 ? size : 1);
        if (exact == NULL)
            return 1;
        memcpy(exact, bytes, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    printf("%ld inputs\n", count);
    return 0;
}
