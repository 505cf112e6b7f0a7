"""cgroup v2: one tree, in which a directory holds either processes or limited directories, not both.

A sandbox is a directory with the limits, whose leaves are the agent and each command. Root makes it at the top
of the mount, a user in the cgroup that was delegated to it, after moving the processes there into a leaf
(the no-internal-process rule). Called through `cgroup.detect`. See cgroups(7) and
Documentation/admin-guide/cgroup-v2.
"""

import contextlib
import os
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
from atoll.model.errors import DriverUnavailableError, PolicyUnenforceableError
from atoll.model.limits import Limits
from atoll.model.protection import Protection
from atoll.model.status import Usage

HOST_LEAF = "atoll-host"
"""Leaf for the processes that were found in a delegated cgroup."""
_NEEDED = ("memory", "pids")
_WANTED = (*_NEEDED, "cpu")
_EVACUATION_ROUNDS = 20
_DELEGATE = "systemd-run --user --scope -p Delegate=yes -- COMMAND"
_DELEGATE_MORE = (
    "as root: mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\\nDelegate=cpu memory pids\\n'"
    " > /etc/systemd/system/user@.service.d/delegate.conf && systemctl daemon-reload; then log in again"
)


class Root2:
    """The `atoll` directory at the top of the mount, or in the cgroup delegated to us."""

    version: Literal[1, 2] = 2

    def __init__(self, mount: Mount, parent: str) -> None:
        """Make the base directory in `parent` and have limits enabled below it.

        Args:
            mount: of the hierarchy.
            parent: directory on it that we may change.

        Raises:
            DriverUnavailableError: that is not possible; says what is needed.
        """
        self._mount, self._parent = mount, parent
        self._base = f"{parent}/{BASE_NAME}"
        self.missing = self._make_base()

    def paths_for(self, name: str) -> list[str]:
        """The directory that `create` will make, for the journal."""
        return [f"{self._base}/{cgroupfs.check_name(name)}"]

    def create(self, name: str, limits: Limits, without: frozenset[Protection] = frozenset()) -> "Sandbox2":
        """Make a sandbox's cgroup with its limits in force; see `cgroup.CgroupRoot`."""
        cgroupfs.check_available(self.missing, without)
        paths = self.paths_for(name)
        self._make_base()
        make_paths(paths)
        try:
            return Sandbox2(name, self._mount, paths[0], limits, without)
        except BaseException:
            remove_paths(paths)
            raise

    def _make_base(self) -> dict[Protection, str]:
        """Make the base directory and enable controllers down to it; returns what is missing."""
        cgroupfs.make_base(self._parent)
        problems: dict[str, str] = {}
        for path in (self._parent, self._base):
            with cgroupfs.opened(path) as place:
                problems |= _enable(place)
        for controller in _NEEDED:
            if controller in problems:
                raise DriverUnavailableError(
                    f"cgroup v2 controller {controller} in {self._parent}: {problems[controller]}",
                    hint=_DELEGATE_MORE if os.geteuid() else "run on the host, or boot with cgroup_enable=memory",
                )
        if "cpu" in problems:
            hint = _DELEGATE_MORE if os.geteuid() else "see cpu in Documentation/admin-guide/cgroup-v2"
            return {Protection.CGROUP_CPU: f"cgroup v2 controller cpu: {problems['cpu']}; {hint}"}
        return {}


def _enable(place: Place) -> dict[str, str]:
    """Have the children of a cgroup limited; returns controller -> problem where that fails."""
    offered = cgroupfs.read(place, "cgroup.controllers").decode().split()
    enabled = cgroupfs.read(place, "cgroup.subtree_control").decode().split()
    problems = {}
    for controller in _WANTED:
        if controller not in offered:
            problems[controller] = "not available"
        elif controller not in enabled:
            try:
                _evacuate(place)
                cgroupfs.write(place, "cgroup.subtree_control", f"+{controller}")
            except OSError as error:
                problems[controller] = error.strerror or str(error)
    return problems


