"""Commands inside one sandbox: start, watch, end.

`Executor` is the stage: it holds what every command needs (channel, cgroup, limits, logs) and starts
`Process`es. Each process has one pump task that moves its messages into `Output` and the caller's callback,
gives credit back after the callback returned (so that a slow reader slows the command, not the host), and
settles the `ExitStatus`. All limits and reasons come from the host's own cgroups.
"""

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine

import msgspec

from atoll.execute.channel import WINDOW, Channel, Stream
from atoll.execute.output import LogStore, Output
from atoll.execute.verdict import Disk, Ending, judge
from atoll.kernel.cgroup import Leaf, SandboxCgroup
from atoll.model.command import Command, check_total
from atoll.model.errors import (
    AtollError,
    ChannelLostError,
    GuestProtocolError,
    InvalidSpecError,
    LimitExceededError,
    ProvisionError,
    TeardownError,
    UnsupportedError,
)
from atoll.model.limits import Limits
from atoll.model.status import ExitStatus, Reason, Usage
from atoll.wire import agent as wire

KILL_GRACE_S = 2.0
"""How long the agent may take to report the end of a command that the host has killed."""
DESCENDANT_POLL_S = 0.02
RELEASE_DELAY_S = 0.001

OnOutput = Callable[[int, bytes], Awaitable[None] | None]


class Executor:
    """Starts commands in one sandbox.

    Args:
        channel: to its agent; owned by the lifecycle.
        cgroup: of the sandbox; None only with cgroups disabled by name.
        owner_uid: host uid of the agent, which joins leaves; None when it is our own.
        limits: validated.
        logs: of this sandbox.
        disk: reads the fill of the writable layer.
    """

    def __init__(
        self,
        channel: Channel,
        cgroup: SandboxCgroup | None,
        owner_uid: int | None,
        limits: Limits,
        logs: LogStore,
        disk: Callable[[], Disk | None],
    ) -> None:
        self.channel = channel
        self.limits = limits
        self.logs = logs
        self.disk = disk
        self.on_broken: Callable[[str], None] = lambda _problem: None
        """Called when the agent no longer does its duty; the lifecycle makes it end the sandbox."""
        self.end_reason: tuple[Reason, str] | None = None
        """Set by the lifecycle before it ends the sandbox: why running commands end."""
        self.running: set[Process] = set()
        self.active_at = time.monotonic()
        """When a command last ended."""
        self._cgroup = cgroup
        self._owner_uid = owner_uid
        self._spare: Leaf | None = None
        self._used: list[Leaf] = []
        self._leaves = 0

    async def start(
        self, command: Command, *, on_output: OnOutput | None = None, timeout_s: float | None = None
    ) -> "Process":
        """Start `command`; returns once it was executed, or failed to be (then `wait` tells).

        Raises:
            InvalidSpecError: cwd, argv or env cannot be used.
            LimitExceededError: no process slot or stream left in the sandbox.
            ProvisionError: the sandbox could not confine it.
            ChannelLostError: the sandbox is gone.
        """
        check_total(command)
        if self.channel.full:
            raise LimitExceededError("too many commands at once", hint="wait for some to end", limit="streams")
        leaf = self._take_leaf()  # first: it may fail, and a stream lasts until the guest ends it
        stream = self.channel.open_stream()
        process = Process(self, stream, leaf, command, on_output)
        self.channel.send(
            wire.start(
                stream.number,
                command.argv,
                command.env,
                command.cwd,
                uid=command.uid,
                gid=command.gid,
                stdin=command.stdin,
                open_files=self.limits.open_files,
                window=WINDOW,
                leaf=leaf.name if leaf else "",
            )
        )
        process.begin(timeout_s)
        asyncio.get_running_loop().call_soon(self._prepare_spare)
        try:
            await asyncio.shield(process.settled)
        except asyncio.CancelledError:
            await asyncio.shield(process.kill(Reason.KILLED, "its caller went away"))
            raise
        return process

    def _take_leaf(self) -> Leaf | None:
        if self._cgroup is None:
            return None
        leaf, self._spare = self._spare, None
        return leaf or self._make_leaf(self._cgroup)

    def _make_leaf(self, cgroup: SandboxCgroup) -> Leaf:
        self._leaves += 1
        return cgroup.make_leaf(f"x{self._leaves}", self._owner_uid)

    def _prepare_spare(self) -> None:
        if self._cgroup is not None and self._spare is None and self.channel.lost is None:
            # A sandbox being torn down has no directory to make it in; the next start would say so.
            with contextlib.suppress(OSError, AtollError):
                self._spare = self._make_leaf(self._cgroup)

    def close(self) -> None:
        """Let go of the sandbox's cgroups, whose descriptors close with the last reference to them."""
        self._cgroup = self._spare = None
        self._used.clear()
        self.on_broken = lambda _problem: None

    def release(self, leaf: Leaf) -> None:
        """Remove the leaf of an ended command, or keep trying while leftovers of it still run."""
        self._used.append(leaf)
        self._used = [used for used in self._used if not used.remove()]


