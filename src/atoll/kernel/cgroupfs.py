"""What cgroup v1 and v2 share: mounts, directories, small control files.

A *place* is one cgroup directory, named by a descriptor and a path below it, so that the hot paths neither
build nor resolve long paths. Called by the other `cgroup` modules; knows no controller.
"""

import contextlib
import errno
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from atoll.model.errors import (
    DriverUnavailableError,
    InvalidSpecError,
    PolicyUnenforceableError,
    StateError,
)
from atoll.model.protection import Protection

BASE_NAME = "atoll"
"""Directory that holds all sandboxes; nothing outside one of this name is ever killed or removed."""
AGENT = "agent"
"""Leaf of the agent itself."""
CPU_PERIOD_US = 100_000
"""Over which cpu bandwidth is metered; the kernel's default."""
PAGE = os.sysconf("SC_PAGESIZE")
_OWN_PROCESSES = 2
"""bubblewrap and the agent."""
_RESERVED_PART = 16
"""One in so many processes of a sandbox is out of reach for a single command."""

_NAME = re.compile(r"[a-z0-9-]{1,64}")
_CONTROLLERS = frozenset({"memory", "pids", "cpu", "cpuacct"})
GONE = frozenset({errno.ENOENT, errno.ENODEV})
"""A cgroup that was removed, looked up by name or through a descriptor that is still open."""


class Place(NamedTuple):
    """One cgroup directory."""

    fd: int
    path: str = "."


class Mount(NamedTuple):
    """A mounted cgroup file system (mountinfo in proc_pid_mountinfo(5))."""

    unified: bool
    """v2."""
    point: str
    """Where it is mounted."""
    root: str
    """The cgroup at its top, as /proc/self/cgroup would write it."""
    controllers: frozenset[str]
    """v1 only; v2 says it in each cgroup.controllers."""

    def directory(self, cgroup: str) -> str | None:
        """Where `cgroup`, as /proc/self/cgroup writes it, is found below this mount; None if it is not."""
        root = self.root.rstrip("/")
        below = cgroup.removeprefix(root)
        # A cgroup outside our cgroup namespace is written with leading `..` (cgroup_namespaces(7)).
        if not is_within(cgroup, root) or ".." in below.split("/"):
            return None
        return f"{self.point}{below}".rstrip("/")

    def cgroup(self, directory: str) -> str:
        """The reverse of `directory`."""
        return self.root.rstrip("/") + directory.removeprefix(self.point)


class JoinStep(NamedTuple):
    """One thing a launcher does, in order, to place itself."""

    fd: int | None
    """Write `text` to this descriptor, which the caller then closes; None means unshare(CLONE_NEWCGROUP)."""
    text: str = "0"


class Events(NamedTuple):
    """What the limits did to the sandbox as a whole, its commands' own leaves left out where the kernel can."""

    oom_kills: int
    """Of the agent's own processes."""
    pids_rejected: int


def parse_mounts(mountinfo: str) -> list[Mount]:
    """The cgroup file systems in the text of /proc/self/mountinfo, in mount order."""
    found = []
    for line in mountinfo.splitlines():
        fields, _, special = line.partition(" - ")
        root, point = map(_unescape, fields.split(" ")[3:5])
        kind, _, options = special.split(" ", 2)
        if kind == "cgroup2":
            found.append(Mount(True, point, root, frozenset()))
        elif kind == "cgroup" and (controllers := _CONTROLLERS & set(options.split(","))):
            found.append(Mount(False, point, root, controllers))
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def parse_membership(text: str) -> dict[str, str]:
    """Controller -> cgroup in the text of a /proc/PID/cgroup; the key of v2 is empty (cgroups(7))."""
    found = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        found.update(dict.fromkeys(names.split(","), path))
    return found


def check_name(name: str) -> str:
    """The name, when it can be a directory of ours.

    Raises:
        InvalidSpecError: it could be anything else.
    """
    if not _NAME.fullmatch(name):
        raise InvalidSpecError("cgroup name", name, "not made of 1 to 64 of a-z, 0-9 and -")
    return name


def read(place: Place, name: str) -> bytes:
    """A control file of at most a page."""
    fd = os.open(f"{place.path}/{name}", os.O_RDONLY, dir_fd=place.fd)
    try:
        return os.read(fd, PAGE)
    finally:
        os.close(fd)


def read_key(place: Place, name: str, key: bytes) -> int:
    """The number after `key` in a flat keyed control file; 0 when the kernel does not count it."""
    for line in read(place, name).splitlines():
        if line.startswith(key + b" "):
            return int(line[len(key) :])
    return 0


def write(place: Place, name: str, text: str) -> None:
    """Set a control file; the kernel wants the text in one piece."""
    fd = os.open(f"{place.path}/{name}", os.O_WRONLY, dir_fd=place.fd)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def exists(place: Place, name: str) -> bool:
    """Whether the kernel offers this control file."""
    return os.access(f"{place.path}/{name}", os.F_OK, dir_fd=place.fd)


