"""Whole cgroups: who is in them, killing everything, removing them. The same for v1 and v2.

Base of the sandboxes and leaves of `cgroup1` and `cgroup2`. Never signals by pid: a process is killed through
a pidfd after its membership was seen with the descriptor held.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence

from atoll.kernel.cgroupfs import GONE, Place, exists, make, opened, procs, write
from atoll.kernel.pidfd import Pidfd
from atoll.model.errors import TeardownError

KILL_TIMEOUT_S = 10.0
REMOVE_TIMEOUT_S = 2.0
_KILL_BATCH = 64
_EXIT_WAIT_S = 0.02
_LINKS_OF_CHILDLESS = 2
"""kernfs counts `.`, `..` and one link for each directory below."""


class Directories:
    """Descriptors of the cgroup directories of one sandbox.

    They are closed when nothing refers to this object any more, not at some moment before: a thread that still
    used a number would reach whatever file had been opened under it since.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        """Open those of the `paths` that exist."""
        self.places: list[Place] = []
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.places.append(Place(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)))

    def __del__(self) -> None:
        for place in self.places:
            os.close(place.fd)


class Group:
    """A cgroup and those below it: one directory in each hierarchy."""

    def __init__(self, name: str, directories: Directories, places: Sequence[Place]) -> None:
        """Refer to existing directories; `places` are relative to `directories`, which stay open with this."""
        self.name = name
        self._directories = directories
        self._places = places

    def pids(self) -> set[int]:
        """The processes in it."""
        return members(self._places)

    def populated(self) -> bool:
        """Whether a process is left in it."""
        return bool(self.pids())

    def kill(self, timeout_s: float = KILL_TIMEOUT_S) -> None:
        """SIGKILL everything in it, also what is being forked, and wait until it is empty.

        It can hold no process afterwards than one that is moved into it; remove it next.

        Raises:
            TeardownError: something still runs after `timeout_s`.
        """
        kill(self._places, timeout_s)


class LeafGroup(Group):
    """The cgroup of one command."""

    def remove(self) -> bool:
        """Remove it; whether it is gone. False while processes are left in it."""
        left = [place for place in self._places if not remove(place)]
        return not left


def make_paths(paths: Sequence[str]) -> None:
    """Make the directories of a sandbox, all or none.

    Raises:
        StateError: one exists already.
    """
    for number, path in enumerate(paths):
        parent, _, name = path.rpartition("/")
        try:
            with opened(parent) as above:
                make(Place(above.fd, name))
        except BaseException:
            remove_paths(paths[:number])
            raise


def remove_paths(paths: Iterable[str], timeout_s: float = REMOVE_TIMEOUT_S) -> None:
    """Remove cgroups and those below them; nothing is wrong with one that is gone.

    Raises:
        TeardownError: one is still in use after `timeout_s`.
    """
    for path in paths:
        parent, _, name = path.rpartition("/")
        with contextlib.suppress(FileNotFoundError), opened(parent) as above:
            if not remove(Place(above.fd, name), timeout_s):
                raise TeardownError(f"cgroup {path} is still in use")


def members(places: Iterable[Place]) -> set[int]:
    """The processes in these cgroups and all below them; removed cgroups have none."""
    found: set[int] = set()
    for place in places:
        for inner in _tree(place):
            found.update(procs(inner))
    return found


def _tree(place: Place) -> Iterator[Place]:
    """The place and the cgroups below it, parents first."""
    yield place
    for child in _children(place):
        yield from _tree(child)


def _children(place: Place) -> list[Place]:
    try:
        if os.stat(place.path, dir_fd=place.fd).st_nlink == _LINKS_OF_CHILDLESS:
            return []
        fd = os.open(place.path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=place.fd)
    except OSError as error:
        if error.errno in GONE:
            return []
        raise
    try:
        with os.scandir(fd) as entries:
            return [Place(place.fd, f"{place.path}/{entry.name}") for entry in entries if entry.is_dir()]
    finally:
        os.close(fd)


def kill(places: Sequence[Place], timeout_s: float) -> None:
    """SIGKILL every process in these cgroups and below them, until none is left.

    Linux 5.14 does it at once on v2 (cgroup.kill). Otherwise the process limit is set to 0 first, so that
    nothing can fork any more; what a fork already under way adds is found by looking again.

    Raises:
        TeardownError: some still run after `timeout_s`, for example in uninterruptible sleep.
    """
    deadline = time.monotonic() + timeout_s
    if os.getpid() in members(places):
        raise TeardownError("refused to kill a cgroup that this process itself is in")
    by_hand = [place for place in places if not _try_write(place, "cgroup.kill", "1")]
    for place in by_hand:
        _try_write(place, "pids.max", "0")
    pause = 0.0002
    while left := members(places):
        if by_hand:
            _signal(left, places)
        if time.monotonic() > deadline:
            raise TeardownError(f"processes {sorted(left)[:10]} did not die within {timeout_s:g} s", pids=sorted(left))
        time.sleep(pause)
        pause = min(pause * 2, 0.01)


def _try_write(place: Place, name: str, text: str) -> bool:
    """Write a control file that this cgroup may not have."""
    try:
        write(place, name, text)
    except OSError as error:
        if error.errno not in GONE:
            raise
        # A cgroup that is gone needs no killing; one that is there but lacks the file does.
        return not exists(place, "cgroup.procs")
    return True


def _signal(pids: Collection[int], places: Sequence[Place]) -> None:
    """SIGKILL each process that is (still) in one of the cgroups, and give it a moment to end.

    The membership is read again *after* the pidfd was opened: a pid that was reused by an outsider before is
    then no longer listed, and one reused later is not what the descriptor refers to.
    """
    queue = sorted(pids)
    while queue:
        batch, queue = queue[:_KILL_BATCH], queue[_KILL_BATCH:]
        with contextlib.ExitStack() as opened:
            processes = []
            for pid in batch:
                with contextlib.suppress(ProcessLookupError):
                    processes.append(opened.enter_context(Pidfd.open(pid)))
            still = members(places)
            # Stopped first: a shell whose child dies before it would go on to its next command.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in processes:
                    if process.pid in still:
                        with contextlib.suppress(ProcessLookupError):
                            process.send(number)
            deadline = time.monotonic() + _EXIT_WAIT_S
            for process in processes:
                process.wait(deadline - time.monotonic())


def remove(place: Place, timeout_s: float = 0.0) -> bool:
    """Remove a cgroup and those below it; whether it is gone. Tries again for `timeout_s` while it is busy.

    Raises:
        OSError: other than busy.
    """
    deadline = time.monotonic() + timeout_s
    pause = 0.0005
    while not _rmdir(place):
        for child in _children(place):
            remove(child)
        if _rmdir(place):
            break
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True


def _rmdir(place: Place) -> bool:
    try:
        os.rmdir(place.path, dir_fd=place.fd)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.EBUSY:  # processes are in it, or just left it (cgroups(7))
            return False
        raise
    return True
