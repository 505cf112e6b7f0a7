/*
 * Fuzz target of everything the agent parses: a byte stream of frames, and START payloads.
 *
 *   clang -fsanitize=fuzzer,address,undefined -Iagent agent/fuzz/fuzz_frame.c agent/frame.c agent/start.c
 *   gcc -fsanitize=address,undefined -Iagent agent/fuzz/loop.c agent/fuzz/fuzz_frame.c agent/frame.c agent/start.c
 */
#include <stdio.h>

#include "frame.h"
#include "start.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

/* Each string lies within the payload and ends with its NUL; returns what lies behind them. */
static const char *walk(char **strings, uint32_t count, const char *from, const char *end) {
    for (uint32_t i = 0; i < count; i++) {
        require(strings[i] == from && from < end, "strings lie in the payload, one after the other");
        from += strnlen(from, (size_t)(end - from)) + 1;
        require(from <= end, "strings are terminated");
    }
    require(strings[count] == NULL, "vectors are terminated");
    return from;
}

static void try_start(const uint8_t *payload, size_t size) {
    struct start start;
    if (start_parse(payload, size, &start) != NULL)
        return;
    const char *end = (const char *)payload + size;
    require(start.argc > 0, "there is a program");
    require(strlen(start.leaf) <= 32 && strpbrk(start.leaf, "./") == NULL, "a leaf is a plain name");

    char **slots = malloc(((size_t)start.argc + start.envc + 3) * sizeof(char *));
    require(slots != NULL, "memory");
    struct vectors vectors = start_vectors(&start, slots);
    const char *behind = walk(vectors.argv, start.argc, start.args, end);
    require(behind + 4 == start.env, "the environment follows the arguments");
    require(walk(vectors.envp, start.envc, start.env, end) == end, "nothing follows the environment");
    free(slots);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    try_start(data, size);
    struct frame frame, again;
    size_t used, part;
    for (size_t at = 0; frame_decode(data + at, size - at, &frame, &used) == NULL && used > 0; at += used) {
        require(used == FRAME_HEADER + frame.length && used <= size - at, "a frame lies in the bytes");
        require(frame.payload == data + at + FRAME_HEADER, "a payload follows its header");
        require(frame_decode(data + at, used - 1, &again, &part) == NULL && part == 0, "a cut frame waits");
        if (frame.kind == KIND_START)
            try_start(frame.payload, frame.length);
    }
    return 0;
}
