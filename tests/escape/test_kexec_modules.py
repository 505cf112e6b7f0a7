"""Threat: code is loaded into the kernel, directly or by a socket family. Wall: seccomp, no capability."""

from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack, denied


def test_no_kernel_code_is_loaded(sandbox: Sandbox, user: str) -> None:
    modules = Path("/proc/modules")
    before = modules.read_text() if modules.exists() else ""
    before_pairs = denied(sandbox, "socketpair(")
    facts = attack(
        sandbox,
        """
        import socket
        direct = [syscall(246, 0, 0, None, 0), syscall(320, -1, -1, 0, None, 0), syscall(175, None, 0, b""),
                  syscall(313, -1, b"", 0), syscall(176, b"x", 0)]
        def family(number, kind=1, protocol=0):
            return attempt(lambda: socket.socket(number, kind, protocol).close())
        families = [family(number) for number in range(3, 46) if number not in (10, 16)]
        protocols = [family(2, 1, 132), family(2, 5, 132), family(2, 6, 33), family(2, 3, 255), family(2, 2, 136)]
        pairs = [syscall(53, number, 1, 0, (ctypes.c_int * 2)()) for number in (2, 16, 30, 40)]
        report(pairs=sorted(set(pairs)), direct=sorted(set(direct)), families=sorted(set(families)), protocols=protocols,
               twin=[family(1), family(2), family(2, 2), family(10), family(16, 3)])
        """,
        user=user,
    )
    assert facts["direct"] == ["EPERM"]
    assert facts["pairs"] == ["EAFNOSUPPORT"]
    assert denied(sandbox, "socketpair(") - before_pairs == 4
    assert facts["families"] == ["EAFNOSUPPORT"]
    assert set(facts["protocols"]) <= {"EPROTONOSUPPORT", "EPERM"}
    assert facts["twin"] == [None] * 5
    assert (modules.read_text() if modules.exists() else "") == before
