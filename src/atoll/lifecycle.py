"""The life of a sandbox, on one page: plan -> journal -> resources -> guest -> executor, and back.

The only place that knows the order of the stages and how they unwind. Every host resource is recorded in the
journal before it is made; leaving `open_sandbox`, for whatever reason, ends the guest and runs the journal's
undo, which is the same code the reaper runs after a crash.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from atoll.execute.process import Executor
from atoll.isolate.registry import driver_for
from atoll.model.errors import ChannelLostError, GuestProtocolError
from atoll.model.names import new_id
from atoll.model.plan import LaunchPlan, SandboxSpec
from atoll.model.protection import Posture
from atoll.model.status import Reason, Violation
from atoll.plan import compile_plan
from atoll.provision import resolve_template
from atoll.stages import Guest, make_resources, open_executor, open_guest, open_journal
from atoll.teardown.state import KILL_MARK

IDLE_POLL_S = 0.25
ANSWER_TIMEOUT_S = 5.0
"""For the agent to answer, beside whatever its sandbox is busy with."""


def make_plan(spec: SandboxSpec, sandbox_id: str) -> LaunchPlan:
    """What `open_sandbox` would launch; makes nothing.

    Raises:
        AtollError: the request is malformed or cannot be met on this host.
    """
    driver = driver_for(spec.level)
    return compile_plan(spec, resolve_template(spec.template), driver.probe(), sandbox_id)


@asynccontextmanager
async def open_sandbox(spec: SandboxSpec, state: Path) -> AsyncIterator["Running"]:
    """A live sandbox; leaving the context destroys it and everything in it.

    Raises:
        AtollError: the request is malformed, cannot be met here, or the start failed; nothing is then left.
    """
    sandbox_id = new_id()
    plan = make_plan(spec, sandbox_id)
    async with AsyncExitStack() as life:
        journal = await life.enter_async_context(open_journal(state, sandbox_id))
        resources = make_resources(plan, sandbox_id, journal)
        guest = await life.enter_async_context(open_guest(driver_for(spec.level), plan, resources, journal))
        executor = life.enter_context(open_executor(plan, resources, guest, journal))
        running = Running(sandbox_id, plan, guest, executor, journal.directory)
        clock = asyncio.get_running_loop().create_task(running.watch_clocks())
        life.callback(clock.cancel)
        try:
            yield running
        finally:
            running.end(Reason.KILLED, "the sandbox was ended")


class Running:
    """A live sandbox; `ended` is set when its life is over for whatever reason."""

    def __init__(self, sandbox_id: str, plan: LaunchPlan, guest: Guest, executor: Executor, directory: Path) -> None:
        self.id = sandbox_id
        self.plan = plan
        self.posture: Posture = guest.posture
        self.executor = executor
        self.ended = asyncio.Event()
        self._guest = guest
        self._kill_mark = directory / KILL_MARK
        guest.channel.on_lost = self._lost
        executor.on_broken = lambda problem: self.end(Reason.SANDBOX_GONE, problem)
        if guest.channel.lost is not None:  # it may have been lost since it said HELLO
            self._lost(guest.channel.lost)

    @property
    def violations(self) -> list[Violation]:
        """System calls that the guest tried and was denied, counted."""
        return self._guest.violations.snapshot()

    async def answers(self) -> bool:
        """Whether it lives and its agent answers."""
        if self.ended.is_set():
            return False
        try:
            await self._guest.channel.ping(ANSWER_TIMEOUT_S)
        except (TimeoutError, ChannelLostError, GuestProtocolError):
            return False
        return True

    def end(self, reason: Reason, detail: str) -> None:
        """End the sandbox; commands still running end with `reason`. The first reason stands."""
        if self.executor.end_reason is None:
            self.executor.end_reason = (reason, detail)
        self.ended.set()

    async def watch_clocks(self) -> None:
        """End the sandbox at its wall time, or after its idle time without a running command."""
        limits = self.plan.limits
        now = time.monotonic()
        wall_end = now + limits.wall_time_s if limits.wall_time_s else None
        while wall_end is not None or limits.idle_time_s is not None:
            await asyncio.sleep(IDLE_POLL_S if wall_end is None else min(IDLE_POLL_S, max(0.0, wall_end - now)))
            now = time.monotonic()
            if wall_end is not None and now >= wall_end:
                self.end(Reason.TIMEOUT, f"sandbox wall time of {limits.wall_time_s:g} s")
                return
            idle_s = 0.0 if self.executor.running else now - self.executor.active_at
            if limits.idle_time_s is not None and idle_s >= limits.idle_time_s:
                self.end(Reason.IDLE_TIMEOUT, f"no command for {limits.idle_time_s:g} s")
                return

    def _lost(self, error: Exception) -> None:
        if self._kill_mark.exists():
            self.end(Reason.KILLED, "by another process of this host")
        elif self._guest.oom_kills():
            self.end(
                Reason.OUT_OF_MEMORY, f"the agent was killed at the memory limit of {self.plan.limits.memory_bytes}"
            )
        else:
            self.end(Reason.SANDBOX_GONE, str(error))
