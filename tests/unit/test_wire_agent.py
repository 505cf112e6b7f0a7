"""The codec of the agent channel against an independent one, and against arbitrary bytes."""

import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.model.errors import GuestProtocolError
from atoll.wire import agent as wire
from tests.unit import guest_frames as guest

U8, U32, U64 = st.integers(0, 0xFF), st.integers(0, 0xFFFF_FFFF), st.integers(0, 0xFFFF_FFFF_FFFF_FFFF)
CSTR = st.binary(max_size=40).map(lambda text: text.replace(b"\0", b"\1"))
STREAM = st.integers(1, 0xFFFF_FFFF)
OUTPUT = st.sampled_from((1, 2))

# What an honest agent may say, each with what the host must understand.
SPOKEN = st.one_of(
    st.builds(lambda pid, fd: (guest.hello(pid, fd), wire.Hello(pid, fd)), U32, st.integers(-(1 << 31), (1 << 31) - 1)),
    st.builds(lambda s, pid: (guest.started(s, pid), wire.Started(s, pid)), STREAM, U32),
    st.builds(
        lambda s, fd, text: (guest.data(text, fd, s), wire.Data(s, fd, text)),
        STREAM,
        OUTPUT,
        st.binary(min_size=1, max_size=100),
    ),
    st.builds(lambda s, fd: (guest.eof(fd, s), wire.Eof(s, fd)), STREAM, OUTPUT),
    st.builds(lambda s, n: (guest.credit(n, 0, s), wire.Credit(s, n)), STREAM, st.integers(1, 0xFFFF_FFFF)),
    st.builds(
        lambda s, code, a, b, c: (guest.exited(code, 0, s, (a, b, c)), wire.Exited(s, False, code, a, b, c)),
        STREAM,
        U8,
        U64,
        U64,
        U64,
    ),
    st.builds(lambda s, n: (guest.exited(n, 1, s), wire.Exited(s, True, n, 0, 0, 0)), STREAM, st.integers(1, 64)),
    st.builds(
        lambda s, stage, number, text: (
            guest.error(stage, number, text.encode(), s),
            wire.Failed(s, stage, number, text),
        ),
        STREAM,
        st.sampled_from(wire.Stage),
        st.integers(0, 4095),
        st.text(st.characters(max_codepoint=127), max_size=200),
    ),
    st.binary(min_size=8, max_size=8).map(lambda nonce: (guest.pong(nonce), wire.Pong(nonce))),
)


def decoded(*chunks: bytes) -> list[wire.Message]:
    decoder = wire.Decoder()
    return [message for chunk in chunks for message in decoder.feed(chunk)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


# --- what the host sends ---------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    stream=STREAM,
    argv=st.lists(CSTR, min_size=1, max_size=5),
    env=st.lists(CSTR, max_size=5),
    cwd=CSTR,
    numbers=st.tuples(U32, U32, U32, U32),
    stdin=st.booleans(),
    leaf=st.from_regex(r"[a-z0-9]{0,32}", fullmatch=True),
)
def test_start_says_all_its_fields(
    stream: int,
    argv: list[bytes],
    env: list[bytes],
    cwd: bytes,
    numbers: tuple[int, int, int, int],
    stdin: bool,
    leaf: str,
):
    uid, gid, files, window = numbers
    sent = wire.start(stream, argv, env, cwd, uid=uid, gid=gid, stdin=stdin, open_files=files, window=window, leaf=leaf)
    head = {"flags": int(stdin), "uid": uid, "gid": gid, "nofile": files, "window": window}
    strings = {"leaf": leaf.encode(), "cwd": cwd, "argv": argv, "env": env}
    assert guest.only(sent) == guest.Frame("START", stream, head | strings)


def test_the_default_leaf_is_none():
    sent = wire.start(1, [b"a"], [], b"/", uid=0, gid=0, stdin=False, open_files=0, window=0)
    assert guest.only(sent).fields["leaf"] == b""