def _evacuate(place: Place) -> None:
    """Move the processes directly in a cgroup into a leaf of it, without which it may not limit its children.

    Not at the true root, which alone has no cgroup.type and may hold both.
    """
    if not cgroupfs.exists(place, "cgroup.type"):
        return
    leaf = Place(place.fd, HOST_LEAF)
    for _ in range(_EVACUATION_ROUNDS):  # they may fork meanwhile
        pids = cgroupfs.procs(place)
        if not pids:
            return
        with contextlib.suppress(FileExistsError):
            os.mkdir(HOST_LEAF, 0o755, dir_fd=place.fd)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                cgroupfs.write(leaf, "cgroup.procs", str(pid))


def candidates(mount: Mount, own: str, euid: int) -> list[str]:
    """Directories to put the base in, best first.

    Args:
        mount: of the hierarchy.
        own: our cgroup, as /proc/self/cgroup writes it.
        euid: our effective user id.
    """
    if own.endswith(f"/{HOST_LEAF}"):
        own = own.rpartition("/")[0] or "/"  # moved there before, by us or by the process that started us
    directory = mount.directory(own)
    found = [mount.point] if euid == 0 else []
    return found if directory is None or directory in found else [*found, directory]


def open_root(mount: Mount, own: str) -> Root2:
    """The first candidate that works.

    Raises:
        DriverUnavailableError: none does; says why the last one does not.
    """
    problem = DriverUnavailableError(f"our own cgroup {own} is not below the mount {mount.point}")
    for parent in candidates(mount, own, os.geteuid()):
        try:
            _check_delegated(parent)
            return Root2(mount, parent)
        except DriverUnavailableError as error:
            problem = error
    raise problem


def _check_delegated(parent: str) -> None:
    """What systemd hands over with Delegate=yes, and cgroups(7) calls delegation."""
    with cgroupfs.opened(parent) as place:
        for name in ("", "cgroup.procs", "cgroup.subtree_control"):
            if not os.access(f"./{name}", os.W_OK, dir_fd=place.fd, effective_ids=True):
                raise DriverUnavailableError(
                    f"the cgroup {parent} is not delegated to uid {os.geteuid()}, or is mounted read-only",
                    hint=f"start it with {_DELEGATE}, or give the service Delegate=yes",
                )


