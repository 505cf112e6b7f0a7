/* Parsing START; see start.h. */
#include "start.h"

#include "frame.h"

#define FLAG_STDIN_PIPE 1u
#define LEAF_MAX 32u

struct cursor {
    const uint8_t *at, *end;
};

static bool take_u32(struct cursor *cursor, uint32_t *value) {
    if (cursor->end - cursor->at < 4)
        return false;
    *value = get_u32(cursor->at);
    cursor->at += 4;
    return true;
}

static const char *take_string(struct cursor *cursor) {
    const uint8_t *string = cursor->at;
    const uint8_t *nul = memchr(string, 0, (size_t)(cursor->end - string));
    if (nul == NULL)
        return NULL;
    cursor->at = nul + 1;
    return (const char *)string;
}

/* A count and that many strings. A false count ends the walk at the payload's end, however large it is. */
static bool take_list(struct cursor *cursor, uint32_t *count, const char **first) {
    if (!take_u32(cursor, count))
        return false;
    *first = (const char *)cursor->at;
    for (uint32_t i = 0; i < *count; i++)
        if (take_string(cursor) == NULL)
            return false;
    return true;
}

/* The name becomes a path component below the cgroup directories: nothing in it may be special. */
static bool leaf_is_plain(const char *leaf) {
    size_t length = strspn(leaf, "abcdefghijklmnopqrstuvwxyz0123456789");
    return leaf[length] == '\0' && length <= LEAF_MAX;
}

const char *start_parse(const uint8_t *payload, size_t length, struct start *start) {
    struct cursor cursor = {payload, payload + length};
    if (length < 17)
        return "START too short";
    uint8_t flags = *cursor.at++;
    if ((flags & ~FLAG_STDIN_PIPE) != 0)
        return "START flags unknown";
    start->stdin_pipe = (flags & FLAG_STDIN_PIPE) != 0;
    take_u32(&cursor, &start->uid);
    take_u32(&cursor, &start->gid);
    take_u32(&cursor, &start->nofile);
    take_u32(&cursor, &start->window);

    start->leaf = take_string(&cursor);
    start->cwd = start->leaf != NULL ? take_string(&cursor) : NULL;
    if (start->cwd == NULL)
        return "START truncated";
    if (!leaf_is_plain(start->leaf))
        return "START leaf name is not [a-z0-9]{1,32}";
    if (!take_list(&cursor, &start->argc, &start->args) || !take_list(&cursor, &start->envc, &start->env))
        return "START truncated";
    if (start->argc == 0)
        return "START without argv";
    return cursor.at == cursor.end ? NULL : "START has trailing bytes";
}

static char **fill(char **slot, const char *string, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        *slot++ = (char *)string; /* execve(2) takes char *const[] and does not write */
        string += strlen(string) + 1;
    }
    *slot++ = NULL;
    return slot;
}

struct vectors start_vectors(const struct start *start, char **slots) {
    struct vectors vectors = {.sh = slots, .argv = slots + 1};
    vectors.envp = fill(vectors.argv, start->args, start->argc);
    fill(vectors.envp, start->env, start->envc);
    return vectors;
}