HOST = {
    "some stdin": (wire.stdin_data(7, b"\0abc\xff"), "DATA", 7, {"fd": 0, "data": b"\0abc\xff"}),
    "most stdin": (wire.stdin_data(1, b"x" * wire.MAX_DATA), "DATA", 1, {"fd": 0, "data": b"x" * 65536}),
    "end of stdin": (wire.stdin_eof(0xFFFF_FFFF), "EOF", 0xFFFF_FFFF, {"fd": 0}),
    "credit": (wire.credit(3, wire.STDERR, 0xFFFF_FFFF), "CREDIT", 3, {"fd": 2, "count": 0xFFFF_FFFF}),
    "kill the tree": (wire.signal(3, 9, wire.Scope.TREE), "SIGNAL", 3, {"signo": 9, "scope": 2}),
    "signal the group": (wire.signal(3, 15, wire.Scope.GROUP), "SIGNAL", 3, {"signo": 15, "scope": 1}),
    "signal the leader": (wire.signal(3, 64, wire.Scope.LEADER), "SIGNAL", 3, {"signo": 64, "scope": 0}),
    "ping": (wire.ping(b"\1\0\0\0\0\0\0\0"), "PING", 0, {"nonce": 1}),
    "confined": (wire.frame(wire.Kind.CONFINED), "CONFINED", 0, {}),
    "shutdown": (wire.frame(wire.Kind.SHUTDOWN), "SHUTDOWN", 0, {}),
}


@pytest.mark.parametrize("name", HOST)
def test_host_frames_say_what_they_should(name: str):
    sent, kind, stream, fields = HOST[name]
    assert guest.only(sent) == guest.Frame(kind, stream, fields)


def test_kinds_are_numbered_as_in_the_table():
    assert {int(kind): kind.name for kind in wire.Kind} == guest.NAMES


# --- what the guest sends --------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(spoken=st.lists(SPOKEN, max_size=8), places=st.lists(st.integers(0, 1 << 16), max_size=8))
def test_an_honest_guest_is_understood_however_its_bytes_arrive(
    spoken: list[tuple[bytes, wire.Message]], places: list[int]
):
    stream = b"".join(sent for sent, _ in spoken)
    meant = [message for _, message in spoken]
    assert decoded(stream) == meant
    assert decoded(*cut(stream, places)) == meant
    assert decoded(*(bytes((byte,)) for byte in stream)) == meant


def test_the_longest_frame_passes():
    text = bytes(range(256)) * 256
    assert decoded(guest.data(text, 2, 9)) == [wire.Data(9, 2, text)]


def test_text_that_is_not_ascii_is_only_data():
    [message] = decoded(guest.error(5, 2, b"caf\xc3\xa9 \x1b[31m\xff\0"))
    assert message == wire.Failed(1, wire.Stage.EXEC, 2, "caf\ufffd\ufffd \x1b[31m\ufffd\0")


def outcome(chunks: list[bytes]) -> tuple[list[wire.Message], str]:
    """What comes out before the first error, and the error."""
    decoder, messages = wire.Decoder(), []
    try:
        for chunk in chunks:
            for message in decoder.feed(chunk):
                messages.append(message)  # noqa: PERF402 - keeps what came before the error
    except GuestProtocolError as error:
        return messages, str(error)
    return messages, ""


@settings(max_examples=300, deadline=None)
@given(stream=st.binary(max_size=200), places=st.lists(st.integers(0, 200), max_size=5))
def test_arbitrary_bytes_give_messages_or_the_one_error(stream: bytes, places: list[int]):
    assert outcome([stream]) == outcome(cut(stream, places))


@settings(max_examples=300, deadline=None)
@given(
    spoken=st.lists(SPOKEN, min_size=1, max_size=4),
    where=st.integers(0, 1 << 16),
    new=st.binary(max_size=3),
    removed=st.integers(0, 3),
    places=st.lists(st.integers(0, 1 << 16), max_size=4),
)
def test_a_damaged_stream_gives_messages_or_the_one_error(
    spoken: list[tuple[bytes, wire.Message]], where: int, new: bytes, removed: int, places: list[int]
):
    stream = b"".join(sent for sent, _ in spoken)
    where %= len(stream)
    stream = stream[:where] + new + stream[where + removed :]
    assert outcome([stream]) == outcome(cut(stream, places))