class Sandbox2(Group):
    """One sandbox; see `cgroup.SandboxCgroup`."""

    version: Literal[1, 2] = 2

    def __init__(self, name: str, mount: Mount, path: str, limits: Limits, without: frozenset[Protection]) -> None:
        """Put limits in force on the directory `path`, and make the agent's leaf.

        That leaf has no limits of its own: they can be enabled only once the launcher has left the directory.
        """
        directories = Directories([path])
        super().__init__(name, directories, directories.places)
        self._mount, self._path = mount, path
        self._limits, self._without = limits, without
        self._given = False
        self._place = directories.places[0]
        self._limit(self._place, limits.pids_max)
        if Protection.CGROUP_CPU not in without:
            text = f"{round(limits.cpus * CPU_PERIOD_US)} {CPU_PERIOD_US}"
            cgroupfs.limit(self._place, "cpu.max", text, Protection.CGROUP_CPU)
        agent = Place(self._place.fd, AGENT)
        cgroupfs.make(agent)
        self.agent = Leaf2(AGENT, directories, agent, self._place, 0)

    def _limit(self, place: Place, pids_max: int) -> None:
        if Protection.CGROUP_MEMORY not in self._without:
            size = cgroupfs.whole_pages(self._limits.memory_bytes)
            cgroupfs.limit(place, "memory.max", size, Protection.CGROUP_MEMORY)
            if cgroupfs.exists(place, "memory.swap.max"):
                cgroupfs.limit(place, "memory.swap.max", "0", Protection.CGROUP_MEMORY)
            else:
                _check_no_swap()
            # memory.oom.group stays at its default 0: the kernel ends one process, not the agent along with it.
        if Protection.CGROUP_PIDS not in self._without:
            cgroupfs.limit(place, "pids.max", str(pids_max), Protection.CGROUP_PIDS)

    def paths(self) -> list[str]:
        """Its directory."""
        return [self._path]

    def make_leaf(self, name: str, owner_uid: int | None = None) -> "Leaf2":
        """Make the cgroup of one command; see `cgroup.SandboxCgroup`."""
        place = Place(self._place.fd, cgroupfs.check_name(name))
        cgroupfs.make(place)
        try:
            if owner_uid is not None:
                if not self._given:
                    # A move needs write access at the common ancestor too (cgroups(7), delegation containment).
                    cgroupfs.give(self._place, owner_uid, "cgroup.procs")
                    self._given = True
                cgroupfs.give(place, owner_uid, "cgroup.procs")
            # The memory limit is the sandbox's own: it stops nothing more, but programs look it up here.
            self._limit(place, cgroupfs.command_pids(self._limits.pids_max))
            return Leaf2(name, self._directories, place, self._place, _pids_rejected(self._place))
        except BaseException:
            remove(place)
            raise

    def join_steps(self) -> list[JoinStep]:
        """How a launcher places itself into the agent's leaf; see `cgroup.SandboxCgroup`."""
        # The cpu controller shares the processor evenly between the leaves, so that no number of busy processes of one
        # can starve the agent or the next command.
        wanted = "+memory +pids" if Protection.CGROUP_CPU in self._without else "+memory +pids +cpu"
        with cgroupfs.closed_on_error() as steps:
            steps.append(cgroupfs.open_control(self._place, "cgroup.procs", "0"))
            steps.append(JoinStep(None))
            steps.append(cgroupfs.open_control(Place(self._place.fd, AGENT), "cgroup.procs", "0"))
            steps.append(cgroupfs.open_control(self._place, "cgroup.subtree_control", wanted))
        return steps

    def dir_fds(self) -> list[int]:
        """A new descriptor of its directory."""
        return [os.dup(self._place.fd)]

    def views(self) -> list[tuple[str, str]]:
        """What a program inside may read: (name below /sys/fs/cgroup, directory on the host)."""
        return [("", self._path)]

    def holds(self, membership: str) -> bool:
        """Whether a process with this text in /proc/PID/cgroup is inside."""
        own = cgroupfs.parse_membership(membership).get("", "")
        return cgroupfs.is_within(own, self._mount.cgroup(self._path))

    def events(self) -> Events:
        """What its limits did. Since Linux 6.11 refused forks of commands are counted here too."""
        agent = Place(self._place.fd, AGENT)
        oom_kills = cgroupfs.read_key(self._place, "memory.events.local", b"oom_kill")
        pids_rejected = _pids_rejected(self._place)
        with contextlib.suppress(FileNotFoundError):  # not yet enabled by the launcher
            oom_kills += cgroupfs.read_key(agent, "memory.events", b"oom_kill")
            pids_rejected += _pids_rejected(agent)
        return Events(oom_kills, pids_rejected)

    def remove(self) -> None:
        """Remove its directories, once nothing runs in them; see `cgroup.SandboxCgroup`."""
        remove_paths(self.paths())


class Leaf2(LeafGroup):
    """One command; see `cgroup.Leaf`."""

    def __init__(self, name: str, directories: Directories, place: Place, sandbox: Place, rejected_before: int) -> None:
        """Refer to the leaf `place`; `rejected_before` forks had been refused in its sandbox by then."""
        super().__init__(name, directories, [place])
        self._place, self._sandbox, self._rejected_before = place, sandbox, rejected_before

    def usage(self) -> Usage:
        """What was used in it since it was made.

        A fork refused at the sandbox's limit is counted in the leaf before Linux 6.11 and in the sandbox since,
        where commands that run at the same time cannot be told apart.
        """
        rejected = max(_pids_rejected(self._place), _pids_rejected(self._sandbox) - self._rejected_before)
        return Usage(
            cpu_s=cgroupfs.read_key(self._place, "cpu.stat", b"usage_usec") / 1e6,
            memory_peak_bytes=self._peak(),
            oom_kills=cgroupfs.read_key(self._place, "memory.events", b"oom_kill"),
            pids_rejected=rejected,
        )

    def _peak(self) -> int | None:
        try:
            return int(cgroupfs.read(self._place, "memory.peak"))
        except FileNotFoundError:  # before Linux 5.19
            return None


def _pids_rejected(place: Place) -> int:
    return cgroupfs.read_key(place, "pids.events", b"max")


def _check_no_swap() -> None:
    """Without swap accounting a memory limit holds only where there is no swap (proc_swaps(5))."""
    with open("/proc/swaps", encoding="ascii") as swaps:
        if len(swaps.readlines()) > 1:
            raise PolicyUnenforceableError(
                "cgroup_memory: the host has swap that the kernel does not account to cgroups",
                hint="boot with swapaccount=1, or switch swap off",
                protection=str(Protection.CGROUP_MEMORY),
            )
