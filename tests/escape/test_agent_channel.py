"""Threat: guest root takes over the channel, the listener or the agent; floods cost others. Wall: not dumpable, rationed."""

import time

from atoll import Sandbox
from tests.escape.attack import attack, denied
from tests.sandboxes import Make


def test_what_the_agent_holds_is_out_of_reach(sandbox: Sandbox) -> None:
    facts = attack(
        sandbox,
        """
        names = attempt(os.listdir, "/proc/1/fd")
        names = names if isinstance(names, list) else [str(n) for n in range(16)]
        pidfd = syscall(434, 1, 0)
        report(opened=sorted({str(attempt(os.open, f"/proc/1/fd/{n}", flags)) for n in names for flags in (0, 1, 2)}),
               got=sorted({str(syscall(438, pidfd, int(n), 0)) for n in names}), memory=attempt(os.open, "/proc/1/mem", 2),
               maps=read("/proc/1/maps"), score=write("/proc/1/oom_score_adj", b"1000"), limits=attempt(
                   __import__("resource").prlimit, 1, 7, (3, 3)), twin=attempt(os.open, "/proc/self/mem", 2) > 2)
        """,
        user="root",
    )
    assert set(facts["opened"]) <= {"EACCES", "EPERM"}
    assert facts["got"] == ["EPERM"]
    assert facts["memory"] in {"EACCES", "EPERM"}
    assert facts["maps"] in {"EACCES", "EPERM"}
    assert facts["limits"] == "EPERM"
    assert facts["twin"] is True
    assert sandbox.commands.run(["/bin/echo", "alive"]).stdout == "alive\n"


def test_denied_calls_are_counted_truthfully(make: Make) -> None:
    sandbox = make()
    attack(sandbox, "report(tried=[syscall(321, 0, None, 0) for _ in range(137)])")
    assert denied(sandbox, "bpf") == 137
    assert all(violation.kind == "seccomp" for violation in sandbox.violations)


def test_a_flood_of_denied_calls_throttles_only_its_own_sandbox(make: Make) -> None:
    flooder, other = make(), make()
    flood = "import ctypes\ns = ctypes.CDLL(None).syscall\nwhile True:\n s(321, 0, None, 0)"
    flooder.commands.run(f"for i in 1 2 3 4; do /usr/bin/python3 -c '{flood}' & done; :")
    slowest = 0.0
    for _ in range(20):
        began = time.monotonic()
        assert attack(other, "report(one=syscall(321, 0, None, 0))") == {"one": "EPERM"}
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 5
    assert denied(other, "bpf") == 20
    assert denied(flooder, "bpf") > 100
