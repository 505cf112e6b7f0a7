"""Writes the initial RAM disk of the test machine: a newc cpio archive, as the kernel unpacks it at boot.

The format is described in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst. Written by hand so
that neither cpio nor root (for the device node) is needed. Called by machine.py only; knows nothing about QEMU.
"""

import stat
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One file, directory or device node; ``mode`` holds the type bits, ``device`` is (major, minor)."""

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def directory(name: str) -> Entry:
    """An empty directory."""
    return Entry(name, stat.S_IFDIR | 0o755)


def file(name: str, data: bytes, mode: int = 0o644) -> Entry:
    """A regular file."""
    return Entry(name, stat.S_IFREG | mode, data)


def character_device(name: str, major: int, minor: int) -> Entry:
    """A character device node."""
    return Entry(name, stat.S_IFCHR | 0o600, device=(major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive; parents must come before what lies in them."""
    records = [_record(number, entry) for number, entry in enumerate(entries, start=1)]
    return b"".join([*records, _record(0, Entry("TRAILER!!!", 0))])


def _record(inode: int, entry: Entry) -> bytes:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(entry.data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
