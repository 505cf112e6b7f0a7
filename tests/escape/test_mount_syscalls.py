"""Threat: mounting anything. Wall: seccomp, no CAP_SYS_ADMIN."""

from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack


def test_nothing_can_be_mounted(sandbox: Sandbox, user: str) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    facts = attack(
        sandbox,
        """
        old = [syscall(165, b"none", b"/mnt", kind, 0, None) for kind in (b"tmpfs", b"proc", b"overlay", b"ext4", b"fuse")]
        old += [syscall(165, b"/usr", b"/mnt", None, 4096, None), syscall(166, b"/proc", 2), syscall(155, b"/", b"/mnt"),
                syscall(161, b"/usr")]
        new = [syscall(428, -100, b"/", 1), syscall(430, b"tmpfs", 0), syscall(431, 0, 0, None, None, 0),
               syscall(432, 0, 0, 0), syscall(433, -100, b"/", 0), syscall(429, -100, b"/usr", -100, b"/mnt", 0),
               syscall(442, -100, b"/", 0, None, 0)]
        report(old=sorted(set(old)), new=sorted(set(new)), twin=len(os.listdir("/usr")) > 3)
        """,
        user=user,
    )
    assert facts == {"old": ["EPERM"], "new": ["EPERM"], "twin": True}
    assert Path("/proc/self/mountinfo").read_text() == before
