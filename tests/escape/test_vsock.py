"""Threat: a virtual machine's hypervisor is addressed through AF_VSOCK, which has no namespace. Wall: seccomp."""

from atoll import Sandbox
from tests.escape.attack import attack, denied


def test_no_vsock(sandbox: Sandbox, user: str) -> None:
    before = denied(sandbox, "socket(AF_VSOCK")
    facts = attack(
        sandbox,
        """
        # The kernel takes an int: what stands above it must not hide the family.
        tried = [syscall(41, 40, kind, 0) for kind in (1, 2, 5)] + [syscall(41, 40 | 1 << 32, 1, 0)]
        report(tried=tried, device=attempt(os.open, "/dev/vsock", os.O_RDONLY), twin=syscall(41, 1, 1, 0) > 2)
        """,
        user=user,
    )
    assert facts == {"tried": ["EAFNOSUPPORT"] * 4, "device": "ENOENT", "twin": True}
    assert denied(sandbox, "socket(AF_VSOCK") - before == 4
