"""Threat: system calls around the filter through io_uring. Wall: seccomp; each try is counted."""

from atoll import Sandbox
from tests.escape.attack import attack, denied


def test_every_call_is_refused_and_counted(sandbox: Sandbox, user: str) -> None:
    before = sum(violation.count for violation in sandbox.violations)
    facts = attack(
        sandbox,
        """
        tried = [syscall(425, 8, None), syscall(426, 0, 0, 0, 0, None), syscall(427, 0, 0, None, 0)]
        report(tried=tried, twin=syscall(39) == os.getpid())
        """,
        user=user,
    )
    assert set(facts["tried"]) == {"EPERM"}
    assert facts["twin"] is True
    assert sum(violation.count for violation in sandbox.violations) - before == len(facts["tried"])
    assert denied(sandbox, "io_uring") > 0
