"""A channel whose guest end is in the hands of the test, and what must hold after every attack on it."""

import asyncio
import contextlib
import gc
import os
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from atoll.execute.channel import Channel, Stream
from atoll.model.errors import ChannelLostError, GuestProtocolError
from atoll.wire import agent as wire
from tests.unit import guest_frames as frames

DEADLINE_S = 40.0

gc.collect()
gc.freeze()  # what was imported so far is not looked through again after every scenario


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario in a loop of its own; afterwards no descriptor is left and asyncio has nothing to complain."""
    complaints: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        await asyncio.wait_for(scenario(), DEADLINE_S)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, f"tasks left: {others}"

    gc.collect()
    before = open_fds()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert complaints == []
    assert [str(warning.message) for warning in warned] == []
    assert open_fds() == before


def open_fds() -> dict[str, str]:
    """The descriptors of this process and what they are."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return {fd: what for fd, what in found.items() if not what.startswith("/proc/")}


class Guest:
    """The guest's end of one channel."""

    def __init__(self) -> None:
        self.stdin, to_agent = os.pipe()
        from_agent, self.stdout = os.pipe()
        diagnostics, self.stderr = os.pipe()
        for fd in (to_agent, from_agent, diagnostics, self.stdin):
            os.set_blocking(fd, False)
        self._open = {self.stdin, self.stdout, self.stderr}
        self.losses: list[Exception] = []
        self.channel = Channel(to_agent, from_agent, diagnostics, self.losses.append)
        self._heard = b""

    def say(self, *spoken: bytes) -> None:
        """Send what fits into the pipe at once."""
        data = b"".join(spoken)
        assert os.write(self.stdout, data) == len(data)

    async def pour(self, data: bytes) -> None:
        """Send any amount, from a thread, until the host no longer listens."""

        def write() -> None:
            view = memoryview(data)
            with contextlib.suppress(BrokenPipeError):
                while view:
                    view = view[os.write(self.stdout, view) :]

        await asyncio.to_thread(write)

    def hear(self) -> list[frames.Frame]:
        """The frames that the host has sent since the last call."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.stdin, 1 << 20):
                self._heard += data
        heard, self._heard = frames.split(self._heard)
        return heard

    def hang_up(self, *ends: int) -> None:
        """Close some of its ends, or all that are open."""
        for fd in ends or tuple(self._open):
            self._open.remove(fd)
            os.close(fd)

    async def lost(self) -> Exception:
        """Wait for the end of the channel; the error."""
        await until(lambda: self.channel.lost is not None)
        assert self.channel.lost is not None
        return self.channel.lost


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds; `play` has the deadline."""
    while not condition():  # noqa: ASYNC110 - looks at what has no event, without changing it
        await asyncio.sleep(0.0005)


@contextlib.asynccontextmanager
async def guest(*, greet: bool = True) -> AsyncIterator[Guest]:
    """A guest whose agent has said HELLO."""
    one = Guest()
    try:
        if greet:
            one.say(frames.hello())
            await one.channel.hello
        yield one
    finally:
        one.channel.close()
        one.hang_up()


async def all_of(stream: Stream) -> tuple[list[wire.Message], Exception | None]:
    """Everything the stream gives until it is over, and the error it ends with."""
    messages: list[wire.Message] = []
    try:
        while not stream.over or stream.pending:
            messages.append(await stream.receive())
    except (ChannelLostError, GuestProtocolError) as error:
        return messages, error
    return messages, None


async def assert_works(one: Guest) -> None:
    """A whole command goes through this channel."""
    stream = one.channel.open_stream()
    one.say(frames.whole(b"fine", 3, stream.number))
    number = stream.number
    assert await all_of(stream) == (
        [
            wire.Started(number, 2),
            wire.Data(number, 1, b"fine"),
            wire.Eof(number, 1),
            wire.Eof(number, 2),
            wire.Exited(number, False, 3, 0, 0, 0),
        ],
        None,
    )
    assert one.channel.lost is None
    assert one.losses == []
