"""One event loop in one permanent thread, behind every synchronous `Sandbox` of the process.

The synchronous API has no logic of its own: each call runs the asynchronous one here and waits. The thread
outlives its callers' threads, which keeps sandboxes alive that were made in a short-lived one. A forked child
of the process gets a loop of its own. At interpreter exit the sandboxes that are left are destroyed.
"""

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

CLOSE_TIMEOUT_S = 10.0
HOST_TASK = "atoll-sandbox"
"""Name of the task that owns a sandbox's life."""
MAX_CALLBACKS = 256
"""Callbacks of callers that may run, or hang, at once; apart from the threads that kill and clean up."""
T = TypeVar("T")


class Portal:
    """Runs coroutines for threads that have no event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the loop and wait; Ctrl-C here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                self._loop.set_default_executor(ThreadPoolExecutor())
                self.callers = ThreadPoolExecutor(MAX_CALLBACKS, "atoll-callback")
                thread = threading.Thread(target=self._serve, args=(self._loop,), name="atoll-portal", daemon=True)
                thread.start()
                # Not atexit: that comes when executors no longer take work, and a teardown has some for them. These
                # callbacks run in reverse order, so before that of concurrent.futures, imported above.
                threading._register_atexit(self._close, self._loop, thread, self._pid)  # type: ignore[attr-defined]  # noqa: SLF001
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.close()

    @staticmethod
    def _close(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
        if pid != os.getpid():
            return
        asyncio.run_coroutine_threadsafe(_end_sandboxes(), loop).result(CLOSE_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_TIMEOUT_S)


async def _end_sandboxes() -> None:
    """End every sandbox, and only then what else runs: before, it may be the end of one."""
    for hosts_only in (True, False):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        ending = [task for task in tasks if task.get_name() == HOST_TASK or not hosts_only]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


def off_loop(callback: Callable[[T], Any] | None) -> Callable[[T], Awaitable[None]] | None:
    """The caller's callback as one that runs in a worker thread, so that it cannot hold up the loop."""
    if callback is None:
        return None

    async def call(value: T) -> None:
        await asyncio.get_running_loop().run_in_executor(portal.callers, callback, value)

    return call


def iterate(stdin: "str | bytes | Iterable[bytes] | None") -> "str | bytes | AsyncIterable[bytes] | None":
    """The caller's iterable of bytes as an asynchronous one, each step in a worker thread."""
    if isinstance(stdin, str | bytes) or not isinstance(stdin, Iterable):
        return stdin

    async def chunks() -> AsyncIterator[bytes]:
        iterator = iter(stdin)
        take = functools.partial(asyncio.get_running_loop().run_in_executor, portal.callers, next, iterator, None)
        while (chunk := await take()) is not None:
            yield chunk

    return chunks()


portal = Portal()
