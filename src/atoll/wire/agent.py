"""Codec of the guest channel: bytes <-> messages, without any I/O.

Both sides speak frames ``u32 length | u32 stream | u8 kind | payload`` (little endian) over one byte stream;
`agent/README.md` has the table. The host side lives here: it encodes what the host sends and decodes what
the guest sends. Everything decoded is hostile: lengths are checked before anything is kept, a payload that
does not fit its kind raises `GuestProtocolError`, and guest text is only ever data.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from atoll.model.errors import GuestProtocolError

VERSION = 1
MAX_PAYLOAD = 1 << 20
MAX_DATA = 1 << 16
STDIN_WINDOW = 1 << 16
"""Bytes of stdin the host may send before the first CREDIT of a stream."""
MAX_ERROR_TEXT = 200
MAX_ERRNO = 4095
"""Highest error number of the kernel (MAX_ERRNO in linux/err.h)."""

STDIN, STDOUT, STDERR = 0, 1, 2
HEADER = struct.Struct("<IIB")


class Kind(IntEnum):
    """Frame kinds of protocol version 1."""

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


class Stage(IntEnum):
    """Where a START failed inside."""

    RESOURCES = 1
    CGROUP = 2
    CREDENTIALS = 3
    CWD = 4
    EXEC = 5
    CONFINE = 6


class Scope(IntEnum):
    """Whom a SIGNAL reaches."""

    LEADER = 0
    GROUP = 1
    TREE = 2


class Hello(NamedTuple):
    """The agent runs; `listener` is its fd of the seccomp notification listener, -1 without one."""

    pid: int
    listener: int


class Started(NamedTuple):
    """The command was executed; `pid` counts inside the sandbox."""

    stream: int
    pid: int


class Data(NamedTuple):
    """Bytes the command wrote to `fd` (1 or 2)."""

    stream: int
    fd: int
    data: bytes


class Eof(NamedTuple):
    """Nothing more will come from `fd`."""

    stream: int
    fd: int


class Credit(NamedTuple):
    """The command took that many bytes of its stdin."""

    stream: int
    taken: int


class Exited(NamedTuple):
    """The leader was reaped; the figures are the guest's word, not the host's."""

    stream: int
    signaled: bool
    value: int
    user_us: int
    system_us: int
    maxrss_kib: int


class Failed(NamedTuple):
    """START failed at `stage`; the stream is over."""

    stream: int
    stage: Stage
    errno: int
    text: str


class Pong(NamedTuple):
    """Answer to a PING."""

    nonce: bytes


Message = Hello | Started | Data | Eof | Credit | Exited | Failed | Pong

_HELLO = struct.Struct("<BIi")
_U32 = struct.Struct("<I")
_CREDIT = struct.Struct("<BI")
_EXITED = struct.Struct("<BBQQQ")
_ERROR = struct.Struct("<BI")
_START = struct.Struct("<BIIII")
NONCE_BYTES = 8
MAX_SIGNAL = 64


class Decoder:
    """Turns the guest's bytes into messages; keeps at most one incomplete frame."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Decode what is complete.

        Raises:
            GuestProtocolError: at the first byte that cannot be right; the decoder is then of no more use.
        """
        if self._rest:
            data = self._rest + data
        view = memoryview(data)
        at, end = 0, len(data)
        while end - at >= HEADER.size:
            length, stream, kind = HEADER.unpack_from(view, at)
            if length > MAX_DATA + 1:  # nothing a guest sends is longer than DATA
                raise GuestProtocolError(f"guest announced a frame of {length} bytes")
            start = at + HEADER.size
            if end - start < length:
                break
            at = start + length
            # The generator may be left unfinished when the consumer fails; then the channel is dead anyway.
            yield _decode(stream, kind, view[start:at])
        self._rest = bytes(view[at:])


def _decode(stream: int, kind: int, payload: memoryview) -> Message:
    if kind == Kind.DATA:
        if not 1 < len(payload) <= MAX_DATA + 1:
            raise GuestProtocolError(f"DATA of {len(payload)} bytes")
        return Data(stream, _output_fd(payload[0]), bytes(payload[1:]))
    decode = _DECODERS.get(kind)
    if decode is None:
        raise GuestProtocolError(f"unknown frame kind {kind}")
    try:
        return decode(stream, payload)
    except (struct.error, ValueError) as error:
        raise GuestProtocolError(f"malformed {Kind(kind).name} frame: {error}") from error


def _output_fd(fd: int) -> int:
    if fd not in (STDOUT, STDERR):
        raise GuestProtocolError(f"guest sent bytes for fd {fd}")
    return fd


def _hello(stream: int, payload: memoryview) -> Hello:
    version, pid, listener = _HELLO.unpack(payload)
    if version != VERSION or stream != 0:
        raise ValueError(f"version {version} on stream {stream}")
    return Hello(pid, listener)


def _started(stream: int, payload: memoryview) -> Started:
    return Started(stream, _U32.unpack(payload)[0])


def _eof(stream: int, payload: memoryview) -> Eof:
    if len(payload) != 1:
        raise ValueError(f"{len(payload)} bytes")
    return Eof(stream, _output_fd(payload[0]))


def _credit(stream: int, payload: memoryview) -> Credit:
    fd, count = _CREDIT.unpack(payload)
    if fd != STDIN or count == 0:
        raise ValueError(f"{count} bytes for fd {fd}")
    return Credit(stream, count)


def _exited(stream: int, payload: memoryview) -> Exited:
    how, value, user_us, system_us, maxrss = _EXITED.unpack(payload)
    if how > 1 or (how == 1 and not 1 <= value <= MAX_SIGNAL):
        raise ValueError(f"how {how}, value {value}")
    return Exited(stream, bool(how), value, user_us, system_us, maxrss)


def _failed(stream: int, payload: memoryview) -> Failed:
    stage, errno = _ERROR.unpack_from(payload)
    text = bytes(payload[_ERROR.size :])
    if len(text) > MAX_ERROR_TEXT or errno > MAX_ERRNO:
        raise ValueError(f"errno {errno}, text of {len(text)} bytes")
    return Failed(stream, Stage(stage), errno, text.decode("ascii", "replace"))


def _pong(stream: int, payload: memoryview) -> Pong:
    if len(payload) != NONCE_BYTES or stream != 0:
        raise ValueError(f"{len(payload)} bytes on stream {stream}")
    return Pong(bytes(payload))


_DECODERS: dict[int, Callable[[int, memoryview], Message]] = {
    Kind.HELLO: _hello,
    Kind.STARTED: _started,
    Kind.EOF: _eof,
    Kind.CREDIT: _credit,
    Kind.EXITED: _exited,
    Kind.ERROR: _failed,
    Kind.PONG: _pong,
}


def frame(kind: Kind, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame; `payload` must not be longer than `MAX_PAYLOAD`."""
    return HEADER.pack(len(payload), stream, kind) + payload


