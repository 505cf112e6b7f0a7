"""What the tests of cgroups, journals and uid ranges share: real child processes and real sandboxes' cgroups."""

import contextlib
import os
import secrets
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Never

import pytest

from atoll.kernel import cgroup
from atoll.kernel.cgroup import CgroupRoot, Leaf, SandboxCgroup
from atoll.model.limits import MIB, Limits

SMALL = Limits(memory_bytes=32 * MIB, pids_max=32, cpus=1.0)


def fresh_name() -> str:
    return f"t{secrets.token_hex(6)}"


def require_cgroups() -> CgroupRoot:
    found = cgroup.detect()
    if found.root is None:
        pytest.skip(f"no cgroups here: {found.why}")
    return found.root


def wait_for(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def sleep_forever() -> Never:
    while True:
        signal.pause()


class Child:
    """A forked process; a body that returns or raises ends it with status 0 or 99."""

    def __init__(self, body: Callable[[], object]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            status = 99
            try:
                body()
                status = 0
            except BaseException:  # noqa: BLE001 - must not return into pytest
                traceback.print_exc()
            finally:
                os._exit(status)
        self._status: int | None = None

    def wait(self) -> int:
        """As in Popen.returncode."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def runs(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status is None


@contextlib.contextmanager
def child(body: Callable[[], object]) -> Iterator[Child]:
    started = Child(body)
    try:
        yield started
    finally:
        if started.runs():
            os.kill(started.pid, signal.SIGKILL)
            started.wait()


def enter_agent_leaf(sandbox: SandboxCgroup) -> None:
    """What the launcher does, less the cgroup namespace; the first to do it must succeed in all."""
    first = not sandbox.agent.populated()
    for step in sandbox.join_steps():
        if step.fd is not None:
            # On v2 the sandbox's own directory takes no processes once its leaves are limited.
            with contextlib.nullcontext() if first else contextlib.suppress(OSError):
                os.write(step.fd, step.text.encode())
            os.close(step.fd)


def enter_leaf(sandbox: SandboxCgroup, name: str) -> None:
    """What the agent's child does; it is born where the agent is."""
    enter_agent_leaf(sandbox)
    join_directories(sandbox, name)


def join_directories(sandbox: SandboxCgroup, name: str) -> None:
    control = "tasks" if sandbox.version == 1 else "cgroup.procs"
    for directory in sandbox.dir_fds():
        fd = os.open(f"{name}/{control}", os.O_WRONLY, dir_fd=directory)
        os.write(fd, b"0")
        os.close(fd)
        os.close(directory)


def beside_agent(sandbox: SandboxCgroup, body: Callable[[], object]) -> Callable[[], None]:
    """A child's body that runs `body` in the agent's leaf."""

    def inside() -> None:
        enter_agent_leaf(sandbox)
        body()

    return inside


def in_leaf(sandbox: SandboxCgroup, name: str, body: Callable[[], object]) -> Callable[[], None]:
    """A child's body that runs `body` in a leaf."""

    def inside() -> None:
        enter_leaf(sandbox, name)
        body()

    return inside


@contextlib.contextmanager
def live_sandbox(root: CgroupRoot, limits: Limits = SMALL) -> Iterator[SandboxCgroup]:
    """A sandbox's cgroup with a process in the agent's leaf; nothing of it is left afterwards."""
    sandbox = root.create(fresh_name(), limits)
    try:
        with child(beside_agent(sandbox, sleep_forever)) as process:
            wait_for(lambda: process.pid in sandbox.agent.pids())
            # On v2 the last step of joining enables the controllers of the leaves.
            wait_for(lambda: not _controllers_pending(sandbox))
            yield sandbox
    finally:
        sandbox.kill()
        sandbox.remove()


def _controllers_pending(sandbox: SandboxCgroup) -> bool:
    if sandbox.version == 1:
        return False
    with open(f"{sandbox.paths()[0]}/cgroup.subtree_control", encoding="ascii") as control:
        return "memory" not in control.read()


def run_in_leaf(sandbox: SandboxCgroup, leaf: Leaf, body: Callable[[], object]) -> int:
    """Run `body` in a process in the leaf to its end; returns its status as in Popen.returncode."""
    with child(in_leaf(sandbox, leaf.name, body)) as process:
        return process.wait()
