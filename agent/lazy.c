/* The agent's buffers; see lazy.h. */
#include "lazy.h"

#include <sys/mman.h>

#include "end.h"

#define KEEP 16384u /* bytes that stay resident when idle, so that small commands fault nothing in */

uint8_t *lazy_map(size_t size, bool inherited) {
    void *buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (buffer == MAP_FAILED || (!inherited && madvise(buffer, size, MADV_DONTFORK) != 0))
        end_errno("cannot reserve buffers");
    return buffer;
}

void lazy_trim(uint8_t *buffer, size_t *used) {
    if (*used > KEEP)
        madvise(buffer + KEEP, *used - KEEP, MADV_DONTNEED);
    *used = 0;
}
