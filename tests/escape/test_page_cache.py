"""Threat: writes into the page cache of shared read-only files (Dirty COW, Dirty Pipe style). Wall: the kernel's fixes.

A kernel that fails this is one that the process level cannot protect; `atoll doctor` names known ones.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sandboxes import Make

TEXT = "the shared page is whole" + "." * 4072
SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static void *map; static int memory; static volatile int stop;
static void *forget(void *unused) { while (!stop) madvise(map, 4096, MADV_DONTNEED); return NULL; }
static void *writer(void *unused) { while (!stop) pwrite(memory, "PWNED", 5, (off_t)map); return NULL; }
int main(int argc, char **argv) {
    int file = open(argv[1], O_RDONLY), ends[2];
    if (file < 0) return 1;
    /* Dirty Pipe: pages in a drained pipe keep their merge flag; a spliced page is then written to. */
    if (pipe(ends)) return 2;
    long size = fcntl(ends[1], F_GETPIPE_SZ); char *filler = calloc(1, size);
    if (write(ends[1], filler, size) != size || read(ends[0], filler, size) != size) return 3;
    loff_t at = 0;
    if (splice(file, &at, ends[1], NULL, 1, 0) != 1) return 4;
    if (write(ends[1], "PWNED", 5) != 5) return 5;
    /* Dirty COW: write through /proc/self/mem while the private copy is thrown away. */
    map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    memory = open("/proc/self/mem", O_RDWR);
    pthread_t one, two;
    pthread_create(&one, NULL, forget, NULL); pthread_create(&two, NULL, writer, NULL);
    sleep(2); stop = 1;
    pthread_join(one, NULL); pthread_join(two, NULL);
    printf("reached\n");
    return 0;
}
"""


@pytest.fixture
def canary() -> Iterator[Path]:
    """A root-owned, world-readable file in the shared tree."""
    path = Path("/usr/local/share/atoll-page-canary")
    path.write_text(TEXT)
    path.chmod(0o644)
    yield path
    path.unlink()


def test_shared_pages_stay_whole(make: Make, compile_c: Callable[[str], Path], canary: Path, user: str) -> None:
    sandbox, neighbour = make(workspace=str(compile_c(SOURCE))), make()
    result = sandbox.commands.run(["/workspace/attack", str(canary)], user=user)
    assert result.stdout == "reached\n", (result.exit_code, result.stderr)
    assert canary.read_text() == TEXT
    assert neighbour.commands.run(["/bin/cat", str(canary)]).stdout == TEXT
