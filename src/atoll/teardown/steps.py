"""What a journal says: who owns a sandbox, and the host resources that it is about to make.

One JSON object per line; the first is the header. Written by `journal`, read back by `reaper`, carried out
backwards by `undo`. Anything that does not decode exactly is refused as a whole.
"""

import re
from typing import Final, Literal

import msgspec

from atoll.model.errors import StateError

VERSION: Final = 1
_NAME = re.compile(r"[a-z0-9_-]{1,64}")


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who made the sandbox. `pid` and `start_time` mean something in the boot `boot_id` only."""

    version: Literal[1]
    boot_id: str
    pid: int
    start_time: int
    """In clock ticks since boot (field 22 of proc_pid_stat(5))."""
    uid: int
    created: float
    """Seconds since 1970."""


class UidLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="step", tag="uid_lease"):
    """A uid range of `kernel.uids`."""

    base: int


class Cgroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="step", tag="cgroup"):
    """The cgroup directories of the sandbox and all below them."""

    paths: list[str]


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="step", tag="process"):
    """A process, recorded as soon as it has a number; before that its cgroup covers it."""

    pid: int
    start_time: int


class Directory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="step", tag="directory"):
    """A directory in the sandbox's own."""

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"directory name {self.name!r} is not made of a-z, 0-9, _ and -")


Step = UidLease | Cgroup | Process | Directory

_encoder = msgspec.json.Encoder()
_header = msgspec.json.Decoder(Header)
_step = msgspec.json.Decoder(Step)


def encode(entry: Header | Step) -> bytes:
    """One line of a journal."""
    return _encoder.encode(entry) + b"\n"


def decode(data: bytes) -> tuple[Header | None, list[Step]]:
    """The contents of a journal; no header when its first line was never completed.

    A last line without its newline is left out: the write was cut short, so what it announces was not begun.

    Raises:
        StateError: a complete line is not exactly what `encode` writes.
    """
    lines = data.split(b"\n")[:-1]
    try:
        return (_header.decode(lines[0]) if lines else None), [_step.decode(line) for line in lines[1:]]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateError(f"malformed journal: {error}") from error
