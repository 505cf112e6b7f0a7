"""Clean up after owners that died: find their journals and undo them; list the sandboxes there are.

Called by `atoll reap`, at every start, and by `atoll ps`. Trusts nothing stale: a journal must be ours alone,
well-formed and about our own kinds of things, its owner dead by pid, start time and boot id and its lock free.
What does not pass is reported and left untouched.
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from atoll.kernel.files import LockedFile, open_private_dir
from atoll.kernel.pidfd import boot_id, is_alive
from atoll.model.errors import AtollError, InvalidSpecError, StateError
from atoll.model.names import check_id
from atoll.teardown.journal import QUOTA
from atoll.teardown.state import JOURNAL, META, SANDBOXES
from atoll.teardown.steps import Header, Step, decode
from atoll.teardown.undo import check, undo

NEWBORN_S = 10.0
"""Age up to which a directory without a header may just be being made."""


class Reaped(msgspec.Struct, frozen=True, kw_only=True):
    """What was done about one dead sandbox."""

    id: str
    outcome: Literal["removed", "refused", "failed"]
    """refused: it is not to be trusted, nothing was touched; failed: something is left, try again."""
    detail: str = ""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox, for `atoll ps`."""

    id: str
    owner_pid: int
    alive: bool
    """Whether its owner runs."""
    created: float
    """Seconds since 1970."""
    meta: dict[str, Any] = {}
    """What the owner wrote into meta.json."""


def reap(state: Path) -> list[Reaped]:
    """Remove every sandbox whose owner is dead; several reapers may run at once.

    Raises:
        StateError: the state directory can be changed by others.
    """
    found: list[Reaped] = []
    with _sandboxes(state) as sandboxes:
        for name in sorted(os.listdir(sandboxes)):
            try:
                check_id(name)
                if _reap_one(sandboxes, name):
                    found.append(Reaped(id=name, outcome="removed"))
            except FileNotFoundError:
                continue  # another reaper, or its owner, was faster
            except (StateError, InvalidSpecError) as error:
                found.append(Reaped(id=name, outcome="refused", detail=str(error)))
            except (AtollError, OSError) as error:
                found.append(Reaped(id=name, outcome="failed", detail=str(error)))
    return found


def list_sandboxes(state: Path) -> list[Listed]:
    """All sandboxes, the dead ones that await the reaper included; what cannot be trusted is left out.

    Raises:
        StateError: the state directory can be changed by others.
    """
    found: list[Listed] = []
    with _sandboxes(state) as sandboxes:
        for name in sorted(os.listdir(sandboxes)):
            with contextlib.suppress(AtollError, OSError):
                check_id(name)
                header, _ = decode(_read(sandboxes, f"{name}/{JOURNAL}"))
                if header is not None:
                    found.append(
                        Listed(
                            id=name,
                            owner_pid=header.pid,
                            alive=_lives(header),
                            created=header.created,
                            meta=_meta(sandboxes, name),
                        )
                    )
    return found


@contextlib.contextmanager
def _sandboxes(state: Path) -> Iterator[int]:
    fd = open_private_dir(state / SANDBOXES)
    try:
        yield fd
    finally:
        os.close(fd)


def _reap_one(sandboxes: int, name: str) -> bool:
    """Remove one sandbox; False when it is alive, being made, or somebody else's to remove.

    Raises:
        StateError: it is not to be trusted.
        TeardownError: something of it is left.
    """
    age = time.time() - _check_private(os.stat(name, dir_fd=sandboxes, follow_symlinks=False), stat.S_IFDIR).st_mtime
    try:
        lock = LockedFile.open(f"{name}/{JOURNAL}", os.O_RDONLY, dir_fd=sandboxes)
    except FileNotFoundError:
        # Its owner died between making the directory and the journal, or removing them.
        if age > NEWBORN_S:
            undo(name, [], sandboxes)
        return age > NEWBORN_S
    if lock is None:
        return False
    try:
        header, steps = _trusted(lock.fd, name)
        dead = age > NEWBORN_S if header is None else not _lives(header)
        if not dead or not os.fstat(lock.fd).st_nlink:
            return False
        undo(name, steps, sandboxes, same_boot=_of_this_boot(header))
    finally:
        lock.close()
    return True


def _trusted(fd: int, name: str) -> tuple[Header | None, list[Step]]:
    """The contents of a journal that passes every check."""
    _check_private(os.fstat(fd), stat.S_IFREG)
    header, steps = decode(_read_all(fd))
    if header is not None and header.uid != os.geteuid():
        raise StateError(f"the journal is of uid {header.uid}")
    if _of_this_boot(header):
        check(name, steps)  # in another boot other cgroups may have been mounted, and none of them is touched
    return header, steps


def _check_private(found: os.stat_result, kind: int) -> os.stat_result:
    """Refuse what is no plain file or directory, or what others could have written."""
    if stat.S_IFMT(found.st_mode) != kind:
        raise StateError("it is a link or another kind of file than ours")
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise StateError(f"it belongs to uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}")
    return found


def _of_this_boot(header: Header | None) -> bool:
    return header is not None and header.boot_id == boot_id()


def _lives(header: Header) -> bool:
    return _of_this_boot(header) and is_alive(header.pid, header.start_time)


def _read(directory: int, path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    try:
        _check_private(os.fstat(fd), stat.S_IFREG)
        return _read_all(fd)
    finally:
        os.close(fd)


def _read_all(fd: int) -> bytes:
    """A file that is no longer than a journal can be."""
    data = b""
    while len(data) <= QUOTA:
        part = os.read(fd, QUOTA + 1 - len(data))
        if not part:
            return data
        data += part
    raise StateError(f"it is longer than {QUOTA} bytes")


def _meta(sandboxes: int, name: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_read(sandboxes, f"{name}/{META}"), type=dict[str, Any])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
