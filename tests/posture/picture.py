"""Everything /proc tells the host about one confined process, in a form that can be compared with a table."""

import os
from pathlib import Path
from typing import Any

STATUS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Umask")
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")


def picture(pid: int, base: int) -> dict[str, Any]:
    """The posture of process `pid`; ids are given relative to `base`, the first of the sandbox's range."""
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
    facts: dict[str, Any] = {name: status[name].strip() for name in STATUS}
    for name in ("Uid", "Gid", "Groups"):
        facts[name] = sorted({int(number) - base for number in facts[name].split()})
    facts["own namespaces"] = [
        name for name in NAMESPACES if os.readlink(proc / "ns" / name) != os.readlink(f"/proc/self/ns/{name}")
    ]
    facts["limits"] = _limits(proc)
    facts["oom_score_adj"] = int((proc / "oom_score_adj").read_text())
    facts["environ"] = sorted(
        item.split(b"=")[0].decode() for item in (proc / "environ").read_bytes().split(b"\0") if item
    )
    facts["fds"] = sorted(_kind(path) for path in (proc / "fd").iterdir())
    facts["exe"] = os.readlink(proc / "exe")
    facts["session of its own"] = status["NSsid"].split()[-1] == status["NSpid"].split()[-1]
    return facts


def mounts(pid: int) -> dict[str, tuple[str, list[str]]]:
    """Mount point -> file system type and the flags that matter."""
    rows = [line.split() for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
    flags = {"ro", "rw", "nosuid", "nodev", "noexec"}
    return {row[1]: (row[2], sorted(flags & set(row[3].split(",")))) for row in rows}


def _limits(proc: Path) -> dict[str, str]:
    rows = (proc / "limits").read_text().splitlines()[1:]
    wanted = {"Max open files": "open files", "Max core file size": "core"}
    return {wanted[row[:26].strip()]: row[26:47].strip() for row in rows if row[:26].strip() in wanted}


def _kind(path: Path) -> str:
    target = os.readlink(path)
    return target.split("[")[0] if target.startswith(("pipe:", "socket:")) else target
