"""The stages of a sandbox's life, each a context manager whose exit is its teardown.

`lifecycle` alone decides their order. Here the siblings (provision, mount, isolate, execute) meet: through
`model` values, the channel's pipes and the journal.
"""

import asyncio
import contextlib
import functools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from atoll.execute.channel import Channel
from atoll.execute.output import LogStore
from atoll.execute.process import Executor
from atoll.execute.verdict import Disk
from atoll.isolate.driver import Driver, Resources
from atoll.isolate.failures import explain
from atoll.isolate.observe import observe
from atoll.kernel import cgroup, notify, uids
from atoll.kernel.cgroup import SandboxCgroup
from atoll.kernel.pidfd import Pidfd, children, start_time
from atoll.kernel.spawn import Spawned, spawn
from atoll.kernel.violations import Violations
from atoll.model.errors import ChannelLostError, ProvisionError, TeardownError
from atoll.model.plan import LaunchPlan
from atoll.model.protection import Posture, Protection
from atoll.teardown import journal as undo
from atoll.teardown.state import META
from atoll.wire import agent as wire

BOOT_TIMEOUT_S = 20.0
"""From spawn to HELLO; a loaded host takes seconds, a broken one never answers."""
END_TIMEOUT_S = 5.0
"""For the kernel to take down a pid namespace; more means a process that cannot be killed."""
CHANNEL_PIPE_BYTES = 1 << 20
LOGS = "logs"
_CGROUP = frozenset({Protection.CGROUP_MEMORY, Protection.CGROUP_PIDS, Protection.CGROUP_CPU})


@asynccontextmanager
async def open_journal(state: Path, sandbox_id: str) -> AsyncIterator[undo.Journal]:
    """The sandbox's directory and journal; leaving undoes everything that was recorded."""
    journal = undo.Journal.create(state, sandbox_id)
    try:
        yield journal
    finally:
        await asyncio.shield(asyncio.to_thread(journal.undo_all))


def make_resources(plan: LaunchPlan, sandbox_id: str, journal: undo.Journal) -> Resources:
    """Uid range and cgroup, each recorded before it exists; the journal undoes them.

    Raises:
        CapacityError: no uid range is free.
        PolicyUnenforceableError: a limit did not stick.
    """
    base = None
    if not plan.single_uid:
        base = uids.pool().lease()
        journal.record(undo.UidLease(base=base))
    group = None
    if plan.enforce & _CGROUP:
        root, why = cgroup.detect()
        if root is None:
            raise ProvisionError(f"cgroups went away: {why}")
        journal.record(undo.Cgroup(paths=root.paths_for(sandbox_id)))
        group = root.create(sandbox_id, plan.limits, plan.disabled)
    return Resources(uid_base=base, cgroup=group)


