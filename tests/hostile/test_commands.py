"""What callers of `AsyncCommands.run` see when the guest, their stdin or their callbacks misbehave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.client.aio import AsyncCommands
from atoll.execute import process as process_module
from atoll.execute.output import LogStore
from atoll.execute.process import Executor
from atoll.model.errors import (
    ChannelLostError,
    GuestProtocolError,
    InvalidSpecError,
    NotFoundError,
    ProcessFailedError,
    StateError,
)
from atoll.model.limits import Limits
from atoll.model.plan import SandboxSpec
from atoll.model.status import Reason
from atoll.plan import compile_plan
from tests.hostile.rig import Guest, guest, play, until
from tests.unit import guest_frames as frames
from tests.unit.test_plan import FULL, TEMPLATE

Box = SimpleNamespace
MakeBox = Callable[..., contextlib.AbstractAsyncContextManager[Box]]


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeBox:
    monkeypatch.setattr(process_module, "KILL_GRACE_S", 0.05)

    @contextlib.asynccontextmanager
    async def make(output_bytes: int = 1 << 30) -> AsyncIterator[Box]:
        async with guest() as one:
            plan = compile_plan(SandboxSpec(limits=Limits(output_bytes=output_bytes)), TEMPLATE, FULL, "abcdefgh")
            logs = LogStore(tmp_path, output_bytes)
            executor = Executor(one.channel, None, None, plan.limits, logs, lambda: None)
            executor.on_broken = lambda _problem: one.channel.close()
            running = SimpleNamespace(id="abcdefgh", plan=plan, executor=executor, ended=asyncio.Event())
            yield Box(guest=one, run=AsyncCommands(running).run, ended=running.ended, executor=executor)
            one.channel.close()
            await until(lambda: not executor.running)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            logs.close()

    return make


async def heard(one: Guest, kind: str) -> frames.Frame:
    """Wait for a frame of the host."""
    while True:
        for frame in one.hear():
            if frame.kind == kind:
                return frame
        await asyncio.sleep(0.001)


KILLED = frames.exited(9, how=1)


def test_the_result_of_an_ordinary_command(sandbox: MakeBox):
    async def scenario() -> None:
        async with sandbox() as box:
            running = asyncio.create_task(box.run(["prog"]))
            start = await heard(box.guest, "START")
            assert start.fields["flags"] == 0
            box.guest.say(frames.started(), frames.data(b"a\xff"), frames.data(b"b", 2), frames.exited(3))
            result = await running
            assert (result.stdout_bytes, result.stdout, result.stderr) == (b"a\xff", "a\ufffd", "b")
            assert (result.exit_code, result.signal, result.reason) == (3, None, Reason.EXITED)
            assert (result.truncated, result.dropped_bytes) == (False, 0)
            assert result.error == "exited, exit code 3"
            assert result.read_log("stdout", 1, 5) == b"\xff"
            with pytest.raises(ProcessFailedError, match=r"exit code 3.*: b"):
                result.check()

    play(scenario)


@pytest.mark.parametrize(
    "timeout", [-1, "-1s", "soon", float("nan"), float("inf"), True, 10**400], ids=lambda t: str(t)[:9]
)
def test_an_impossible_timeout_starts_nothing(sandbox: MakeBox, timeout: object):
    async def scenario() -> None:
        async with sandbox() as box:
            with pytest.raises(InvalidSpecError, match="timeout: not a duration"):
                await box.run(["prog"], timeout=timeout)
            assert box.guest.hear() == []

    play(scenario)


def test_an_ended_sandbox_says_so(sandbox: MakeBox):
    async def scenario() -> None:
        async with sandbox() as box:
            box.ended.set()
            with pytest.raises(StateError, match="sandbox abcdefgh has ended"):
                await box.run("true")
            assert box.guest.hear() == []

    play(scenario)


def test_a_guest_that_breaks_the_protocol_is_the_callers_error(sandbox: MakeBox):
    async def scenario() -> None:
        async with sandbox() as box:
            running = asyncio.create_task(box.run("true"))
            await heard(box.guest, "START")
            box.guest.say(frames.started(), frames.eof(1) * 2)
            with pytest.raises(GuestProtocolError):
                await running
            with pytest.raises(GuestProtocolError):
                await box.run("true")

    play(scenario)


def test_a_guest_that_vanishes_gives_the_reason_and_what_it_said(sandbox: MakeBox):
    async def scenario() -> None:
        async with sandbox() as box:
            running = asyncio.create_task(box.run("true", stdin=b"x" * (1 << 20)))
            await heard(box.guest, "START")
            box.guest.say(frames.started(), frames.data(b"half"))
            box.guest.hang_up()
            result = await running
            assert (result.reason, result.exit_code, result.stdout) == (Reason.SANDBOX_GONE, 137, "half")
            with pytest.raises(ChannelLostError):
                await box.run("true")

    play(scenario)


def test_output_past_the_limit_is_cut_marked_and_counted(sandbox: MakeBox):
    async def scenario() -> None:
        async with sandbox(output_bytes=4096) as box:
            running = asyncio.create_task(box.run("yes"))
            await heard(box.guest, "START")
            box.guest.say(frames.started(), frames.data(b"y" * 60_000))
            await heard(box.guest, "SIGNAL")
            box.guest.say(KILLED)
            result = await running
            assert (result.reason, result.stdout) == (Reason.OUTPUT_LIMIT, "y" * 4096)
            assert (result.truncated, result.dropped_bytes) == (True, 60_000 - 4096)

    play(scenario)


# --- stdin -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stdin", ["t\udcffxt", b"t\xffxt"], ids=repr)
def test_stdin_arrives_byte_for_byte_and_ends(sandbox: MakeBox, stdin: str | bytes):
    async def scenario() -> None:
        async with sandbox() as box:
            running = asyncio.create_task(box.run("cat", stdin=stdin))
            await heard(box.guest, "START")
            box.guest.say(frames.started())
            assert (await heard(box.guest, "DATA")).fields["data"] == b"t\xffxt"
            box.guest.say(frames.exited())
            assert (await running).exit_code == 0

    play(scenario)


@pytest.mark.parametrize("bad", ["raises", "no bytes", "lone surrogate"])
def test_stdin_that_fails_ends_the_command_rather_than_seeming_complete(sandbox: MakeBox, bad: str):
    async def chunks() -> AsyncIterator[bytes]:
        yield b"part"
        if bad == "raises":
            raise ZeroDivisionError("of mine")
        yield 5

    async def scenario() -> None:
        async with sandbox() as box:
            stdin = "\ud800" if bad == "lone surrogate" else chunks()
            running = asyncio.create_task(box.run("cat", stdin=stdin))
            await heard(box.guest, "START")
            box.guest.say(frames.started())
            kinds = []
            while "SIGNAL" not in kinds:
                kinds += [frame.kind for frame in box.guest.hear()]
                await asyncio.sleep(0)
            assert "EOF" not in kinds
            box.guest.say(KILLED)
            result = await running
            assert result.reason is Reason.KILLED
            assert result.detail.startswith("its stdin failed: ")

    play(scenario)


def test_a_command_that_ends_before_its_stdin_does_not_wait_for_it(sandbox: MakeBox):
    stopped = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            stopped.append(True)

    async def scenario() -> None:
        async with sandbox() as box:
            running = asyncio.create_task(box.run("head -c1", stdin=endless()))
            await heard(box.guest, "START")
            box.guest.say(frames.started())
            await heard(box.guest, "DATA")
            box.guest.say(frames.exited())
            assert (await running).exit_code == 0
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert stopped == [True]

    play(scenario)


# --- callbacks -------------------------------------------------------------------------------------------------------


def test_text_callbacks_get_whole_characters_and_bytes_callbacks_all_bytes(sandbox: MakeBox):
    async def scenario() -> None:
        text, raw, errors = [], [], []
        async with sandbox() as box:
            running = asyncio.create_task(
                box.run("true", on_stdout=text.append, on_stdout_bytes=raw.append, on_stderr=errors.append)
            )
            await heard(box.guest, "START")
            box.guest.say(frames.started())
            sent = "é漢😀".encode()
            for byte in sent:
                box.guest.say(frames.data(bytes((byte,))))
                await asyncio.sleep(0.001)
            box.guest.say(frames.data(b"\xff!", 2), frames.exited())
            await running
            assert "".join(text) == "é漢😀"
            assert b"".join(raw) == sent
            assert "".join(errors) == "\ufffd!"

    play(scenario)


def test_a_caller_that_is_cancelled_kills_its_command_first(sandbox: MakeBox):
    async def scenario() -> None:
        async with sandbox() as box:
            running = asyncio.create_task(box.run("sleep 100"))
            await heard(box.guest, "START")
            box.guest.say(frames.started())
            await asyncio.sleep(0.005)
            running.cancel()
            signal = await heard(box.guest, "SIGNAL")
            assert signal.fields == {"signo": 9, "scope": 2}
            assert not running.done()
            box.guest.say(KILLED)
            with pytest.raises(asyncio.CancelledError):
                await running

    play(scenario)


def test_a_log_that_went_is_a_typed_error(sandbox: MakeBox):
    async def scenario() -> None:
        async with sandbox() as box:
            running = asyncio.create_task(box.run("big"))
            await heard(box.guest, "START")
            box.guest.say(frames.started())
            await box.guest.pour(frames.data(b"x" * 65536) * 16)
            await until(lambda: next(iter(box.executor.running)).stdout.total == 1 << 20)
            box.guest.say(frames.data(b"end"), frames.exited(), frames.eof(1), frames.eof(2))
            result = await running
            assert (result.dropped_bytes, result.truncated) == (3, True)
            assert result.read_log("stdout", (1 << 20) - 1, 9) == b"xend"
            box.executor.logs.close()
            with pytest.raises(NotFoundError):
                result.read_log("stdout", 0, 1)

    play(scenario)
