"""Files of others, touched safely: private directories, locks that end with their process, deletion.

Used by `uids` and by the teardown, which delete what guests wrote and read what a crash left. Everything is
relative to a directory descriptor; no symbolic link is followed and no mount is crossed.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import stat
from pathlib import Path
from typing import Self

from atoll.model.errors import InvalidSpecError, StateError, TeardownError

_SYS_OPENAT2 = 437
_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_PASSES = 4
"""Times a directory is gone through when entries keep appearing in it."""
_SHOWN_PROBLEMS = 5

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    """struct open_how of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(parent_fd: int, name: str, flags: int) -> int:
    """Open `name` below a directory, following no link and crossing no mount (openat2(2), Linux 5.6).

    Raises:
        OSError: with EXDEV for a mount, ELOOP for a symbolic link.
    """
    resolve = _RESOLVE_NO_XDEV | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH
    how = _OpenHow(flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0, resolve)
    fd: int = _libc.syscall(_SYS_OPENAT2, parent_fd, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return fd


def remove_tree(parent_fd: int, name: str) -> None:
    """Remove `name` below `parent_fd` and everything in it; nothing is wrong when it is not there.

    Takes two descriptors and no recursion however deep the tree is: a directory found below the second level
    is first renamed up into the top one. Tolerates that others change the tree meanwhile.

    Raises:
        TeardownError: something could not be removed, for example because a file system is mounted on it.
    """
    if name in {"", ".", ".."} or "/" in name:
        raise TeardownError(f"not a file name: {name!r}")
    try:
        top = _open_directory(parent_fd, name)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise TeardownError(f"not removed: {name}: {_words(error)}") from error
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent_fd)
        return
    try:
        problems = _Remover(top).empty()
    finally:
        os.close(top)
    if not problems:
        try:
            os.rmdir(name, dir_fd=parent_fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            problems = [f"{name}: {_words(error)}"]
    if problems:
        more = f" and {len(problems) - _SHOWN_PROBLEMS} more" if len(problems) > _SHOWN_PROBLEMS else ""
        raise TeardownError(f"not removed: {'; '.join(problems[:_SHOWN_PROBLEMS])}{more}", problems=problems)


class _Remover:
    """Empties one directory."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._stem = secrets.token_hex(8)
        self._hoisted = 0
        self._pending: list[str] = []
        self._problems: list[str] = []

    def empty(self) -> list[str]:
        """Remove all entries; returns what stood in the way."""
        for _ in range(_PASSES):
            self._problems.clear()
            self._clear(self._top)
            if not self._pending:
                break
            while self._pending:
                self._remove_directory(self._pending.pop())
        else:
            self._problems = self._problems or ["entries keep appearing"]
        return self._problems

    def _remove_directory(self, name: str) -> None:
        try:
            fd = _open_directory(self._top, name)
            try:
                self._clear(fd)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=self._top)
        except OSError as error:
            # ENOTEMPTY and ENOTDIR: changed by others; the next pass sees it again.
            if error.errno not in {errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR, errno.ELOOP}:
                self._problem(name, error)

    def _clear(self, fd: int) -> None:
        """Unlink the files in directory `fd`; note its subdirectories as pending, renamed into the top one."""
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=fd)
                    elif fd == self._top:
                        self._pending.append(entry.name)
                    else:
                        self._hoist(fd, entry.name)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self._problem(entry.name, error)

    def _hoist(self, fd: int, name: str) -> None:
        self._hoisted += 1
        fresh = f"{self._stem}{self._hoisted}"
        try:
            os.rename(name, fresh, src_dir_fd=fd, dst_dir_fd=self._top)
        except PermissionError:
            # Moving a directory changes its `..`, so it must itself be writable (rename(2)).
            os.close(_open_directory(fd, name))
            os.rename(name, fresh, src_dir_fd=fd, dst_dir_fd=self._top)
        self._pending.append(fresh)

    def _problem(self, name: str, error: OSError) -> None:
        self._problems.append(f"{name}: {_words(error)}")


def _words(error: OSError) -> str:
    return "a file system is mounted on it" if error.errno in {errno.EXDEV, errno.EBUSY} else str(error.strerror)


def _open_directory(parent_fd: int, name: str) -> int:
    """Open a directory to empty it; one of ours that lacks the permission is given it first."""
    try:
        fd = open_beneath(parent_fd, name, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        fd = open_beneath(parent_fd, name, os.O_PATH | os.O_DIRECTORY)
        try:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)  # fchmod(2) refuses O_PATH descriptors
        finally:
            os.close(fd)
        return open_beneath(parent_fd, name, os.O_RDONLY | os.O_DIRECTORY)
    found = os.fstat(fd)
    if found.st_mode & stat.S_IRWXU != stat.S_IRWXU and found.st_uid == os.geteuid():
        os.fchmod(fd, stat.S_IRWXU)
    return fd


def open_private_dir(path: Path) -> int:
    """Open a directory that only we can read or change, making it and missing parents with mode 0700.

    No component may be a symbolic link, and none above it may be writable by others (sticky directories such
    as /tmp excepted), or they could put another directory in its place.

    Returns:
        A descriptor of it that the caller closes.

    Raises:
        InvalidSpecError: the path is not absolute.
        StateError: it, or a directory above it, belongs to or can be changed by somebody else.
    """
    if not path.is_absolute() or ".." in path.parts:
        raise InvalidSpecError("directory", str(path), "not an absolute path without '..'")
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    here = Path("/")
    try:
        for part in path.parts[1:]:
            _check_parent(fd, here)
            here /= part
            fd = _step_into(fd, part, here)
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise StateError(f"{path} is not private to uid {os.geteuid()}", hint=f"chown it and `chmod 700 {path}`")
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
    finally:
        os.close(fd)


def _check_parent(fd: int, here: Path) -> None:
    found = os.fstat(fd)
    writable = stat.S_IMODE(found.st_mode) & 0o022 and not found.st_mode & stat.S_ISVTX
    if found.st_uid not in {0, os.geteuid()} or writable:
        raise StateError(f"{here} can be changed by other users", hint=f"chmod go-w {here}, or use another directory")


def _step_into(fd: int, part: str, here: Path) -> int:
    """The directory `part` of `fd`, made if need be; closes `fd` when it succeeds."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        try:
            inner = os.open(part, flags, dir_fd=fd)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=fd)
            inner = os.open(part, flags, dir_fd=fd)
    except OSError as error:
        raise StateError(f"{here} is a link or not a directory, or cannot be made ({error.strerror})") from error
    os.close(fd)
    return inner


class LockedFile:
    """An open file held by flock(2) until it is closed or our process ends.

    The lock belongs to the open file, which fork(2) shares with the child; so a forked child drops its copy
    at once, or it would keep the lock beyond our death.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _held.add(self)  # so that it is not forgotten, and leaks into children, when its holder is

    @classmethod
    def open(cls, name: str, flags: int, *, dir_fd: int, mode: int = 0o600) -> Self | None:
        """Open and lock `name` in a directory; None when somebody else holds the lock.

        Raises:
            OSError: it cannot be opened.
        """
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode, dir_fd=dir_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return cls(fd)

    def close(self) -> None:
        """Release the lock; safe to call again."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            _held.discard(self)
            os.close(fd)


_held: set[LockedFile] = set()


def _drop_in_child() -> None:
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_drop_in_child)