class Guest:
    """The confined agent of one sandbox: its processes, channel, posture and violations."""

    posture: Posture
    agent_pid: int
    """On the host."""

    def __init__(self, spawned: Spawned, channel: Channel, group: SandboxCgroup | None) -> None:
        self.channel = channel
        self.violations = Violations()
        self._spawned = spawned
        self._cgroup = group
        self._agent: Pidfd | None = None
        self._root: int | None = None
        self._listener: notify.Listener | None = None

    async def boot(self, driver: Driver, plan: LaunchPlan, resources: Resources) -> None:
        """Wait for the agent, take its seccomp listener, check the posture, let it go on.

        Raises:
            DriverUnavailableError, ProvisionError: it did not start; the message holds what it printed.
            PolicyUnenforceableError: a protection is not in force.
        """
        try:
            async with asyncio.timeout(BOOT_TIMEOUT_S):  # before Python 3.12 wait_for may lose a cancellation
                hello = await asyncio.shield(self.channel.hello)
        except ChannelLostError as error:
            raise explain(self.channel.diagnostics) from error
        except TimeoutError as error:
            raise ProvisionError(f"the sandbox did not answer within {BOOT_TIMEOUT_S:g} s") from error
        pid = next(iter(children(self._spawned.pid)), None)
        if pid is None:
            raise explain(self.channel.diagnostics)
        self._agent = Pidfd.open(pid)
        self._root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.agent_pid = pid
        self.posture = observe(plan, resources, pid, driver.kept_capabilities)
        if Protection.SECCOMP in plan.enforce:
            fd = notify.take_listener(pid, hello.listener)
            count = functools.partial(notify.netlink_sockets, pid)
            self._listener = notify.supervisor().add(fd, self.violations.record, count)
        self.channel.send(wire.frame(wire.Kind.CONFINED))

    def disk(self) -> Disk | None:
        """Fill of the writable layer; None once the sandbox is gone."""
        if self._root is None:
            return None
        found = os.fstatvfs(self._root)
        return Disk(
            used_bytes=(found.f_blocks - found.f_bfree) * found.f_frsize,
            total_bytes=found.f_blocks * found.f_frsize,
            used_inodes=found.f_files - found.f_ffree,
            total_inodes=found.f_files,
        )

    def oom_kills(self) -> int:
        """Processes directly in the sandbox's cgroups, the agent's included, that the kernel killed for memory."""
        return 0 if self._cgroup is None else self._cgroup.events().oom_kills

    async def end(self) -> None:
        """Kill PID 1 of the sandbox, which takes every process in it along (pid_namespaces(7)), and collect it."""
        self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            (self._agent or self._spawned.pidfd).send(signal.SIGKILL)
        try:
            # bubblewrap's monitor ends by itself once PID 1 of the sandbox has been taken down.
            await asyncio.to_thread(self._spawned.reap, END_TIMEOUT_S)
        except TimeoutError as error:
            raise TeardownError(str(error), hint="`atoll reap` tries again") from error
        finally:
            if self._listener is not None:
                notify.supervisor().remove(self._listener)
            if self._root is not None:
                os.close(self._root)
                self._root = None
            if self._agent is not None:
                self._agent.close()
            self._cgroup = None


@asynccontextmanager
async def open_guest(
    driver: Driver, plan: LaunchPlan, resources: Resources, journal: undo.Journal
) -> AsyncIterator[Guest]:
    """Spawn the confined agent and see what protects the host; leaving kills it.

    Raises:
        DriverUnavailableError, PolicyUnenforceableError, ProvisionError: it could not be started as planned.
    """
    launch = driver.launch(plan, resources)
    starting = spawn(launch.argv, launch.fds, CHANNEL_PIPE_BYTES)
    starting.add_done_callback(lambda _done: launch.close())
    try:
        spawned = await asyncio.shield(asyncio.wrap_future(starting))
    except asyncio.CancelledError:
        starting.add_done_callback(_abandon)
        raise
    guest = Guest(spawned, Channel(spawned.stdin, spawned.stdout, spawned.stderr), resources.cgroup)
    try:
        journal.record(undo.Process(pid=spawned.pid, start_time=start_time(spawned.pid)))
        await guest.boot(driver, plan, resources)
        yield guest
    finally:
        await asyncio.shield(guest.end())


def _abandon(starting: "Future[Spawned]") -> None:
    """End what was being started: that cannot be stopped half-way, and is not in the journal yet.

    Runs in the spawning thread, before anything else is spawned, because our loop may be ending.
    """
    if starting.exception() is not None:
        return  # nothing was started
    spawned = starting.result()
    spawned.pidfd.send(signal.SIGKILL)
    for fd in (spawned.stdin, spawned.stdout, spawned.stderr):
        os.close(fd)
    spawned.reap(END_TIMEOUT_S)


@contextmanager
def open_executor(plan: LaunchPlan, resources: Resources, guest: Guest, journal: undo.Journal) -> Iterator[Executor]:
    """Commands and their logs; leaving closes the logs."""
    meta = {"name": plan.hostname, "level": plan.level, "template": plan.template.name, "agent_pid": guest.agent_pid}
    (journal.directory / META).write_bytes(msgspec.json.encode(meta))
    journal.record(undo.Directory(name=LOGS))
    directory = journal.directory / LOGS
    directory.mkdir(mode=0o700)
    logs = LogStore(directory, plan.limits.output_bytes)
    executor = Executor(guest.channel, resources.cgroup, resources.uid_base, plan.limits, logs, guest.disk)
    try:
        yield executor
    finally:
        executor.close()
        logs.close()
