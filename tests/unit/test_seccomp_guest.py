"""The filter in a real kernel, with the real supervisor answering; `Guest` also serves the tests of notify.

Calls are tried the try-syscall way: with arguments that the kernel itself would refuse, so that nothing happens
should the filter fail. Then the errno is another, or the supervisor has nothing to report.
"""

import json
import os
import signal
import subprocess
import sys
from errno import EAFNOSUPPORT, EBADF, EFAULT, ENOSYS, EPERM, EPROTONOSUPPORT
from pathlib import Path
from typing import Self

import pytest

from atoll.kernel import seccomp
from atoll.kernel.notify import Listener, Supervisor, supervisor, take_listener
from atoll.kernel.violations import Violations

# What the agent does, in Python: install the filter, name the listener, wait, drop the listener, run what is asked.
GUEST = """
import ctypes, json, mmap, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(*args):
    result = libc.syscall(*(ctypes.c_ulong(arg) for arg in args))
    return [result, ctypes.get_errno() if result == -1 else 0]
with open(int(sys.argv[1]), "rb") as file:
    program = file.read()
class SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
wanted = SockFprog(len(program) // 8, program)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
listener, error = call(317, 1, 8, ctypes.addressof(wanted))  # SECCOMP_SET_MODE_FILTER, NEW_LISTENER
assert listener >= 0, os.strerror(error)
os.write(1, b"%d\\n" % listener)
os.read(0, 1)
os.close(listener)
"""


