"""Threat: a read-only view of the host is remounted writable. Wall: locked mounts, no CAP_SYS_ADMIN, seccomp."""

import os
from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack


def test_read_only_trees_stay_read_only(sandbox: Sandbox, user: str) -> None:
    facts = attack(
        sandbox,
        """
        MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
        remount = syscall(165, b"none", b"/usr", None, MS_REMOUNT | MS_BIND, None)
        attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
        cleared = syscall(442, -100, b"/usr", 0, ctypes.byref(attributes), 32)
        unmount = syscall(166, b"/usr", 2)
        made = attempt(os.mkdir, "/usr/pwned")
        twin = attempt(os.mkdir, "/tmp/allowed-" + str(os.getuid()))
        report(remount=remount, cleared=cleared, unmount=unmount, made=made, twin=twin)
        """,
        user=user,
    )
    assert facts == {"remount": "EPERM", "cleared": "EPERM", "unmount": "EPERM", "made": "EROFS", "twin": None}
    assert not Path("/usr/pwned").exists()


def test_what_the_host_locked_cannot_be_written_even_as_its_owner(sandbox: Sandbox) -> None:
    canary = Path("/usr/local/share/atoll-canary")
    canary.write_text("whole")
    canary.chmod(0o666)
    try:
        facts = attack(
            sandbox,
            f"""report(seen=read("{canary}"), written=write("{canary}"), removed=attempt(os.unlink, "{canary}"))""",
            user="root",
        )
        assert facts == {"seen": "whole", "written": "EROFS", "removed": "EROFS"}
        assert canary.read_text() == "whole"
    finally:
        os.unlink(canary)
