"""The guest's seccomp filter: compiled from the reviewed tables, explained, and asked whether the kernel has it.

The agent installs `guest_filter()` on itself before any guest code runs (seccomp(2), NEW_LISTENER); the sandbox
inherits it and nothing can lift it. Refusals are answered and counted by the host (`kernel/notify.py`); when the
host is gone, the kernel answers ENOSYS, so a lost host never allows a call. Nothing here is configurable.

clone3(2) is allowed: its flags lie in memory, where a filter cannot look, and the agent needs CLONE_INTO_CGROUP.
The agent's own second filter answers clone3 of its children with ENOSYS; C libraries then use clone(2), which is
checked here. Without that second filter namespaces are open.
"""

import ctypes
import os
import platform
from collections.abc import Iterable
from errno import EBADF, ENOSYS, EPERM
from functools import cache
from itertools import groupby
from typing import NamedTuple

from atoll.kernel import syscalls
from atoll.kernel.bpf import AND, GOTO, IF_AT_LEAST, IF_EQUAL, IF_GREATER, LOAD, RETURN, Instruction, assemble
from atoll.kernel.syscalls import RULES, SYS_PIDFD_GETFD, SYS_SECCOMP, Check, Rule

AUDIT_ARCH_X86_64 = 0xC000_003E
_X32_SYSCALL_BIT = 0x4000_0000

# linux/seccomp.h
RET_KILL_PROCESS = 0x8000_0000
RET_ERRNO = 0x0005_0000
RET_USER_NOTIF = 0x7FC0_0000
RET_ALLOW = 0x7FFF_0000
_GET_ACTION_AVAIL = 2

# struct seccomp_data: s32 nr, u32 arch, u64 instruction pointer, u64 args[6]; little endian.
_NR, _ARCH, _ARGS = 0, 4, 16


class Refusal(NamedTuple):
    """The host's answer to one denied call."""

    errno: int
    detail: str
    """The call and the arguments that decided, such as ``socket(AF_VSOCK)``; at most about 120 ASCII characters."""
    bounded: bool = False
    """Whether the host may allow it, as `Rule.bounded` says."""


@cache
def guest_filter() -> bytes:
    """Return the filter as ``struct sock_filter[]``; the same bytes in every process of one release."""
    program: list[Instruction | str] = [
        # The architecture first: int 0x80 enters with i386 numbers, under which 165 is not mount.
        Instruction(LOAD, _ARCH),
        Instruction(IF_EQUAL, AUDIT_ARCH_X86_64, no="kill"),
        Instruction(LOAD, _NR),
        Instruction(IF_AT_LEAST, _X32_SYSCALL_BIT, no="native"),
        "kill",
        Instruction(RETURN, RET_KILL_PROCESS),
        "native",
    ]
    # A plain chain: only calls with checked arguments ever walk it and are then allowed, and the frequent ones of them
    # (ioctl, socket, clone) have low numbers.
    for number, rules in _by_number().items():
        program += _call(number, rules)
    program.append(Instruction(IF_GREATER, syscalls.OLD_CALLS_END, no="allow"))
    for first, last in _ranges(syscalls.ALLOWED_NEW.values()):
        program += [Instruction(IF_AT_LEAST, first, no="unknown"), Instruction(IF_GREATER, last, no="allow")]
    program += [
        "unknown",
        Instruction(RETURN, RET_ERRNO | ENOSYS),
        "allow",
        Instruction(RETURN, RET_ALLOW),
    ]
    return assemble(program)


@cache
def _by_number() -> dict[int, list[Rule]]:
    """The rules of each call, in their order."""
    return {number: list(rules) for number, rules in groupby(sorted(RULES, key=_number), key=_number)}


def _number(rule: Rule) -> int:
    return rule.number


def _call(number: int, rules: list[Rule]) -> list[Instruction | str]:
    """Code that decides call `number` and lets every other one pass to what follows."""
    code: list[Instruction | str] = [Instruction(IF_EQUAL, number, no=f"{number}:end")]
    for index, rule in enumerate(rules):
        miss = f"{number}:{index + 1}"
        for position, check in enumerate(rule.checks):
            code += _check(check, hit=f"{number}:{index}.{position}", miss=miss)
        code += [Instruction(RETURN, RET_ERRNO | rule.errno if rule.quiet else RET_USER_NOTIF), miss]
    if rules[-1].checks:
        code.append(Instruction(RETURN, RET_ALLOW))
    return [*code, f"{number}:end"]


