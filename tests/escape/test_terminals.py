"""Threat: all pseudo-terminals of the host are taken. Wall: a devpts instance of its own, with its own limit."""

import pty

from atoll.isolate.bubblewrap import TERMINALS
from tests.escape.attack import attack
from tests.sandboxes import Make


def test_terminals_are_limited_per_sandbox(make: Make, user: str) -> None:
    greedy, other = make(), make()
    facts = attack(
        greedy,
        """
        import pty
        held = []
        def opened():
            for _ in range(5000):
                held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
        stopped = attempt(opened)
        count = len(held)
        for fd in held: os.close(fd)
        master, slave = pty.openpty()
        report(stopped=stopped, count=count, name=os.ttyname(slave))
        """,
        user=user,
    )
    assert facts["stopped"] == "ENOSPC"
    assert facts["count"] == TERMINALS
    assert facts["name"].startswith("/dev/pts/")
    payload = "import os, time\nheld = [os.open('/dev/ptmx', os.O_RDWR) for _ in range(64)]\ntime.sleep(20)"
    greedy.commands.run(f'/usr/bin/python3 -c "{payload}" > /dev/null 2>&1 & sleep 0.5', user=user)
    assert attack(other, "import pty\nreport(pair=len(pty.openpty()))") == {"pair": 2}
    assert len(pty.openpty()) == 2
