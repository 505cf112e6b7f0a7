"""Threat: a listener or FIFO of the host in the workspace is reached from inside. Wall: the overlay has other inodes."""

import os
import socket
from pathlib import Path

import pytest

from tests.escape.attack import attack
from tests.sandboxes import Make


@pytest.mark.parametrize("mode", ["overlay", "ro"])
def test_the_hosts_listeners_and_fifos_are_out_of_reach(make: Make, tmp_path: Path, mode: str, user: str) -> None:
    path = tmp_path / "service.sock"
    os.mkfifo(tmp_path / "fifo", 0o666)
    os.chmod(tmp_path / "fifo", 0o666)
    fifo = os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen()
        listener.settimeout(0)
        with socket.socket(socket.AF_UNIX) as twin:
            twin.connect(str(path))  # the host itself reaches it
        facts = attack(
            make(workspace=str(tmp_path), workspace_mode=mode),
            """
            import socket, stat
            one = socket.socket(socket.AF_UNIX)
            kind = stat.S_ISSOCK(os.stat("/workspace/service.sock").st_mode)
            connected = attempt(one.connect, "/workspace/service.sock")
            fifo = attempt(os.open, "/workspace/fifo", os.O_WRONLY | os.O_NONBLOCK)
            report(kind=kind, connected=connected, fifo=fifo)
            """,
            user=user,
        )
        assert facts["kind"] is True
        assert facts["connected"] in {"ECONNREFUSED", "EACCES"}
        assert facts["fifo"] in {"ENXIO", "EACCES"}
        listener.accept()[0].close()  # the twin's
        with pytest.raises(BlockingIOError):
            listener.accept()
    with pytest.raises(BlockingIOError):
        os.read(fifo, 1)
    os.close(fifo)


def test_a_read_only_workspace_is_read_only(make: Make, tmp_path: Path, user: str) -> None:
    (tmp_path / "file").write_text("whole")
    facts = attack(
        make(workspace=str(tmp_path), workspace_mode="ro"),
        """report(seen=read("/workspace/file"), wrote=write("/workspace/file"), made=attempt(os.mkdir, "/workspace/x"))""",
        user=user,
    )
    assert facts == {"seen": "whole", "wrote": "EROFS", "made": "EROFS"}
    assert (tmp_path / "file").read_text() == "whole"
