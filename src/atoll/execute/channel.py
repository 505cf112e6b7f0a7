"""One agent channel: frames over two pipes, streams by number, credit both ways.

The lifecycle opens it over the pipes of a fresh sandbox; `execute.process` opens one `Stream` per command.
Reading is callback-driven (one read, all frames in it dispatched at once), so that a short command costs one
wake-up, and it never waits for a consumer: what a consumer has not taken is bounded by the credit it gave,
and a guest that sends more than that is cut off. A broken channel ends every stream with the same error;
ending the sandbox itself is the lifecycle's business (`on_lost`).
"""

import asyncio
import os
import secrets
from collections import deque
from collections.abc import Callable

from atoll.model.errors import ChannelLostError, GuestProtocolError
from atoll.wire import agent as wire

READ_BYTES = 1 << 17
"""One turn for one sandbox; full of one-byte frames it holds up all others for some 20 ms."""
WINDOW = 1 << 20
"""Output bytes per stream and fd that may be under way or waiting for the consumer."""
MAX_STREAMS = 1024
MAX_DIAGNOSTICS = 1 << 14
"""Bytes of the sandbox's own error output (bubblewrap, agent) that are kept."""


class Stream:
    """One command on the channel: a queue of messages in, frames out."""

    def __init__(self, channel: "Channel", number: int) -> None:
        self.number = number
        self._channel = channel
        self._messages: deque[wire.Message | ChannelLostError | GuestProtocolError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._owed = [0, WINDOW, WINDOW]
        self._taken = [0, 0, 0]
        self._stdin_credit = wire.STDIN_WINDOW
        self._stdin_waiter: asyncio.Future[None] | None = None
        self._started = False
        self._due: set[int] = {wire.Kind.EXITED, wire.STDOUT, wire.STDERR}
        self._backlog = [bytearray(), bytearray(), bytearray()]

    def deliver(self, message: wire.Message) -> None:
        """Called by the channel for every message of this stream; checks credit and order.

        Raises:
            GuestProtocolError: more data than credit, or anything out of order.
        """
        match message:
            case wire.Started() | wire.Failed() if not self._started:
                self._started = True
                if isinstance(message, wire.Failed):
                    self._due.clear()
            case wire.Data(_, fd, data) if self._started and fd in self._due:
                self._owed[fd] -= len(data)
                if self._owed[fd] < 0:
                    raise GuestProtocolError(f"guest sent {-self._owed[fd]} bytes more than its credit")
                # One message stands for all that waits, or a million frames of one byte would cost 80 MB.
                self._backlog[fd] += data
                if len(self._backlog[fd]) > len(data):
                    return
            case wire.Credit(_, count):
                self._stdin_credit += count
                if self._stdin_credit > wire.STDIN_WINDOW:
                    raise GuestProtocolError("guest returned more stdin credit than it was sent")
                _wake(self._stdin_waiter)
                return
            case wire.Eof(_, fd) if self._started and fd in self._due:
                self._due.remove(fd)
            case wire.Exited() if self._started and wire.Kind.EXITED in self._due:
                self._due.remove(wire.Kind.EXITED)
            case _:
                raise GuestProtocolError(f"{type(message).__name__} out of order on stream {self.number}")
        self._messages.append(message)
        _wake(self._waiter)

    @property
    def over(self) -> bool:
        """Whether nothing more can come."""
        return not self._due

    @property
    def pending(self) -> bool:
        """Whether `receive` would return at once."""
        return bool(self._messages)

    def fail(self, error: ChannelLostError | GuestProtocolError) -> None:
        """End the stream from outside; `receive` raises `error` after what was delivered."""
        self._due.clear()
        self._messages.append(error)
        _wake(self._waiter)
        _wake(self._stdin_waiter)

    async def receive(self) -> wire.Message:
        """The next message.

        Raises:
            ChannelLostError: the sandbox went away.
            GuestProtocolError: the guest broke the protocol.
        """
        while not self._messages:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        message = self._messages.popleft()
        if isinstance(message, Exception):
            self._messages.append(message)  # every later call fails alike
            raise message
        if isinstance(message, wire.Data):
            data, self._backlog[message.fd] = bytes(self._backlog[message.fd]), bytearray()
            return message._replace(data=data)
        return message

    def consumed(self, fd: int, count: int) -> None:
        """Give credit back for `count` bytes of output `fd`, in halves of the window to save frames."""
        self._taken[fd] += count
        if self._taken[fd] >= WINDOW // 2 and not self.over:
            taken, self._taken[fd] = self._taken[fd], 0
            self._owed[fd] += taken
            self._channel.send(wire.credit(self.number, fd, taken))

    async def send_stdin(self, data: bytes) -> None:
        """Write to the command's stdin, waiting for its credit; dropped once the stream is over."""
        view = memoryview(data)
        while view and not self.over:
            # Credit alone would let a guest that grants it without ever reading fill our memory.
            await self._channel.drained.wait()
            while self._stdin_credit <= 0 and not self.over:
                self._stdin_waiter = asyncio.get_running_loop().create_future()
                await self._stdin_waiter
            part = bytes(view[: min(self._stdin_credit, wire.MAX_DATA)])
            self._stdin_credit -= len(part)
            self._channel.send(wire.stdin_data(self.number, part))
            view = view[len(part) :]

    def close_stdin(self) -> None:
        """End of stdin."""
        self._channel.send(wire.stdin_eof(self.number))

    def signal(self, number: int, scope: wire.Scope) -> None:
        """Ask the agent to send a signal."""
        self._channel.send(wire.signal(self.number, number, scope))


class Channel:
    """The host end of one sandbox's channel.

    Args:
        to_agent: write end of the agent's stdin, non-blocking; owned from now on.
        from_agent: read end of the agent's stdout, non-blocking; owned from now on.
        diagnostics: read end of the sandbox's stderr, non-blocking; owned from now on.
        on_lost: called once when the channel ends for any reason but `close`.
    """

    def __init__(
        self, to_agent: int, from_agent: int, diagnostics: int, on_lost: Callable[[Exception], None] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._to, self._from, self._err = to_agent, from_agent, diagnostics
        self._decoder = wire.Decoder()
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._out: deque[bytes] = deque()
        self._pongs: dict[bytes, asyncio.Future[None]] = {}
        self._lost: ChannelLostError | GuestProtocolError | None = None
        self._diagnostics = bytearray()
        self._closed = False
        self.on_lost = on_lost
        self.drained = asyncio.Event()
        """Set while nothing waits to be written."""
        self.drained.set()
        self.hello: asyncio.Future[wire.Hello] = self._loop.create_future()
        self._loop.add_reader(self._from, self._readable)
        self._loop.add_reader(self._err, self._err_readable)

    def open_stream(self) -> Stream:
        """A fresh stream; the caller sends START on it.

        Raises:
            ChannelLostError: the sandbox is gone.
        """
        if self._lost is not None:
            raise self._lost
        while self._next in self._streams:
            self._next += 1
        stream = Stream(self, self._next)
        self._streams[self._next] = stream
        self._next = self._next % 0xFFFF_FFFE + 1
        return stream

    @property
    def full(self) -> bool:
        """Whether the agent would refuse one more stream."""
        return len(self._streams) >= MAX_STREAMS

    def send(self, data: bytes) -> None:
        """Send a frame in order; silently dropped when the channel is gone (its streams already know)."""
        if self._lost is not None or self._closed:
            return
        if not self._out:
            try:
                data = data[os.write(self._to, data) :]
            except BlockingIOError:
                pass
            except OSError as error:
                self._lose(ChannelLostError(f"the sandbox is gone: {error.strerror}"))
                return
            if not data:
                return
            self._loop.add_writer(self._to, self._writable)
            self.drained.clear()
        self._out.append(data)

    async def ping(self, timeout_s: float) -> None:
        """Wait until the agent answers.

        Raises:
            TimeoutError: it did not within `timeout_s`.
            ChannelLostError: the sandbox is gone.
        """
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        if self._lost is not None:
            raise self._lost
        answer = self._pongs[nonce] = self._loop.create_future()
        self.send(wire.ping(nonce))
        await asyncio.wait_for(answer, timeout_s)  # a PONG may come later: its nonce stays known

    @property
    def diagnostics(self) -> str:
        """What bubblewrap and the agent said on stderr; guest-influenced text, for people only."""
        return self._diagnostics.decode("utf-8", "replace")

    @property
    def lost(self) -> ChannelLostError | GuestProtocolError | None:
        """Why the channel ended, None while it lives."""
        return self._lost

    def close(self) -> None:
        """Close the pipes; every open stream ends with ChannelLostError."""
        if self._closed:
            return
        self.on_lost = None
        self._lose(ChannelLostError("the sandbox was ended"))
        self._closed = True
        for fd in (self._to, self._from, self._err):
            os.close(fd)

    def _readable(self) -> None:
        try:
            data = os.read(self._from, READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(ChannelLostError(f"the sandbox is gone: {error.strerror}"))
            return
        if not data:
            self._lose(ChannelLostError("the sandbox is gone: its agent closed the channel"))
            return
        try:
            for message in self._decoder.feed(data):
                self._dispatch(message)
        except GuestProtocolError as error:
            self._lose(error)

    def _dispatch(self, message: wire.Message) -> None:
        match message:
            case wire.Hello():
                if self.hello.done():
                    raise GuestProtocolError("second HELLO")
                self.hello.set_result(message)
            case wire.Pong(nonce):
                if nonce not in self._pongs:
                    raise GuestProtocolError("PONG without a PING")
                _wake(self._pongs.pop(nonce))
            case _:
                stream = self._streams.get(message.stream)
                if stream is None:
                    raise GuestProtocolError(f"{type(message).__name__} for stream {message.stream}, which is not open")
                stream.deliver(message)
                if stream.over:
                    del self._streams[message.stream]

    def _writable(self) -> None:
        try:
            while self._out:
                data = self._out[0]
                written = os.write(self._to, data)
                if written < len(data):
                    self._out[0] = data[written:]
                    return
                self._out.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(ChannelLostError(f"the sandbox is gone: {error.strerror}"))
            return
        self._loop.remove_writer(self._to)
        self.drained.set()

    def _err_readable(self) -> None:
        try:
            data = os.read(self._err, MAX_DIAGNOSTICS)
        except BlockingIOError:
            return
        self._diagnostics += data[: MAX_DIAGNOSTICS - len(self._diagnostics)]
        if not data or len(self._diagnostics) == MAX_DIAGNOSTICS:
            self._loop.remove_reader(self._err)  # who says more is not listened to

    def _lose(self, error: ChannelLostError | GuestProtocolError) -> None:
        if self._lost is not None:
            return
        self._lost = error
        self._err_readable()  # what was said last is what explains the end
        self._loop.remove_reader(self._from)
        self._loop.remove_reader(self._err)
        self._loop.remove_writer(self._to)
        self._out.clear()
        self.drained.set()
        if not self.hello.done():
            self.hello.set_exception(error)
            self.hello.exception()  # retrieved: a channel closed before anyone waited is no mistake
        for pong in self._pongs.values():
            if not pong.done():
                pong.set_exception(error)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)
        if self.on_lost is not None:
            self.on_lost(error)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
