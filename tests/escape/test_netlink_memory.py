"""Threat: messages that wait in netlink sockets fill the host's memory, charged to nobody. Wall: few such sockets."""

from atoll.kernel.notify import MAX_NETLINK_SOCKETS
from tests.escape.attack import attack, denied
from tests.sandboxes import Make


def test_a_sandbox_holds_few_netlink_sockets(make: Make, user: str) -> None:
    sandbox = make()
    facts = attack(
        sandbox,
        """
        import socket
        held = []
        def opened():
            for _ in range(200):
                held.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
        stopped = attempt(opened)
        count = len(held)
        held.clear()
        # The twin: names and addresses are looked up as everywhere, which takes one of them for a moment.
        again = [socket.getaddrinfo("localhost", 80)[0][4][0] for _ in range(200)]
        report(stopped=stopped, count=count, again=sorted(set(again)), names=[name for _, name in socket.if_nameindex()])
        """,
        user=user,
    )
    assert facts["stopped"] == "EMFILE"
    assert facts["count"] == MAX_NETLINK_SOCKETS
    assert set(facts["again"]) <= {"127.0.0.1", "::1"}
    assert facts["names"] == ["lo"]
    assert denied(sandbox, "socket(AF_NETLINK") == 1
