"""Threat: characters are typed into the caller's terminal. Wall: no controlling terminal, seccomp, also with high bits."""

from atoll import Sandbox
from tests.escape.attack import attack, denied


def test_nothing_can_be_typed(sandbox: Sandbox, user: str) -> None:
    before = denied(sandbox, "ioctl(TIOC")
    facts = attack(
        sandbox,
        """
        import pty
        master, slave = pty.openpty()
        letter = ctypes.create_string_buffer(b"x")
        high = 1 << 32  # CVE-2019-10063: the kernel ignores the upper half, so a filter must too
        report(sti=[syscall(16, slave, request, letter) for request in (0x5412, 0x5412 | high)],
               linux=[syscall(16, slave, request, letter) for request in (0x541C, 0x541C | high)],
               tty=attempt(os.open, "/dev/tty", os.O_RDWR), twin=os.get_terminal_size(slave).lines)
        """,
        user=user,
    )
    assert facts["sti"] == facts["linux"] == ["EPERM", "EPERM"]
    assert facts["tty"] == "ENXIO"
    assert facts["twin"] == 0
    assert denied(sandbox, "ioctl(TIOC") - before == 4
