"""The undo journal of one sandbox: every host resource is written down before it is made.

Made by the lifecycle, which undoes it at the end; when the owner dies before that, the reaper reads it and
does the same. It survives the death of the process, not a loss of power (nothing is synced), after which
nothing but files is left anyway. Locked by the owner for life (flock(2)).
"""

import os
import threading
import time
from pathlib import Path
from typing import Self

from atoll.kernel import uids
from atoll.kernel.files import LockedFile, open_private_dir
from atoll.kernel.pidfd import boot_id, start_time
from atoll.model.errors import StateError
from atoll.model.names import check_id
from atoll.teardown.state import JOURNAL, SANDBOXES
from atoll.teardown.steps import VERSION, Cgroup, Directory, Header, Process, Step, UidLease, encode
from atoll.teardown.undo import undo

__all__ = ["Cgroup", "Directory", "Journal", "Process", "Step", "UidLease"]

QUOTA = 64 << 10
"""Bytes of one journal."""


class Journal:
    """The journal of one sandbox that this process owns."""

    def __init__(self, state: Path, sandbox_id: str, lock: LockedFile) -> None:
        self.sandbox_id = sandbox_id
        self.directory = state / SANDBOXES / sandbox_id
        self._state = state
        self._lock = lock
        self._owner = os.getpid()
        self._mutex = threading.Lock()
        self._size = 0
        self._steps: list[Step] = []

    @classmethod
    def create(cls, state: Path, sandbox_id: str) -> Self:
        """Make the sandbox's directory, private, and the journal in it.

        Args:
            state: the state directory.
            sandbox_id: not in use.

        Raises:
            InvalidSpecError: no sandbox can have this id.
            StateError: there is such a sandbox, or the state directory is not safe.
        """
        check_id(sandbox_id)
        sandboxes = open_private_dir(state / SANDBOXES)
        try:
            os.mkdir(sandbox_id, 0o700, dir_fd=sandboxes)
            # From here on a reaper may look at it; it leaves young and locked directories alone.
            name = f"{sandbox_id}/{JOURNAL}"
            flags = os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY
            lock = LockedFile.open(name, flags, dir_fd=sandboxes)
        except FileExistsError as error:
            raise StateError(f"there is a sandbox {sandbox_id} already") from error
        except FileNotFoundError as error:
            raise StateError(f"the directory of sandbox {sandbox_id} was removed while it was made") from error
        finally:
            os.close(sandboxes)
        if lock is None:
            raise StateError(f"the journal of sandbox {sandbox_id} was locked while it was made")
        journal = cls(state, sandbox_id, lock)
        header = Header(
            version=VERSION,
            boot_id=boot_id(),
            pid=os.getpid(),
            start_time=start_time(os.getpid()),
            uid=os.geteuid(),
            created=time.time(),
        )
        try:
            journal._append(encode(header))
        except StateError:
            journal.undo_all()
            raise
        return journal

    def record(self, step: Step) -> None:
        """Write down a resource; make it only once this has returned.

        Raises:
            StateError: the journal is full, cannot be written or belongs to another process; make nothing.
        """
        with self._mutex:
            self._append(encode(step))
            self._steps.append(step)

    def undo_all(self) -> None:
        """Undo everything recorded, backwards, and remove the sandbox's directory.

        Safe to repeat, also after a failure.

        Raises:
            StateError: called in a forked child, which owns nothing.
            TeardownError: something could not be undone; the rest was, and the journal keeps it for the reaper.
        """
        self._check_owner()
        with self._mutex:
            if self._lock.fd < 0:
                return
            sandboxes = open_private_dir(self._state / SANDBOXES)
            try:
                undo(self.sandbox_id, self._steps, sandboxes, release_uids=uids.pool().release)
            finally:
                os.close(sandboxes)
            self._lock.close()

    def _append(self, line: bytes) -> None:
        """One write(2), whole or not at all."""
        self._check_owner()
        if self._size + len(line) > QUOTA:
            raise StateError(f"the journal of sandbox {self.sandbox_id} is full ({QUOTA} bytes)")
        try:
            written = os.write(self._lock.fd, line)
            if written != len(line):
                os.ftruncate(self._lock.fd, self._size)
        except OSError as error:
            raise StateError(f"the journal of sandbox {self.sandbox_id}: {error.strerror}") from error
        if written != len(line):
            raise StateError(f"the journal of sandbox {self.sandbox_id}: no space left on the device")
        self._size += len(line)

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise StateError(f"the journal of sandbox {self.sandbox_id} belongs to process {self._owner}")
