"""cgroup v1: one directory per hierarchy for each sandbox, and one per command in those that count.

The controllers memory, pids, cpuacct and cpu may be mounted apart or together. Only root can make cgroups
here. Called through `cgroup.detect`. See cgroups(7) and Documentation/admin-guide/cgroup-v1.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from atoll.kernel import cgroupfs
from atoll.kernel.cgroupfs import (
    AGENT,
    BASE_NAME,
    CPU_PERIOD_US,
    Events,
    JoinStep,
    Mount,
    Place,
)
from atoll.kernel.cgrouptree import Directories, Group, LeafGroup, make_paths, remove, remove_paths
from atoll.model.errors import DriverUnavailableError
from atoll.model.limits import Limits
from atoll.model.protection import Protection
from atoll.model.status import Usage

SOCKET_BUFFERS_SHARE = 8
"""Socket buffers get this part of the memory limit, on top of it: v1 cannot count them towards the limit itself."""

_COUNTING = ("memory", "pids", "cpuacct")
"""Controllers that count for each command."""
_LEAVES = (*_COUNTING, "cpu")
"""Controllers whose hierarchies hold a leaf for each command; cpu, where it is mounted, shares the processor evenly
between the leaves, so that no number of busy processes of one can starve the agent or the next command."""

JOIN = "tasks"
"""Moves a single thread. For one that moves itself the kernel then needs no lock that every fork on the host takes too:
a write to cgroup.procs waits for a grace period, and while somebody forks wildly for tenths of a second."""


class Root1:
    """The `atoll` directory of every hierarchy."""

    version: Literal[1, 2] = 1

    def __init__(self, mounts: Mapping[str, Mount]) -> None:
        """Make the base directories.

        Args:
            mounts: the mount of each controller.

        Raises:
            DriverUnavailableError: a controller is missing, or a directory cannot be made.
        """
        for controller in _COUNTING:
            if controller not in mounts:
                point = f"/sys/fs/cgroup/{controller}"
                raise DriverUnavailableError(
                    f"the cgroup v1 controller {controller} is not mounted",
                    hint=f"mkdir -p {point} && mount -t cgroup -o {controller} cgroup {point}",
                )
        self.missing: dict[Protection, str] = {}
        if "cpu" not in mounts:
            self.missing[Protection.CGROUP_CPU] = (
                "the cgroup v1 controller cpu is not mounted; mount -t cgroup -o cpu cgroup /sys/fs/cgroup/cpu"
            )
        self._mounts = mounts
        self._make_bases()

    def paths_for(self, name: str) -> list[str]:
        """The directories that `create` will make, for the journal."""
        return list(dict.fromkeys(self._paths(cgroupfs.check_name(name)).values()))

    def create(self, name: str, limits: Limits, without: frozenset[Protection] = frozenset()) -> "Sandbox1":
        """Make a sandbox's cgroups with its limits in force; see `cgroup.CgroupRoot`."""
        cgroupfs.check_available(self.missing, without)
        paths = self.paths_for(name)
        self._make_bases()
        make_paths(paths)
        try:
            return Sandbox1(name, self._mounts, self._paths(name), limits, without)
        except BaseException:
            remove_paths(paths)
            raise

    def _paths(self, name: str) -> dict[str, str]:
        return {controller: f"{mount.point}/{BASE_NAME}/{name}" for controller, mount in self._mounts.items()}

    def _make_bases(self) -> None:
        for point in dict.fromkeys(mount.point for mount in self._mounts.values()):
            cgroupfs.make_base(point)
        with cgroupfs.opened(f"{self._mounts['memory'].point}/{BASE_NAME}") as base:
            if cgroupfs.read(base, "memory.use_hierarchy").strip() == b"0":
                # Before Linux 5.11 a limit holds for what is below only so; settable while nothing is.
                cgroupfs.limit(base, "memory.use_hierarchy", "1", Protection.CGROUP_MEMORY)


