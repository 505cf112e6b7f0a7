"""Threat: stopping the kernel in the middle of a copy. Wall: seccomp; each try is counted."""

from atoll import Sandbox
from tests.escape.attack import attack, denied


def test_every_call_is_refused_and_counted(sandbox: Sandbox, user: str) -> None:
    before = sum(violation.count for violation in sandbox.violations)
    facts = attack(
        sandbox,
        """
        tried = [syscall(323, 0), syscall(323, 1), syscall(323, 0o4000)]
        report(tried=tried, twin=syscall(39) == os.getpid())
        """,
        user=user,
    )
    assert set(facts["tried"]) == {"EPERM"}
    assert facts["twin"] is True
    assert sum(violation.count for violation in sandbox.violations) - before == len(facts["tried"])
    assert denied(sandbox, "userfaultfd") > 0
