"""Threat: controlling or reading the agent, neighbours or other commands. Wall: seccomp, not dumpable, pid namespaces."""

import os

from atoll import Sandbox
from tests.escape.attack import attack, denied


def test_no_process_can_be_traced_or_read(sandbox: Sandbox, user: str) -> None:
    before = denied(sandbox, "ptrace")
    facts = attack(
        sandbox,
        f"""
        child = os.fork()
        if child == 0:
            import time; time.sleep(20); os._exit(0)
        vector = (ctypes.c_uint64 * 2)(0, 8)
        report(
            traced=[syscall(101, request, pid, 0, 0) for request in (16, 0x4206) for pid in (1, child, {os.getpid()})],
            me=syscall(101, 0, 0, 0, 0),
            read=[syscall(310, pid, ctypes.byref(vector), 1, ctypes.byref(vector), 1, 0) for pid in (1, child)],
            wrote=syscall(311, child, ctypes.byref(vector), 1, ctypes.byref(vector), 1, 0),
            memory=[attempt(os.open, f"/proc/1/{{name}}", os.O_RDONLY) for name in ("mem", "environ", "auxv")],
            getfd=syscall(438, syscall(434, child, 0), 0, 0), kcmp=syscall(312, 1, child, 0, 0, 0),
            twin=attempt(os.kill, child, 9))
        """,
        user=user,
    )
    assert set(facts["traced"]) == {"EPERM"}
    assert facts["me"] == "EPERM"
    assert set(facts["read"]) == {"EPERM"}
    assert facts["wrote"] == facts["getfd"] == facts["kcmp"] == "EPERM"
    assert set(facts["memory"]) <= {"EACCES", "EPERM"}
    assert facts["twin"] is None
    assert denied(sandbox, "ptrace") - before == 7
