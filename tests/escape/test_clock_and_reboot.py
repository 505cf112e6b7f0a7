"""Threat: the host's clock, name, swap, ports or power. Wall: seccomp, no capability over the host."""

import time

from atoll import Sandbox
from tests.escape.attack import attack


def test_the_host_cannot_be_administered(sandbox: Sandbox, user: str) -> None:
    facts = attack(
        sandbox,
        """
        import time
        zero = (ctypes.c_uint64 * 2)(0, 0)
        refused = {"settimeofday": syscall(164, ctypes.byref(zero), None), "clock_settime": syscall(227, 0, ctypes.byref(zero)),
                   "reboot": syscall(169, 0xfee1dead, 672274793, 0x01234567, None), "sethostname": syscall(170, b"x", 1),
                   "swapon": syscall(167, b"/tmp", 0), "acct": syscall(163, b"/tmp/acct"), "iopl": syscall(172, 3),
                   "ioperm": syscall(173, 0, 1, 1), "syslog": syscall(103, 3, None, 0), "vhangup": syscall(153),
                   "quotactl": syscall(179, 0, None, 0, None)}
        modes = (ctypes.c_uint64 * 26)(1)
        report(refused=refused, adjtimex=syscall(159, ctypes.byref(modes)), twin=time.time())
        """,
        user=user,
    )
    assert set(facts["refused"].values()) == {"EPERM"}
    assert facts["adjtimex"] == "EPERM"
    assert abs(facts["twin"] - time.time()) < 60
