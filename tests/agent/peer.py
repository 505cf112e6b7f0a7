"""The host's side of the agent protocol, sans I/O, for the tests of the agent alone.

Deliberately a second, independent reading of the protocol: it shares no code with the production codec, so a
mistake in one does not hide in the other. Bytes in through `Peer.receive`, bytes out through `Peer.outgoing`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = struct.Struct("<IIB")
STDIN_WINDOW = 65536
BIG_WINDOW = 1 << 30


class Kind(IntEnum):
    """The frame kinds of protocol version 1."""

    HELLO = 1
    START = 2
    STARTED = 3
    DATA = 4
    EOF = 5
    CREDIT = 6
    SIGNAL = 7
    EXITED = 8
    ERROR = 9
    PING = 10
    PONG = 11
    CONFINED = 12
    SHUTDOWN = 13


@dataclass(frozen=True)
class Frame:
    """One decoded frame."""

    stream: int
    kind: Kind
    payload: bytes


def frame(kind: int, stream: int = 0, payload: bytes = b"", length: int | None = None) -> bytes:
    """Encode a frame; `length` lets a hostile host lie about the payload's size."""
    return HEADER.pack(len(payload) if length is None else length, stream, kind) + payload


def start_payload(
    argv: list[bytes],
    *,
    env: list[bytes] | None = None,
    cwd: bytes = b"/",
    uid: int = 0,
    gid: int = 0,
    nofile: int = 0,
    window: int = BIG_WINDOW,
    leaf: bytes = b"",
    stdin: bool = False,
    flags: int | None = None,
) -> bytes:
    """Encode the payload of START."""
    environment = [b"PATH=/usr/bin:/bin"] if env is None else env
    head = struct.pack("<BIIII", int(stdin) if flags is None else flags, uid, gid, nofile, window)
    words = struct.pack("<I", len(argv)) + b"".join(word + b"\0" for word in argv)
    variables = struct.pack("<I", len(environment)) + b"".join(line + b"\0" for line in environment)
    return head + leaf + b"\0" + cwd + b"\0" + words + variables


@dataclass
class Exit:
    """The payload of EXITED; times in microseconds, memory in KiB."""

    how: int
    value: int
    utime_us: int
    stime_us: int
    maxrss_kib: int


@dataclass
class Command:
    """What the host knows about one stream."""

    stream: int
    window: int
    auto_credit: bool
    pid: int | None = None
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    ended: set[int] = field(default_factory=set)
    exit: Exit | None = None
    error: tuple[int, int, str] | None = None
    stdin_credit: int = STDIN_WINDOW
    log: list[Kind] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether the agent has promised to send nothing more."""
        return self.error is not None or (self.exit is not None and self.ended == {1, 2})

    @property
    def status(self) -> int:
        """The exit code, or minus the signal, as `subprocess` has it."""
        assert self.exit is not None
        return -self.exit.value if self.exit.how else self.exit.value


class Peer:
    """Decodes what the agent sends, checks the order rules, and gathers what to send."""

    def __init__(self) -> None:
        """Start with nothing received."""
        self.outgoing = bytearray()
        self.commands: dict[int, Command] = {}
        self.hello: tuple[int, int, int] | None = None
        self.pongs: list[bytes] = []
        self._buffer = bytearray()
        self._next = 1

    def confirm(self) -> None:
        """Send CONFINED."""
        self.outgoing += frame(Kind.CONFINED)

    def start(
        self,
        *argv: str | bytes,
        env: list[bytes] | None = None,
        cwd: bytes = b"/",
        uid: int = 0,
        gid: int = 0,
        nofile: int = 0,
        window: int = BIG_WINDOW,
        leaf: bytes = b"",
        stdin: bool = False,
        auto_credit: bool = True,
    ) -> Command:
        """Send START on a fresh stream."""
        words = [word.encode() if isinstance(word, str) else word for word in argv]
        command = Command(self._next, window, auto_credit)
        self.commands[self._next] = command
        payload = start_payload(
            words, env=env, cwd=cwd, uid=uid, gid=gid, nofile=nofile, window=window, leaf=leaf, stdin=stdin
        )
        self.outgoing += frame(Kind.START, self._next, payload)
        self._next += 1
        return command

    def shell(self, script: str, argv: Sequence[str] = (), **options: object) -> Command:
        """Send START of `sh -c SCRIPT ARGV...`."""
        return self.start("sh", "-c", script, *argv, **options)  # type: ignore[arg-type]

    def data(self, command: Command, data: bytes) -> None:
        """Send stdin bytes; the caller minds the credit, except here where it is counted."""
        command.stdin_credit -= len(data)
        self.outgoing += frame(Kind.DATA, command.stream, b"\0" + data)

    def eof(self, command: Command) -> None:
        """Close the command's stdin."""
        self.outgoing += frame(Kind.EOF, command.stream, b"\0")

    def credit(self, command: Command, fd: int, count: int) -> None:
        """Allow `count` more bytes of fd 1 or 2."""
        self.outgoing += frame(Kind.CREDIT, command.stream, struct.pack("<BI", fd, count))

    def signal(self, command: Command, signo: int, scope: int) -> None:
        """Send SIGNAL."""
        self.outgoing += frame(Kind.SIGNAL, command.stream, bytes([signo, scope]))

    def receive(self, data: bytes) -> None:
        """Decode and apply whatever frames are whole now."""
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            length, stream, kind = HEADER.unpack_from(self._buffer)
            assert length <= 1 << 20, "the agent sent an oversized frame"
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            self._apply(Frame(stream, Kind(kind), payload))

    def _apply(self, item: Frame) -> None:
        if item.stream == 0:
            self._apply_to_agent(item)
            return
        command = self.commands[item.stream]
        assert not command.over, f"{item.kind.name} after the stream was over"
        command.log.append(item.kind)
        match item.kind:
            case Kind.STARTED:
                (command.pid,) = struct.unpack("<I", item.payload)
                assert command.log == [Kind.STARTED]
            case Kind.DATA:
                self._apply_data(command, item.payload)
            case Kind.EOF:
                assert item.payload[0] in {1, 2}
                assert item.payload[0] not in command.ended
                command.ended.add(item.payload[0])
            case Kind.CREDIT:
                fd, count = struct.unpack("<BI", item.payload)
                assert fd == 0
                command.stdin_credit += count
                assert command.stdin_credit <= STDIN_WINDOW
            case Kind.EXITED:
                assert command.exit is None
                command.exit = Exit(*struct.unpack("<BBQQQ", item.payload))
            case Kind.ERROR:
                stage, errno = struct.unpack_from("<BI", item.payload)
                text = item.payload[5:].decode("ascii")
                assert 0 < len(text) <= 200
                command.error = (stage, errno, text)
            case _:
                raise AssertionError(f"unexpected {item.kind.name}")

    def _apply_data(self, command: Command, payload: bytes) -> None:
        assert 2 <= len(payload) <= 65537
        fd, count = payload[0], len(payload) - 1
        target = {1: command.stdout, 2: command.stderr}[fd]
        assert fd not in command.ended
        target += memoryview(payload)[1:]
        if command.auto_credit:
            if command.window < BIG_WINDOW:
                self.credit(command, fd, count)
        else:
            assert len(target) <= command.window, "the agent ignored its credit"

    def _apply_to_agent(self, item: Frame) -> None:
        match item.kind:
            case Kind.HELLO:
                assert self.hello is None
                self.hello = struct.unpack("<BIi", item.payload)
            case Kind.PONG:
                self.pongs.append(item.payload)
            case _:
                raise AssertionError(f"unexpected {item.kind.name} on stream 0")