class Process:
    """One command. Made by `Executor.start`."""

    def __init__(
        self, executor: Executor, stream: Stream, leaf: Leaf | None, command: Command, on_output: OnOutput | None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.pid: int | None = None
        """Process id inside the sandbox; the guest's word."""
        self.stdout = Output(executor.logs)
        self.stderr = Output(executor.logs)
        self.settled: asyncio.Future[None] = loop.create_future()
        """Done when the command runs, or failed to start."""
        self._status: asyncio.Future[ExitStatus] = loop.create_future()
        self._drained = asyncio.Event()
        self._executor = executor
        self._stream = stream
        self._leaf = leaf
        self._command = command
        self._on_output = on_output
        self._cause: tuple[Reason, str] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._calling: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = time.monotonic()
        self._timeout_s: float | None = None

    def begin(self, timeout_s: float | None) -> None:
        """Called once, after START was sent: start the pump and the clock."""
        self._executor.running.add(self)
        self._spawn(self._pump())
        self._timeout_s = timeout_s
        if timeout_s is not None:
            detail = f"limit {timeout_s:g} s"
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(timeout_s, self._end, Reason.TIMEOUT, detail)

    async def wait(self) -> ExitStatus:
        """How it ended. Leftover background children do not delay this; their output goes to the logs.

        Raises:
            LimitExceededError, ProvisionError, InvalidSpecError: it could not be started.
            GuestProtocolError: the guest broke the protocol and was destroyed.
        """
        return await asyncio.shield(self._status)

    async def wait_for_descendants(self) -> ExitStatus:
        """Like `wait`, but until every process the command left behind has ended too, or the time is up."""
        status = await self.wait()
        left = None if self._timeout_s is None else self._began + self._timeout_s - time.monotonic()
        try:
            async with asyncio.timeout(left):
                await self._drained.wait()
                while self._leaf is not None and self._leaf.populated():  # noqa: ASYNC110 - v1 tells nobody
                    await asyncio.sleep(DESCENDANT_POLL_S)
        except TimeoutError:
            await self._kill_tree()
            return msgspec.structs.replace(status, reason=Reason.TIMEOUT, detail=f"limit {self._timeout_s:g} s")
        return status

    async def write_stdin(self, data: bytes) -> None:
        """Feed stdin; waits while the command does not read."""
        await self._stream.send_stdin(data)

    def close_stdin(self) -> None:
        """End stdin."""
        self._stream.close_stdin()

    async def kill(self, reason: Reason = Reason.KILLED, detail: str = "") -> None:
        """End the command and everything it started, also what it daemonised; returns when it is over."""
        self._end(reason, detail)
        with contextlib.suppress(AtollError):
            await self.wait()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, reason: Reason, detail: str) -> None:
        if self._cause is not None:
            return
        self._cause = (reason, detail)
        self._spawn(self._kill_tree())
        if self._status.done():
            return  # only leftovers of an ended command were killed; its status stands
        self._grace = asyncio.get_running_loop().call_later(KILL_GRACE_S, self._overdue)

    def _overdue(self) -> None:
        if self._calling is None:
            self._executor.on_broken("the agent did not report a killed command")
            return
        # A slow callback holds up the end, not the agent: go on without it, and give the agent its time.
        self._on_output = None
        self._calling.cancel()
        self._grace = asyncio.get_running_loop().call_later(KILL_GRACE_S, self._overdue)

    async def _kill_tree(self) -> None:
        await asyncio.shield(self.settled)  # until it runs it may not be in its cgroup yet, and would be missed
        if self._leaf is None:
            self._stream.signal(signal.SIGKILL, wire.Scope.TREE)
            return
        try:
            await asyncio.to_thread(self._leaf.kill)
        except (TeardownError, OSError) as error:
            self._executor.on_broken(f"a command could not be killed: {error}")

    async def _pump(self) -> None:
        try:
            while not self._stream.over or self._stream.pending:
                await self._take(await self._stream.receive())
        except ChannelLostError:
            self._settle_lost()
        except GuestProtocolError as error:
            self._fail(error)
        except asyncio.CancelledError:
            self._settle_lost()  # the loop ends, and whoever still waits would keep it from that
            raise
        finally:
            self._close()

    async def _take(self, message: wire.Message) -> None:
        match message:
            case wire.Data(_, fd, data):
                await self._take_output(fd, data)
            case wire.Started(_, pid):
                self.pid = pid
                _set(self.settled)
            case wire.Exited(_, signaled, value, user_us, system_us, maxrss):
                reported = Usage(
                    cpu_s=(user_us + system_us) / 1e6, memory_peak_bytes=maxrss * 1024, guest_reported=True
                )
                self._settle(Ending(signaled, value), reported)
            case wire.Failed(_, stage, number, text):
                self._settle_failed(stage, number, text)
            case _:
                pass

    async def _take_output(self, fd: int, data: bytes) -> None:
        output = self.stdout if fd == wire.STDOUT else self.stderr
        limit = self._executor.limits.output_bytes
        problem = f"limit {limit} bytes"
        part = data[: max(0, limit - self.stdout.total - self.stderr.total)]
        try:
            part = part if output.append(part) else b""
        except OSError as error:
            part, problem = b"", f"its log cannot be written ({error.strerror})"
        if len(part) < len(data):
            output.refused += len(data) - len(part)
            self._end(Reason.OUTPUT_LIMIT, problem)
        if part and self._on_output is not None and not self._status.done():
            try:
                waiting = self._on_output(fd, part)
                if waiting is not None:
                    self._calling = asyncio.ensure_future(waiting)
                    await asyncio.wait([self._calling])
                    if not self._calling.cancelled():
                        self._calling.result()
            except Exception as error:  # noqa: BLE001 - the caller's callback: its error is the caller's to see
                self._on_output = None
                self._end(Reason.KILLED, f"output callback failed: {error}")
            self._calling = None
        if not (output.refused and self._status.done()):  # what a command left behind gets no room past the limit
            self._stream.consumed(fd, len(data))

    def _usage(self, reported: Usage) -> Usage:
        usage = reported
        if self._leaf is not None:
            with contextlib.suppress(OSError):  # a slow consumer may come here after the teardown of the cgroup
                usage = self._leaf.usage()
        return msgspec.structs.replace(usage, wall_s=time.monotonic() - self._began)

    def _settle(self, ending: Ending, reported: Usage) -> None:
        failed = ending != Ending(signaled=False, value=0)
        disk = self._executor.disk() if failed else None
        cause, detail = self._cause or (None, "")
        self._finish(judge(ending, self._usage(reported), self._executor.limits, disk, cause, detail))

    def _settle_lost(self) -> None:
        if self._status.done():
            return
        reason, detail = self._cause or self._executor.end_reason or (Reason.SANDBOX_GONE, "the sandbox ended")
        usage = Usage(wall_s=time.monotonic() - self._began)
        self._finish(
            ExitStatus(code=128 + signal.SIGKILL, signal=signal.SIGKILL, reason=reason, detail=detail, usage=usage)
        )

    def _settle_failed(self, stage: wire.Stage, number: int, text: str) -> None:
        name = os.fsdecode(self._command.argv[0])
        problem = os.strerror(number)
        match stage, number:
            case wire.Stage.EXEC, errno.E2BIG:
                self._fail(
                    InvalidSpecError("argv and env", name, "too large for execve(2)", hint="use a file or stdin")
                )
            case wire.Stage.EXEC, errno.ENOENT:
                self._finish(ExitStatus(code=127, reason=Reason.EXITED, detail=f"{name}: command not found"))
            case wire.Stage.EXEC, _:
                self._finish(ExitStatus(code=126, reason=Reason.EXITED, detail=f"{name}: {problem}"))
            case wire.Stage.CWD, _:
                cwd = os.fsdecode(self._command.cwd)
                self._fail(
                    InvalidSpecError(
                        "cwd", cwd, f"cannot be entered ({problem})", hint="create it first or name another"
                    )
                )
            case wire.Stage.CREDENTIALS, _:
                self._fail(UnsupportedError(f"user: cannot become uid {self._command.uid} ({problem})"))
            case wire.Stage.RESOURCES, errno.EAGAIN:
                self._fail(
                    LimitExceededError(
                        f"no process left of the limit of {self._executor.limits.pids_max}",
                        hint="end some processes or raise pids_max",
                        limit="pids_max",
                    )
                )
            case _:
                self._fail(
                    ProvisionError(f"the command could not be started ({stage.name.lower()}: {problem}; {text})")
                )

    def _finish(self, status: ExitStatus) -> None:
        if not self._status.done():
            self._status.set_result(status)
        self._stop_clocks()

    def _fail(self, error: AtollError) -> None:
        if not self._status.done():
            self._status.set_exception(error)
            self._status.exception()  # retrieved: nobody has to wait for it
        self._stop_clocks()

    def _stop_clocks(self) -> None:
        _set(self.settled)
        self._executor.running.discard(self)
        self._executor.active_at = time.monotonic()
        for timer in (self._deadline, self._grace):
            if timer is not None:
                timer.cancel()

    def _close(self) -> None:
        self._drained.set()
        for output in (self.stdout, self.stderr):
            self._executor.logs.ended(output)
        if self._leaf is not None and self._executor.channel.lost is None:
            # Whoever waits for the status goes first; removing directories is housekeeping.
            asyncio.get_running_loop().call_later(RELEASE_DELAY_S, self._executor.release, self._leaf)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
