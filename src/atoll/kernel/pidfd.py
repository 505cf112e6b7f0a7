"""Processes without pid reuse: a pidfd (pidfd_open(2)) names one process for ever, a number does not.

Where only a number can be kept (a journal on disk), it is paired with the process's start time and the boot
id. Called by whatever signals or waits for a process. Never signals by number.
"""

import os
import select
import signal
from functools import cache
from types import TracebackType
from typing import Self

PF_DEAD = frozenset(b"ZXx")
"""States of a process that has ended and only awaits its parent (proc_pid_stat(5))."""


class Pidfd:
    """A reference to one process; close it, or use it as a context manager."""

    def __init__(self, fd: int, pid: int) -> None:
        self._fd = fd
        self.pid = pid

    @classmethod
    def open(cls, pid: int, start_time: int | None = None) -> Self:
        """Refer to process `pid`; with `start_time`, only if it is the process that started then.

        The start time is read while the descriptor is held, so a number that is reused before or after the
        open cannot match.

        Raises:
            ProcessLookupError: there is no such process (any more).
        """
        self = cls(os.pidfd_open(pid), pid)
        if start_time is not None and not is_alive(pid, start_time):
            self.close()
            raise ProcessLookupError(f"process {pid} with start time {start_time} is gone")
        return self

    def fileno(self) -> int:
        """The descriptor; readable once the process has ended."""
        return self._fd

    def send(self, sig: int) -> None:
        """Send a signal (pidfd_send_signal(2)).

        Raises:
            ProcessLookupError: the process has ended.
        """
        signal.pidfd_send_signal(self._fd, sig)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended, at most `timeout_s` seconds; whether it has. Does not reap it."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(max(0, timeout_s * 1000)))

    def close(self) -> None:
        """Forget the process; safe to call again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def start_time(pid: int) -> int:
    """When process `pid` started, in clock ticks since boot (field 22 of proc_pid_stat(5)).

    Raises:
        ProcessLookupError: there is no such process.
    """
    return int(_stat(pid)[19])


def is_alive(pid: int, started: int) -> bool:
    """Whether the process that had number `pid` and start time `started` in this boot still runs.

    A zombie does not run; a process whose first thread has ended does while another thread is left.
    """
    try:
        fields = _stat(pid)
    except ProcessLookupError:
        return False
    ended = fields[0][0] in PF_DEAD and int(fields[17]) <= 1
    return int(fields[19]) == started and not ended


@cache
def boot_id() -> str:
    """Names this boot of the machine: pids and start times mean nothing in another (random(4))."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def children(pid: int) -> list[int]:
    """The children of process `pid`, of all its threads; empty when it is gone.

    Numbers only: open a `Pidfd` and ask again before acting on one.
    """
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except FileNotFoundError:
        # Gone, or a kernel without CONFIG_PROC_CHILDREN (proc_tid_children(5)).
        return _children_by_scan(pid)
    except ProcessLookupError:
        return []
    return found


def _children_by_scan(pid: int) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(_stat(int(name))[1])
            except ProcessLookupError:
                continue
            if parent == pid:
                found.append(int(name))
    return found


def _stat(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat from the third (state) on; the second, the name, may hold spaces and brackets."""
    try:
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"no process {pid}") from error


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)
