"""Every decision of the filter, by an interpreter of classic BPF that shares no code with the compiler."""

import re
import struct
import subprocess
import sys
from errno import ENOSYS
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.kernel import seccomp, syscalls
from atoll.kernel.seccomp import RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS, RET_USER_NOTIF, guest_filter
from atoll.kernel.syscalls import ALLOWED_NEW, NEWEST_REVIEWED, OLD_CALLS_END, RULES

NATIVE, I386, AARCH64 = 0xC000003E, 0x40000003, 0xC00000B7
UNKNOWN = RET_ERRNO | ENOSYS
WORD = st.integers(0, 2**64 - 1)
GARBAGE = 0xDEAD_BEEF_0000_0000


def interpret(program: bytes, data: bytes) -> tuple[int, set[int]]:
    """Run `program` as net/core/filter.c would; the verdict and the offsets of `data` that were read."""
    code = list(struct.iter_unpack("<HBBI", program))
    position, accumulator, read = 0, 0, set()
    while True:
        opcode, yes, no, k = code[position]
        position += 1
        match opcode:
            case 0x20:
                assert k % 4 == 0
                accumulator = int.from_bytes(data[k : k + 4], "little")
                read.add(k)
            case 0x54:
                accumulator &= k
            case 0x05:
                position += k
            case 0x15:
                position += yes if accumulator == k else no
            case 0x25:
                position += yes if accumulator > k else no
            case 0x35:
                position += yes if accumulator >= k else no
            case 0x06:
                return k, read
            case _:
                pytest.fail(f"opcode {opcode:#x}")


def verdict(number: int, *args: int, arch: int = NATIVE) -> int:
    data = struct.pack("<IIQ6Q", number, arch, 0, *args, *[0] * (6 - len(args)))
    return interpret(guest_filter(), data)[0]


