"""How the end of a command becomes an exit code and a line."""

import pytest

from atoll.cli.report import exit_code, explanation
from atoll.model.status import Reason


@pytest.mark.parametrize(
    ("reason", "own", "code"),
    [
        (Reason.EXITED, 0, 0),
        (Reason.EXITED, 3, 3),
        (Reason.EXITED, 126, 126),
        (Reason.EXITED, 127, 127),
        (Reason.SIGNALED, 139, 139),
        (Reason.TIMEOUT, 137, 124),
        (Reason.IDLE_TIMEOUT, 137, 124),
        (Reason.OUT_OF_MEMORY, 1, 137),
        (Reason.OUT_OF_MEMORY, 137, 137),
        (Reason.PIDS_LIMIT, 1, 1),
        (Reason.DISK_FULL, 1, 1),
        (Reason.OUTPUT_LIMIT, 137, 137),
        (Reason.POLICY_VIOLATION, 137, 137),
        (Reason.KILLED, 137, 137),
        (Reason.SANDBOX_GONE, 137, 125),
        (Reason.SERVER_RESTART, 137, 125),
    ],
)
def test_exit_code(reason: Reason, own: int, code: int) -> None:
    assert exit_code(reason, own) == code


@pytest.mark.parametrize(
    ("reason", "detail", "line"),
    [
        (Reason.EXITED, "", ""),
        (Reason.EXITED, "x: command not found", "x: command not found"),
        (Reason.SIGNALED, "", ""),
        (Reason.TIMEOUT, "limit 1 s", "timeout: limit 1 s"),
        (Reason.OUT_OF_MEMORY, "memory limit 64 MiB, peak 64 MiB", "out_of_memory: memory limit 64 MiB, peak 64 MiB"),
        (Reason.KILLED, "", "killed"),
    ],
)
def test_explanation(reason: Reason, detail: str, line: str) -> None:
    assert explanation(reason, detail) == line


def test_every_reason_is_explained_or_ordinary() -> None:
    silent = {reason for reason in Reason if not explanation(reason, "")}
    assert silent == {Reason.EXITED, Reason.SIGNALED}