def _check(check: Check, hit: str, miss: str) -> list[Instruction | str]:
    """Code that goes to `hit` (the next instruction after it) when `check` holds, else to `miss`."""
    code: list[Instruction | str] = [Instruction(LOAD, _ARGS + 8 * check.arg + 4 * check.high)]
    if check.mask != 0xFFFF_FFFF:  # noqa: PLR2004 - every bit
        code.append(Instruction(AND, check.mask))
    code += [Instruction(IF_EQUAL, value, yes=hit if check.inside else miss) for value in check.values]
    if check.inside:
        code.append(Instruction(GOTO, yes=miss))
    return [*code, hit]


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Merge neighbouring `numbers` into inclusive ranges, in order."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def refusal(number: int, args: tuple[int, ...]) -> Refusal:
    """Answer a notification of the filter: call `number` with six 64-bit `args`.

    Never allows: what no rule explains (only a filter other than `guest_filter()` can ask that) is refused with EPERM.
    """
    for rule in _by_number().get(number, ()):
        if all(check.holds(args) for check in rule.checks):
            return Refusal(rule.errno, _describe(rule.name, args), rule.bounded)
    return Refusal(EPERM, f"system call {number}")


def explain() -> list[Rule]:
    """Return every refusal with its reason, in the order in which the filter decides; for documentation and tests."""
    return list(RULES)


# Names of linux/socket.h for families that show up in attacks; the rest is shown by number.
_FAMILIES = {
    2: "AF_INET", 3: "AF_AX25", 4: "AF_IPX", 5: "AF_APPLETALK", 8: "AF_ATMPVC", 9: "AF_X25", 10: "AF_INET6",
    15: "AF_KEY", 16: "AF_NETLINK", 17: "AF_PACKET", 21: "AF_RDS", 24: "AF_PPPOX", 26: "AF_LLC", 29: "AF_CAN",
    30: "AF_TIPC", 31: "AF_BLUETOOTH", 33: "AF_RXRPC", 34: "AF_ISDN", 35: "AF_PHONET", 36: "AF_IEEE802154",
    37: "AF_CAIF", 38: "AF_ALG", 39: "AF_NFC", 40: "AF_VSOCK", 41: "AF_KCM", 42: "AF_QIPCRTR", 43: "AF_SMC",
    44: "AF_XDP", 45: "AF_MCTP",
}  # fmt: skip
_TYPES = {1: "SOCK_STREAM", 2: "SOCK_DGRAM", 3: "SOCK_RAW", 4: "SOCK_RDM", 5: "SOCK_SEQPACKET", 10: "SOCK_PACKET"}


def _describe(name: str, args: tuple[int, ...]) -> str:
    """`name` with the arguments that decided, in the words of the manual pages."""
    low = [arg & 0xFFFF_FFFF for arg in args]
    match name:
        case "clone" | "unshare":
            flags = low[0] & (syscalls.CLONE_NAMESPACES if name == "clone" else 0xFFFF_FFFF)
            words = [flag for flag, bit in syscalls.NAMESPACE_FLAGS.items() if flags & bit]
            return f"{name}({'|'.join(words) or hex(args[0])})"
        case "socket":
            return f"socket({_describe_socket(*low[:3])})"
        case "socketpair":
            return f"socketpair({_FAMILIES.get(low[0], f'family {low[0]}')})"
        case "ioctl":
            return f"ioctl({next(word for word, value in syscalls.TERMINAL_IOCTLS.items() if value == low[1])})"
        case "personality":
            return f"personality({low[0]:#x})"
    return name


def _describe_socket(family: int, kind: int, protocol: int) -> str:
    shown = _FAMILIES.get(family, f"family {family}")
    if family == syscalls.AF_NETLINK:
        return f"{shown}, protocol {protocol}"
    if family in (syscalls.AF_INET, syscalls.AF_INET6):
        kind &= syscalls.SOCK_TYPE_MASK
        return f"{shown}, {_TYPES.get(kind, f'type {kind}')}, protocol {protocol}"
    return shown


def check_kernel() -> str:
    """Say why this kernel (or what confines this process) cannot run the filter; empty when it can.

    Asked by seccomp(2) SECCOMP_GET_ACTION_AVAIL and by a pidfd_getfd(2) that must fail with EBADF: versions and
    configuration files lie inside containers.
    """
    if platform.machine() != "x86_64":
        return f"the seccomp filter is written for x86_64, this is {platform.machine()}"
    libc = ctypes.CDLL(None, use_errno=True)
    for action, name in ((RET_KILL_PROCESS, "KILL_PROCESS"), (RET_ERRNO, "ERRNO"), (RET_USER_NOTIF, "USER_NOTIF")):
        wanted = ctypes.c_uint32(action)
        if libc.syscall(SYS_SECCOMP, _GET_ACTION_AVAIL, 0, ctypes.byref(wanted)) != 0:
            problem = os.strerror(ctypes.get_errno())
            return f"SECCOMP_RET_{name} is not available (Linux 5.0, CONFIG_SECCOMP_FILTER): {problem}"
    libc.syscall(SYS_PIDFD_GETFD, -1, -1, 0)
    if ctypes.get_errno() != EBADF:
        return f"pidfd_getfd(2) is not available (Linux 5.6): {os.strerror(ctypes.get_errno())}"
    return ""
