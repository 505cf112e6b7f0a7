"""Host processes are started clean, from a thread that never ends, and are collected."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from atoll.kernel.spawn import Spawned, spawn
from tests.hostile.rig import open_fds

PYTHON = [sys.executable, "-I", "-S", "-c"]
DOOMED = ["/usr/bin/setpriv", "--pdeathsig", "KILL", "/bin/sleep", "30"]
"""Asks for SIGKILL when the thread that started it ends, as the launcher does (prctl(2))."""


@contextmanager
def spawned(argv: list[str | bytes], *fds: int, pipe_bytes: int = 0) -> Iterator[Spawned]:
    process = spawn(argv, fds, pipe_bytes).result(10)
    try:
        yield process
    finally:
        if process.pidfd.fileno() >= 0:
            process.pidfd.send(signal.SIGKILL)
            process.reap(5)
        for fd in (process.stdin, process.stdout, process.stderr):
            os.close(fd)


def read_all(fd: int) -> bytes:
    os.set_blocking(fd, True)
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts)


def output(argv: list[str | bytes], *fds: int) -> str:
    with spawned(argv, *fds) as process:
        said, complaints = read_all(process.stdout), read_all(process.stderr)
        assert (process.reap(10), complaints) == (0, b"")
    return said.decode()


def test_the_three_pipes():
    before = open_fds()
    with spawned(["/bin/sh", "-c", "cat; echo oops >&2; exit 7"]) as process:
        for fd in (process.stdin, process.stdout, process.stderr):
            assert not os.get_blocking(fd)
            assert not os.get_inheritable(fd)
        os.write(process.stdin, b"through")
        os.close(process.stdin)
        process.stdin = os.dup(process.stdout)  # for the closing at the end
        assert read_all(process.stdout) == b"through"
        assert read_all(process.stderr) == b"oops\n"
        assert process.reap(5) == 7
    assert open_fds() == before


def test_the_child_has_no_environment_and_starts_at_the_root(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CANARY", "secret")
    assert output(["/usr/bin/env"]) == ""
    assert output(["/bin/pwd", "-P"]) == "/\n"


FDS = "import os; print(*sorted(os.readlink(f'/proc/self/fd/{n}').split(':')[0] + f'={n}' for n in range(100) "
FDS += "if os.path.exists(f'/proc/self/fd/{n}')))"


def test_the_child_has_three_descriptors_and_those_passed():
    left, right = os.pipe()
    os.set_inheritable(right, True)  # somebody else's, left open by mistake
    memory = os.memfd_create("passed")
    try:
        seen = output([*PYTHON, FDS], memory).split()
    finally:
        for fd in (left, right, memory):
            os.close(fd)
    assert seen == [f"/memfd={memory}", "pipe=0", "pipe=1", "pipe=2"]


def test_arguments_are_passed_byte_for_byte():
    words = ["a b", "", "-n", "$HOME", "\udcff", "é\n"]
    argv = ["/usr/bin/printf", "<%s>", *words]
    with spawned(argv) as process:
        assert read_all(process.stdout) == b"".join(b"<" + os.fsencode(word) + b">" for word in words)
        assert process.reap(5) == 0
    with spawned([b"/usr/bin/printf", b"<%s>", b"\xfe"]) as process:
        assert read_all(process.stdout) == b"<\xfe>"


def test_signals_are_as_a_fresh_process_has_them():
    script = "import signal; print(signal.pthread_sigmask(0, []), signal.getsignal(13), signal.getsignal(2))"
    previous = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        # Python itself ignores SIGPIPE at its start; that it could say so means the child got the default.
        assert output([*PYTHON, script]).startswith("set() ")
        assert "SigIgn:\t0000000000000000" in output(["/bin/grep", "SigIgn", "/proc/self/status"])
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_pipes_are_as_large_as_asked(size: int):
    with spawned(["/bin/cat"], pipe_bytes=size) as process:
        capacity = [fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) for fd in (process.stdin, process.stdout)]
        assert capacity == [size or 65536] * 2


# --- the permanent thread --------------------------------------------------------------------------------------------


def test_a_child_outlives_the_thread_that_asked_for_it():
    children: list[subprocess.Popen[bytes] | Spawned] = []

    def start() -> None:
        children.append(subprocess.Popen(DOOMED))
        children.append(spawn(DOOMED).result(10))
        for child in children:
            while not cmdline(child.pid).startswith(b"/bin/sleep"):  # it has asked for the signal by then
                time.sleep(0.001)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(10)
    bare, ours = children
    assert isinstance(ours, Spawned)
    assert isinstance(bare, subprocess.Popen)
    try:
        assert bare.wait(5) == -signal.SIGKILL  # without the permanent thread
        assert not ours.pidfd.wait(0.1)
    finally:
        bare.kill()
        ours.pidfd.send(signal.SIGKILL)
        assert ours.reap(5) == -signal.SIGKILL
        for fd in (ours.stdin, ours.stdout, ours.stderr):
            os.close(fd)


def test_a_child_dies_with_the_host_process():
    script = f"""
import os, sys
from atoll.kernel.spawn import spawn
process = spawn({DOOMED!r}).result(10)
while not open(f"/proc/{{process.pid}}/cmdline", "rb").read().startswith(b"/bin/sleep"):
    pass
print(process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (-9, "")
    pid = int(done.stdout)
    deadline = time.monotonic() + 5
    while b"sleep" in cmdline(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def cmdline(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_many_threads_may_spawn_at_once():
    before = open_fds()
    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(lambda n: output(["/bin/echo", str(n)]), range(64)))
    assert said == [f"{n}\n" for n in range(64)]
    assert open_fds() == before


def test_a_forked_child_spawns_from_a_thread_of_its_own():
    script = """
import os, sys, warnings
from atoll.kernel.spawn import spawn
warnings.simplefilter("ignore", DeprecationWarning)  # fork(2) with threads, since Python 3.12
assert spawn(["/bin/true"]).result(10).reap(5) == 0
child = os.fork()
if child == 0:
    os._exit(10 + spawn(["/bin/sh", "-c", "exit 3"]).result(10).reap(5))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (done.stdout, done.stderr) == ("13\n", "")


# --- failures and the end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["/nonexistent/program"], FileNotFoundError),
        (["/etc/passwd"], PermissionError),
        (["/bin"], PermissionError),
        (["/bin/true", "x" * 140_000], OSError),
        (["/bin/true", "a\0b"], ValueError),
        ([], IndexError),
    ],
    ids=["missing", "not executable", "directory", "too long", "NUL", "empty"],
)
def test_what_cannot_be_executed_is_the_callers_error_and_leaves_nothing(argv: list[str], kind: type[Exception]):
    before = open_fds()
    with pytest.raises(kind):
        spawn(argv).result(10)
    assert open_fds() == before
    assert output(["/bin/echo", "fine"]) == "fine\n"


def test_reap_has_a_deadline_and_is_prompt():
    with spawned(["/bin/sleep", "30"]) as process:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=f"process {process.pid} still runs"):
            process.reap(0.05)
        assert 0.05 <= time.monotonic() - began < 1
        assert process.pidfd.fileno() >= 0
        process.pidfd.send(signal.SIGTERM)
        assert process.reap(5) == -signal.SIGTERM
        assert process.pidfd.fileno() < 0
        assert not os.path.exists(f"/proc/{process.pid}")
