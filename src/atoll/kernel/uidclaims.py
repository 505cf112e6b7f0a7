"""Who on this host already uses which user and group ids, as far as the kernel and /etc can tell.

Called by `uids` before a range is granted (`static_claims`, `live_claims`) and again, cheaply, before it is
reused (`leftovers`). Reads only. Users that exist in a directory service alone (LDAP, SSSD) cannot be listed.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL})
"""Opening a file of /proc/PID of a process that has just ended; its id maps say EINVAL."""


class Claim(NamedTuple):
    """Ids in use."""

    first: int
    size: int
    what: str

    def meets(self, first: int, size: int) -> bool:
        """Whether one of the ids `first` .. `first + size - 1` is claimed."""
        return self.first < first + size and first < self.first + self.size


class Sources(NamedTuple):
    """Where to look."""

    subuid: str = "/etc/subuid"
    subgid: str = "/etc/subgid"
    passwd: str = "/etc/passwd"
    group: str = "/etc/group"
    proc: str = "/proc"


SOURCES = Sources()


def static_claims(sources: Sources) -> list[Claim]:
    """Ids that the administration has given away: subuid(5), subgid(5), passwd(5), group(5)."""
    found = []
    for path in (sources.subuid, sources.subgid):
        for fields in _table(path):
            found += [Claim(int(first), int(size), f"{path} of {fields[0]}") for first, size in _numbers(fields[1:3])]
    for fields in _table(sources.passwd):
        found += [Claim(int(number), 1, f"user {fields[0]}") for number in fields[2:4] if number.isdigit()]
    for fields in _table(sources.group):
        found += [Claim(int(number), 1, f"group {fields[0]}") for number in fields[2:3] if number.isdigit()]
    return found


def live_claims(sources: Sources) -> list[Claim]:
    """Ids mapped in a live user namespace, held by a process, or left behind by one."""
    found = [Claim(number, 1, what) for number, what in leftovers(sources)]
    seen = {"", *_own_maps(sources)}
    for name in os.listdir(sources.proc):
        if name.isdigit():
            process = f"{sources.proc}/{name}"
            found += _maps(process, seen)
            found += [Claim(number, 1, process) for number in _credentials(process)]
    return found


def leftovers(sources: Sources) -> Iterator[tuple[int, str]]:
    """Ids of System V IPC objects (proc_sysvipc(5)) and of keys (proc_key_users(5)), with what they are."""
    for name in ("msg", "sem", "shm"):
        header, *rows = [line.split() for line in _read(f"{sources.proc}/sysvipc/{name}").splitlines()] or [[]]
        for row in rows:
            for column in ("uid", "gid", "cuid", "cgid"):
                yield int(row[header.index(column)]), f"IPC object in {name}"
    for line in _read(f"{sources.proc}/key-users").splitlines():
        yield int(line.split(":")[0]), "key"


def maps_all(sources: Sources, first: int, size: int) -> bool:
    """Whether our own user namespace has all these ids, both as users and as groups (user_namespaces(7))."""
    return all(
        any(inside <= first and first + size <= inside + extent for inside, _, extent in _rows(text))
        for text in _own_maps(sources)
    )


def _own_maps(sources: Sources) -> list[str]:
    return [_read(f"{sources.proc}/self/{name}") for name in ("uid_map", "gid_map")]


def _maps(process: str, seen: set[str]) -> Iterator[Claim]:
    """The ids that a process's user namespace takes, as numbered in ours; most processes share a few."""
    for name in ("uid_map", "gid_map"):
        text = _read(f"{process}/{name}")
        if text in seen:
            continue
        seen.add(text)
        for inside, outside, size in _rows(text):
            if inside != outside:  # an identity map gives no ids away, it only keeps what the process has
                yield Claim(outside, size, f"user namespace of {process}")


def _rows(text: str) -> Iterator[tuple[int, int, int]]:
    for line in text.splitlines():
        inside, outside, size = map(int, line.split())
        yield inside, outside, size


def _credentials(process: str) -> set[int]:
    """All user and group ids of a process (proc_pid_status(5))."""
    found: set[int] = set()
    for line in _read(f"{process}/status").splitlines():
        if line.startswith(("Uid:", "Gid:", "Groups:")):
            found.update(map(int, line.split()[1:]))
    return found


def _numbers(fields: list[str]) -> Iterable[tuple[str, str]]:
    """A pair of numbers, unless a line is malformed."""
    return [(fields[0], fields[1])] if len(fields) == 2 and all(field.isdigit() for field in fields) else []  # noqa: PLR2004


def _table(path: str) -> list[list[str]]:
    return [line.split(":") for line in _read(path).splitlines() if not line.startswith("#")]


def _read(path: str) -> str:
    """Text of a file; empty when it is not there, or its process has ended."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno in _GONE:
            return ""
        raise
    parts = []
    try:
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    except ProcessLookupError:
        return ""
    finally:
        os.close(fd)
    return b"".join(parts).decode(errors="replace")
