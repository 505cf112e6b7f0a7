"""The command line's own standard streams as a command's: bytes pass through, and nothing blocks the event loop.

A loop that hangs in write(2) because a pager does not read would miss timeouts and Ctrl-C. Descriptors 0-2 are
shared with other processes, so they are never switched to non-blocking: pipes and terminals are opened anew.
"""

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator, Awaitable, Callable

CHUNK = 1 << 16


class Sink:
    """Writes to one output descriptor, in order; `on_error` is called once when that fails for good."""

    def __init__(self, fd: int, on_error: Callable[[OSError], None]) -> None:
        self._on_error = on_error
        self._fd, self._blocks = _unshared(fd)
        self._most = select.PIPE_BUF if self._blocks else CHUNK
        self._dead = False
        self._waiting: asyncio.Future[None] | None = None

    def write(self, data: bytes) -> Awaitable[None] | None:
        """Write `data`; returns something to wait for when the other side does not keep up."""
        rest = self._write_now(memoryview(data))
        return self._write_later(rest) if rest else None

    def drop(self) -> None:
        """Write nothing more, and keep nobody waiting."""
        self._dead = True
        if self._waiting is not None:
            _resolve(self._waiting)

    async def _write_later(self, rest: memoryview) -> None:
        while rest:
            self._waiting = asyncio.get_running_loop().create_future()
            await _ready(self._fd, self._waiting, writing=True)
            rest = self._write_now(rest)

    def _write_now(self, view: memoryview) -> memoryview:
        """Write what can be written without waiting; returns the rest."""
        try:
            while view and not self._dead:
                if self._blocks and not _writable(self._fd):
                    return view
                view = view[os.write(self._fd, view[: self._most]) :]
        except BlockingIOError:
            return view
        except OSError as error:
            self._dead = True
            self._on_error(error)
        return view[:0]


def _unshared(fd: int) -> tuple[int, bool]:
    """A descriptor of the same file, and whether a write to it can block for long."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or os.isatty(fd):
        try:
            # An open file description of our own (proc_pid_fd(5)): O_NONBLOCK on it concerns nobody else.
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), False
        except OSError:  # for example a pipe made by another user, or one without readers
            return fd, True
    # Sockets cannot be opened anew; files and other devices never wait for a reader.
    return fd, stat.S_ISSOCK(mode)


def _writable(fd: int) -> bool:
    """Whether a write of PIPE_BUF bytes goes through at once (pipe(7)); an error is for the write to find."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def has_stdin() -> bool:
    """Whether stdin may be read: a background job that reads its terminal would be stopped (tty_ioctl(4))."""
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


async def stdin_chunks() -> AsyncIterator[bytes]:
    """Our stdin as it comes; ends with it, or when it cannot be read."""
    while True:
        try:
            await _ready(0, asyncio.get_running_loop().create_future(), writing=False)
            data = os.read(0, CHUNK)
        except BlockingIOError:
            continue
        except OSError:
            return
        if not data:
            return
        yield data


async def _ready(fd: int, ready: "asyncio.Future[None]", *, writing: bool) -> None:
    """Wait until `fd` can be read or written, which resolves `ready`; at once for files, as epoll(7) takes none."""
    loop = asyncio.get_running_loop()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    try:
        add(fd, _resolve, ready)
    except PermissionError:
        return
    try:
        await ready
    finally:
        remove(fd)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
