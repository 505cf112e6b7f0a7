"""Why a command ended: the one place that decides it (pure).

The host's own acts come first (it killed for a timeout, a quota, a caller), then what its cgroups counted,
then what the wait status says. What the guest reports only ever supplies the wait status itself.
"""

from typing import NamedTuple

from atoll.model.limits import Limits
from atoll.model.status import ExitStatus, Reason, Usage

SIGKILL = 9
PAGE = 4096
MIB = 1 << 20


class Disk(NamedTuple):
    """Fill of the sandbox's writable layer as the host sees it."""

    used_bytes: int
    total_bytes: int
    used_inodes: int
    total_inodes: int

    @property
    def full(self) -> bool:
        """No page or no inode left."""
        return self.total_bytes - self.used_bytes < PAGE or self.used_inodes >= self.total_inodes


class Ending(NamedTuple):
    """The wait status of the leader."""

    signaled: bool
    value: int

    @property
    def code(self) -> int:
        """As a POSIX shell shows it."""
        return 128 + self.value if self.signaled else self.value


def judge(
    ending: Ending, usage: Usage, limits: Limits, disk: Disk | None, cause: Reason | None = None, cause_detail: str = ""
) -> ExitStatus:
    """The exit status with its true reason.

    Args:
        ending: how the leader ended.
        usage: of the command's own cgroup.
        limits: of the sandbox, for the words of `detail`.
        disk: fill of the writable layer at the end, None where it has no limit.
        cause: what the host did to end it, if it did.
        cause_detail: the words for `cause`.
    """
    signal = ending.value if ending.signaled else None
    reason, detail = _reason(ending, usage, limits, disk)
    if cause is not None:
        reason, detail = cause, cause_detail
    return ExitStatus(code=ending.code, signal=signal, reason=reason, detail=detail, usage=usage)


def _reason(ending: Ending, usage: Usage, limits: Limits, disk: Disk | None) -> tuple[Reason, str]:
    if ending == Ending(signaled=False, value=0):
        return Reason.EXITED, ""
    if usage.oom_kills:
        peak = "" if usage.memory_peak_bytes is None else f", peak {usage.memory_peak_bytes / MIB:.0f} MiB"
        kills = f", {usage.oom_kills} processes killed" if usage.oom_kills > 1 else ""
        return Reason.OUT_OF_MEMORY, f"memory limit {limits.memory_bytes / MIB:.0f} MiB{peak}{kills}"
    if usage.pids_rejected:
        return Reason.PIDS_LIMIT, f"limit of {limits.pids_max} processes, {usage.pids_rejected} forks refused"
    if disk is not None and disk.full:
        return Reason.DISK_FULL, (
            f"disk limit {disk.total_bytes / MIB:.0f} MiB and {disk.total_inodes} files,"
            f" used {disk.used_bytes / MIB:.0f} MiB and {disk.used_inodes} files"
        )
    return (Reason.SIGNALED, "") if ending.signaled else (Reason.EXITED, "")
