"""How a process ended and what it used."""

from enum import StrEnum

import msgspec


class Reason(StrEnum):
    """Why a process ended; always the true cause as the host saw it."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    PIDS_LIMIT = "pids_limit"
    DISK_FULL = "disk_full"
    OUTPUT_LIMIT = "output_limit"
    IDLE_TIMEOUT = "idle_timeout"
    POLICY_VIOLATION = "policy_violation"
    KILLED = "killed"
    SANDBOX_GONE = "sandbox_gone"
    SERVER_RESTART = "server_restart"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of one process and all its descendants, read from its cgroup by the host."""

    cpu_s: float = 0.0
    memory_peak_bytes: int | None = None
    """None where the kernel keeps no peak (cgroup v2 before Linux 5.19)."""
    wall_s: float = 0.0
    oom_kills: int = 0
    pids_rejected: int = 0
    """Forks that failed at the process limit."""
    guest_reported: bool = False
    """True when the figures came from inside (only with cgroups disabled by name)."""


class ExitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one process.

    `code` follows POSIX shells: the exit code, or 128 + signal.
    """

    code: int
    signal: int | None = None
    reason: Reason
    detail: str = ""
    """The limit that was hit and the peak, in words; empty for an ordinary end."""
    usage: Usage = Usage()


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Something the guest tried and was denied."""

    kind: str
    detail: str
    count: int
