"""What a command wrote: bounded in memory, whole on disk, readable by range.

`Output` keeps everything in memory while it is small; past `KEEP` bytes it spills to a log file and keeps
only head and tail. `LogStore` owns the log files of one sandbox and their byte quota: the oldest logs of
ended commands make room, and a command whose own output no longer fits is ended by its `Process`.
"""

import os
from collections import deque
from pathlib import Path

from atoll.model.errors import NotFoundError

KEEP = 1 << 20
"""Bytes of one stream kept in memory; past it the first and the last half of that."""


class LogStore:
    """The log files of one sandbox.

    Args:
        directory: exists, private to us, removed by the teardown journal.
        quota_bytes: all files together.
    """

    def __init__(self, directory: Path, quota_bytes: int) -> None:
        self._directory = directory
        self._quota = quota_bytes
        self._used = 0
        self._ended: deque[Output] = deque()
        self._made = 0
        self._open: set[int] = set()
        self.closed = False

    def create(self) -> tuple[Path, int]:
        """A fresh, empty log file; open until it has `ended`, or a host with many long logs had no fd left."""
        self._made += 1
        path = self._directory / f"{self._made}.log"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_APPEND
        fd = os.open(path, flags, 0o600)
        self._open.add(fd)
        return path, fd

    def close(self) -> None:
        """Close every log file; what was spilled can no longer be read."""
        self.closed = True
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def reserve(self, count: int) -> bool:
        """Take `count` bytes of the quota, dropping the oldest ended logs for it; False when they do not fit."""
        while self._used + count > self._quota and self._ended:
            self._used -= self._ended.popleft().forget()
        if self._used + count > self._quota:
            return False
        self._used += count
        return True

    def ended(self, output: "Output") -> None:
        """From now on `output` gets no more and may be dropped to make room."""
        if output.fd in self._open:
            self._open.remove(output.fd)
            os.close(output.fd)
        if output.spilled:
            self._ended.append(output)


class Output:
    """One output stream of one command."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._head = bytearray()
        self._tail = bytearray()
        self._log: Path | None = None
        self.fd = -1
        """Of its log while the command runs; owned by the store."""
        self._forgotten = False
        self.total = 0
        """Bytes written by the command so far."""
        self.refused = 0
        """Bytes that came after a limit was reached and are not part of `total`."""

    @property
    def spilled(self) -> bool:
        """Whether a log file holds (or held) the whole."""
        return self._log is not None

    @property
    def dropped(self) -> int:
        """Bytes missing between head and tail in `kept`."""
        return self.total - len(self._head) - min(len(self._tail), KEEP // 2)

    def append(self, data: bytes) -> bool:
        """Add what the command wrote; False when the log quota is exhausted (the bytes are then dropped)."""
        if self._store.closed:
            return True  # the sandbox is being ended, and the number of a closed log may be another file's by now
        if self._log is None:
            if self.total + len(data) <= KEEP:
                self._head += data
                self.total += len(data)
                return True
            if not self._store.reserve(self.total + len(data)):
                return False
            self._log, self.fd = self._store.create()
            _write_all(self.fd, self._head)
            half = KEEP // 2
            rest = bytes(self._head[half:])
            del self._head[half:]
            self._keep_tail(rest)
        elif not self._store.reserve(len(data)):
            return False
        _write_all(self.fd, data)
        self.total += len(data)
        missing = KEEP // 2 - len(self._head)
        if missing > 0:
            self._head += data[:missing]
            data = data[missing:]
        self._keep_tail(data)
        return True

    def _keep_tail(self, data: bytes) -> None:
        self._tail += data
        if len(self._tail) > KEEP:  # not at each call, which would move all of it for every few bytes
            del self._tail[: -KEEP // 2]

    def kept(self) -> bytes:
        """Everything, or head and tail when `dropped` is not 0."""
        return bytes(self._head + self._tail[-KEEP // 2 :])

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes of the whole output from byte `offset`; short at its end.

        Raises:
            NotFoundError: the log was dropped to make room for newer ones, or the sandbox has ended.
        """
        if self._log is None:
            return bytes(self._head[offset : offset + size])
        if self._forgotten or self._store.closed:
            raise NotFoundError("the log is gone", hint="read it before newer logs need its room or the sandbox ends")
        fd = os.open(self._log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, offset)
        finally:
            os.close(fd)

    def forget(self) -> int:
        """Free the log file; returns the bytes freed."""
        if self._log is None or self._forgotten:
            return 0
        self._forgotten = True
        self._log.unlink()
        return self.total


def _write_all(fd: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
