"""Threat: an abstract unix socket of the host is reached. Wall: a network namespace of its own."""

import os
import socket

from atoll import Sandbox
from tests.escape.attack import attack


def test_the_hosts_abstract_sockets_are_elsewhere(sandbox: Sandbox, user: str) -> None:
    name = f"\0atoll-canary-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        listener.settimeout(0)
        facts = attack(
            sandbox,
            f"""
            import socket
            def connect(name):
                with socket.socket(socket.AF_UNIX) as one:
                    return attempt(one.connect, name)
            own = socket.socket(socket.AF_UNIX); own.bind("\\0own"); own.listen()
            report(host=connect("\\0{name[1:]}"), seen=read("/proc/net/unix").count("atoll-canary"), twin=connect("\\0own"))
            """,
            user=user,
        )
        assert facts == {"host": "ECONNREFUSED", "seen": 0, "twin": None}
        try:
            listener.accept()
        except BlockingIOError:
            return
        raise AssertionError("somebody connected")
