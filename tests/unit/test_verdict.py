"""Why a command ended: every combination of what the host did, what its cgroups counted and the wait status."""

import pytest

from atoll.execute.verdict import Disk, Ending, judge
from atoll.model.limits import Limits
from atoll.model.status import ExitStatus, Reason, Usage

MIB = 1 << 20
LIMITS = Limits(memory_bytes=64 * MIB, pids_max=32)
OK, FAILED, KILLED, TERMINATED = Ending(False, 0), Ending(False, 3), Ending(True, 9), Ending(True, 15)
OOM = Usage(oom_kills=1, memory_peak_bytes=60 * MIB)
OOMS = Usage(oom_kills=5)
FORKS = Usage(pids_rejected=7)
BOTH = Usage(oom_kills=1, pids_rejected=7)
ROOM = Disk(used_bytes=5 * MIB, total_bytes=16 * MIB, used_inodes=3, total_inodes=1024)
NO_PAGE = ROOM._replace(used_bytes=16 * MIB - 4095)
ONE_PAGE = ROOM._replace(used_bytes=16 * MIB - 4096)
NO_INODE = ROOM._replace(used_inodes=1024)
OOM_WORDS = "memory limit 64 MiB, peak 60 MiB"

TABLE: list[tuple[str, Ending, Usage, Disk | None, Reason, str]] = [
    ("success", OK, Usage(), ROOM, Reason.EXITED, ""),
    ("success is success, whatever was counted", OK, BOTH, NO_PAGE, Reason.EXITED, ""),
    ("an ordinary failure", FAILED, Usage(), ROOM, Reason.EXITED, ""),
    ("an ordinary failure without a disk limit", FAILED, Usage(), None, Reason.EXITED, ""),
    ("an ordinary signal", TERMINATED, Usage(), ROOM, Reason.SIGNALED, ""),
    ("SIGKILL by itself is no limit", KILLED, Usage(), ROOM, Reason.SIGNALED, ""),
    ("memory", KILLED, OOM, ROOM, Reason.OUT_OF_MEMORY, OOM_WORDS),
    ("memory of a child", FAILED, OOM, ROOM, Reason.OUT_OF_MEMORY, OOM_WORDS),
    ("no peak known", KILLED, OOMS, ROOM, Reason.OUT_OF_MEMORY, "memory limit 64 MiB, 5 processes killed"),
    ("processes", FAILED, FORKS, ROOM, Reason.PIDS_LIMIT, "limit of 32 processes, 7 forks refused"),
    ("processes, by signal", TERMINATED, FORKS, ROOM, Reason.PIDS_LIMIT, "limit of 32 processes, 7 forks refused"),
    ("memory comes before processes", KILLED, BOTH, NO_PAGE, Reason.OUT_OF_MEMORY, "memory limit 64 MiB"),
    ("processes come before disk", FAILED, FORKS, NO_PAGE, Reason.PIDS_LIMIT, "limit of 32 processes, 7 forks refused"),
    (
        "disk",
        FAILED,
        Usage(),
        NO_PAGE,
        Reason.DISK_FULL,
        "disk limit 16 MiB and 1024 files, used 16 MiB and 3 files",
    ),
    (
        "inodes",
        TERMINATED,
        Usage(),
        NO_INODE,
        Reason.DISK_FULL,
        "disk limit 16 MiB and 1024 files, used 5 MiB and 1024 files",
    ),
    ("a page is left", FAILED, Usage(), ONE_PAGE, Reason.EXITED, ""),
]


@pytest.mark.parametrize(
    ("ending", "usage", "disk", "reason", "detail"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_what_the_host_counted(ending: Ending, usage: Usage, disk: Disk | None, reason: Reason, detail: str):
    status = judge(ending, usage, LIMITS, disk)
    assert (status.reason, status.detail) == (reason, detail)
    assert status.usage is usage


@pytest.mark.parametrize("cause", Reason)
@pytest.mark.parametrize("ending", [OK, FAILED, KILLED])
def test_what_the_host_did_comes_first(cause: Reason, ending: Ending):
    status = judge(ending, BOTH, LIMITS, NO_PAGE, cause, "in these words")
    assert (status.reason, status.detail, status.code) == (cause, "in these words", ending.code)


@pytest.mark.parametrize(
    ("ending", "code", "signal"),
    [(OK, 0, None), (FAILED, 3, None), (Ending(False, 255), 255, None), (TERMINATED, 143, 15), (KILLED, 137, 9)],
)
def test_codes_are_those_of_a_shell(ending: Ending, code: int, signal: int | None):
    status = judge(ending, Usage(), LIMITS, None)
    assert status == ExitStatus(code=code, signal=signal, reason=status.reason)
