"""Guests that lie about, delay or withhold the end of a command: every caller gets a true answer in time."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from atoll.execute import process as process_module
from atoll.execute.channel import WINDOW
from atoll.execute.output import KEEP, LogStore
from atoll.execute.process import Executor, OnOutput, Process
from atoll.model.command import Command
from atoll.model.errors import (
    AtollError,
    ChannelLostError,
    GuestProtocolError,
    InvalidSpecError,
    LimitExceededError,
    ProvisionError,
    UnsupportedError,
)
from atoll.model.limits import Limits
from atoll.model.status import Reason
from tests.hostile.rig import Guest, guest, play, until
from tests.unit import guest_frames as frames

COMMAND = Command(argv=(b"prog", b"arg"), env=(b"A=1",), cwd=b"/home", uid=5, gid=6, stdin=True)
GRACE_S = 0.05


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_module, "KILL_GRACE_S", GRACE_S)


class Sandbox:
    """An executor on the channel of a guest; ends the channel when the agent is reported broken."""

    def __init__(self, one: Guest, directory: Path, output_bytes: int = 1 << 30) -> None:
        self.guest = one
        self.logs = LogStore(directory, output_bytes)
        limits = Limits(output_bytes=output_bytes, pids_max=77)
        self.executor = Executor(one.channel, None, None, limits, self.logs, lambda: None)
        self.problems: list[str] = []
        self.executor.on_broken = self._broken

    def _broken(self, problem: str) -> None:
        self.problems.append(problem)
        self.guest.channel.close()

    async def start(self, *answer: bytes, on_output: OnOutput | None = None, timeout_s: float | None = None) -> Process:
        """Start the command; the guest answers with `answer`, or else with STARTED."""
        starting = asyncio.create_task(self.executor.start(COMMAND, on_output=on_output, timeout_s=timeout_s))
        await asyncio.sleep(0)
        self.guest.say(*(answer or (frames.started(),)))
        return await starting


@pytest.fixture
def sandbox(tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Sandbox]]:
    @contextlib.asynccontextmanager
    async def make(output_bytes: int = 1 << 30) -> AsyncIterator[Sandbox]:
        async with guest() as one:
            made = Sandbox(one, tmp_path, output_bytes)
            yield made
            one.channel.close()
            await until(lambda: not made.executor.running)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            made.logs.close()

    return make


MakeSandbox = Callable[..., contextlib.AbstractAsyncContextManager[Sandbox]]


def test_an_ordinary_command(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.start(frames.started(1, 99))
            [start] = box.guest.hear()
            assert start.fields["argv"] == [b"prog", b"arg"]
            assert (start.fields["uid"], start.fields["gid"], start.fields["window"]) == (5, 6, WINDOW)
            assert (start.fields["flags"], start.fields["nofile"], start.fields["leaf"]) == (1, 1024, b"")
            usage = (1_500_000, 500_000, 2048)
            box.guest.say(frames.data(b"out"), frames.data(b"err", 2), frames.exited(7, usage=usage))
            status = await process.wait()
            assert (process.pid, status.code, status.reason, status.signal) == (99, 7, Reason.EXITED, None)
            assert (status.usage.cpu_s, status.usage.memory_peak_bytes) == (2.0, 2 << 20)
            assert status.usage.guest_reported
            assert (process.stdout.kept(), process.stderr.kept()) == (b"out", b"err")
            box.guest.say(frames.eof(1), frames.eof(2))
            assert await process.wait_for_descendants() == status

    play(scenario)


# --- silence ---------------------------------------------------------------------------------------------------------


def test_no_end_after_a_kill_breaks_the_sandbox_and_the_reason_stays_true(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.start(timeout_s=0.01)
            box.guest.say(frames.data(b"still here"))
            status = await process.wait()
            assert box.problems == ["the agent did not report a killed command"]
            assert (status.reason, status.detail, status.code) == (Reason.TIMEOUT, "limit 0.01 s", 137)
            assert process.stdout.kept() == b"still here"
            kinds = [(frame.kind, frame.fields.get("signo")) for frame in box.guest.hear()]
            assert kinds == [("START", None), ("SIGNAL", 9)]

    play(scenario)


def test_an_end_within_the_grace_breaks_nothing(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.start(timeout_s=0.01)
            await asyncio.sleep(0.02)
            box.guest.say(frames.exited(9, how=1))
            status = await process.wait()
            assert (status.reason, status.code, status.signal) == (Reason.TIMEOUT, 137, 9)
            await asyncio.sleep(2 * GRACE_S)
            assert box.problems == []

    play(scenario)


def test_a_start_that_is_never_answered_ends_at_its_timeout(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.executor.start(COMMAND, timeout_s=0.01)
            assert (await process.wait()).reason is Reason.TIMEOUT
            assert process.pid is None
            assert len(box.problems) == 1

    play(scenario)


def test_a_caller_that_gives_up_during_the_start_leaves_no_command(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox() as box:
            starting = asyncio.create_task(box.executor.start(COMMAND))
            await asyncio.sleep(0)
            starting.cancel()
            await asyncio.sleep(0)
            await until(lambda: [frame.kind for frame in box.guest.hear()] != [])
            box.guest.say(frames.started(), frames.exited(9, how=1), frames.eof(1), frames.eof(2))
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert box.executor.running == set()
            assert box.problems == []

    play(scenario)


# --- refusals --------------------------------------------------------------------------------------------------------

REFUSALS: list[tuple[int, int, type[AtollError], str]] = [
    (1, errno.EAGAIN, LimitExceededError, "no process left of the limit of 77"),
    (1, errno.ENOMEM, ProvisionError, "resources: Cannot allocate memory"),
    (2, errno.ENOENT, ProvisionError, "cgroup: No such file"),
    (3, errno.EPERM, UnsupportedError, "cannot become uid 5"),
    (4, errno.ENOENT, InvalidSpecError, "cwd: cannot be entered"),
    (4, errno.EACCES, InvalidSpecError, "'/home'"),
    (5, errno.E2BIG, InvalidSpecError, "too large"),
    (6, errno.EINVAL, ProvisionError, "confine: Invalid argument"),
    (6, 4095, ProvisionError, "Unknown error 4095"),
]


@pytest.mark.parametrize(("stage", "number", "kind", "words"), REFUSALS, ids=lambda value: str(value)[:40])
def test_a_failed_start_is_a_typed_error(
    sandbox: MakeSandbox, stage: int, number: int, kind: type[AtollError], words: str
):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.start(frames.error(stage, number, b"agent's words"))
            with pytest.raises(kind) as raised:
                await process.wait()
            assert words in str(raised.value)
            assert box.executor.running == set()

    play(scenario)


@pytest.mark.parametrize(("number", "code"), [(errno.ENOENT, 127), (errno.EACCES, 126), (errno.ENOEXEC, 126)])
def test_a_program_that_cannot_run_is_what_a_shell_says(sandbox: MakeSandbox, number: int, code: int):
    async def scenario() -> None:
        async with sandbox() as box:
            status = await (await box.start(frames.error(5, number))).wait()
            assert (status.code, status.reason) == (code, Reason.EXITED)
            assert status.detail.startswith("prog: ")

    play(scenario)


def test_an_errno_that_is_none_does_not_hang_the_caller(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.start(frames.error(5, 0xFFFF_FFFF))
            with pytest.raises(GuestProtocolError):
                await process.wait()

    play(scenario)


def test_one_stream_too_many_is_refused_here(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox() as box:
            for _ in range(1024):
                box.guest.channel.open_stream()
            with pytest.raises(LimitExceededError):
                await box.executor.start(COMMAND)
            assert box.guest.hear() == []

    play(scenario)


# --- lies ------------------------------------------------------------------------------------------------------------


def test_impossible_figures_are_only_the_guests_word(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.start()
            box.guest.say(frames.exited(0, usage=(0xFFFF_FFFF_FFFF_FFFF,) * 3))
            status = await process.wait()
            assert status.usage.guest_reported
            assert (status.usage.oom_kills, status.usage.pids_rejected) == (0, 0)
            assert 0 <= status.usage.wall_s < 10

    play(scenario)


@pytest.mark.parametrize(
    "breach",
    [frames.eof(1) * 3, frames.exited() * 2, frames.data(b"x", 1, 7), b"\xff" * 20],
    ids=["EOF thrice", "EXITED twice", "unknown stream", "garbage"],
)
def test_a_breach_gives_every_command_the_error(sandbox: MakeSandbox, breach: bytes):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.start()
            other = await box.start(frames.started(2))
            box.guest.say(frames.data(b"kept"), breach)
            with pytest.raises(GuestProtocolError):
                await other.wait()
            await until(lambda: not box.executor.running)
            assert process.stdout.kept() == b"kept"
            with pytest.raises(GuestProtocolError):
                await box.executor.start(COMMAND)

    play(scenario)


def test_a_guest_that_vanishes_leaves_what_it_said(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.start()
            box.executor.end_reason = (Reason.OUT_OF_MEMORY, "the agent was killed")
            box.guest.say(frames.data(b"last words"))
            box.guest.hang_up()
            status = await process.wait()
            assert (status.reason, status.detail, status.code) == (Reason.OUT_OF_MEMORY, "the agent was killed", 137)
            assert process.stdout.kept() == b"last words"
            with pytest.raises(ChannelLostError):
                await box.executor.start(COMMAND)

    play(scenario)


# --- output without end ----------------------------------------------------------------------------------------------


def test_output_past_the_limit_ends_the_command_and_is_counted(sandbox: MakeSandbox):
    async def scenario() -> None:
        seen = []
        async with sandbox(output_bytes=5000) as box:
            process = await box.start(on_output=lambda fd, data: seen.append((fd, data)))
            box.guest.say(frames.data(b"a" * 3000), frames.data(b"b" * 3000, 2), frames.data(b"c" * 100))
            await until(lambda: "SIGNAL" in [frame.kind for frame in box.guest.hear()])
            box.guest.say(frames.exited(9, how=1))
            status = await process.wait()
            assert (status.reason, status.detail) == (Reason.OUTPUT_LIMIT, "limit 5000 bytes")
            kept = process.stdout.kept() + process.stderr.kept()
            assert len(kept) == 5000
            assert process.stdout.refused + process.stderr.refused == 1100
            assert b"".join(data for _, data in seen) == kept
            assert box.problems == []

    play(scenario)


def test_leftovers_that_write_without_end_get_no_more_room(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox(output_bytes=1 << 20) as box:
            process = await box.start()
            box.guest.say(frames.exited())
            assert (await process.wait()).reason is Reason.EXITED
            pouring = asyncio.create_task(box.guest.pour(frames.data(b"x" * 65536) * 80))  # never mind the credit
            assert isinstance(await box.guest.lost(), GuestProtocolError)
            box.guest.channel.close()
            await pouring
            assert process.stdout.total <= 1 << 20
            assert (await process.wait()).reason is Reason.EXITED

    play(scenario)


def test_a_log_that_cannot_be_written_ends_the_command(sandbox: MakeSandbox, tmp_path: Path):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.start()
            tmp_path.rmdir()
            await box.guest.pour(frames.data(b"x" * 65536) * (KEEP // 65536))
            await until(lambda: process.stdout.total == KEEP)
            box.guest.hear()
            box.guest.say(frames.data(b"one more"))
            await until(lambda: "SIGNAL" in [frame.kind for frame in box.guest.hear()])
            box.guest.say(frames.exited(9, how=1))
            status = await process.wait()
            assert status.reason is Reason.OUTPUT_LIMIT
            assert "No such file or directory" in status.detail
            assert process.stdout.kept() == b"x" * KEEP
            assert process.stdout.refused == 8

    play(scenario)


# --- callers that are slow or fail -----------------------------------------------------------------------------------


def test_a_slow_reader_slows_the_guest_and_gets_everything(sandbox: MakeSandbox):
    async def scenario() -> None:
        taken = bytearray()

        async def slow(fd: int, data: bytes) -> None:
            await asyncio.sleep(0.001)
            taken.extend(data)

        async with sandbox() as box:
            process = await box.start(on_output=slow)
            text = os.urandom(4 << 20)
            credit, at = WINDOW, 0
            while at < len(text):
                credit += sum(f.fields["count"] for f in box.guest.hear() if f.kind == "CREDIT")
                part = text[at : at + min(credit, 65536)]
                if part:
                    await box.guest.pour(frames.data(part))
                    credit, at = credit - len(part), at + len(part)
                await asyncio.sleep(0)
            box.guest.say(frames.exited(), frames.eof(1), frames.eof(2))
            await process.wait()
            assert bytes(taken) == text

    play(scenario)


def test_a_callback_that_hangs_is_not_blamed_on_the_agent(sandbox: MakeSandbox):
    async def scenario() -> None:
        cancelled = []

        async def hang(fd: int, data: bytes) -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                cancelled.append(data)
                raise

        async with sandbox() as box:
            process = await box.start(on_output=hang, timeout_s=0.01)
            box.guest.say(frames.data(b"one"))
            await until(lambda: "SIGNAL" in [frame.kind for frame in box.guest.hear()])
            box.guest.say(frames.data(b"two"), frames.exited(9, how=1))
            status = await process.wait()
            assert status.reason is Reason.TIMEOUT
            assert process.stdout.kept() == b"onetwo"
            assert cancelled == [b"one"]
            await asyncio.sleep(2 * GRACE_S)
            assert box.problems == []

    play(scenario)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_callback_that_fails_ends_its_command(sandbox: MakeSandbox, asynchronous: bool):
    async def scenario() -> None:
        def fail(fd: int, data: bytes) -> None:
            raise ZeroDivisionError("mine")

        async def fail_later(fd: int, data: bytes) -> None:
            await asyncio.sleep(0)
            fail(fd, data)

        async with sandbox() as box:
            process = await box.start(on_output=fail_later if asynchronous else fail)
            box.guest.say(frames.data(b"one"))
            await until(lambda: "SIGNAL" in [frame.kind for frame in box.guest.hear()])
            box.guest.say(frames.exited(9, how=1))
            status = await process.wait()
            assert (status.reason, status.detail) == (Reason.KILLED, "output callback failed: mine")

    play(scenario)


def test_stdin_is_sent_in_order(sandbox: MakeSandbox):
    async def scenario() -> None:
        async with sandbox() as box:
            process = await box.start()
            box.guest.hear()
            await process.write_stdin(b"in")
            process.close_stdin()
            assert box.guest.hear() == [
                frames.Frame("DATA", 1, {"fd": 0, "data": b"in"}),
                frames.Frame("EOF", 1, {"fd": 0}),
            ]

    play(scenario)
