"""Limits and accounting of whole process trees: one interface over cgroup v1 and v2 (cgroups(7)).

`detect` finds which one this host has and what of it we may use. The lifecycle makes one `SandboxCgroup` per
sandbox, the executor one `Leaf` per command; the undo journal calls `destroy` with the paths it recorded. All
figures and ends that Atoll reports come from here, never from the guest. Limits are never loosened, and
nothing outside a directory named `atoll` is ever killed or removed.
"""

import os
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from atoll.kernel import cgroup1, cgroup2, cgroupfs
from atoll.kernel.cgroupfs import BASE_NAME, Events, JoinStep, Mount
from atoll.kernel.cgrouptree import KILL_TIMEOUT_S, Directories, Group, remove_paths
from atoll.model.errors import DriverUnavailableError, StateError
from atoll.model.limits import Limits
from atoll.model.protection import Protection
from atoll.model.status import Usage

__all__ = ["CgroupRoot", "Detected", "Events", "JoinStep", "Leaf", "SandboxCgroup", "destroy", "detect"]


class Leaf(Protocol):
    """The cgroup of one command and everything it started."""

    name: str

    def usage(self) -> Usage:
        """What was used in it since it was made (`wall_s` is left to the caller).

        Raises:
            OSError: it was removed.
        """
        ...

    def pids(self) -> set[int]:
        """The processes in it, as the host numbers them."""
        ...

    def populated(self) -> bool:
        """Whether a process is left in it."""
        ...

    def kill(self, timeout_s: float = KILL_TIMEOUT_S) -> None:
        """SIGKILL everything in it, fork storms included, and wait until it is empty.

        The leaf is only good for `usage` and `remove` afterwards.

        Raises:
            TeardownError: something still runs after `timeout_s`.
        """
        ...

    def remove(self) -> bool:
        """Remove it; False, without waiting, while processes are left in it. Safe to repeat."""
        ...


class SandboxCgroup(Protocol):
    """The cgroup of one sandbox: the limits, above one leaf for the agent and one for each command.

    Its descriptors are closed with the last reference to it and its leaves.
    """

    name: str
    version: Literal[1, 2]

    @property
    def agent(self) -> Leaf:
        """Leaf of the launcher and the agent."""
        ...

    def paths(self) -> list[str]:
        """Its directories on the host."""
        ...

    def join_steps(self) -> list[JoinStep]:
        """What a launcher does, in this order, to place itself.

        First into the sandbox, then, with that as the root of its cgroup namespace (cgroup_namespaces(7)), into
        the agent's leaf. The caller owns the descriptors. On v2 leaves can be made only after the last step.
        """
        ...

    def make_leaf(self, name: str, owner_uid: int | None = None) -> Leaf:
        """Make a leaf, which `owner_uid` (and the group of that number) may move its own processes into.

        Args:
            name: one or more of a-z, 0-9 and -.
            owner_uid: host uid of the agent; None when it is our own.

        Raises:
            InvalidSpecError: another name.
            StateError: there is one of that name, or the sandbox is gone.
            PolicyUnenforceableError: a limit did not stick.
        """
        ...

    def dir_fds(self) -> list[int]:
        """New descriptors (O_PATH) of the directories in which leaves are made; the caller closes them."""
        ...

    def views(self) -> list[tuple[str, str]]:
        """What programs inside may see, read-only: (name below /sys/fs/cgroup, directory on the host)."""
        ...

    def holds(self, membership: str) -> bool:
        """Whether a process with `membership` as its /proc/PID/cgroup is inside."""
        ...

    def events(self) -> Events:
        """What the limits did to the agent."""
        ...

    def pids(self) -> set[int]:
        """All processes in the sandbox."""
        ...

    def populated(self) -> bool:
        """Whether a process is left."""
        ...

    def kill(self, timeout_s: float = KILL_TIMEOUT_S) -> None:
        """SIGKILL everything, leaves included, and wait until it is empty.

        Raises:
            TeardownError: something still runs after `timeout_s`.
        """
        ...

    def remove(self) -> None:
        """Remove it and its leaves. Safe to repeat.

        Raises:
            TeardownError: processes are left in it.
        """
        ...


