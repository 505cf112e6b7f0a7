"""Threat: the host's service sockets: Docker, D-Bus, containerd, sshd agents. Wall: not in the mount namespace."""

import os
import socket
from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack


def test_no_socket_of_the_host_is_visible(sandbox: Sandbox, user: str) -> None:
    path = Path("/run/atoll-canary.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0)
        try:
            facts = attack(
                sandbox,
                f"""
                import socket, stat
                def connect(path):
                    with socket.socket(socket.AF_UNIX) as one:
                        return attempt(one.connect, path)
                names = ["{path}", "/var/run/docker.sock", "/run/docker.sock", "/run/dbus/system_bus_socket",
                         "/run/containerd/containerd.sock", "/run/systemd/private"]
                sockets = []
                for top in ("/run", "/var", "/tmp", "/dev", "/etc"):
                    for directory, _, files in os.walk(top):
                        sockets += [f for f in files if stat.S_ISSOCK(os.lstat(os.path.join(directory, f)).st_mode)]
                own = socket.socket(socket.AF_UNIX); own.bind(f"/tmp/own-{{os.getuid()}}"); own.listen()
                report(connected=[connect(name) for name in names], sockets=sockets, twin=connect(f"/tmp/own-{{os.getuid()}}"))
                """,
                user=user,
            )
            assert facts["connected"] == ["ENOENT"] * 6
            assert facts["sockets"] == []
            assert facts["twin"] is None
        finally:
            os.unlink(path)
            sandbox.commands.run("rm -f /tmp/own-*", user="root")
