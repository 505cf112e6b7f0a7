"""The channel with a guest that behaves: numbers, credit, order of what is sent, pings, closing."""

import asyncio
import os

import pytest

from atoll.execute.channel import MAX_STREAMS, WINDOW
from atoll.model.errors import ChannelLostError
from atoll.wire import agent as wire
from tests.hostile.rig import all_of, assert_works, guest, play, until
from tests.unit import guest_frames as frames


def test_hello_is_what_the_agent_said():
    async def scenario() -> None:
        async with guest(greet=False) as one:
            one.say(frames.hello(42, 7))
            assert await one.channel.hello == wire.Hello(42, 7)

    play(scenario)


def test_streams_are_told_apart():
    async def scenario() -> None:
        async with guest() as one:
            streams = [one.channel.open_stream() for _ in range(3)]
            assert [stream.number for stream in streams] == [1, 2, 3]
            one.say(*(frames.started(n) + frames.data(b"%d" % n, stream=n) for n in (3, 1, 2)))
            one.say(*(frames.whole(stream=n)[len(frames.started()) :] for n in (2, 3, 1)))
            for stream in streams:
                messages, error = await all_of(stream)
                assert wire.Data(stream.number, 1, b"%d" % stream.number) in messages
                assert error is None

    play(scenario)


def test_a_number_is_not_used_again_while_it_lives():
    async def scenario() -> None:
        async with guest() as one:
            old = one.channel.open_stream()
            one.channel._next = 0xFFFF_FFFE
            assert [one.channel.open_stream().number for _ in range(2)] == [0xFFFF_FFFE, 2]
            assert old.number == 1

    play(scenario)


def test_the_agent_takes_only_so_many_streams():
    async def scenario() -> None:
        async with guest() as one:
            for _ in range(MAX_STREAMS):
                assert not one.channel.full
                one.channel.open_stream()
            assert one.channel.full
            one.say(frames.error(1, 11, stream=9))
            await until(lambda: not one.channel.full)

    play(scenario)


def test_output_that_waits_is_one_message_for_each_fd():
    async def scenario() -> None:
        async with guest() as one:
            stream = one.channel.open_stream()
            one.say(frames.started(), frames.data(b"a"), frames.data(b"1", 2), frames.data(b"b"), frames.data(b"2", 2))
            one.say(frames.eof(2), frames.data(b"c"), frames.eof(1), frames.exited())
            messages, _ = await all_of(stream)
            assert messages == [
                wire.Started(1, 2),
                wire.Data(1, 1, b"abc"),
                wire.Data(1, 2, b"12"),
                wire.Eof(1, 2),
                wire.Eof(1, 1),
                wire.Exited(1, False, 0, 0, 0, 0),
            ]

    play(scenario)


def test_credit_goes_back_in_halves_and_only_for_what_was_consumed():
    async def scenario() -> None:
        async with guest() as one:
            stream = one.channel.open_stream()
            one.say(frames.started())
            stream.consumed(1, WINDOW // 2 - 1)
            stream.consumed(2, 100)
            assert one.hear() == []
            stream.consumed(1, 1)
            assert one.hear() == [frames.Frame("CREDIT", 1, {"fd": 1, "count": WINDOW // 2})]
            stream.consumed(1, WINDOW)
            assert one.hear() == [frames.Frame("CREDIT", 1, {"fd": 1, "count": WINDOW})]

    play(scenario)


def test_credit_given_back_may_be_used():
    async def scenario() -> None:
        async with guest() as one:
            stream = one.channel.open_stream()
            one.say(frames.started())
            total = 0
            sending = asyncio.create_task(one.pour(frames.data(b"x" * 65536) * 64))  # 4 windows
            await stream.receive()
            while total < 64 * 65536:
                message = await stream.receive()
                assert isinstance(message, wire.Data)
                total += len(message.data)
                stream.consumed(1, len(message.data))
            await sending
            assert one.channel.lost is None

    play(scenario)


def test_a_stream_that_is_over_sends_nothing():
    async def scenario() -> None:
        async with guest() as one:
            stream = one.channel.open_stream()
            one.say(frames.whole())
            await all_of(stream)
            stream.consumed(1, WINDOW)
            await stream.send_stdin(bytes(1 << 20))
            assert one.hear() == []

    play(scenario)


def test_frames_arrive_whole_and_in_order_through_a_full_pipe():
    async def scenario() -> None:
        async with guest() as one:
            stream = one.channel.open_stream()
            text = os.urandom(wire.STDIN_WINDOW)
            big = [b"A" * 100_000] * 9
            one.channel.send(wire.start(1, big, [], b"/", uid=1, gid=2, stdin=True, open_files=3, window=4, leaf="x1"))
            feeding = asyncio.create_task(stream.send_stdin(text))
            await asyncio.sleep(0)
            stream.signal(15, wire.Scope.GROUP)
            heard = one.hear()
            while len(heard) < 3:
                await asyncio.sleep(0)
                heard += one.hear()
            await feeding
            stream.close_stdin()
            heard += one.hear()
            assert [frame.kind for frame in heard] == ["START", "SIGNAL", "DATA", "EOF"]
            assert heard[0].fields["argv"] == big
            assert heard[2].fields["data"] == text

    play(scenario)


def test_ping():
    async def scenario() -> None:
        async with guest() as one:
            asking = [asyncio.create_task(one.channel.ping(5)) for _ in range(3)]
            await asyncio.sleep(0)
            asked = one.hear()
            assert len({frame.fields["nonce"] for frame in asked}) == 3
            for frame in reversed(asked):
                nonce = frame.fields["nonce"]
                assert isinstance(nonce, int)
                one.say(frames.pong(nonce.to_bytes(8, "little")))
            await asyncio.gather(*asking)

    play(scenario)


def test_close_ends_what_is_open_and_may_be_repeated():
    async def scenario() -> None:
        async with guest() as one, guest() as neighbour:
            stream = one.channel.open_stream()
            asking = asyncio.create_task(one.channel.ping(5))
            feeding = asyncio.create_task(stream.send_stdin(bytes(1 << 20)))
            await asyncio.sleep(0)
            one.channel.close()
            one.channel.close()
            with pytest.raises(ChannelLostError, match="was ended"):
                await stream.receive()
            with pytest.raises(ChannelLostError):
                await asking
            with pytest.raises(ChannelLostError):
                one.channel.open_stream()
            await feeding
            stream.signal(9, wire.Scope.TREE)
            stream.close_stdin()
            assert one.losses == []
            await assert_works(neighbour)

    play(scenario)


def test_a_channel_that_is_closed_before_anyone_waited_is_no_mistake():
    async def scenario() -> None:
        async with guest(greet=False) as one:
            one.channel.close()
            with pytest.raises(ChannelLostError):
                await one.channel.hello

    play(scenario)