# Each: the verdict, the number, the arguments.
DECISIONS = {
    "read": (RET_ALLOW, 0),
    "rseq": (RET_ALLOW, 334),
    "mount": (RET_USER_NOTIF, 165),
    "TIOCSTI": (RET_USER_NOTIF, 16, 0, 0x5412),
    "TIOCSTI below garbage (CVE-2019-10063)": (RET_USER_NOTIF, 16, 0, GARBAGE | 0x5412),
    "TIOCLINUX": (RET_USER_NOTIF, 16, GARBAGE, GARBAGE | 0x541C),
    "TIOCGWINSZ": (RET_ALLOW, 16, 0, 0x5413),
    "TIOCSTI in the wrong argument": (RET_ALLOW, 16, 0x5412, 0x5413, 0x5412),
    "fork by clone": (RET_ALLOW, 56, 0x0120_0011),
    "thread by clone": (RET_ALLOW, 56, 0x003D_0F00),
    "clone NEWUSER": (RET_USER_NOTIF, 56, 0x1000_0011),
    "clone NEWCGROUP": (RET_USER_NOTIF, 56, 0x0200_0011),
    "clone NEWUTS": (RET_USER_NOTIF, 56, 0x0400_0011),
    "clone NEWIPC": (RET_USER_NOTIF, 56, 0x0800_0011),
    "clone NEWPID": (RET_USER_NOTIF, 56, 0x2000_0011),
    "clone NEWNET": (RET_USER_NOTIF, 56, 0x4000_0011),
    "clone NEWNS below garbage": (RET_USER_NOTIF, 56, GARBAGE | 0x0002_0011),
    "clone with garbage only, which the kernel cuts off": (RET_ALLOW, 56, GARBAGE | 0x11),
    "unshare nothing": (RET_ALLOW, 272, 0),
    "unshare FS FILES SYSVSEM": (RET_ALLOW, 272, 0x0004_0600),
    "unshare NEWTIME": (RET_USER_NOTIF, 272, 0x80),
    "unshare NEWUSER and FILES": (RET_USER_NOTIF, 272, 0x1000_0400),
    "unshare with 64-bit flags": (RET_USER_NOTIF, 272, 1 << 37),
    "personality ask": (RET_ALLOW, 135, 0xFFFF_FFFF),
    "personality ask, sign-extended": (RET_ALLOW, 135, 2**64 - 1),
    "personality LINUX": (RET_ALLOW, 135, 0),
    "personality LINUX32 ADDR_NO_RANDOMIZE": (RET_ALLOW, 135, 0x0004_0008),
    "personality READ_IMPLIES_EXEC": (RET_USER_NOTIF, 135, 0x0040_0000),
    "personality MMAP_PAGE_ZERO among allowed": (RET_USER_NOTIF, 135, 0x0014_0000),
    "prlimit own": (RET_ALLOW, 302, 0, 7, 0x7FFF_0000_1000, 0),
    "prlimit own, garbage above": (RET_ALLOW, 302, GARBAGE, 7, 0x7FFF_0000_1000, 0),
    "prlimit ask about another": (RET_ALLOW, 302, 1, 7, 0, 0x7FFF_0000_1000),
    "prlimit of another": (RET_USER_NOTIF, 302, 1, 7, 0x7FFF_0000_1000, 0),
    "prlimit of another, pointer with an empty low half": (RET_USER_NOTIF, 302, 1, 7, 0x7FFF_0000_0000, 0),
    "socket UNIX": (RET_ALLOW, 41, 1, 1, 0),
    "socket TCP with flags": (RET_ALLOW, 41, 2, 0x80801, 6),
    "socket UDP6": (RET_ALLOW, 41, 10, 2, 17),
    "socket ping": (RET_ALLOW, 41, 2, 2, 1),
    "socket garbage above INET": (RET_ALLOW, 41, GARBAGE | 2, GARBAGE | 1, GARBAGE),
    "socket raw": (RET_USER_NOTIF, 41, 2, 3, 1),
    "socket raw with flags": (RET_USER_NOTIF, 41, 10, 0x80003, 58),
    "socket INET packet": (RET_USER_NOTIF, 41, 2, 10, 0x300),
    "socket SCTP": (RET_USER_NOTIF, 41, 2, 1, 132),
    "socket SCTP as SEQPACKET": (RET_USER_NOTIF, 41, 2, 5, 132),
    "socket L2TP": (RET_USER_NOTIF, 41, 10, 2, 115),
    "socket MPTCP": (RET_ERRNO | 93, 41, 2, 1, 262),
    "socket netlink route": (RET_USER_NOTIF, 41, 16, 3, 0),
    "socket netlink audit": (RET_ERRNO | 93, 41, 16, 3, 9),
    "socket netlink netfilter": (RET_USER_NOTIF, 41, 16, 3, 12),
    "socket VSOCK": (RET_USER_NOTIF, 41, 40, 1, 0),
    "socket VSOCK below garbage": (RET_USER_NOTIF, 41, GARBAGE | 40, 1, 0),
    "socket negative family": (RET_USER_NOTIF, 41, 2**64 - 1, 1, 0),
    "socketpair UNIX": (RET_ALLOW, 53, 1, 1, 0),
    "socketpair INET": (RET_USER_NOTIF, 53, 2, 1, 0),
    "clone3": (RET_ALLOW, 435),
    "statmount": (RET_ERRNO | ENOSYS, 457),
    "open_tree_attr": (RET_USER_NOTIF, 467),
    "file_setattr": (RET_ALLOW, 469),
    "listns of Linux 6.19": (UNKNOWN, 470),
    "gap before 424": (UNKNOWN, 423),
    "gap behind uprobe": (UNKNOWN, 337),
    "highest native": (UNKNOWN, 0x3FFF_FFFF),
    "x32 read": (RET_KILL_PROCESS, 0x4000_0000),
    "x32 mount": (RET_KILL_PROCESS, 0x4000_0000 | 165),
    "-1": (RET_KILL_PROCESS, 0xFFFF_FFFF),
}


@pytest.mark.parametrize("what", DECISIONS)
def test_decisions(what: str):
    expected, number, *args = DECISIONS[what]
    assert hex(verdict(number, *args)) == hex(expected)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([I386, AARCH64, NATIVE ^ 1, 0]), st.tuples(*[WORD] * 6))
def test_every_other_architecture_is_killed_whatever_it_calls(number: int, arch: int, args: tuple[int, ...]):
    assert verdict(number, *args, arch=arch) == RET_KILL_PROCESS


