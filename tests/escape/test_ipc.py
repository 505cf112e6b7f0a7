"""Threat: System V and POSIX IPC shared with the host or a neighbour. Wall: an IPC namespace of its own."""

import ctypes
from pathlib import Path

from tests.escape.attack import attack
from tests.sandboxes import Make

IPC_RMID = 0


def test_ipc_is_private(make: Make) -> None:
    first, second = make(), make()
    key = 0x41544F4C
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.shmget(0, 4096, 0o1666)
    assert number >= 0
    try:
        payload = f"""
        shm = syscall(29, {key}, 4096, 0o1000 | 0o666)
        rows = [read(f"/proc/sysvipc/{{name}}").count("\\n") - 1 for name in ("shm", "sem", "msg")]
        written = attempt(lambda: open("/dev/shm/canary", "x").close())
        report(shm=shm, host=syscall(30, {number}, 0, 0), rows=rows, written=written, queues=attempt(os.listdir, "/dev/mqueue"))
        """
        one, two = attack(first, payload), attack(second, payload)
    finally:
        libc.shmctl(number, IPC_RMID, None)
    for facts in (one, two):
        assert isinstance(facts["shm"], int)
        assert facts["rows"] == [1, 0, 0]
        assert facts["written"] is None
        # Number 0 may be its own segment; the host's is not among those it can see.
        assert facts["host"] in {"EINVAL", "EIDRM"} or number == facts["shm"]
    assert not Path("/dev/shm/canary").exists()
    assert f"{key}" not in Path("/proc/sysvipc/shm").read_text()
