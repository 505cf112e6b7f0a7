"""Threat: a nested user namespace gives capabilities over more kernel code. Wall: max_user_namespaces 0, seccomp."""

from pathlib import Path

import pytest

from atoll import Sandbox
from tests.escape.attack import attack

NAMESPACES = [0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x80]


@pytest.mark.parametrize("flag", NAMESPACES, ids=hex)
def test_no_namespace_can_be_made(sandbox: Sandbox, user: str, flag: int) -> None:
    facts = attack(
        sandbox,
        f"""
        # With SIGCHLD in the low byte: CLONE_NEWTIME is a part of it there and means something else.
        args = (ctypes.c_uint64 * 11)({flag}, 0, 0, 0, 17)
        report(unshare=syscall(272, {flag}), clone=syscall(56, {flag} | 17, 0, 0, 0, 0) if {flag} != 0x80 else "EPERM",
               clone3=syscall(435, ctypes.byref(args), 88), setns=syscall(308, os.open("/proc/self/ns/net", 0), 0),
               twin=syscall(272, 0x400))
        """,
        user=user,
    )
    assert facts == {"unshare": "EPERM", "clone": "EPERM", "clone3": "ENOSYS", "setns": "EPERM", "twin": 0}


def test_the_kernel_forbids_it_as_well(sandbox: Sandbox) -> None:
    """The second wall, seen from the host: the sandbox's own limit of user namespaces is 0."""
    facts = attack(sandbox, 'report(limit=read("/proc/sys/user/max_user_namespaces").strip())')
    assert facts["limit"] == "0"
    agent = sandbox._aio._running._guest.agent_pid
    assert Path(f"/proc/{agent}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()
