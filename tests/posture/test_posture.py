"""The whole picture of each process of a sandbox against a table; anything new fails (gVisor's way)."""

import time
from pathlib import Path
from typing import Any

import pytest

from atoll import Sandbox
from atoll.isolate.bubblewrap import KEPT_MASK
from atoll.kernel.pidfd import children
from atoll.model.protection import REQUIRED, Protection
from tests.posture.picture import mounts, picture
from tests.sandboxes import Make

KEPT = f"{KEPT_MASK:016x}"
NOTHING = "0" * 16
ALL_BUT_TIME = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"]
AGENT_ENVIRON = ["PWD"]
COMMAND_ENVIRON = ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "USER"]


def agent_of(sandbox: Sandbox) -> int:
    """The agent as the host numbers it."""
    return sandbox._aio._running._guest.agent_pid


def base_of(agent: int) -> int:
    """First id of the range."""
    return int(Path(f"/proc/{agent}/uid_map").read_text().split()[1])


@pytest.fixture
def sandbox(make: Make) -> Sandbox:
    """A plain sandbox."""
    return make()


def started(sandbox: Sandbox, user: str) -> int:
    """A sleeping command of `user`, as the host numbers it."""
    agent = agent_of(sandbox)
    before = set(children(agent))
    sandbox.commands.run("sleep 300 > /dev/null 2>&1 < /dev/null & disown", user=user)
    for _ in range(200):
        new = [pid for pid in set(children(agent)) - before if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]
        if new:
            return new[0]
        time.sleep(0.02)
    raise AssertionError("the sleeping command is not there")


def expected(**changes: object) -> dict[str, Any]:
    """What every confined process has, with `changes`."""
    return {
        "Uid": [0],
        "Gid": [0],
        "Groups": [],
        "CapInh": NOTHING,
        "CapPrm": NOTHING,
        "CapEff": NOTHING,
        "CapBnd": KEPT,
        "CapAmb": NOTHING,
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "Umask": "0022",
        "own namespaces": ALL_BUT_TIME,
        "oom_score_adj": 500,
        "environ": COMMAND_ENVIRON,
        "fds": ["/dev/null", "/dev/null", "/dev/null"],
        "limits": {"open files": "1024", "core": "1"},
        "session of its own": False,
    } | changes


def compare(seen: dict[str, Any], table: dict[str, Any]) -> None:
    """Both directions: nothing missing, nothing new."""
    assert {name: seen[name] for name in table} == table
    assert set(seen) - set(table) == {"exe"}


def test_the_agent(sandbox: Sandbox) -> None:
    sandbox.commands.run(["/bin/true"])
    agent = agent_of(sandbox)
    seen = picture(agent, base_of(agent))
    hard = seen["limits"]["open files"]
    directories = [fd for fd in seen["fds"] if fd.startswith("/") and fd != "/dev/null" and not fd.startswith("/proc")]
    others = sorted(fd for fd in seen["fds"] if fd not in directories)
    table = expected(CapPrm=KEPT, CapEff=KEPT, oom_score_adj=0, environ=AGENT_ENVIRON)
    table |= {"limits": {"open files": hard, "core": seen["limits"]["core"]}, "fds": seen["fds"]}
    table |= {"session of its own": True}
    compare(seen, table)
    assert others.count("pipe:") == 3
    assert not [fd for fd in others if "seccomp" in fd or "socket" in fd]
    assert seen["exe"].endswith("agent")


@pytest.mark.parametrize(("user", "uid", "capabilities"), [("user", 1000, NOTHING), ("root", 0, KEPT)])
def test_a_command(sandbox: Sandbox, user: str, uid: int, capabilities: str) -> None:
    pid = started(sandbox, user)
    seen = picture(pid, base_of(agent_of(sandbox)))
    environ = sorted({*COMMAND_ENVIRON, *seen["environ"]} - {"OLDPWD", "PWD", "SHLVL", "_"})
    groups = [uid] if uid else []  # the agent is root with no supplementary group already
    table = expected(Uid=[uid], Gid=[uid], Groups=groups, CapPrm=capabilities, CapEff=capabilities)
    compare(seen | {"environ": environ}, table)


def test_bubblewraps_monitor(sandbox: Sandbox) -> None:
    """It waits outside the pid namespace, with the same ids, and has nothing to do any more."""
    agent = agent_of(sandbox)
    status = Path(f"/proc/{agent}/status").read_text()
    monitor = int(next(line for line in status.splitlines() if line.startswith("PPid")).split()[1])
    seen = picture(monitor, base_of(agent))
    assert seen["Uid"] == seen["Gid"] == [0]
    assert seen["NoNewPrivs"] == "1"
    assert seen["environ"] == []
    assert {"user", "mnt"} <= set(seen["own namespaces"])
    assert not [fd for fd in seen["fds"] if fd.startswith(("/home", "/root", "/etc", "socket:"))]
    assert seen["exe"].endswith("bwrap")


def test_the_mount_table(sandbox: Sandbox) -> None:
    table = mounts(agent_of(sandbox))
    assert table["/"] == ("tmpfs", ["nodev", "nosuid", "rw"])
    assert table["/dev"] == ("tmpfs", ["nodev", "nosuid", "ro"])
    assert table["/dev/shm"] == ("tmpfs", ["nodev", "nosuid", "rw"])
    assert table["/proc"] == ("proc", ["nodev", "noexec", "nosuid", "rw"])
    harmless = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts")}
    writable = {point for point, (_, flags) in table.items() if "rw" in flags}
    assert writable - harmless == {"/", "/dev/shm", "/proc"}
    assert [point for point, (_, flags) in table.items() if "nosuid" not in flags] == []
    assert [point for point, (_, flags) in table.items() if "nodev" not in flags and point not in harmless] == []


def test_every_required_protection_was_seen_in_force(sandbox: Sandbox) -> None:
    rows = sandbox.posture.protections
    assert set(rows) == set(Protection)
    assert {name for name, row in rows.items() if row.state == "active" and row.observed} == REQUIRED
    assert all(row.note for row in rows.values() if row.state != "active")


def test_what_was_given_up_by_name_is_shown(make: Make) -> None:
    sandbox = make(without=["cgroup_cpu", "seccomp"])
    rows = sandbox.posture.protections
    assert rows[Protection.SECCOMP].state == rows[Protection.CGROUP_CPU].state == "disabled"