def start(  # noqa: PLR0913 - the fields of the frame
    stream: int,
    argv: Sequence[bytes],
    env: Sequence[bytes],
    cwd: bytes,
    *,
    uid: int,
    gid: int,
    stdin: bool,
    open_files: int,
    window: int,
    leaf: str = "",
) -> bytes:
    """START frame; callers have checked that no string holds a NUL and that the whole fits `MAX_PAYLOAD`."""
    head = _START.pack(int(stdin), uid, gid, open_files, window)
    parts = [head, leaf.encode("ascii"), b"\0", cwd, b"\0", _U32.pack(len(argv))]
    for arg in argv:
        parts += (arg, b"\0")
    parts.append(_U32.pack(len(env)))
    for item in env:
        parts += (item, b"\0")
    return frame(Kind.START, stream, b"".join(parts))


def stdin_data(stream: int, data: bytes) -> bytes:
    """DATA frame for the command's stdin, at most `MAX_DATA` bytes."""
    return frame(Kind.DATA, stream, b"\0" + data)


def stdin_eof(stream: int) -> bytes:
    """EOF frame: the command's stdin ends after what was sent."""
    return frame(Kind.EOF, stream, b"\0")


def credit(stream: int, fd: int, count: int) -> bytes:
    """CREDIT frame: `count` more bytes of output `fd` may come."""
    return frame(Kind.CREDIT, stream, _CREDIT.pack(fd, count))


def signal(stream: int, number: int, scope: Scope) -> bytes:
    """SIGNAL frame."""
    return frame(Kind.SIGNAL, stream, bytes((number, scope)))


def ping(nonce: bytes) -> bytes:
    """PING frame with an 8-byte nonce."""
    return frame(Kind.PING, 0, nonce)