class Guest:
    """A process under the filter that runs a Python body (with `call(number, *args)`) once entered."""

    listener: Listener

    def __init__(self, body: str, *argv: str, by: Supervisor | None = None, cwd: Path | None = None) -> None:
        self.violations = Violations()
        self._supervisor = by or supervisor()
        program = os.memfd_create("filter")
        os.write(program, seccomp.guest_filter())
        os.lseek(program, 0, os.SEEK_SET)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", GUEST + body, str(program), *argv],
            pass_fds=[program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # no terminal: vhangup(2) takes no arguments that could be wrong
            cwd=cwd,
        )
        os.close(program)

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        number = int(self.process.stdout.readline())
        self.listener = self._supervisor.add(take_listener(self.pid, number), self.violations.record, lambda: 0)
        self.write(b"\n")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self._supervisor.remove(self.listener)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def readline(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def finish(self, timeout: float = 20) -> bytes:
        out, _ = self.process.communicate(timeout=timeout)
        return out

    def denied(self) -> dict[str, int]:
        assert {entry.kind for entry in self.violations.snapshot()} <= {"seccomp"}
        return {entry.detail: entry.count for entry in self.violations.snapshot()}


CALLS = "print(json.dumps([call(*each) for each in json.loads(sys.argv[2])]))"


def try_calls(calls: list[list[int]]) -> tuple[list[list[int]], dict[str, int]]:
    with Guest(CALLS, json.dumps(calls)) as guest:
        results = json.loads(guest.finish())
        assert guest.process.returncode == 0
        return results, guest.denied()


BAD = 0xFFFF_FFFF_FFFF_FFFF
HIGH = 0xDEAD_BEEF_0000_0000
"""Garbage where the kernel does not look."""

ENTIRELY = [rule for rule in seccomp.explain() if not rule.checks]
SOME_CALLS = {
    # Were they let through, these would fail with EBADF or EINVAL (CLONE_NEWUSER excludes CLONE_FS).
    "ioctl(TIOCSTI)": ([16, BAD, 0x5412, BAD], EPERM),
    "ioctl(TIOCLINUX)": ([16, BAD, HIGH | 0x541C, BAD], EPERM),
    "ioctl(TIOCSETD)": ([16, BAD, 0x5423, BAD], EPERM),
    "clone(CLONE_NEWUSER)": ([56, 0x1000_0200, 0, 0, 0, 0], EPERM),
    "clone(CLONE_NEWNS|CLONE_NEWUSER)": ([56, HIGH | 0x1002_0200, 0, 0, 0, 0], EPERM),
    "unshare(CLONE_NEWUSER)": ([272, 0x1000_0001], EPERM),
    "unshare(CLONE_NEWTIME)": ([272, 0x0000_0081], EPERM),
    f"unshare({HIGH:#x})": ([272, HIGH], EPERM),
    "prlimit64": ([302, BAD, 7, 1 << 32, 0], EPERM),
    "personality(0x400000)": ([135, 0x40_0000], EPERM),
    # Harmless in any case: they make a socket.
    "socket(AF_VSOCK)": ([41, 40, 1, 0], EAFNOSUPPORT),
    "socket(AF_PACKET)": ([41, HIGH | 17, 3, 0], EAFNOSUPPORT),
    "socket(AF_ALG)": ([41, 38, 5, 0], EAFNOSUPPORT),
    "socket(family 99)": ([41, 99, 1, 0], EAFNOSUPPORT),
    "socket(AF_NETLINK, protocol 12)": ([41, 16, 3, 12], EPROTONOSUPPORT),  # NETLINK_NETFILTER
    "socket(AF_INET, SOCK_RAW, protocol 1)": ([41, 2, 3 | 0x80000, 1], EPERM),
    "socket(AF_INET, SOCK_PACKET, protocol 3)": ([41, 2, 10, 3], EPERM),
    "socket(AF_INET6, SOCK_STREAM, protocol 132)": ([41, 10, 1, 132], EPROTONOSUPPORT),
    "socketpair(AF_TIPC)": ([53, 30, 1, 0, BAD], EAFNOSUPPORT),
}


def test_each_denied_call_returns_its_errno_and_is_reported_once():
    results, denied = try_calls([[rule.number, *[BAD] * 6] for rule in ENTIRELY])
    assert {rule.name: error for rule, (_, error) in zip(ENTIRELY, results, strict=True)} == {
        rule.name: rule.errno for rule in ENTIRELY
    }
    assert denied == {rule.name: 1 for rule in ENTIRELY if not rule.quiet}


def test_calls_denied_by_argument_return_their_errno_and_say_which():
    results, denied = try_calls([call for call, _ in SOME_CALLS.values()])
    assert dict(zip(SOME_CALLS, (error for _, error in results), strict=True)) == {
        detail: error for detail, (_, error) in SOME_CALLS.items()
    }
    assert denied == dict.fromkeys(SOME_CALLS, 1)


ALLOWED = {
    "ioctl FIONREAD": ([16, 1 << 20, 0x541B, 0], EBADF),
    "clone without namespaces": ([56, 0x800, 0, 0, 0, 0], 22),  # CLONE_SIGHAND needs CLONE_VM
    "clone3 (the agent's; its children have a filter of their own)": ([435, BAD, 0], 22),
    "unshare(FS|FILES|SYSVSEM)": ([272, 0x200 | 0x400 | 0x4_0000], 0),
    "personality: ask": ([135, 0xFFFF_FFFF], 0),
    "personality: ADDR_NO_RANDOMIZE": ([135, 0x4_0000], 0),
    "prlimit64: ask about another": ([302, 1, 7, 0, 0], 0),
    "socket UNIX": ([41, 1, 1, 0], 0),
    "socket TCP": ([41, 2, 1 | 0x80800, 6], 0),
    "socket UDP over IPv6": ([41, 10, 2, 17], 0),
    "socket netlink route": ([41, 16, 3, 0], 0),
    "seccomp": ([317, 2, 0, BAD], EFAULT),
    "landlock": ([444, 0, 0, 1], 0),
    "openat2": ([437, BAD, 0, 0, 24], EFAULT),
    "file_getattr or, before Linux 6.17, ENOSYS": ([468, BAD, BAD, BAD, 0, 0], {22, ENOSYS}),
    "uretprobe's gap": ([337], ENOSYS),
    "the newest reviewed number and one more": ([470, BAD], ENOSYS),
    "far above": ([0x3FFF_FFFF], ENOSYS),
    "quiet: MPTCP": ([41, 2, 1, 262], EPROTONOSUPPORT),
    "quiet: audit": ([41, 16, 3, 9], EPROTONOSUPPORT),
}


def test_what_programs_need_is_allowed_and_nothing_is_reported():
    results, denied = try_calls([call for call, _ in ALLOWED.values()])
    for (name, (_, expected)), (_, error) in zip(ALLOWED.items(), results, strict=True):
        assert error in (expected if isinstance(expected, set) else {expected}), name
    assert denied == {}


def test_x32_calls_kill_the_process():
    with Guest("print(call(0x40000000 | 39))") as guest:
        assert guest.finish() == b""
        assert guest.process.returncode == -signal.SIGSYS


# mov eax, 20 (getpid of i386); int 0x80; ret.
I386 = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
"""


def test_i386_calls_kill_the_process():
    unconfined = subprocess.run([sys.executable, "-I", "-c", I386], check=False, capture_output=True)
    # Without IA32 emulation the kernel itself answers every int 0x80 with SIGSEGV.
    expected = signal.SIGSEGV if unconfined.returncode == -signal.SIGSEGV else signal.SIGSYS
    with Guest(I386) as guest:
        assert guest.finish() == b""
        assert guest.process.returncode == -expected


PYTHON = """
import asyncio, multiprocessing, subprocess, threading
def work(queue): queue.put(6 * 7)
if __name__ == "__main__":
    queue = multiprocessing.Queue()
    thread = threading.Thread(target=work, args=(queue,)); thread.start(); thread.join()
    process = multiprocessing.Process(target=work, args=(queue,)); process.start(); process.join()
    async def echo():
        process = await asyncio.create_subprocess_exec("/bin/echo", "hi", stdout=subprocess.PIPE)
        return (await process.communicate())[0]
    print(queue.get(), queue.get(), asyncio.run(echo()), subprocess.run(["true"]).returncode)
"""
NODE = """
const {execFileSync} = require("child_process");
const {Worker} = require("worker_threads");
new Worker("0", {eval: true}).on("exit", () => console.log(execFileSync("/bin/echo", ["hi"]).toString().trim()));
"""
GIT = "git init -q . && git -c user.name=a -c user.email=b commit -q --allow-empty -m x && git log --format=%s"
PROGRAMS = {
    "python3": ([sys.executable, "-c", PYTHON], b"42 42 b'hi\\n' 0\n"),
    "node": (["node", "-e", NODE], b"hi\n"),
    "git": (["sh", "-c", GIT], b"x\n"),
    "gcc": (["sh", "-c", "echo '#include <stdio.h>\nint main(){puts(\"hi\");}' | gcc -x c - && ./a.out"], b"hi\n"),
    "tar": (["sh", "-c", "echo hi > f && tar czf t.tgz f && rm f && tar xzf t.tgz && cat f"], b"hi\n"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ordinary_programs_run_and_are_denied_nothing(name: str, tmp_path: Path):
    argv, expected = PROGRAMS[name]
    if subprocess.run(["which", name], check=False, capture_output=True).returncode:
        pytest.skip(f"{name} is not installed")
    body = "os.environ.pop('NODE_EXTRA_CA_CERTS', None); os.execvp(sys.argv[2], sys.argv[2:])"
    with Guest(body, *argv, cwd=tmp_path) as guest:
        assert guest.finish() == expected
        assert guest.process.returncode == 0
        assert guest.denied() == {}


def test_java_runs(tmp_path: Path):
    if subprocess.run(["which", "java"], check=False, capture_output=True).returncode:
        pytest.skip("java is not installed")
    with Guest("os.execvp('java', ['java', '-Xshare:auto', '-version'])", cwd=tmp_path) as guest:
        guest.finish()
        assert guest.process.returncode == 0


def test_the_host_kernel_has_what_the_filter_needs():
    assert seccomp.check_kernel() == ""


def test_a_confined_process_is_told_why_it_cannot_confine_others():
    body = "sys.path[:0] = sys.argv[2].split(':'); from atoll.kernel import seccomp; print(seccomp.check_kernel())"
    with Guest(body, ":".join(path for path in sys.path if path)) as guest:
        assert guest.finish() == b"pidfd_getfd(2) is not available (Linux 5.6): Operation not permitted\n"
