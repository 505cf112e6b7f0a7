"""Read back from the kernel what really protects a live sandbox.

Called once after the start, before the first command: what a plan enforces must be *seen*, by the host, in
/proc and in the cgroup files; nothing the guest says counts. Each check is named after its `Protection`.
"""

import os
from collections.abc import Callable

from atoll.isolate.driver import Resources
from atoll.model.errors import PolicyUnenforceableError
from atoll.model.plan import LaunchPlan
from atoll.model.protection import Posture, Protection, ProtectionState

_NAMESPACES = {
    Protection.PID_NAMESPACE: "pid",
    Protection.NET_NAMESPACE: "net",
    Protection.USER_NAMESPACE: "user",
}
SECCOMP_MODE_FILTER = "2"


def observe(plan: LaunchPlan, resources: Resources, agent_pid: int, allowed_caps: int) -> Posture:
    """The posture of the sandbox whose agent is `agent_pid` on the host.

    Args:
        plan: what was asked for.
        resources: its uid range and cgroup.
        agent_pid: on the host, held by the caller's pidfd so that it cannot be reused meanwhile.
        allowed_caps: capability mask the agent may at most hold (capabilities(7)); none without a uid range.

    Raises:
        PolicyUnenforceableError: naming the first protection that is not in force.
    """
    picture = _Picture(resources, agent_pid, allowed_caps, plan)
    rows: dict[Protection, ProtectionState] = {}
    for protection in Protection:
        if protection in plan.enforce:
            problem = picture.problem(protection)
            if problem:
                raise PolicyUnenforceableError(
                    f"{protection} is not in force: {problem}",
                    hint="the sandbox was destroyed; run `atoll doctor`",
                    protection=str(protection),
                    driver=plan.driver,
                )
            rows[protection] = ProtectionState(state="active", observed=True)
        elif protection in plan.disabled:
            rows[protection] = ProtectionState(state="disabled", note="switched off by name")
        else:
            note = plan.not_applicable.get(protection, f"belongs to other levels than {plan.level}")
            rows[protection] = ProtectionState(state="not_applicable", note=note)
    return Posture(level=plan.level, driver=plan.driver, protections=rows)


class _Picture:
    """What /proc says of one process (proc(5))."""

    def __init__(self, resources: Resources, pid: int, allowed_caps: int, plan: LaunchPlan) -> None:
        self._proc = f"/proc/{pid}"
        self._resources = resources
        self._allowed_caps = allowed_caps
        self._plan = plan
        self._status = dict(line.split(":\t", 1) for line in self._read("status").splitlines() if ":\t" in line)

    def _read(self, name: str) -> str:
        with open(f"{self._proc}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()

    def problem(self, protection: Protection) -> str:
        """Empty when the protection is in force, else what was seen instead."""
        if protection in _NAMESPACES:
            name = _NAMESPACES[protection]
            same = os.readlink(f"{self._proc}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}")
            return f"it shares the host's {name} namespace" if same else ""
        checks: dict[Protection, Callable[[], str]] = {
            Protection.UID_RANGE: self._uid_range,
            Protection.SECCOMP: lambda: self._field("Seccomp", SECCOMP_MODE_FILTER),
            Protection.NO_NEW_PRIVS: lambda: self._field("NoNewPrivs", "1"),
            Protection.CAPABILITIES_DROPPED: self._capabilities,
            Protection.CGROUP_MEMORY: self._cgroup,
            Protection.CGROUP_PIDS: self._cgroup,
            Protection.CGROUP_CPU: self._cgroup,
            Protection.DISK_QUOTA: self._disk,
            Protection.READ_ONLY_ROOT: self._read_only_usr,
        }
        return checks[protection]()

    def _field(self, name: str, wanted: str) -> str:
        seen = self._status.get(name, "absent").strip()
        return "" if seen == wanted else f"{name} is {seen}"

    def _uid_range(self) -> str:
        base = self._resources.uid_base
        uids = [int(uid) for uid in self._status["Uid"].split()]
        if base is None or any(uid != base for uid in uids):
            return f"its agent has the kernel uids {uids}"
        return ""

    def _capabilities(self) -> str:
        allowed = 0 if self._resources.uid_base is None else self._allowed_caps
        for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh"):
            extra = int(self._status[name], 16) & ~allowed
            if extra:
                return f"{name} holds {extra:x} more"
        return ""

    def _cgroup(self) -> str:
        cgroup = self._resources.cgroup
        if cgroup is None:
            return "it has no cgroup"
        return "" if cgroup.holds(self._read("cgroup")) else "its agent is outside its cgroup"

    def _disk(self) -> str:
        found = os.statvfs(f"{self._proc}/root")
        total = found.f_blocks * found.f_frsize
        return "" if total <= self._plan.limits.disk_bytes + found.f_frsize else f"its root has {total} bytes"

    def _read_only_usr(self) -> str:
        flags = os.statvfs(f"{self._proc}/root/usr").f_flag
        return "" if flags & os.ST_RDONLY else "/usr is writable"
