"""Threat: 32-bit and x32 calls have other numbers than the filter knows. Wall: the filter kills whoever makes one."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandboxes import Make

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <unistd.h>
int main(int argc, char **argv) {
    long result = 0;
    printf("reached\n"); fflush(stdout);
    if (!strcmp(argv[1], "int80"))       /* i386 mkdir(2) */
        __asm__ volatile("int $0x80" : "=a"(result) : "a"(39L), "b"("/tmp/pwned"), "c"(0700L) : "memory");
    else if (!strcmp(argv[1], "x32"))    /* x32 mkdir(2) */
        result = syscall(0x40000000 | 83, "/tmp/pwned", 0700);
    else if (!strcmp(argv[1], "new"))
        result = syscall(atol(argv[2]), 0, 0);
    else
        result = syscall(83, "/tmp/allowed", 0700);
    printf("result %ld\n", result < 0 ? -(long)errno : result);
    return 0;
}
"""


@pytest.mark.parametrize("way", ["int80", "x32"])
def test_a_call_of_another_abi_is_never_served(
    make: Make, compile_c: Callable[[str], Path], user: str, way: str
) -> None:
    sandbox = make(workspace=str(compile_c(SOURCE)))
    result = sandbox.commands.run(["/workspace/attack", way], user=user)
    assert result.stdout == "reached\n"
    # Without 32-bit emulation in the kernel, int 0x80 faults before any filter sees it.
    assert result.signal in {31, 11} if way == "int80" else result.signal == 31
    assert sandbox.commands.run("ls /tmp").stdout == ""
    twin = sandbox.commands.run(["/workspace/attack", "twin"], user=user)
    assert twin.stdout == "reached\nresult 0\n"


@pytest.mark.parametrize("number", [0x300, 470, 1000])
def test_an_unreviewed_number_is_answered_enosys(make: Make, compile_c: Callable[[str], Path], number: int) -> None:
    """335 and 336 are left out: the kernel exempts its own uprobe calls from every filter (kernel/seccomp.c)."""
    sandbox = make(workspace=str(compile_c(SOURCE)))
    result = sandbox.commands.run(["/workspace/attack", "new", str(number)])
    assert result.stdout == f"reached\nresult {-errno.ENOSYS}\n"
