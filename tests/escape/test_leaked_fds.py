"""Threat: descriptors of the host or the channel reach the guest. Wall: children get 0, 1 and 2 only."""

import os
from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack


def test_a_command_has_three_descriptors(sandbox: Sandbox, user: str) -> None:
    facts = attack(
        sandbox,
        """
        fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
        names = attempt(os.listdir, "/proc/1/fd")
        reached = {attempt(act, f"/proc/1/fd/{name}") if act is os.readlink else attempt(act, f"/proc/1/fd/{name}", os.O_RDWR)
                   for name in (names if isinstance(names, list) else "012") for act in (os.readlink, os.open)}
        report(fds=fds, reached=sorted(reached))
        """,
        user=user,
    )
    assert set(facts["fds"]) == {"0", "1", "2"}
    assert facts["fds"]["0"] == "/dev/null"
    # The numbers may be listed by guest root, which owns the agent's /proc entry; what is behind them may not be had.
    assert set(facts["reached"]) <= {"EACCES", "EPERM"}


def test_the_agent_holds_only_its_channel(sandbox: Sandbox) -> None:
    """From the host: pipes, its own event descriptors and its own cgroup directories, nothing else."""
    sandbox.commands.run(["/bin/true"])
    agent = sandbox._aio._running._guest.agent_pid
    links = [os.readlink(path) for path in Path(f"/proc/{agent}/fd").iterdir()]
    allowed = ("pipe:", "anon_inode:[eventpoll]", "anon_inode:[signalfd]", "/dev/null", "/proc/", "/")
    strange = [link for link in links if not link.startswith(allowed) or "seccomp" in link or "socket" in link]
    assert strange == []
    assert len(links) < 16
