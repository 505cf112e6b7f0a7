"""Threat: kernel keyrings, which have no namespace. Wall: seccomp; each try is counted."""

from atoll import Sandbox
from tests.escape.attack import attack, denied


def test_every_call_is_refused_and_counted(sandbox: Sandbox, user: str) -> None:
    before = sum(violation.count for violation in sandbox.violations)
    facts = attack(
        sandbox,
        """
        tried = [syscall(250, 0, -3, 0), syscall(248, b'user', b'x', b'y', 1, -3), syscall(249, b'user', b'x', None, -3)]
        report(tried=tried, twin=syscall(39) == os.getpid())
        """,
        user=user,
    )
    assert set(facts["tried"]) == {"EPERM"}
    assert facts["twin"] is True
    assert sum(violation.count for violation in sandbox.violations) - before == len(facts["tried"])
    assert denied(sandbox, "keyctl") > 0