BAD = {
    "length of 4 GiB": guest.raw(guest.DATA, 1, length=0xFFFF_FFFF),
    "length of 1 MiB": guest.raw(guest.DATA, 1, length=1 << 20),
    "length one over the longest": guest.raw(guest.DATA, 1, length=65538),
    "kind 0": guest.raw(0, 1),
    "kind 14": guest.raw(14, 1),
    "kind 255": guest.raw(255, 1),
    "START from the guest": guest.raw(guest.START, 1, bytes(17)),
    "SIGNAL from the guest": guest.raw(guest.SIGNAL, 1, b"\x09\0"),
    "PING from the guest": guest.raw(guest.PING, 0, bytes(8)),
    "CONFINED from the guest": guest.raw(guest.CONFINED, 0),
    "SHUTDOWN from the guest": guest.raw(guest.SHUTDOWN, 0),
    "HELLO of version 2": guest.hello(version=2),
    "HELLO on a stream": guest.hello(stream=1),
    "HELLO too short": guest.raw(guest.HELLO, 0, bytes(8)),
    "HELLO too long": guest.raw(guest.HELLO, 0, b"\1" + bytes(9)),
    "STARTED too short": guest.raw(guest.STARTED, 1, bytes(3)),
    "STARTED too long": guest.raw(guest.STARTED, 1, bytes(5)),
    "DATA without fd": guest.raw(guest.DATA, 1),
    "DATA without data": guest.data(b""),
    "DATA of stdin": guest.data(b"x", 0),
    "DATA of fd 3": guest.data(b"x", 3),
    "EOF without fd": guest.raw(guest.EOF, 1),
    "EOF of two fds": guest.raw(guest.EOF, 1, b"\1\2"),
    "EOF of stdin": guest.eof(0),
    "CREDIT for stdout": guest.credit(1, 1),
    "CREDIT of nothing": guest.credit(0),
    "CREDIT too short": guest.raw(guest.CREDIT, 1, bytes(4)),
    "EXITED in a third way": guest.exited(0, 2),
    "EXITED by signal 0": guest.exited(0, 1),
    "EXITED by signal 65": guest.exited(65, 1),
    "EXITED too short": guest.raw(guest.EXITED, 1, bytes(25)),
    "EXITED too long": guest.raw(guest.EXITED, 1, bytes(27)),
    "ERROR at stage 0": guest.error(0, 2),
    "ERROR at stage 7": guest.error(7, 2),
    "ERROR with an errno that is none": guest.error(5, 4096),
    "ERROR with the largest errno": guest.error(5, 0xFFFF_FFFF),
    "ERROR with much to say": guest.error(5, 2, b"x" * 201),
    "ERROR too short": guest.raw(guest.ERROR, 1, bytes(4)),
    "PONG too short": guest.pong(bytes(7)),
    "PONG too long": guest.pong(bytes(9)),
    "PONG on a stream": guest.pong(bytes(8), 1),
}


@pytest.mark.parametrize("stream", BAD.values(), ids=BAD.keys())
def test_what_no_agent_says_is_refused(stream: bytes):
    with pytest.raises(GuestProtocolError):
        decoded(guest.hello() + stream)


def test_errors_say_what_was_wrong():
    with pytest.raises(GuestProtocolError, match="frame of 4294967295 bytes"):
        decoded(BAD["length of 4 GiB"])
    with pytest.raises(GuestProtocolError, match="malformed HELLO frame: version 2"):
        decoded(BAD["HELLO of version 2"])
    with pytest.raises(GuestProtocolError, match="unknown frame kind 255"):
        decoded(BAD["kind 255"])


def test_a_length_is_refused_before_anything_is_kept_for_it():
    decoder = wire.Decoder()
    tracemalloc.start()
    try:
        with pytest.raises(GuestProtocolError):
            list(decoder.feed(guest.raw(guest.DATA, 1, length=0xFFFF_FFFF)))
        # A frame announced as the longest there is may wait, but never more than that one.
        dribble = guest.raw(guest.DATA, 1, b"\1" + b"x" * 65535, length=65537)
        patient = wire.Decoder()
        for at in range(0, len(dribble), 64):
            assert list(patient.feed(dribble[at : at + 64])) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 19
    assert list(patient.feed(b"x")) == [wire.Data(1, 1, b"x" * 65536)]
