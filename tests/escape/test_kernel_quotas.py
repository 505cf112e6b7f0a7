"""Threat: the kernel's quotas per user are used up for the host's root or a neighbour. Wall: the range owns its namespace."""

import ctypes
import errno
import time

from tests.escape.attack import PRELUDE, attack
from tests.sandboxes import Make

FLOOD = r"""
def count(number, *args, most):
    for made in range(most):
        if not isinstance(syscall(number, *args), int):
            return made
    return most
report(inotify=count(294, 0, most=5000), timers=count(222, 1, None, ctypes.byref(ctypes.c_int()), most=200_000),
       queues=sum(isinstance(syscall(240, b"q%d" % n, 0o102, 0o600, None), int) for n in range(200)))
import time; time.sleep(60)
"""
HOLD = "timeout 60 /usr/bin/python3 -c {code} > /tmp/held 2>&1 & for n in $(seq 200); do grep -q REPORT /tmp/held && exit; sleep 0.1; done"


def on_the_host() -> dict[str, str]:
    """The same three resources, asked for by root of the host."""
    libc = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_int()
    made = {"inotify": libc.syscall(294, 0o2000000), "timers": libc.syscall(222, 1, None, ctypes.byref(timer))}
    made["queues"] = libc.syscall(240, b"atoll-canary", 0o2000102, 0o600, None)
    seen = {name: "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()] for name, result in made.items()}
    libc.syscall(226, timer)
    libc.syscall(241, b"atoll-canary")
    for name in ("inotify", "queues"):
        if made[name] >= 0:
            libc.close(made[name])
    return seen


def test_a_guest_uses_up_only_its_own(make: Make, user: str) -> None:
    flooder, other = make(memory="512M"), make()
    flooder.commands.run(["/bin/sh", "-c", HOLD.format(code='"$1"'), "sh", PRELUDE + FLOOD], user=user).check()
    began = time.monotonic()
    assert on_the_host() == dict.fromkeys(("inotify", "timers", "queues"), "ok")
    ask = "report(inotify=syscall(294, 0), timers=syscall(222, 1, None, ctypes.byref(ctypes.c_int())))"
    assert all(isinstance(made, int) for made in attack(other, ask).values())
    assert time.monotonic() - began < 30
    # The flood ran to its end, still holds everything, and met a limit of its own each time.
    again = "report(inotify=syscall(294, 0), timers=syscall(222, 1, None, ctypes.byref(ctypes.c_int())))"
    assert attack(flooder, again, user=user) == {"inotify": "EMFILE", "timers": "EAGAIN"}
