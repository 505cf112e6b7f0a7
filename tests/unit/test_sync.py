"""The synchronous face: the same names, signatures and words as the asynchronous one, and the loop behind it."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.client.aio import AsyncCommands, AsyncSandbox
from atoll.client.portal import Portal, iterate, off_loop, portal
from atoll.client.sync import Commands, Sandbox

ROOT = Path(__file__).resolve().parent.parent.parent
PAIRS = [(AsyncSandbox, Sandbox), (AsyncCommands, Commands)]
WORDS = {"AsyncSandbox": "Sandbox", "async with": "with", " (needs asyncio)": "", "AsyncIterable": "Iterable"}
WORDS |= {"collections.abc.Awaitable[None] | None": "typing.Any"}


def as_sync(text: str) -> str:
    for old, new in WORDS.items():
        text = text.replace(old, new)
    return text


def members(cls: type) -> dict[str, Any]:
    names = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
    found = {names.get(name, name): member for name, member in vars(cls).items()}
    kept = {"__enter__", "__exit__"}
    return {name: member for name, member in found.items() if not name.startswith("_") or name in kept}


# --- parity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "facade"), PAIRS)
def test_the_facade_has_the_same_members_with_the_same_words(source: type, facade: type):
    ours, theirs = members(source), members(facade)
    assert list(ours) == list(theirs)
    for name, member in ours.items():
        other = theirs[name]
        assert type(member) is type(other)
        if isinstance(member, property):
            member, other = member.fget, other.fget  # noqa: PLW2901
        if isinstance(member, classmethod):
            member, other = member.__func__, other.__func__  # noqa: PLW2901
        assert as_sync(str(inspect.signature(member))) == str(inspect.signature(other))
        assert as_sync(inspect.getdoc(member) or "missing") == inspect.getdoc(other)
        assert not inspect.iscoroutinefunction(other)
    assert as_sync(source.__doc__ or "missing") == facade.__doc__


def test_the_facade_is_what_the_generator_makes():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/gen_sync.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_names_are_importable():
    for name in atoll.__all__:
        assert getattr(atoll, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Docker'"):
        atoll.Docker  # noqa: B018


# --- the loop behind it ----------------------------------------------------------------------------------------------


async def where() -> tuple[int, int]:
    return threading.get_ident(), id(asyncio.get_running_loop())


def test_all_threads_share_one_loop():
    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(lambda _: portal.call(where()), range(64)))
    assert len(seen) == 1
    assert seen.pop()[0] != threading.get_ident()


def test_calls_of_several_threads_run_side_by_side():
    barrier: list[asyncio.Event] = []

    async def meet() -> int:
        if not barrier:
            barrier.append(asyncio.Event())
        meet_count.append(1)
        if len(meet_count) == 8:
            barrier[0].set()
        await asyncio.wait_for(barrier[0].wait(), 5)
        return len(meet_count)

    meet_count: list[int] = []
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: portal.call(meet()), range(8))) == [8] * 8


def test_errors_reach_their_caller():
    async def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        portal.call(fail())


def test_a_loop_outlives_the_thread_that_began_it():
    own = Portal()
    seen: list[tuple[int, int]] = []
    first = threading.Thread(target=lambda: seen.append(own.call(where())))
    first.start()
    first.join()
    assert own.call(where()) == seen[0]


def test_ctrl_c_cancels_the_call_there_and_raises_here():
    cancelled = threading.Event()

    async def sleep() -> None:
        await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)  # arrives at the main thread, which waits
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(KeyboardInterrupt):
        portal.call(sleep())
    assert cancelled.wait(5)
    assert portal.call(where())


def test_a_callback_does_not_hold_up_the_loop():
    seen: list[tuple[str, int]] = []

    def callback(text: str) -> None:
        seen.append((text, threading.get_ident()))
        assert portal.call(where())[0] != threading.get_ident()  # may itself use the portal

    async def call() -> int:
        wrapped = off_loop(callback)
        assert wrapped is not None
        await wrapped("text")
        return threading.get_ident()

    loop_thread = portal.call(call())
    assert seen[0][0] == "text"
    assert seen[0][1] != loop_thread
    assert off_loop(None) is None


def test_callbacks_that_hang_leave_threads_for_killing_and_cleaning_up():
    release = threading.Event()
    hang = off_loop(lambda _text: release.wait(20))
    assert hang is not None

    async def call() -> None:
        hanging = [asyncio.create_task(hang("text")) for _ in range(64)]
        try:
            await asyncio.wait_for(asyncio.to_thread(time.sleep, 0), 5)
        finally:
            release.set()
            await asyncio.gather(*hanging)

    portal.call(call())


def test_a_callbacks_error_is_its_callers():
    def callback(text: str) -> None:
        raise ZeroDivisionError

    async def call() -> None:
        wrapped = off_loop(callback)
        assert wrapped is not None
        await wrapped("")

    with pytest.raises(ZeroDivisionError):
        portal.call(call())


def test_stdin_is_taken_step_by_step_outside_the_loop():
    threads = []

    def chunks() -> Iterator[bytes]:
        for number in range(3):
            threads.append(threading.get_ident())
            time.sleep(0.001)
            yield b"%d" % number

    async def take() -> tuple[list[bytes], int]:
        source = iterate(chunks())
        assert isinstance(source, AsyncIterable)
        return [chunk async for chunk in source], threading.get_ident()

    taken, loop_thread = portal.call(take())
    assert taken == [b"0", b"1", b"2"]
    assert loop_thread not in threads


@pytest.mark.parametrize("stdin", [None, "text", b"bytes"])
def test_stdin_that_is_whole_stays_so(stdin: str | bytes | None):
    assert iterate(stdin) is stdin


# Run apart: they fork, or end an interpreter.


def run_python(script: str, *, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


def test_a_forked_child_has_a_loop_of_its_own():
    out = run_python("""
import asyncio, os, sys, warnings
from atoll.client.portal import portal
warnings.simplefilter("ignore", DeprecationWarning)  # fork(2) with threads, since Python 3.12
async def where():
    return os.getpid()
assert portal.call(where()) == os.getpid()
child = os.fork()
if child == 0:
    assert portal.call(where()) == os.getpid()
    sys.exit(7)  # with the exit handlers: the child's own loop is ended, the parent's left alone
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert portal.call(where()) == os.getpid()
print("ok")
""")
    assert out == "ok\n"


def test_what_is_left_is_cancelled_at_exit():
    out = run_python("""
import asyncio
from atoll.client.portal import portal
async def sandbox():
    try:
        await asyncio.sleep(100)
    finally:
        await asyncio.sleep(0.01)  # a teardown waits itself, and has work for threads
        await asyncio.to_thread(print, "destroyed", flush=True)
tasks = []
async def start():
    tasks.append(asyncio.create_task(sandbox()))
    await asyncio.sleep(0)
portal.call(start())
print("exiting", flush=True)
""")
    assert out == "exiting\ndestroyed\n"


def test_importing_the_package_starts_nothing_and_is_light():
    out = run_python("""
import sys, threading
import atoll
print(threading.active_count(), "asyncio" in sys.modules, "msgspec" in sys.modules)
""")
    assert out == "1 False False\n"
