"""Signals, process trees, orphans, and the ways the agent itself ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.peer import Kind, frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.conftest import Launch
    from tests.agent.peer import Command
    from tests.agent.rig import Rig

LEADER, GROUP, TREE = range(3)
AS_INIT = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace needs root")


def processes_named(word: str) -> list[int]:
    """Processes with exactly this word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def eventually(condition: Callable[[], bool], timeout: float = 5) -> bool:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    """A number of seconds that only this test sleeps."""
    return f"31{abs(hash(request.node.nodeid)) % 10**7}.{os.getpid()}"


def running(rig: Rig, command: Command, mark: str, count: int) -> None:
    rig.until(lambda: command.pid is not None)
    assert eventually(lambda: len(processes_named(mark)) == count)


def test_signal_to_the_leader_alone(rig: Rig, mark: str) -> None:
    command = rig.peer.shell(f"sleep {mark} & trap 'exit 9' TERM; while :; do sleep 0.01; done")
    running(rig, command, mark, 1)
    rig.peer.signal(command, signal.SIGTERM, LEADER)
    rig.until(lambda: command.exit is not None)
    assert (command.status, len(processes_named(mark))) == (9, 1)


def test_signal_to_the_group_before_and_after_the_leader_is_gone(rig: Rig, mark: str) -> None:
    command = rig.peer.shell(f"sleep {mark} & sleep {mark} & exit 3")
    rig.until(lambda: command.exit is not None)
    running(rig, command, mark, 2)
    rig.peer.signal(command, signal.SIGTERM, GROUP)
    assert rig.finish(command).status == 3
    whole = rig.peer.shell(f"sleep {mark} & wait")
    running(rig, whole, mark, 1)
    rig.peer.signal(whole, signal.SIGINT, GROUP)
    rig.peer.signal(whole, signal.SIGTERM, GROUP)
    assert rig.finish(whole).status < 0
    assert eventually(lambda: not processes_named(mark))


@pytest.mark.parametrize("scope", [LEADER, GROUP, TREE])
def test_signal_right_behind_start(rig: Rig, scope: int) -> None:
    for _ in range(20):
        command = rig.peer.start("sleep", "100")
        rig.peer.signal(command, signal.SIGKILL, scope)
        assert rig.finish(command).status == -signal.SIGKILL


def test_kill_of_a_tree_with_other_sessions(rig: Rig, mark: str) -> None:
    script = f"setsid sleep {mark} & setsid sh -c 'sleep {mark} & setsid sleep {mark} & wait' & sleep {mark} & wait"
    command = rig.peer.shell(script)
    running(rig, command, mark, 4)
    rig.peer.signal(command, signal.SIGKILL, TREE)
    rig.finish(command)
    assert eventually(lambda: not processes_named(mark))


def test_kill_of_a_tree_whose_leader_is_gone(rig: Rig, mark: str) -> None:
    command = rig.peer.shell(f"(sleep {mark} & sleep {mark}) & exit 0")
    rig.until(lambda: command.exit is not None)
    running(rig, command, mark, 2)
    rig.peer.signal(command, signal.SIGKILL, TREE)
    rig.finish(command)
    assert not processes_named(mark)


def test_kill_of_a_tree_that_keeps_forking(rig: Rig, mark: str) -> None:
    command = rig.peer.shell('f() { sleep 0.001; f "$@" & exit; }; f "$@" & f "$@" & f "$@"', argv=["sh", mark])
    rig.idle(0.3)
    assert eventually(lambda: bool(processes_named(mark)))
    rig.peer.signal(command, signal.SIGKILL, TREE)
    rig.finish(command)
    assert not processes_named(mark)


def test_kill_of_one_tree_spares_another(rig: Rig, mark: str) -> None:
    other = rig.peer.shell(f"sleep {mark} & wait")
    command = rig.peer.start("sleep", "100")
    running(rig, other, mark, 1)
    rig.peer.signal(command, signal.SIGKILL, TREE)
    rig.finish(command)
    assert len(processes_named(mark)) == 1
    assert other.exit is None


def test_orphans_are_reaped(rig: Rig) -> None:
    command = rig.peer.shell("for i in 1 2 3 4 5 6 7 8 9; do (sleep 0.05 & sleep 0.1 &) ; done")
    assert rig.finish(command).status == 0
    assert eventually(lambda: children_of(rig.pid) == [])


def test_a_storm_of_orphans_does_not_starve_the_channel(rig: Rig) -> None:
    storm = rig.peer.shell("while :; do (true &) ; (true &) ; (true &) ; (true &) ; done")
    rig.until(lambda: storm.pid is not None)
    for i in range(10):
        begin = time.monotonic()
        rig.peer.outgoing += frame(Kind.PING, 0, b"%08d" % i)
        rig.until(lambda i=i: len(rig.peer.pongs) == i + 1)  # type: ignore[misc]
        assert time.monotonic() - begin < 0.5
    rig.peer.signal(storm, signal.SIGKILL, TREE)
    rig.finish(storm)
    assert eventually(lambda: children_of(rig.pid) == [])


def start_stubborn(rig: Rig, mark: str) -> None:
    script = f"trap '' TERM HUP INT; setsid sleep {mark} & (setsid sleep {mark} &) ; exec sleep {mark}"
    running(rig, rig.peer.shell(script, stdin=True), mark, 3)


def shutdown(rig: Rig) -> None:
    rig.peer.outgoing += frame(Kind.SHUTDOWN)
    rig.until(lambda: not rig.peer.outgoing)


def close_stdin(rig: Rig) -> None:
    rig.hang_up()


def close_stdout(rig: Rig) -> None:
    assert rig.process.stdout is not None
    rig.process.stdout.close()
    rig.closed = True


@pytest.mark.parametrize("end", [shutdown, close_stdin, close_stdout])
def test_end_of_the_agent_takes_everything_along(rig: Rig, mark: str, end: Callable[[Rig], None]) -> None:
    start_stubborn(rig, mark)
    end(rig)
    if not rig.closed:
        assert rig.ending() == (0, b"")
    assert rig.process.wait(5) == 0
    assert eventually(lambda: not processes_named(mark), 1)


@needs_root
@pytest.mark.parametrize("end", [shutdown, close_stdin, close_stdout])
def test_end_of_the_agent_as_init(launch: Launch, mark: str, end: Callable[[Rig], None]) -> None:
    rig = launch(prefix=AS_INIT).ready()
    assert rig.peer.hello == (1, 1, -1)
    assert rig.finish(rig.peer.shell("(sleep 0.05 &) ; echo $$ $PPID")).stdout.endswith(b" 1\n")
    start_stubborn(rig, mark)
    end(rig)
    assert rig.process.wait(5) == 0
    assert not processes_named(mark)


@needs_root
def test_init_ignores_signals_from_its_children(launch: Launch) -> None:
    rig = launch(prefix=AS_INIT).ready()
    for signo in (1, 2, 3, 6, 9, 11, 13, 15, 17, 19, 34, 64):
        rig.finish(rig.peer.shell(f"kill -{signo} 1; exit 0"))
    assert rig.finish(rig.peer.shell("echo alive")).stdout == b"alive\n"
