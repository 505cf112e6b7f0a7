"""The agent channel, read and written independently of `atoll.wire`: from the protocol's table, with other means.

Shared by the tests of the codec and by the hostile guests. Nothing here may be taken from `src/`.
"""

from dataclasses import dataclass, field

HELLO, START, STARTED, DATA, EOF, CREDIT, SIGNAL, EXITED, ERROR, PING, PONG, CONFINED, SHUTDOWN = range(1, 14)
NAMES = {number: name for name, number in list(globals().items()) if name.isupper() and isinstance(number, int)}


def u(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def raw(kind: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame; a false `length` for liars."""
    return u(len(payload) if length is None else length, 4) + u(stream, 4) + u(kind, 1) + payload


def hello(pid: int = 1, listener: int = -1, version: int = 1, stream: int = 0) -> bytes:
    return raw(HELLO, stream, u(version, 1) + u(pid, 4) + listener.to_bytes(4, "little", signed=True))


def started(stream: int = 1, pid: int = 2) -> bytes:
    return raw(STARTED, stream, u(pid, 4))


def data(payload: bytes, fd: int = 1, stream: int = 1) -> bytes:
    return raw(DATA, stream, u(fd, 1) + payload)


def eof(fd: int, stream: int = 1) -> bytes:
    return raw(EOF, stream, u(fd, 1))


def credit(count: int, fd: int = 0, stream: int = 1) -> bytes:
    return raw(CREDIT, stream, u(fd, 1) + u(count, 4))


def exited(value: int = 0, how: int = 0, stream: int = 1, usage: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    return raw(EXITED, stream, u(how, 1) + u(value, 1) + b"".join(u(figure, 8) for figure in usage))


def error(stage: int, errno: int, text: bytes = b"", stream: int = 1) -> bytes:
    return raw(ERROR, stream, u(stage, 1) + u(errno, 4) + text)


def pong(nonce: bytes, stream: int = 0) -> bytes:
    return raw(PONG, stream, nonce)


def whole(output: bytes = b"", value: int = 0, stream: int = 1) -> bytes:
    """Everything an ordinary command makes its agent say."""
    said = data(output, stream=stream) if output else b""
    return started(stream) + said + eof(1, stream) + eof(2, stream) + exited(value, stream=stream)


@dataclass
class Frame:
    """What a host frame says, by the names of the protocol's table."""

    kind: str
    stream: int
    fields: dict[str, object] = field(default_factory=dict)


class Cursor:
    """Takes a payload apart and complains when something is missing or left over."""

    def __init__(self, payload: bytes) -> None:
        self.rest = payload

    def number(self, size: int) -> int:
        value, self.rest = self.rest[:size], self.rest[size:]
        assert len(value) == size, "payload too short"
        return int.from_bytes(value, "little")

    def cstr(self) -> bytes:
        text, nul, self.rest = self.rest.partition(b"\0")
        assert nul, "string without its NUL"
        return text

    def strings(self) -> list[bytes]:
        return [self.cstr() for _ in range(self.number(4))]


HOST_NUMBERS = {
    START: {"flags": 1, "uid": 4, "gid": 4, "nofile": 4, "window": 4},
    DATA: {"fd": 1},
    EOF: {"fd": 1},
    CREDIT: {"fd": 1, "count": 4},
    SIGNAL: {"signo": 1, "scope": 1},
    PING: {"nonce": 8},
    CONFINED: {},
    SHUTDOWN: {},
}
"""Kind -> name and size of the numbers at the start of its payload."""


def _fields(kind: int, payload: Cursor) -> dict[str, object]:
    assert kind in HOST_NUMBERS, f"a host does not send {NAMES[kind]}"
    fields: dict[str, object] = {name: payload.number(size) for name, size in HOST_NUMBERS[kind].items()}
    if kind == START:
        fields |= {"leaf": payload.cstr(), "cwd": payload.cstr()}
        fields |= {"argv": payload.strings(), "env": payload.strings()}
    elif kind == DATA:
        fields["data"], payload.rest = payload.rest, b""
    return fields


def split(stream: bytes) -> tuple[list[Frame], bytes]:
    """The whole host frames at the start of `stream`, and what is left."""
    frames = []
    while len(stream) >= 9:
        length, number, kind = (int.from_bytes(stream[a:b], "little") for a, b in ((0, 4), (4, 8), (8, 9)))
        assert length <= 1 << 20
        if len(stream) < 9 + length:
            break
        payload, stream = Cursor(stream[9 : 9 + length]), stream[9 + length :]
        frames.append(Frame(NAMES[kind], number, _fields(kind, payload)))
        assert payload.rest == b"", "bytes left over in the payload"
    return frames, stream


def only(stream: bytes) -> Frame:
    """The one host frame that `stream` is."""
    frames, rest = split(stream)
    assert (len(frames), rest) == (1, b"")
    return frames[0]