class Sandbox1(Group):
    """One sandbox; see `cgroup.SandboxCgroup`."""

    version: Literal[1, 2] = 1

    def __init__(
        self,
        name: str,
        mounts: Mapping[str, Mount],
        paths: Mapping[str, str],
        limits: Limits,
        without: frozenset[Protection],
    ) -> None:
        """Set limits in force on the directories `paths` (by controller), and make the agent's leaf."""
        unique = list(dict.fromkeys(paths.values()))
        directories = Directories(unique)
        super().__init__(name, directories, directories.places)
        opened = dict(zip(unique, directories.places, strict=True))
        self._of = {controller: opened[path] for controller, path in paths.items()}
        self._with_leaves = list(dict.fromkeys(self._of[name] for name in _LEAVES if name in self._of))
        self._mounts, self._paths = mounts, paths
        self._limits, self._without = limits, without
        self._limit(self._of, limits.pids_max)
        if Protection.CGROUP_CPU not in without:
            quota = str(round(limits.cpus * CPU_PERIOD_US))
            cgroupfs.limit(self._of["cpu"], "cpu.cfs_period_us", str(CPU_PERIOD_US), Protection.CGROUP_CPU)
            cgroupfs.limit(self._of["cpu"], "cpu.cfs_quota_us", quota, Protection.CGROUP_CPU)
        self.agent = self.make_leaf(AGENT)

    def _limit(self, of: Mapping[str, Place], pids_max: int) -> None:
        if Protection.CGROUP_MEMORY not in self._without:
            size = cgroupfs.whole_pages(self._limits.memory_bytes)
            cgroupfs.limit(of["memory"], "memory.limit_in_bytes", size, Protection.CGROUP_MEMORY)
            if cgroupfs.exists(of["memory"], "memory.memsw.limit_in_bytes"):
                cgroupfs.limit(of["memory"], "memory.memsw.limit_in_bytes", size, Protection.CGROUP_MEMORY)
            else:
                # Swap is not accounted (swapaccount=0): then nothing may be swapped out for this limit.
                cgroupfs.limit(of["memory"], "memory.swappiness", "0", Protection.CGROUP_MEMORY)
            if cgroupfs.exists(of["memory"], "memory.kmem.tcp.limit_in_bytes"):
                # Despite its name all socket buffers, TCP's and UDP's; v1 counts them only once they have a limit.
                buffers = cgroupfs.whole_pages(self._limits.memory_bytes // SOCKET_BUFFERS_SHARE)
                cgroupfs.limit(of["memory"], "memory.kmem.tcp.limit_in_bytes", buffers, Protection.CGROUP_MEMORY)
        if Protection.CGROUP_PIDS not in self._without:
            cgroupfs.limit(of["pids"], "pids.max", str(pids_max), Protection.CGROUP_PIDS)

    def paths(self) -> list[str]:
        """Its directories."""
        return list(dict.fromkeys(self._paths.values()))

    def make_leaf(self, name: str, owner_uid: int | None = None) -> "Leaf1":
        """Make the cgroup of one command; see `cgroup.SandboxCgroup`."""
        cgroupfs.check_name(name)
        made: list[Place] = []
        try:
            for place in self._with_leaves:
                cgroupfs.make(Place(place.fd, name))
                made.append(Place(place.fd, name))
            if owner_uid is not None:
                for place in made:
                    cgroupfs.give(place, owner_uid, JOIN)
            of = {controller: Place(self._of[controller].fd, name) for controller in _COUNTING}
            # The memory limit is the sandbox's own: it stops nothing more, but programs look it up here.
            self._limit(of, cgroupfs.command_pids(self._limits.pids_max))
        except BaseException:
            for place in made:
                remove(place)
            raise
        return Leaf1(name, self._directories, made, of)

    def join_steps(self) -> list[JoinStep]:
        """How a launcher places itself into the agent's leaf; see `cgroup.SandboxCgroup`."""
        agent = [Place(place.fd, AGENT) for place in self._with_leaves]
        with cgroupfs.closed_on_error() as steps:
            steps.extend(cgroupfs.open_control(place, JOIN, "0") for place in self._places)
            steps.append(JoinStep(None))
            steps.extend(cgroupfs.open_control(place, JOIN, "0") for place in agent)
        return steps

    def dir_fds(self) -> list[int]:
        """New descriptors of its directory in the hierarchies that hold leaves."""
        return [os.dup(place.fd) for place in self._with_leaves]

    def views(self) -> list[tuple[str, str]]:
        """What a program inside may read: (name below /sys/fs/cgroup, directory on the host)."""
        return list(self._paths.items())

    def holds(self, membership: str) -> bool:
        """Whether a process with this text in /proc/PID/cgroup is inside, in every hierarchy."""
        groups = cgroupfs.parse_membership(membership)
        return all(
            cgroupfs.is_within(groups.get(controller, ""), self._mounts[controller].cgroup(path))
            for controller, path in self._paths.items()
        )

    def events(self) -> Events:
        """What its limits did outside the commands' own leaves."""
        here, agent = self._of, self.agent.of
        return Events(
            oom_kills=_oom_kills(here["memory"]) + _oom_kills(agent["memory"]),
            pids_rejected=_pids_rejected(here["pids"]) + _pids_rejected(agent["pids"]),
        )

    def remove(self) -> None:
        """Remove its directories, once nothing runs in them; see `cgroup.SandboxCgroup`."""
        remove_paths(self.paths())


class Leaf1(LeafGroup):
    """One command; see `cgroup.Leaf`."""

    def __init__(self, name: str, directories: Directories, places: Sequence[Place], of: Mapping[str, Place]) -> None:
        """Refer to the leaf's directories, also by controller."""
        super().__init__(name, directories, places)
        self.of = of

    def usage(self) -> Usage:
        """What was used in it since it was made; the kernel counts each event at the process's own cgroup."""
        return Usage(
            cpu_s=int(cgroupfs.read(self.of["cpuacct"], "cpuacct.usage")) / 1e9,
            memory_peak_bytes=int(cgroupfs.read(self.of["memory"], "memory.max_usage_in_bytes")),
            oom_kills=_oom_kills(self.of["memory"]),
            pids_rejected=_pids_rejected(self.of["pids"]),
        )


def _oom_kills(memory: Place) -> int:
    return cgroupfs.read_key(memory, "memory.oom_control", b"oom_kill")


def _pids_rejected(pids: Place) -> int:
    return cgroupfs.read_key(pids, "pids.events", b"max")