class CgroupRoot(Protocol):
    """Where the cgroups of all sandboxes are made."""

    version: Literal[1, 2]
    missing: dict[Protection, str]
    """What cannot be enforced here -> why, and how to change that."""

    def paths_for(self, name: str) -> list[str]:
        """The directories that `create` would make, to be recorded before it does.

        Raises:
            InvalidSpecError: not a name made of 1 to 64 of a-z, 0-9 and -.
        """
        ...

    def create(self, name: str, limits: Limits, without: frozenset[Protection] = frozenset()) -> SandboxCgroup:
        """Make the cgroup of a sandbox with its limits in force, each read back from the kernel.

        Args:
            name: of the sandbox.
            limits: validated.
            without: protections that are switched off by name.

        Raises:
            InvalidSpecError: an impossible name.
            StateError: it exists already.
            PolicyUnenforceableError: a limit is missing on this host or did not stick; nothing is left.
        """
        ...


class Detected(NamedTuple):
    """What `detect` found."""

    root: CgroupRoot | None
    why: str
    """Why there is none, and how to change that; empty when there is one."""


def detect() -> Detected:
    """Find the cgroups that we may use and prepare them: make the base directory, enable controllers.

    v2 is taken when it has the memory and pids controllers, else v1 (also in the hybrid layout). Repeatable;
    on a delegated v2 cgroup it moves the processes found there, ours included, into a leaf of it.
    """
    mounts = cgroupfs.parse_mounts(_text("/proc/self/mountinfo"))
    own = cgroupfs.parse_membership(_text("/proc/self/cgroup"))
    try:
        unified = choose_unified(mounts)
        if unified is not None:
            return Detected(cgroup2.open_root(unified, own.get("", "/")), "")
        if os.geteuid() != 0:
            raise DriverUnavailableError(
                "limits without root need cgroup v2, which this host does not use",
                hint="boot with systemd.unified_cgroup_hierarchy=1, or run as root",
            )
        return Detected(cgroup1.Root1(choose_v1(mounts)), "")
    except DriverUnavailableError as error:
        return Detected(None, str(error))


def choose_v1(mounts: Sequence[Mount]) -> dict[str, Mount]:
    """The mount of each v1 controller, preferably the usual one."""
    chosen: dict[str, Mount] = {}
    for mount in _usual_first(mounts):
        for controller in mount.controllers:
            chosen.setdefault(controller, mount)
    return chosen


def choose_unified(mounts: Sequence[Mount]) -> Mount | None:
    """The v2 mount, if limits are to be set there: v1 does not have the memory and pids controllers."""
    taken = choose_v1(mounts).keys()
    unified = (mount for mount in _usual_first(mounts) if mount.unified)
    return None if {"memory", "pids"} <= taken else next(unified, None)


def _usual_first(mounts: Sequence[Mount]) -> list[Mount]:
    return sorted(mounts, key=lambda mount: not mount.point.startswith("/sys/fs/cgroup"))


def destroy(paths: Sequence[str], name: str, timeout_s: float = KILL_TIMEOUT_S) -> None:
    """Kill and remove the cgroup that `paths_for(name)` named, whether or not all of it exists.

    Raises:
        StateError: a path is not one that `paths_for` gives; nothing was touched.
        TeardownError: something could not be killed or removed.
    """
    check_paths(paths, name)
    directories = Directories(paths)
    Group(name, directories, directories.places).kill(timeout_s)
    remove_paths(paths)


def check_paths(paths: Sequence[str], name: str) -> None:
    """Refuse paths that are not the cgroup directories of the sandbox `name`.

    Raises:
        StateError: naming the path.
    """
    points = [mount.point for mount in cgroupfs.parse_mounts(_text("/proc/self/mountinfo"))]
    for path in paths:
        plain = path == os.path.normpath(path) and path.endswith(f"/{BASE_NAME}/{cgroupfs.check_name(name)}")
        if not plain or not any(path.startswith(f"{point}/") for point in points):
            raise StateError(f"{path!r} is not a cgroup directory of sandbox {name}")


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
