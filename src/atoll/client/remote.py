"""Sandboxes that other processes of this host own: find them by id or name, and end them.

There is no daemon to ask. A sandbox is ended by leaving a mark in its directory and killing its processes; its
owner then sees the channel close, finds the mark, and does the teardown itself. Called by `atoll ps` and
`atoll kill`.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from atoll.kernel.files import open_private_dir
from atoll.kernel.pidfd import Pidfd
from atoll.model.errors import InvalidSpecError, NotFoundError, TeardownError
from atoll.teardown.journal import QUOTA
from atoll.teardown.reaper import Listed, list_sandboxes, reap
from atoll.teardown.state import JOURNAL, KILL_MARK, SANDBOXES
from atoll.teardown.steps import Process, decode

KILL_TIMEOUT_S = 10.0
"""For the owner to notice and clean up."""
_POLL_S = 0.01


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox as seen from outside."""

    id: str
    name: str
    level: str
    template: str
    owner_pid: int
    alive: bool
    """Whether its owner runs; what a dead one left is the reaper's."""
    age_s: float


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """How one sandbox was ended."""

    id: str
    name: str
    outcome: Literal["killed", "reaped"]
    """reaped: its owner was dead already."""


def list_remote(state: Path) -> list[Remote]:
    """All sandboxes of this state directory, the oldest first."""
    return [_remote(found) for found in sorted(list_sandboxes(state), key=lambda found: found.created)]


def _remote(found: Listed) -> Remote:
    meta = found.meta
    return Remote(
        id=found.id,
        name=str(meta.get("name", "")),
        level=str(meta.get("level", "")),
        template=str(meta.get("template", "")),
        owner_pid=found.owner_pid,
        alive=found.alive,
        age_s=max(0.0, time.time() - found.created),
    )


def select(found: Sequence[Remote], words: Iterable[str]) -> list[Remote]:
    """The sandboxes meant by ids or names, each once.

    Raises:
        NotFoundError: there is none of that id or name.
        InvalidSpecError: several have that name.
    """
    chosen: dict[str, Remote] = {}
    for word in words:
        matches = [one for one in found if one.id == word] or [one for one in found if one.name == word]
        if not matches:
            raise NotFoundError(f"sandbox: no such id or name, got {word!r}", hint="`atoll ps` lists them", value=word)
        if len(matches) > 1:
            ids = ", ".join(one.id for one in matches)
            raise InvalidSpecError("sandbox", word, "the name of several", hint=f"use an id: {ids}")
        chosen[matches[0].id] = matches[0]
    return list(chosen.values())


def kill_remote(state: Path, chosen: Sequence[Remote], timeout_s: float = KILL_TIMEOUT_S) -> list[Killed]:
    """End sandboxes of other processes and wait until nothing of them is left.

    Raises:
        TeardownError: something is left after `timeout_s`; all were killed nevertheless.
    """
    sandboxes = open_private_dir(state / SANDBOXES)
    try:
        for one in chosen:
            _begin(sandboxes, one)
        deadline = time.monotonic() + timeout_s
        left = [one for one in chosen if not (one.alive and _gone(sandboxes, one, deadline))]
        reaped = {found.id: found for found in reap(state)} if left else {}
        left = [one for one in left if _exists(sandboxes, one.id)]
    finally:
        os.close(sandboxes)
    if left:
        why = [f"{one.id}: {reaped[one.id].detail if one.id in reaped else 'its owner is busy'}" for one in left]
        raise TeardownError(f"killed, but not wholly removed: {'; '.join(why)}", hint="try `atoll reap` later")
    return [Killed(id=one.id, name=one.name, outcome="reaped" if one.id in reaped else "killed") for one in chosen]


def _begin(sandboxes: int, one: Remote) -> None:
    """Mark a sandbox as killed and kill what runs of it; nothing to do when it has just gone."""
    with contextlib.suppress(FileNotFoundError):
        flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(f"{one.id}/{KILL_MARK}", flags, 0o600, dir_fd=sandboxes))
        _signal(sandboxes, one)


def _signal(sandboxes: int, one: Remote) -> None:
    """SIGKILL the processes in its journal: bubblewrap's monitor, without which PID 1 inside dies (prctl(2))."""
    fd = os.open(f"{one.id}/{JOURNAL}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=sandboxes)
    try:
        _, steps = decode(os.read(fd, QUOTA))
    finally:
        os.close(fd)
    for step in steps:
        if isinstance(step, Process) and one.alive:  # alive: in this boot, so pid and start time mean something
            with contextlib.suppress(ProcessLookupError), Pidfd.open(step.pid, step.start_time) as process:
                process.send(signal.SIGKILL)


def _gone(sandboxes: int, one: Remote, deadline: float) -> bool:
    """Whether its owner has removed it by `deadline`; one that was still starting is killed as soon as it runs."""
    while _exists(sandboxes, one.id):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
        with contextlib.suppress(FileNotFoundError):
            _signal(sandboxes, one)
    return True


def _exists(sandboxes: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=sandboxes, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