def check_available(missing: Mapping[Protection, str], without: Collection[Protection]) -> None:
    """Refuse to make a sandbox whose limits this host lacks.

    Args:
        missing: protection -> why it cannot be enforced here.
        without: protections that are switched off by name.

    Raises:
        PolicyUnenforceableError: one is missing and was not switched off.
    """
    for protection, why in missing.items():
        if protection not in without:
            raise PolicyUnenforceableError(f"{protection}: {why}", protection=str(protection))


def whole_pages(size: int) -> str:
    """A memory limit as the kernel will show it: in bytes, rounded down to pages."""
    return str(size // PAGE * PAGE)


def command_pids(pids_max: int) -> int:
    """The process limit of one command: what a storm leaves behind must not keep the next command from starting."""
    return pids_max - _OWN_PROCESSES - max(1, pids_max // _RESERVED_PART)


def is_within(cgroup: str, ancestor: str) -> bool:
    """Whether `cgroup` is `ancestor` or below it, both as /proc/PID/cgroup writes them."""
    return cgroup == ancestor or cgroup.startswith(f"{ancestor}/")


def limit(place: Place, name: str, text: str, protection: Protection) -> None:
    """Write a limit and read it back.

    Raises:
        PolicyUnenforceableError: the kernel refused it or holds something else.
    """
    try:
        fd = os.open(f"{place.path}/{name}", os.O_RDWR, dir_fd=place.fd)
        try:
            os.write(fd, text.encode())
            seen = os.pread(fd, PAGE, 0).decode().strip()
        finally:
            os.close(fd)
    except OSError as error:
        seen = error.strerror or str(error)
    if seen != text:
        raise PolicyUnenforceableError(
            f"{protection}: {name} cannot be set to {text} ({seen})",
            hint="`atoll doctor` says what this host can enforce",
            protection=str(protection),
            file=name,
            value=text,
        )


def make(place: Place) -> None:
    """Make a cgroup directory.

    Raises:
        StateError: there is one already, or the one to make it in is gone.
    """
    try:
        os.mkdir(place.path, 0o755, dir_fd=place.fd)
    except FileExistsError as error:
        raise StateError(f"cgroup {place.path} exists already", hint="run `atoll reap`") from error
    except OSError as error:
        if error.errno not in GONE:
            raise
        raise StateError(f"cgroup {place.path} cannot be made: the one above it is gone") from error


def make_base(parent: str) -> None:
    """Make the directory that holds all sandboxes.

    Raises:
        DriverUnavailableError: it cannot be made.
    """
    try:
        with opened(parent) as above:
            with contextlib.suppress(FileExistsError):
                os.mkdir(BASE_NAME, 0o755, dir_fd=above.fd)
            if not os.access(BASE_NAME, os.W_OK, dir_fd=above.fd, effective_ids=True):
                raise PermissionError(errno.EACCES, "it cannot be written")
    except OSError as error:
        raise DriverUnavailableError(
            f"cannot make {parent}/{BASE_NAME}: {error.strerror}",
            hint="run as root; a container needs its cgroup mount writable, as with docker run --privileged",
        ) from error


@contextlib.contextmanager
def opened(path: str) -> Iterator[Place]:
    """A cgroup directory, while it is worked on."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield Place(fd)
    finally:
        os.close(fd)


def open_control(place: Place, name: str, text: str) -> JoinStep:
    """A control file, opened with our rights for a launcher to write `text` to."""
    return JoinStep(os.open(f"{place.path}/{name}", os.O_WRONLY, dir_fd=place.fd), text)


@contextlib.contextmanager
def closed_on_error() -> Iterator[list[JoinStep]]:
    """A list of steps to fill in, whose descriptors are closed if that fails."""
    steps: list[JoinStep] = []
    try:
        yield steps
    except BaseException:
        for step in steps:
            if step.fd is not None:
                os.close(step.fd)
        raise


def give(place: Place, uid: int, name: str) -> None:
    """Let `uid` move its own processes into a cgroup by the control file `name` (delegation in cgroups(7))."""
    os.chown(f"{place.path}/{name}", uid, uid, dir_fd=place.fd, follow_symlinks=False)


def procs(place: Place) -> list[int]:
    """The processes directly in a cgroup; none in one that was removed."""
    try:
        # Opened anew for each look: v1 makes the list once per open file.
        fd = os.open(f"{place.path}/cgroup.procs", os.O_RDONLY, dir_fd=place.fd)
        try:
            parts = []
            while part := os.read(fd, 1 << 16):
                parts.append(part)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in GONE:
            return []
        raise
    return [int(pid) for pid in b"".join(parts).split() if pid != b"0"]
