"""Our own standard streams: every byte in order, without ever blocking the loop."""

import asyncio
import fcntl
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from atoll.cli.stdio import Sink, stdin_chunks

DATA = os.urandom(1 << 20)


def no_error(error: OSError) -> None:
    pytest.fail(str(error))


def drain(fd: int, into: bytearray, pause_s: float = 0.0) -> threading.Thread:
    def read() -> None:
        while part := os.read(fd, 1 << 16):
            into.extend(part)
            time.sleep(pause_s)

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def write_all(fd: int) -> None:
    with open(fd, "wb") as file:
        file.write(DATA)


async def written(sink: Sink, data: bytes, chunk: int = 50_000) -> int:
    """Write all; returns how often the loop was free meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    counter = asyncio.create_task(count())
    for start in range(0, len(data), chunk):
        waiting = sink.write(data[start : start + chunk])
        if waiting is not None:
            await waiting
    counter.cancel()
    return turns


def test_a_slow_reader_of_a_pipe_gets_everything_and_blocks_nobody() -> None:
    reader, writer = os.pipe()
    got = bytearray()
    thread = drain(reader, got, 0.002)
    assert asyncio.run(written(Sink(writer, no_error), DATA)) > 10
    assert not fcntl.fcntl(writer, fcntl.F_GETFL) & os.O_NONBLOCK
    os.close(writer)
    fds = [fd for fd in os.listdir("/proc/self/fd") if _is_pipe_end(int(fd), reader)]
    for fd in fds:
        os.close(int(fd))  # the sink's own descriptor of the pipe, which it keeps until the process ends
    thread.join()
    os.close(reader)
    assert bytes(got) == DATA


def _is_pipe_end(fd: int, reader: int) -> bool:
    try:
        same = os.fstat(fd).st_ino == os.fstat(reader).st_ino
    except OSError:
        return False
    return same and fd != reader


def test_a_slow_reader_of_a_socket_gets_everything_and_blocks_nobody() -> None:
    ours, theirs = socket.socketpair()
    got = bytearray()
    thread = drain(theirs.fileno(), got, 0.002)
    assert asyncio.run(written(Sink(ours.fileno(), no_error), DATA)) > 10
    ours.close()
    thread.join()
    theirs.close()
    assert bytes(got) == DATA


def test_a_sink_that_is_dropped_keeps_nobody_waiting() -> None:
    reader, writer = os.pipe()

    async def fill() -> None:
        sink = Sink(writer, no_error)
        waiting = sink.write(DATA)
        assert waiting is not None
        asyncio.get_running_loop().call_later(0.05, sink.drop)
        await asyncio.wait_for(asyncio.ensure_future(waiting), 5)
        assert sink.write(DATA) is None

    asyncio.run(fill())
    os.close(reader)
    os.close(writer)


def test_a_file_gets_everything_at_its_own_offset(tmp_path: Path) -> None:
    path = tmp_path / "out"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"before ")
    asyncio.run(written(Sink(fd, no_error), DATA))
    os.close(fd)
    assert path.read_bytes() == b"before " + DATA


def test_a_reader_that_left_is_reported_once_and_the_rest_is_dropped() -> None:
    reader, writer = os.pipe()
    problems: list[OSError] = []
    sink = Sink(writer, problems.append)
    os.close(reader)
    assert sink.write(b"x") is None
    assert sink.write(b"y") is None
    os.close(writer)
    assert [type(problem) for problem in problems] == [BrokenPipeError]


def test_a_full_device_is_reported() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    problems: list[OSError] = []
    assert Sink(fd, problems.append).write(b"x") is None
    os.close(fd)
    assert [problem.strerror for problem in problems] == ["No space left on device"]


@pytest.mark.parametrize("kind", ["pipe", "file", "null"])
def test_stdin_is_read_to_its_end(kind: str, tmp_path: Path) -> None:
    expected = b"" if kind == "null" else DATA
    if kind == "pipe":
        fd, writer = os.pipe()
        threading.Thread(target=write_all, args=(writer,)).start()
    else:
        path = tmp_path / "in" if kind == "file" else Path(os.devnull)
        if kind == "file":
            path.write_bytes(DATA)
        fd = os.open(path, os.O_RDONLY)
    saved = os.dup(0)
    os.dup2(fd, 0)
    os.close(fd)

    async def read() -> bytes:
        return b"".join([chunk async for chunk in stdin_chunks()])

    try:
        assert asyncio.run(read()) == expected
    finally:
        os.dup2(saved, 0)
        os.close(saved)
