"""Threat: socket buffers, which cgroup v1 leaves uncounted, take the host's memory. Wall: a limit on them, too."""

import pytest

from tests.escape.attack import attack
from tests.sandboxes import Make

MEMORY = 64 << 20
WAYS = {
    "udp": """
        for _ in range(150):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.setsockopt(1, 8, 1 << 24)
            one.bind(("127.0.0.1", 0)); one.connect(one.getsockname()); one.setblocking(False); kept.append(one)
            for _ in range(60): attempt(one.send, b"x" * 60_000)
        def received(one):
            got = 0
            while isinstance(part := attempt(one.recv, 65536), bytes): got += len(part)
            return got
        held = sum(map(received, kept))
        """,
    "tcp": """
        listener = socket.create_server(("127.0.0.1", 0)); held = 0
        for _ in range(100):
            one = socket.create_connection(listener.getsockname()); kept += [one, listener.accept()[0]]
            one.setblocking(False)
            while isinstance(sent := attempt(one.send, b"x" * 65536), int): held += sent
        """,
}


@pytest.mark.parametrize("way", WAYS)
def test_socket_buffers_have_a_limit(make: Make, way: str) -> None:
    sandbox = make(memory=str(MEMORY))
    facts = attack(sandbox, f"import socket\nkept = []\n{_plain(WAYS[way])}\nreport(held=held)", timeout=60)
    assert 1 << 16 < facts["held"] < MEMORY
    assert sandbox.commands.run(["/bin/echo", "alive"]).stdout == "alive\n"


def _plain(code: str) -> str:
    return "\n".join(line.removeprefix(" " * 8) for line in code.splitlines())
