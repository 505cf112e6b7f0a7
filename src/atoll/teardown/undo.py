"""Undo what a sandbox's journal says it made: the one teardown, after a normal end and after a crash alike.

Called by `Journal.undo_all` and by the reaper. Idempotent and bounded: everything may be gone already, and a
failure in one place does not keep the rest from being undone.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence

from atoll.kernel import cgroup
from atoll.kernel.files import remove_tree
from atoll.kernel.pidfd import Pidfd
from atoll.model.errors import AtollError, TeardownError
from atoll.teardown.state import JOURNAL
from atoll.teardown.steps import Cgroup, Directory, Process, Step, UidLease

PROCESS_TIMEOUT_S = 5.0
"""From SIGKILL to the end of a process; more means uninterruptible sleep."""


def check(sandbox_id: str, steps: Sequence[Step]) -> None:
    """Refuse steps that no sandbox of this name records.

    Raises:
        StateError: a cgroup path is not below a directory of ours, or not this sandbox's.
    """
    for step in steps:
        if isinstance(step, Cgroup):
            cgroup.check_paths(step.paths, sandbox_id)


def undo(
    sandbox_id: str,
    steps: Sequence[Step],
    sandboxes: int,
    *,
    same_boot: bool = True,
    release_uids: Callable[[int], None] | None = None,
) -> None:
    """Undo `steps` backwards, then remove the sandbox's directory, the journal last.

    Args:
        sandbox_id: names the directory and the cgroups.
        steps: as they were recorded.
        sandboxes: descriptor of the directory of all sandboxes.
        same_boot: False leaves out processes and cgroups, which the reboot ended; others may have their numbers
            and names now.
        release_uids: gives back a uid range, once nothing that may use it is left. Only for the owner: a dead
            owner's leases ended with it, and the caller may have been granted the same range since.

    Raises:
        TeardownError: listing all that could not be undone; the journal is kept.
    """
    failures: list[str] = []
    with _opened(sandboxes, sandbox_id) as directory:
        for step in reversed(steps):
            if same_boot or isinstance(step, Directory):
                try:
                    _undo_step(step, sandbox_id, directory)
                except (AtollError, OSError) as error:
                    failures.append(str(error))
        if directory is not None and not failures:
            failures = _remove(directory, sandbox_id, sandboxes)
    if failures:
        raise TeardownError(
            f"sandbox {sandbox_id} is not wholly removed: {'; '.join(failures)}",
            hint="`atoll reap` tries again",
            failures=failures,
        )
    for step in steps:
        if isinstance(step, UidLease) and release_uids is not None:
            release_uids(step.base)


def _undo_step(step: Step, sandbox_id: str, directory: int | None) -> None:
    match step:
        case Process(pid, started):
            _end(pid, started)
        case Cgroup(paths):
            cgroup.destroy(paths, sandbox_id)
        case Directory(name) if directory is not None:
            remove_tree(directory, name)
        case _:
            pass  # a lease is given back last, when nothing is left that may use it


@contextlib.contextmanager
def _opened(sandboxes: int, sandbox_id: str) -> Iterator[int | None]:
    """The sandbox's directory; None if it is gone."""
    try:
        fd = os.open(sandbox_id, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=sandboxes)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _end(pid: int, started: int) -> None:
    with contextlib.suppress(ProcessLookupError), Pidfd.open(pid, started) as process:
        process.send(signal.SIGKILL)
        if not process.wait(PROCESS_TIMEOUT_S):
            raise TeardownError(f"process {pid} did not die within {PROCESS_TIMEOUT_S:g} s")


def _remove(directory: int, sandbox_id: str, sandboxes: int) -> list[str]:
    """Remove the sandbox's directory, the journal last; returns what stood in the way."""
    failures = []
    for name in os.listdir(directory):
        if name != JOURNAL:
            try:
                remove_tree(directory, name)
            except TeardownError as error:
                failures.append(str(error))
    if failures:
        return failures
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(JOURNAL, dir_fd=directory)
        os.rmdir(sandbox_id, dir_fd=sandboxes)
    except OSError as error:
        return [f"{sandbox_id}: {error.strerror}"]
    return []
