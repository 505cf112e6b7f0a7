"""Runs one agent over two pipes and drives a `Peer` with it. Blocking, with a deadline on every wait."""

from __future__ import annotations

import os
import select
import subprocess
import time
from typing import TYPE_CHECKING

from tests.agent.peer import Command, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

DEADLINE_S = 10.0


class Rig:
    """An agent process and the peer that talks to it."""

    def __init__(self, agent: Path, *arguments: str, prefix: Sequence[str] = (), fds: Sequence[int] = ()) -> None:
        """Spawn `prefix + agent + arguments`, which inherits `fds`."""
        self.peer = Peer()
        self.process = subprocess.Popen(
            [*prefix, agent, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=fds,
            env={"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"},
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in = self.process.stdin.fileno()
        self._out = self.process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self.closed = False

    @property
    def pid(self) -> int:
        """The agent's pid."""
        return self.process.pid

    def turn(self, timeout: float) -> None:
        """Write what fits and read what is there; wait at most `timeout` seconds for either."""
        writable = [self._in] if self.peer.outgoing and not self.closed else []
        ready, room, _ = select.select([self._out], writable, [], timeout)
        if room:
            try:
                del self.peer.outgoing[: os.write(self._in, self.peer.outgoing[:65536])]
            except BrokenPipeError:
                self.closed = True
        if ready:
            data = os.read(self._out, 1 << 20)
            self.closed = self.closed or not data
            self.peer.receive(data)

    def until(self, condition: Callable[[], bool], timeout: float = DEADLINE_S) -> None:
        """Take turns until `condition` holds; fail when it does not in time or the agent is gone."""
        end = time.monotonic() + timeout
        while not condition():
            left = end - time.monotonic()
            assert left > 0, "deadline"
            assert not self.closed, "the agent closed the channel"
            self.turn(left)

    def idle(self, seconds: float) -> None:
        """Take turns for a fixed time, to see that something does not happen."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.closed:
            self.turn(left)

    def ready(self) -> Rig:
        """Do the handshake."""
        self.until(lambda: self.peer.hello is not None)
        self.peer.confirm()
        return self

    def finish(self, command: Command, timeout: float = DEADLINE_S) -> Command:
        """Wait for the stream's end."""
        self.until(lambda: command.over, timeout)
        return command

    def feed(self, command: Command, data: bytes) -> None:
        """Send all of `data` to stdin as credit allows, then EOF."""
        view = memoryview(data)
        while view and not command.over:
            self.until(lambda: command.stdin_credit > 0 or command.over)
            part = view[: min(command.stdin_credit, 65536)]
            self.peer.data(command, bytes(part))
            view = view[len(part) :]
        self.peer.eof(command)

    def ending(self, timeout: float = DEADLINE_S) -> tuple[int, bytes]:
        """Wait for the agent's end while still talking to it; its exit code and stderr."""
        end = time.monotonic() + timeout
        while not self.closed and time.monotonic() < end:
            self.turn(0.05)
        assert self.process.stderr is not None
        code = self.process.wait(max(0.1, end - time.monotonic()))
        return code, self.process.stderr.read()

    def hang_up(self) -> None:
        """Close the agent's stdin, as a host that is gone."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.peer.outgoing.clear()

    def close(self) -> None:
        """End the agent whatever state it is in."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
