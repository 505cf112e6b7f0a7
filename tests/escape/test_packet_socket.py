"""Threat: forged and sniffed traffic, kernel crypto sockets, netlink. Wall: seccomp on families and types."""

from atoll import Sandbox
from tests.escape.attack import attack, denied


def test_only_ordinary_sockets(sandbox: Sandbox, user: str) -> None:
    before = denied(sandbox, "socket(")
    facts = attack(
        sandbox,
        """
        ETH_ALL = 0x0300
        refused = {"packet": syscall(41, 17, 3, ETH_ALL), "packet_in_inet": syscall(41, 2, 10, ETH_ALL),
                   "raw": syscall(41, 2, 3, 1), "raw6": syscall(41, 10, 3, 58), "alg": syscall(41, 38, 5, 0),
                   "key": syscall(41, 15, 3, 2), "can": syscall(41, 29, 3, 1), "xdp": syscall(41, 44, 3, 0),
                   "netfilter": syscall(41, 16, 3, 12), "xfrm": syscall(41, 16, 3, 6), "generic": syscall(41, 16, 3, 16)}
        report(refused=refused, twin=[syscall(41, 2, 1, 0) > 2, syscall(41, 2, 2, 0) > 2, syscall(41, 16, 3, 0) > 2])
        """,
        user=user,
    )
    assert set(facts["refused"].values()) <= {"EAFNOSUPPORT", "EPROTONOSUPPORT", "EPERM"}
    assert facts["twin"] == [True, True, True]
    # The kernel would refuse most of them too, but only after it has loaded a module: the filter comes first.
    assert denied(sandbox, "socket(") - before == len(facts["refused"])
