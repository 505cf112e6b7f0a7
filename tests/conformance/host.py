"""What the host sees of sandboxes: the answers that no guest can talk its way out of."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from atoll import AsyncSandbox, Sandbox
from atoll.kernel import cgroup

IN_VM = os.environ.get("ATOLL_TEST_VM") == "1"
"""In the emulated test machine, where everything takes some 15 times as long."""
T = TypeVar("T")


def eventually(look: Callable[[], T], within_s: float = 5.0) -> T:
    """What `look` gives, as soon as that is empty (false), else what it gave last."""
    deadline = time.monotonic() + within_s
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def sandbox_directory(sandbox: Sandbox | AsyncSandbox) -> Path:
    """Where Atoll keeps what it knows of one sandbox."""
    return Path(os.environ["ATOLL_STATE"], "sandboxes", sandbox.sandbox_id)


class View:
    """One live sandbox, seen from the host."""

    def __init__(self, sandbox: Sandbox | AsyncSandbox) -> None:
        meta = json.loads((sandbox_directory(sandbox) / "meta.json").read_text())
        self.agent_pid = int(meta["agent_pid"])
        self._namespace = pid_namespace(self.agent_pid)
        self._cgroups = cgroup_directories(sandbox.sandbox_id)

    def processes(self) -> dict[int, str]:
        """Name of each process but the agent in its pid namespace, by the host's pid, as ps(1) would find them."""
        found = {pid: name_of(pid) for pid in all_pids() if pid_namespace(pid) == self._namespace}
        found.pop(self.agent_pid, None)
        return found

    def in_cgroup(self) -> set[int]:
        """The processes in the cgroups of its commands."""
        leaves = [leaf for path in self._cgroups for leaf in path.glob("x*/cgroup.procs")]
        return {int(pid) for leaf in leaves for pid in text(leaf).split()}

    def leaves(self) -> set[str]:
        """The cgroups of its commands that still exist, without the empty spare one for the next command."""
        found = {leaf.name for path in self._cgroups for leaf in path.glob("x*")}
        last = max(found, key=lambda name: int(name[1:]), default="")
        return found - {last}


def cgroup_directories(sandbox_id: str) -> list[Path]:
    """Where a sandbox of this id has, or would have, its cgroups; none where the host gives us none."""
    root, _ = cgroup.detect()
    return [] if root is None else [Path(path) for path in root.paths_for(sandbox_id)]


class Footprint:
    """Everything that sandboxes leave behind, as it was at one moment."""

    def __init__(self) -> None:
        self._cgroups = _all_cgroups()
        self._state = _state_entries()
        self._children = _descendants()

    def growth(self) -> list[str]:
        """What is there now and was not then; things that end by themselves get some seconds for it."""
        return eventually(self._growth)

    def _growth(self) -> list[str]:
        # Other people's sandboxes may come and go meanwhile; theirs hold processes that are not ours.
        ours = _descendants()
        cgroups = [path for path in _all_cgroups() - self._cgroups if _members(path) <= ours]
        return sorted([*cgroups, *(_state_entries() - self._state), *map(str, ours - self._children)])


def _all_cgroups() -> set[str]:
    return {str(path) for place in cgroup_directories("x") for path in place.parent.glob("*")} - _controls()


def _controls() -> set[str]:
    return {str(path) for place in cgroup_directories("x") for path in place.parent.glob("*.*")}


def _members(directory: str) -> set[int]:
    return {int(pid) for file in Path(directory).rglob("cgroup.procs") for pid in text(file).split()}


def _state_entries() -> set[str]:
    return {str(path) for path in Path(os.environ["ATOLL_STATE"]).glob("sandboxes/**/*")}


def _descendants() -> set[int]:
    """Live processes that we started, directly or not."""
    parents = {pid: parent_of(pid) for pid in all_pids()}
    found, fresh = set[int](), {os.getpid()}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh}
        found |= fresh
    return found


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def pid_namespace(pid: int) -> str | None:
    """None when the process has gone, or may not be looked at."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def name_of(pid: int) -> str:
    return text(Path(f"/proc/{pid}/comm")).strip()


def parent_of(pid: int) -> int:
    """0 when the process has gone."""
    fields = text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def status_of(pid: int, field: str) -> str:
    """One line of /proc/PID/status."""
    for line in text(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith(f"{field}:"):
            return line.partition(":")[2].strip()
    return ""


def text(path: Path) -> str:
    """Empty when it is not there any more."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, OSError):
        return ""


def own_memory_peak() -> int:
    """The most memory that this process had resident since `forget_memory_peak`, in bytes."""
    return int(status_of(os.getpid(), "VmHWM").split()[0]) * 1024


def forget_memory_peak() -> int:
    """Start to measure anew (proc_pid_clear_refs(5)); returns the memory resident now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return own_memory_peak()
