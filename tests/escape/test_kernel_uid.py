"""Threat: bubblewrap or a guest runs as kernel uid 0, which is escapable. Wall: the launcher refuses; a range maps 0 away."""

import subprocess
from pathlib import Path

from atoll import Sandbox
from atoll.isolate.binaries import launcher_path
from atoll.kernel.pidfd import children


def uids(pid: int) -> set[int]:
    """Real, effective, saved and file system uid as the host sees them."""
    line = next(row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("Uid:"))
    return {int(uid) for uid in line.split()[1:]}


def test_no_process_of_a_sandbox_is_kernel_uid_0(sandbox: Sandbox) -> None:
    sandbox.commands.run("(sleep 30 &) ; :", user="root").check()
    agent = sandbox._aio._running._guest.agent_pid
    monitor = int(
        next(row for row in Path(f"/proc/{agent}/status").read_text().splitlines() if "PPid" in row).split()[1]
    )
    family = [monitor, agent, *children(agent)]
    assert len(family) >= 3
    assert all(0 not in uids(pid) for pid in family)
    assert "bwrap" in Path(f"/proc/{monitor}/comm").read_text()


def test_the_launcher_refuses_to_stay_root() -> None:
    done = subprocess.run([launcher_path(), "--", "/bin/true"], capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert "refused: would run as kernel uid 0" in done.stderr
