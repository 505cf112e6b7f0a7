"""Signals and dead outputs, turned into an orderly end.

`run` does its work in steps. A signal, or an output that cannot be written any more, cancels the step under way
and keeps the next from beginning; the teardown, which is no step, is never interrupted.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from atoll.cli.output import SIGNAL_BASE, StoppedError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
T = TypeVar("T")


class Stopper:
    """Runs steps until something asks to stop; made in a running loop of the main thread."""

    def __init__(self) -> None:
        self._cause: StoppedError | None = None
        self._step: asyncio.Task[Any] | None = None
        self.on_stop: list[Callable[[], None]] = []
        """Called at once when asked to stop."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1), or a shell's background job
                loop.add_signal_handler(number, self.stop, StoppedError(SIGNAL_BASE + number))

    def stop(self, cause: StoppedError) -> None:
        """Stop with `cause`; the first one stands."""
        if self._cause is None:
            self._cause = cause
            for callback in self.on_stop:
                callback()
            if self._step is not None:
                self._step.cancel()

    async def step(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work`, unless or until asked to stop; what it has finished is never thrown away.

        Raises:
            StoppedError: asked to stop before it was done.
        """
        if self._cause is not None:
            work.close()
            raise self._cause
        step = asyncio.get_running_loop().create_task(work)
        self._step = step
        try:
            return await step
        except asyncio.CancelledError:
            if self._cause is None:
                raise
            raise self._cause from None
        finally:
            self._step = None

    def check(self) -> None:
        """Raise the cause to stop, if there is one.

        Raises:
            StoppedError: asked to stop.
        """
        if self._cause is not None:
            raise self._cause
