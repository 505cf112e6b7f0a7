"""Threat: core_pattern pipes a crash into host root code. Wall: never kernel uid 0."""

from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack

PATTERN = Path("/proc/sys/kernel/core_pattern")


def test_core_pattern_cannot_be_written(sandbox: Sandbox, user: str) -> None:
    before = PATTERN.read_text()
    facts = attack(
        sandbox,
        """
        pattern = "/proc/sys/kernel/core_pattern"
        report(seen=bool(read(pattern)), written=write(pattern, b"|/tmp/pwn"), mode=attempt(os.chmod, pattern, 0o666))
        """,
        user=user,
    )
    assert facts["seen"] is True
    assert facts["written"] in {"EACCES", "EROFS", "EPERM"}
    assert facts["mode"] in {"EACCES", "EROFS", "EPERM"}
    assert PATTERN.read_text() == before