@settings(deadline=None)
@given(st.integers(0x4000_0000, 2**32 - 1), st.tuples(*[WORD] * 6))
def test_every_x32_number_is_killed(number: int, args: tuple[int, ...]):
    assert verdict(number, *args) == RET_KILL_PROCESS


@settings(deadline=None)
@given(st.integers(NEWEST_REVIEWED + 1, 0x3FFF_FFFF), st.tuples(*[WORD] * 6))
def test_every_number_above_the_newest_reviewed_is_unknown(number: int, args: tuple[int, ...]):
    assert verdict(number, *args) == UNKNOWN


LIKELY = st.sampled_from([0, 1, 2, 3, 10, 16, 17, 40, 0x11, 0x5412, 0x541C, 0x5423, 0x80, 0x10000000, 0xFFFFFFFF, 132])
WORDS = st.one_of(LIKELY, st.builds(lambda low, high: high << 32 | low, LIKELY, st.integers(0, 2**32 - 1)), WORD)


@settings(deadline=None)
@given(st.integers(0, NEWEST_REVIEWED + 2), st.tuples(*[WORDS] * 6))
def test_the_filter_and_the_supervisor_agree(number: int, args: tuple[int, ...]):
    rule = next((r for r in RULES if r.number == number and all(check.holds(args) for check in r.checks)), None)
    if rule is None:
        known = number <= OLD_CALLS_END or number in ALLOWED_NEW.values()
        assert verdict(number, *args) == (RET_ALLOW if known else UNKNOWN)
    elif rule.quiet:
        assert verdict(number, *args) == RET_ERRNO | rule.errno
    else:
        assert verdict(number, *args) == RET_USER_NOTIF
        refusal = seccomp.refusal(number, args)
        assert refusal.errno == rule.errno
        assert re.fullmatch(rf"{rule.name}(\([A-Za-z0-9_|, ]+\))?", refusal.detail)
        assert len(refusal.detail) <= 120


def test_what_no_rule_explains_is_refused():
    assert seccomp.refusal(0, (0,) * 6)[:2] == (1, "system call 0")


def test_only_arguments_that_decide_are_read():
    # Calls decided by their number alone are cached by the kernel (seccomp_cache_prepare) and then cost nothing.
    by_argument = {rule.number for rule in RULES if rule.checks}
    for number in range(NEWEST_REVIEWED + 2):
        _, read = interpret(guest_filter(), struct.pack("<IIQ6Q", number, NATIVE, 0, *[0] * 6))
        assert (read == {0, 4}) is (number not in by_argument), number


def test_no_rule_is_hidden_by_an_earlier_one():
    hidden = []
    for index, rule in enumerate(RULES):
        earlier = [r for r in RULES[:index] if r.number == rule.number]
        if any(set(r.checks) <= set(rule.checks) for r in earlier):
            hidden.append(rule)
    assert hidden == []


def test_every_call_above_the_old_ones_was_reviewed_once():
    denied = {rule.number for rule in RULES if rule.number > OLD_CALLS_END}
    allowed = set(ALLOWED_NEW.values())
    assert denied & allowed == set()
    assert denied | allowed == {335, 336, *range(424, NEWEST_REVIEWED + 1)}


def test_numbers_are_those_of_the_kernel_headers():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel headers")
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
    newest = max(numbers.values())
    ours = {rule.name: rule.number for rule in RULES} | ALLOWED_NEW
    mine = {name: number for name, number in ours.items() if OLD_CALLS_END + 2 < number <= newest or number < 335}
    assert {name: numbers.get(name) for name in mine} == mine


def test_every_refusal_is_explained():
    rules = seccomp.explain()
    assert {rule.number for rule in rules} == {rule.number for rule in syscalls.RULES}
    assert all(rule.reason and (0 < rule.errno < 4096 or (rule.errno == 0 and rule.quiet)) for rule in rules)


def test_every_process_makes_the_same_filter():
    script = "import sys; from atoll.kernel.seccomp import guest_filter; sys.stdout.buffer.write(guest_filter())"
    paths = ":".join(path for path in sys.path if path)
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env={"PYTHONPATH": paths})
    assert run.stdout == guest_filter()
