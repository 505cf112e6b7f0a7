"""Uid ranges for sandboxes: 65,536 ids each, shared with nothing else on the host.

Ranges come from 0x70000000 up, which systemd's table of uids (UIDS-GIDS) leaves unused. Processes lease them in
blocks, by a lock (flock(2)) on a file below /run/atoll that the kernel releases when the process ends; a block
is granted only when no account, subordinate id, user namespace, process, IPC object or key uses it. Called by
the lifecycle (lease) and the journal's undo (release). Files are not looked for: what a guest writes lives in
file systems that end with its sandbox, and workspaces are mapped to their owner's id.
"""

import json
import os
import secrets
import threading
import weakref
from collections import deque
from functools import cache
from pathlib import Path

from atoll.kernel.files import LockedFile, open_private_dir
from atoll.kernel.pidfd import boot_id, start_time
from atoll.kernel.uidclaims import SOURCES, Sources, leftovers, live_claims, maps_all, static_claims
from atoll.model.errors import CapacityError, PolicyUnenforceableError
from atoll.model.protection import Protection

RANGE = 65536
"""Ids of one sandbox."""
FIRST = 0x7000_0000
END = 0x7FFE_0000
"""First id beyond ours; systemd documents those from here on as taken."""
BLOCK = 16 * RANGE
"""Ids that a process leases at once: looking through /proc takes milliseconds, which 16 sandboxes share."""
DIRECTORY_END = 2_000_200_000
"""End of the ids that SSSD and FreeIPA hand out by default (ldap_idmap_range_max); later blocks come first."""
DIRECTORY = Path("/run/atoll/uids")


class UidPool:
    """The ranges this process leases; thread-safe. A forked child starts with none.

    Args:
        directory: of the lease files, shared by all processes of the host; private to root.
        sources: where used ids are looked up.
    """

    def __init__(self, directory: Path = DIRECTORY, sources: Sources = SOURCES) -> None:
        self._directory = directory
        self._sources = sources
        self._forget()
        _pools.add(self)

    def _forget(self) -> None:
        self._mutex = threading.Lock()
        self._blocks: list[LockedFile] = []
        self._leased: set[int] = set()
        self._free: deque[int] = deque()

    def lease(self) -> int:
        """The first id of a range that nobody else has until it is released or this process ends.

        Raises:
            CapacityError: every range is in use.
            PolicyUnenforceableError: our own user namespace has no such ids.
            StateError: the lease directory can be changed by others.
        """
        with self._mutex:
            base = self._take()
            if base is None:
                self._lease_block()
                base = self._take()
            if base is None:
                raise CapacityError("no uid range is free", hint="end some sandboxes")
            self._leased.add(base)
            return base

    def release(self, base: int) -> None:
        """Give back a range whose sandbox is gone; nothing happens if this process does not lease it."""
        with self._mutex:
            if base in self._leased:
                self._leased.remove(base)
                self._free.append(base)

    def close(self) -> None:
        """Give back everything."""
        with self._mutex:
            for block in self._blocks:
                block.close()
            self._blocks.clear()
            self._leased.clear()
            self._free.clear()

    def _take(self) -> int | None:
        """The free range unused for longest; one with an IPC object or key left stays in quarantine."""
        used = [number for number, _ in leftovers(self._sources)]
        for _ in range(len(self._free)):
            base = self._free.popleft()
            if not any(base <= number < base + RANGE for number in used):
                return base
            self._free.append(base)
        return None

    def _lease_block(self) -> None:
        if not maps_all(self._sources, FIRST, END - FIRST):
            raise PolicyUnenforceableError(
                f"uid_range: the user namespace of this process lacks the ids {FIRST} to {END - 1}",
                hint="run as root of the host, or without root, where one uid is used",
                protection=str(Protection.UID_RANGE),
            )
        given_away = static_claims(self._sources)
        directory = open_private_dir(self._directory)
        try:
            for first in _blocks():
                if any(claim.meets(first, BLOCK) for claim in given_away):
                    continue
                block = LockedFile.open(f"{first:x}", os.O_RDWR | os.O_CREAT, dir_fd=directory)
                if block is None:
                    continue
                # Only now: the last holder's processes may outlive it, and none can be added any more.
                if any(claim.meets(first, BLOCK) for claim in live_claims(self._sources)):
                    block.close()
                    continue
                _sign(block.fd)
                self._blocks.append(block)
                self._free.extend(range(first, first + BLOCK, RANGE))
                return
        finally:
            os.close(directory)


def _blocks() -> list[int]:
    """First ids of all blocks, in an order that seldom takes one that was in use a moment ago."""
    found = list(range(FIRST, END - BLOCK + 1, BLOCK))
    secrets.SystemRandom().shuffle(found)
    return sorted(found, key=lambda first: first < DIRECTORY_END)


def _sign(fd: int) -> None:
    """Write down who holds a lease, for people who look; the lock itself is what counts."""
    owner = {"pid": os.getpid(), "start_time": start_time(os.getpid()), "boot_id": boot_id()}
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(owner).encode(), 0)


@cache
def pool() -> UidPool:
    """The pool of this process."""
    return UidPool()


_pools: "weakref.WeakSet[UidPool]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for each in list(_pools):
        each._forget()  # noqa: SLF001 - the lock files themselves were dropped by `LockedFile`


os.register_at_fork(after_in_child=_forget_in_child)
