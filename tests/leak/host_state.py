"""What a sandbox could leave on the host, as a value that can be compared before and after."""

import gc
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

from atoll.teardown.state import SANDBOXES

FIRST_LEASED_UID = 0x7000_0000


class HostState(NamedTuple):
    """Everything but figures that move by themselves."""

    processes: frozenset[str]
    """Whose uid is in the leased ranges, or that are our programs."""
    cgroups: frozenset[str]
    mounts: frozenset[str]
    namespaces: frozenset[str]
    """User and network namespaces of any process."""
    sandboxes: frozenset[str]
    ipc: str


class Own(NamedTuple):
    """Of this process."""

    fds: int
    threads: int
    rss_kib: int


def host_state(state: Path) -> HostState:
    """Look at the host now."""
    processes, namespaces = set(), set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name = (entry / "comm").read_text().strip()
            if entry.stat().st_uid >= FIRST_LEASED_UID or name in {"bwrap", "atoll-launch"}:
                processes.add(f"{entry.name} {name}")
            namespaces |= {os.readlink(entry / "ns" / kind) for kind in ("user", "net")}
        except OSError:
            continue
    # Not glob: directories vanish while it walks.
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-path", "*/atoll/*", "-type", "d"], capture_output=True, text=True, check=False
    )
    cgroups = found.stdout.splitlines()
    return HostState(
        processes=frozenset(processes),
        cgroups=frozenset(cgroups),
        mounts=frozenset(line.split(" ", 2)[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        namespaces=frozenset(namespaces),
        sandboxes=frozenset(os.listdir(state / SANDBOXES)) if (state / SANDBOXES).exists() else frozenset(),
        ipc="".join(Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "sem", "msg")),
    )


def quiet(state: Path, timeout_s: float = 15.0) -> HostState:
    """The host's state once no sandbox of an earlier test is still ending; others' sandboxes may live on."""
    end = time.monotonic() + timeout_s
    while (now := host_state(state)).processes and time.monotonic() < end:
        time.sleep(0.1)
    return now


def settled(state: Path, baseline: HostState, timeout_s: float = 10.0) -> HostState:
    """The host's state once it equals `baseline`, or what it still is after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while (now := host_state(state)) != baseline and time.monotonic() < end:
        time.sleep(0.05)
    return now


def own() -> Own:
    """This process now, without what only reference cycles still hold."""
    gc.collect()
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return Own(len(os.listdir("/proc/self/fd")), threading.active_count(), int(status["VmRSS"].split()[0]))
