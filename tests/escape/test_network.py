"""Threat: the network, cloud metadata, the host's loopback. Wall: an empty network namespace."""

import os
import socket
from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack


def test_nothing_outside_can_be_reached(sandbox: Sandbox, user: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = listener.getsockname()[1]
        facts = attack(
            sandbox,
            f"""
            import socket
            def connect(host, port, family=socket.AF_INET, kind=socket.SOCK_STREAM):
                with socket.socket(family, kind) as one:
                    one.settimeout(3)
                    return attempt(one.connect, (host, port))
            own = socket.create_server(("127.0.0.1", 0))
            outside = [connect(host, 80) for host in ("169.254.169.254", "10.0.0.1", "192.168.0.1", "8.8.8.8", "1.1.1.1")]
            outside += [connect("8.8.8.8", 53, kind=socket.SOCK_DGRAM), connect("fd00:ec2::254", 80, socket.AF_INET6)]
            report(outside=outside, host=connect("127.0.0.1", {port}), routes=len(open("/proc/net/route").readlines()),
                   devices=[line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line],
                   name=attempt(socket.getaddrinfo, "example.com", 80), twin=connect(*own.getsockname()))
            """,
            user=user,
        )
        assert set(facts["outside"]) <= {"ENETUNREACH", "EADDRNOTAVAIL"}
        assert facts["host"] == "ECONNREFUSED"
        assert facts["routes"] <= 1
        assert [device for device in facts["devices"] if device != "lo"] == []
        assert isinstance(facts["name"], str)
        assert facts["twin"] is None
    agent = sandbox._aio._running._guest.agent_pid
    assert os.readlink(f"/proc/{agent}/ns/net") != os.readlink("/proc/self/ns/net")
    assert "veth" not in Path(f"/proc/{agent}/net/dev").read_text()
