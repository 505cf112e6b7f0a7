"""The life of a sandbox in asyncio: cancellation at any moment and loops that end early leave nothing."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from atoll import AsyncSandbox
from atoll.model.errors import StateError
from tests.conformance.host import Footprint, View, eventually

pytestmark = pytest.mark.anyio


async def test_leaving_the_block_destroys_it_also_by_an_exception(level: str) -> None:
    before = Footprint()
    kept: list[AsyncSandbox] = []

    async def mistake() -> None:
        async with await AsyncSandbox.create(level=level) as sandbox:
            kept.append(sandbox)
            await sandbox.commands.run("sleep 300 &")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await mistake()
    assert await kept[0].is_running() is False
    with pytest.raises(StateError):
        await kept[0].commands.run("true")
    assert before.growth() == []


async def test_cancelling_run_kills_the_command_and_nothing_else(level: str) -> None:
    async with await AsyncSandbox.create(level=level) as sandbox:
        view = View(sandbox)
        up = asyncio.Event()
        script = "setsid sleep 300 & (trap '' TERM; sleep 300) & echo up; sleep 300"
        task = asyncio.create_task(sandbox.commands.run(script, on_stdout=lambda _text: up.set()))
        await up.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert eventually(view.processes, within_s=1) == {}
        assert (await sandbox.commands.run("echo alive")).stdout == "alive\n"


@pytest.mark.parametrize("delay_ms", [0, 0.2, 1, 2, 4])
async def test_cancelling_run_at_its_start_kills_the_command_and_nothing_else(level: str, delay_ms: float) -> None:
    async with await AsyncSandbox.create(level=level) as sandbox:
        view = View(sandbox)
        for _ in range(5):
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sandbox.commands.run(["sleep", "300"]), delay_ms / 1000)
            assert time.monotonic() - began < 1
        assert eventually(view.processes, within_s=1) == {}
        assert (await sandbox.commands.run("echo alive")).stdout == "alive\n"


@pytest.mark.parametrize("timeout_ms", [0.01, 0.2, 1, 2, 4])
async def test_a_timeout_at_the_start_of_a_command_hurts_nothing_else(level: str, timeout_ms: float) -> None:
    async with await AsyncSandbox.create(level=level) as sandbox:
        for _ in range(5):
            began = time.monotonic()
            result = await sandbox.commands.run(["sleep", "300"], timeout=timeout_ms / 1000)
            assert result.reason == "timeout"
            assert time.monotonic() - began < 1
        assert (await sandbox.commands.run("echo alive")).stdout == "alive\n"


async def test_cancelling_a_command_that_writes_and_reads(level: str) -> None:
    async with await AsyncSandbox.create(level=level) as sandbox:

        async def slow(_data: bytes) -> None:
            await asyncio.sleep(10)

        command = sandbox.commands.run("yes", stdin=bytes(10_000_000), on_stdout_bytes=slow)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(command, 0.5)
        assert (await sandbox.commands.run("echo alive", timeout=5)).stdout == "alive\n"


async def test_cancelling_create_at_any_moment_leaves_nothing(level: str) -> None:
    await (await AsyncSandbox.create(level=level)).kill()  # what is made once per process is made
    before, fds = Footprint(), set(os.listdir("/proc/self/fd"))
    cancelled = 0
    for number in range(40):
        task = asyncio.create_task(AsyncSandbox.create(level=level))
        await asyncio.sleep(number * 0.0015)
        task.cancel()
        try:
            await (await task).kill()
        except asyncio.CancelledError:
            cancelled += 1
    assert cancelled > 5
    assert before.growth() == []
    gc.collect()  # the descriptors of a cgroup close with the last reference to it
    assert eventually(lambda: set(os.listdir("/proc/self/fd")) - fds) == set()


async def test_killing_while_many_commands_start(level: str) -> None:
    before = Footprint()
    sandbox = await AsyncSandbox.create(level=level)
    commands = [asyncio.create_task(sandbox.commands.run("sleep 300")) for _ in range(20)]
    await asyncio.sleep(0.02)
    await sandbox.kill()
    found = await asyncio.wait_for(asyncio.gather(*commands, return_exceptions=True), 5)
    for one in found:
        assert isinstance(one, StateError) or getattr(one, "reason", None) in {"killed", "channel_lost"}, one
    assert before.growth() == []


def test_a_loop_that_ends_without_kill_leaves_nothing(level: str) -> None:
    before = Footprint()

    async def careless() -> AsyncSandbox:
        sandbox = await AsyncSandbox.create(level=level)
        await sandbox.commands.run("sleep 300 &")
        return sandbox

    asyncio.run(careless())
    assert before.growth() == []


@pytest.mark.timeout(20)
@pytest.mark.parametrize("delay_ms", [0, 1, 5, 50])
def test_a_loop_that_ends_while_commands_run_ends_and_leaves_nothing(level: str, delay_ms: int) -> None:
    before = Footprint()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.01)

    async def slow(_data: bytes) -> None:
        await asyncio.sleep(5)

    async def careless() -> None:
        box = await AsyncSandbox.create(level=level)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(box.commands.run("sleep 300", timeout=None)),
            asyncio.create_task(box.commands.run("yes", on_stdout_bytes=slow)),
            asyncio.create_task(box.commands.run("cat", stdin=endless())),
            asyncio.create_task(box.commands.run("sleep 300 & echo", wait_for_descendants=True)),
        ]
        await asyncio.sleep(0.2)
        tasks.append(asyncio.create_task(box.commands.run("sleep 300")))
        tasks.append(asyncio.create_task(AsyncSandbox.create(level=level)))
        await asyncio.sleep(delay_ms / 1000)

    asyncio.run(careless())
    assert before.growth() == []


def test_a_sandbox_of_a_loop_that_has_ended_is_no_trap(level: str) -> None:
    sandbox = asyncio.run(AsyncSandbox.create(level=level))

    async def use() -> None:
        assert await sandbox.is_running() is False
        assert await sandbox.kill() is False
        with pytest.raises(StateError):
            await sandbox.commands.run("true")

    asyncio.run(use())


def test_two_loops_in_two_threads_do_not_meet(level: str) -> None:
    answers: dict[int, str] = {}
    both = threading.Barrier(2, timeout=20)

    async def work(number: int) -> None:
        async with await AsyncSandbox.create(level=level) as sandbox:
            await asyncio.to_thread(both.wait)
            found = await asyncio.gather(*(sandbox.commands.run(f"echo {number} {n}") for n in range(20)))
            answers[number] = "".join(result.stdout for result in found)
            await asyncio.to_thread(both.wait)

    threads = [threading.Thread(target=lambda n=n: asyncio.run(work(n))) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: "".join(f"{number} {n}\n" for n in range(20)) for number in range(2)}
