"""Guests that break the protocol, cheat, flood, stall or vanish: each costs its own channel and nothing else."""

import asyncio
import fcntl
import os
import termios
from collections.abc import Sequence

import pytest

from atoll.execute.channel import MAX_DIAGNOSTICS, WINDOW
from atoll.model.errors import AtollError, ChannelLostError, GuestProtocolError
from atoll.wire import agent as wire
from tests.hostile.rig import Guest, all_of, assert_works, guest, play, until
from tests.unit import guest_frames as frames

MIB = 1 << 20
LONG = b"x" * 65536

BREACHES: dict[str, tuple[Sequence[bytes], str]] = {
    # What stands before the last frame is allowed. Stream 1 is open, stream 2 is not.
    "garbage": ([b"\xfe\xed" * 500], "frame of"),
    "a text protocol": ([b"GET / HTTP/1.1\r\nHost: atoll\r\n\r\n"], "frame of"),
    "4 GiB announced": ([frames.raw(frames.DATA, 1, length=0xFFFF_FFFF)], "frame of 4294967295 bytes"),
    "unknown kind": ([frames.raw(77, 1)], "unknown frame kind 77"),
    "a host's frame": ([frames.raw(frames.START, 1)], "unknown frame kind 2"),
    "second HELLO": ([frames.hello()], "second HELLO"),
    "DATA over the credit": ([frames.started(), *[frames.data(LONG)] * 16, frames.data(b"x")], "1 bytes more than"),
    "DATA over the credit of stderr": (
        [frames.started(), *[frames.data(LONG, 2)] * 15, frames.data(LONG[1:], 2), frames.data(b"xyz", 2)],
        "2 bytes more than",
    ),
    "DATA for a stream never opened": ([frames.data(b"x", stream=2)], "Data for stream 2"),
    "DATA for stream 0": ([frames.data(b"x", stream=0)], "Data for stream 0"),
    "DATA after the end": ([frames.whole(), frames.data(b"x")], "Data for stream 1"),
    "DATA before STARTED": ([frames.data(b"x")], "Data out of order"),
    "DATA after its EOF": ([frames.started(), frames.eof(1), frames.data(b"x")], "Data out of order"),
    "EOF twice": ([frames.started(), frames.eof(1), frames.eof(1)], "Eof out of order"),
    "EOF before STARTED": ([frames.eof(1)], "Eof out of order"),
    "EXITED twice": ([frames.started(), frames.exited(), frames.exited()], "Exited out of order"),
    "EXITED before STARTED": ([frames.exited()], "Exited out of order"),
    "STARTED twice": ([frames.started(), frames.started()], "Started out of order"),
    "ERROR after STARTED": ([frames.started(), frames.error(5, 2)], "Failed out of order"),
    "ERROR after ERROR": ([frames.error(5, 2), frames.error(5, 2)], "Failed for stream 1"),
    "STARTED after ERROR": ([frames.error(5, 2), frames.started()], "Started for stream 1"),
    "EXITED after the end": ([frames.whole(), frames.exited()], "Exited for stream 1"),
    "ERROR with an errno that is none": ([frames.error(5, 0xFFFF_FFFF)], "malformed ERROR frame"),
    "ERROR with a novel": ([frames.error(5, 2, b"x" * 60_000)], "malformed ERROR frame"),
    "CREDIT that was never taken": ([frames.credit(1)], "more stdin credit"),
    "CREDIT of 4 GiB": ([frames.started(), frames.credit(0xFFFF_FFFF)], "more stdin credit"),
    "CREDIT of nothing": ([frames.started(), frames.credit(0)], "malformed CREDIT frame"),
    "CREDIT for output": ([frames.started(), frames.credit(1, fd=1)], "malformed CREDIT frame"),
    "PONG without a PING": ([frames.pong(b"abcdefgh")], "PONG without a PING"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_ends_its_own_channel_and_no_other(name: str):
    spoken, problem = BREACHES[name]

    async def scenario() -> None:
        async with guest() as victim, guest() as neighbour:
            stream = victim.channel.open_stream()
            await victim.pour(b"".join(spoken))
            error = await victim.lost()
            assert isinstance(error, GuestProtocolError)
            assert problem in str(error)
            assert victim.losses == [error]
            over_before = spoken[0] in (frames.whole(), frames.error(5, 2))
            assert (await all_of(stream))[1] is (None if over_before else error)
            await assert_nothing_works(victim, GuestProtocolError)
            await assert_works(neighbour)

    play(scenario)


async def assert_nothing_works(victim: Guest, kind: type[AtollError]) -> None:
    """A dead channel says so, at once and without sending anything."""
    heard = victim.hear()
    with pytest.raises(kind):
        victim.channel.open_stream()
    with pytest.raises(kind):
        await victim.channel.ping(1)
    victim.channel.send(wire.ping(bytes(8)))
    assert heard == []
    assert victim.hear() == []


def test_what_came_before_a_breach_is_delivered():
    async def scenario() -> None:
        async with guest() as victim:
            stream = victim.channel.open_stream()
            victim.say(frames.started(), frames.data(b"before"), frames.raw(0, 0), frames.data(b"after"))
            messages, error = await all_of(stream)
            assert messages == [wire.Started(1, 2), wire.Data(1, 1, b"before")]
            assert isinstance(error, GuestProtocolError)
            with pytest.raises(GuestProtocolError):
                await stream.receive()

    play(scenario)


def test_a_breach_ends_all_streams_of_the_sandbox():
    async def scenario() -> None:
        async with guest() as victim:
            streams = [victim.channel.open_stream() for _ in range(20)]
            waiting = [asyncio.create_task(all_of(stream)) for stream in streams]
            stdin = asyncio.create_task(streams[3].send_stdin(bytes(MIB)))
            await asyncio.sleep(0)
            victim.say(b"\xff" * 9)
            error = await victim.lost()
            assert await asyncio.gather(*waiting) == [([], error)] * 20
            await stdin

    play(scenario)


# --- what is odd but allowed -----------------------------------------------------------------------------------------


def test_an_error_text_that_is_not_ascii_is_only_data():
    async def scenario() -> None:
        async with guest() as one:
            stream = one.channel.open_stream()
            one.say(frames.error(5, 2, b"\xff\xfe\x1b]0;title\x07"))
            assert await all_of(stream) == ([wire.Failed(1, wire.Stage.EXEC, 2, "\ufffd\ufffd\x1b]0;title\x07")], None)
            await assert_works(one)

    play(scenario)


def test_one_byte_at_a_time():
    async def scenario() -> None:
        async with guest() as one:
            stream = one.channel.open_stream()
            reader = asyncio.create_task(all_of(stream))
            for byte in frames.whole(b"slowly"):
                one.say(bytes((byte,)))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            messages, error = await reader
            assert error is None
            assert messages[1] == wire.Data(1, 1, b"slowly")
            await assert_works(one)

    play(scenario)


# --- vanishing -------------------------------------------------------------------------------------------------------

LIFE = [
    frames.hello(),
    frames.started(),
    frames.data(b"out"),
    frames.data(b"err", 2),
    frames.eof(1),
    frames.exited(),
]


@pytest.mark.parametrize("steps", range(len(LIFE) + 1))
@pytest.mark.parametrize("torn", [False, True], ids=["between frames", "inside a frame"])
def test_an_early_close_is_a_lost_channel(steps: int, torn: bool):
    async def scenario() -> None:
        async with guest(greet=False) as victim, guest() as neighbour:
            stream = victim.channel.open_stream()
            victim.say(b"".join(LIFE[:steps]) + (frames.eof(2)[:7] if torn else b""))
            victim.hang_up()
            error = await victim.lost()
            assert isinstance(error, ChannelLostError)
            assert error.retryable
            messages, last = await all_of(stream)
            assert last is error
            assert len(messages) == max(0, steps - 1)
            if steps == 0:
                with pytest.raises(ChannelLostError):
                    await victim.channel.hello
            assert victim.losses == [error]
            await assert_works(neighbour)

    play(scenario)


def test_a_guest_that_stops_listening_is_lost():
    async def scenario() -> None:
        async with guest() as victim, guest() as neighbour:
            stream = victim.channel.open_stream()
            waiting = asyncio.create_task(all_of(stream))
            await asyncio.sleep(0)
            victim.hang_up(victim.stdin)
            stream.signal(9, wire.Scope.TREE)
            error = await victim.lost()
            assert isinstance(error, ChannelLostError)
            assert await waiting == ([], error)
            assert victim.losses == [error]
            await assert_works(neighbour)

    play(scenario)


def test_a_guest_that_stops_listening_under_a_full_queue_is_lost():
    async def scenario() -> None:
        async with guest() as victim:
            stream = victim.channel.open_stream()
            victim.channel.send(wire.frame(wire.Kind.START, 1, bytes(MIB)))
            stdin = asyncio.create_task(stream.send_stdin(b"x"))
            await asyncio.sleep(0.01)
            victim.hang_up(victim.stdin)
            assert isinstance(await victim.lost(), ChannelLostError)
            await stdin

    play(scenario)


def test_the_last_words_are_kept():
    async def scenario() -> None:
        async with guest(greet=False) as victim:
            os.write(victim.stderr, b"bwrap: No permissions \xff\n" + b"y" * 12_000 + b" the end")
            victim.hang_up()
            await victim.lost()
            assert victim.channel.diagnostics.startswith("bwrap: No permissions \ufffd\n")
            assert victim.channel.diagnostics.endswith(" the end")

    play(scenario)


# --- silence ---------------------------------------------------------------------------------------------------------


def test_silence_ends_a_ping_and_nothing_else():
    async def scenario() -> None:
        async with guest() as silent:
            with pytest.raises(TimeoutError):
                await silent.channel.ping(0.01)
            [asked] = silent.hear()
            assert asked.kind == "PING"
            nonce = asked.fields["nonce"]
            assert isinstance(nonce, int)
            late = frames.pong(nonce.to_bytes(8, "little"))
            silent.say(late)
            await assert_works(silent)
            silent.say(late)
            assert isinstance(await silent.lost(), GuestProtocolError)  # one answer for each question

    play(scenario)


def test_a_wrong_answer_to_a_ping_ends_it():
    async def scenario() -> None:
        async with guest() as victim:
            asking = asyncio.create_task(victim.channel.ping(5))
            await asyncio.sleep(0)
            victim.say(frames.pong(b"12345678"))
            with pytest.raises(GuestProtocolError, match="PONG without a PING"):
                await asking

    play(scenario)


def test_a_mute_guest_keeps_nobody_from_closing():
    async def scenario() -> None:
        async with guest(greet=False) as mute:
            waiting = asyncio.create_task(all_of(mute.channel.open_stream()))
            await asyncio.sleep(0)
            mute.channel.close()
            messages, error = await waiting
            assert messages == []
            assert isinstance(error, ChannelLostError)
            assert mute.losses == []  # closing is no loss

    play(scenario)


# --- floods ----------------------------------------------------------------------------------------------------------


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def queued(one: Guest) -> int:
    return sum(map(len, one.channel._out))


def test_a_million_tiny_frames_do_not_cost_memory():
    count = 500_000
    out, err = (frames.data(b"x", fd) for fd in (1, 2))

    async def scenario() -> None:
        async with guest() as flooder, guest() as neighbour:
            stream = flooder.channel.open_stream()
            flooder.say(frames.started())
            pairs = (out + err) * count
            before = resident()
            pouring = asyncio.create_task(flooder.pour(pairs))
            await until(lambda: stream._owed[2] == WINDOW - count)  # while the consumer sleeps
            await pouring
            assert resident() - before < 16 * MIB
            await assert_works(neighbour)
            assert flooder.channel.lost is None
            flooder.say(frames.eof(1), frames.eof(2), frames.exited())
            messages, error = await all_of(stream)
            texts = {fd: b"".join(m.data for m in messages if isinstance(m, wire.Data) and m.fd == fd) for fd in (1, 2)}
            assert texts == {1: b"x" * count, 2: b"x" * count}
            assert error is None

    play(scenario)


def test_a_flood_does_not_hold_up_the_neighbour():
    async def scenario() -> None:
        async with guest() as flooder, guest() as neighbour:
            fcntl.fcntl(flooder.stdout, fcntl.F_SETPIPE_SZ, MIB)
            flooder.channel.open_stream()
            stream = neighbour.channel.open_stream()
            flooder.say(frames.started() + frames.data(b"x") * 90_000)
            neighbour.say(frames.started())
            await stream.receive()
            left = fcntl.ioctl(flooder.channel._from, termios.FIONREAD, bytes(4))
            assert int.from_bytes(left, "little") > MIB // 2

    play(scenario)


def test_diagnostics_without_end_are_cut_and_no_longer_read():
    async def scenario() -> None:
        async with guest() as flooder:
            os.set_blocking(flooder.stderr, False)
            written = 0
            for _ in range(100):
                try:
                    written += os.write(flooder.stderr, b"blah" * 1024)
                except BlockingIOError:
                    break
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert written < 2 * 65536 + MAX_DIAGNOSTICS  # the pipe filled up: nobody takes more out of it
            assert len(flooder.channel.diagnostics) == MAX_DIAGNOSTICS
            await assert_works(flooder)

    play(scenario)


def test_a_guest_that_does_not_read_its_stdin_fills_no_queue():
    async def scenario() -> None:
        async with guest() as deaf:
            stream = deaf.channel.open_stream()
            feeding = asyncio.create_task(stream.send_stdin(bytes(8 * MIB)))
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert queued(deaf) < 2 * wire.STDIN_WINDOW
            # It may even claim to have taken what still waits in our queue.
            for _ in range(100):
                granted = wire.STDIN_WINDOW - stream._stdin_credit
                if granted:
                    deaf.say(frames.credit(granted))
                await asyncio.sleep(0.001)
            assert queued(deaf) < 2 * wire.STDIN_WINDOW
            assert deaf.channel.lost is None
            assert not feeding.done()
            deaf.channel.close()
            await feeding

    play(scenario)


def test_a_guest_that_reads_its_stdin_again_gets_all_of_it():
    async def scenario() -> None:
        async with guest() as one:
            stream = one.channel.open_stream()
            text = os.urandom(MIB)
            feeding = asyncio.create_task(stream.send_stdin(text))
            taken = b""
            while len(taken) < MIB:
                await asyncio.sleep(0)
                parts = [frame.fields["data"] for frame in one.hear()]
                if parts:
                    got = b"".join(part for part in parts if isinstance(part, bytes))
                    taken += got
                    one.say(frames.credit(len(got)))
            await feeding
            stream.close_stdin()
            assert taken == text
            assert [frame.kind for frame in one.hear()] == ["EOF"]

    play(scenario)
