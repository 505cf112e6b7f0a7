"""How much a sandbox may use, and how sizes and durations are written by people.

Frozen values without I/O. `plan` checks them against the host; `kernel.cgroup` writes them. Every field
names the kernel knob that enforces it.
"""

import re

import msgspec

from atoll.model.errors import InvalidSpecError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MIN_MEMORY = 16 * MIB
MAX_MEMORY = 1 << 50
MAX_PIDS = 4 << 20
MAX_OPEN_FILES = 1 << 20
MAX_CPUS = 4096
MAX_INODES = 1 << 30
MAX_SECONDS = 1e9

_WHOLE = frozenset({"memory_bytes", "pids_max", "disk_bytes", "disk_inodes", "open_files", "output_bytes"})

_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_DURATION = re.compile(r"\s*(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)?\s*", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(field: str, text: str | int) -> int:
    """Bytes meant by `text`: 512M, 1.5GiB, 4096 (units are powers of 1024).

    Raises:
        InvalidSpecError: naming `field` when it is no such size.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidSpecError(field, text, "not a size", hint="write it like 512M, 1.5G or a number of bytes")
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()])


def parse_duration(field: str, text: str | float) -> float:
    """Seconds meant by `text`: 30s, 500ms, 2m, 1.5h, or a plain number of seconds.

    Raises:
        InvalidSpecError: naming `field` when it is no such duration.
    """
    if type(text) in (int, float) and 0 <= text <= MAX_SECONDS:  # type: ignore[operator]
        return float(text)
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidSpecError(field, text, "not a duration", hint="write it like 30s, 500ms, 2m or 1h")
    return float(match[1]) * _DURATION_UNITS[(match[2] or "s").lower()]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hard limits of one sandbox; the defaults suit a small job.

    Raises:
        InvalidSpecError: from `validate`, naming the field, the value and the fix.
    """

    cpus: float = 1.0
    """CPU bandwidth in cores (cpu.max; v1 cpu.cfs_quota_us)."""
    memory_bytes: int = 512 * MIB
    """Everything the sandbox holds in RAM, its writable layer included (memory.max; v1 memory.limit_in_bytes)."""
    pids_max: int = 256
    """Processes and threads, the agent included (pids.max). One command may have all but a sixteenth of them, so
    that what a fork storm leaves behind does not keep the next command from starting."""
    disk_bytes: int = 0
    """Writable layer: /, /tmp, /home, /workspace changes and /dev/shm together (tmpfs size=). 0 means a
    quarter of `memory_bytes`; at most half of it, so that a full disk is ENOSPC and never an OOM kill."""
    disk_inodes: int = 0
    """Files in the writable layer (tmpfs nr_inodes=); 0 means one per 8 KiB of `disk_bytes`."""
    open_files: int = 1024
    """Per process (RLIMIT_NOFILE)."""
    output_bytes: int = GIB
    """stdout + stderr of one process that the host keeps on disk; more ends it with reason output_limit."""
    wall_time_s: float | None = None
    """Life of the whole sandbox in seconds; None is unlimited."""
    idle_time_s: float | None = None
    """The sandbox ends after so many seconds without a running process; None is never."""

    def validate(self) -> "Limits":
        """Check ranges that need no host; returns the limits with the derived fields filled in."""
        _number("cpus", self.cpus, 0.01, MAX_CPUS, "give at least 0.01 cores")
        _number("memory_bytes", self.memory_bytes, MIN_MEMORY, MAX_MEMORY, "give at least 16M")
        _number("pids_max", self.pids_max, 8, MAX_PIDS, "give at least 8 processes")
        _number("open_files", self.open_files, 16, MAX_OPEN_FILES, "give at least 16 files")
        _number("output_bytes", self.output_bytes, 4 * KIB, 1 << 40, "give at least 4K")
        disk = self.disk_bytes or self.memory_bytes // 4
        _number(
            "disk_bytes",
            disk,
            MIB,
            self.memory_bytes // 2,
            "the writable layer lives in memory: give 1M up to half of memory_bytes, or raise the memory limit",
        )
        inodes = self.disk_inodes or min(max(1024, disk // (8 * KIB)), MAX_INODES)
        _number("disk_inodes", inodes, 256, MAX_INODES, "give at least 256 files")
        for field in ("wall_time_s", "idle_time_s"):
            value = getattr(self, field)
            if value is not None:
                _number(field, value, 0.001, MAX_SECONDS, "give a positive number of seconds, or leave it out")
        return msgspec.structs.replace(self, disk_bytes=disk, disk_inodes=inodes)


def _number(field: str, value: float, low: float, high: float, hint: str) -> None:
    # Callers pass what users wrote: nothing checked the annotations.
    if type(value) not in (int, float):
        raise InvalidSpecError(field, value, "not a number", hint=hint)
    if field in _WHOLE and type(value) is not int:
        raise InvalidSpecError(field, value, "not a whole number", hint=hint)
    if not low <= value <= high:
        shown = _size if field.endswith("_bytes") else "{:.10g}".format
        raise InvalidSpecError(field, value, f"not between {shown(low)} and {shown(high)}", hint=hint)


def _size(count: float) -> str:
    """Bytes as people write them."""
    for unit, factor in (("T", 1 << 40), ("G", GIB), ("M", MIB), ("K", KIB)):
        if count >= factor:
            return f"{count / factor:.10g}{unit}"
    return f"{count:.10g}"
