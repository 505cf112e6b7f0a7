"""What protects the host, named one by one.

`Protection` is the vocabulary that policies, drivers, postures, error messages and the documentation share.
A driver says which it enforces (`Capabilities`); the lifecycle says which were seen in force (`Posture`).
"""

from enum import StrEnum
from typing import Literal

import msgspec

Level = Literal["process", "gvisor", "microvm", "wasm"]
LEVELS: tuple[Level, ...] = ("process", "gvisor", "microvm", "wasm")


class Protection(StrEnum):
    """One wall between the guest and the host."""

    PID_NAMESPACE = "pid_namespace"
    NET_NAMESPACE = "net_namespace"
    USER_NAMESPACE = "user_namespace"
    UID_RANGE = "uid_range"
    SECCOMP = "seccomp"
    NO_NEW_PRIVS = "no_new_privs"
    CAPABILITIES_DROPPED = "capabilities_dropped"
    CGROUP_MEMORY = "cgroup_memory"
    CGROUP_PIDS = "cgroup_pids"
    CGROUP_CPU = "cgroup_cpu"
    DISK_QUOTA = "disk_quota"
    READ_ONLY_ROOT = "read_only_root"
    EGRESS_GATEWAY = "egress_gateway"
    SECRET_REDACTION = "secret_redaction"
    USERSPACE_KERNEL = "userspace_kernel"
    VM_BOUNDARY = "vm_boundary"
    WASM_BOUNDARY = "wasm_boundary"


REQUIRED = frozenset(
    {
        Protection.PID_NAMESPACE,
        Protection.NET_NAMESPACE,
        Protection.USER_NAMESPACE,
        Protection.UID_RANGE,
        Protection.SECCOMP,
        Protection.NO_NEW_PRIVS,
        Protection.CAPABILITIES_DROPPED,
        Protection.CGROUP_MEMORY,
        Protection.CGROUP_PIDS,
        Protection.CGROUP_CPU,
        Protection.DISK_QUOTA,
        Protection.READ_ONLY_ROOT,
    }
)
"""What a sandbox has unless the caller disabled it by name."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What one driver can do on this host, found out by trying."""

    driver: str
    level: Level
    enforces: frozenset[Protection] = frozenset()
    missing: dict[Protection, str] = {}
    """Protection -> why it cannot be enforced here, with the command that fixes it."""
    unavailable: str = ""
    """Why the driver cannot run here at all; empty when it can."""
    snapshot: bool = False
    pause: bool = False
    fork: bool = False
    pty: bool = False


class ProtectionState(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a posture."""

    state: Literal["active", "disabled", "not_applicable"]
    observed: bool = False
    """True when the host read it back from the kernel after the start, not merely asked for it."""
    note: str = ""


class Posture(msgspec.Struct, frozen=True, kw_only=True):
    """What protects one live sandbox."""

    level: Level
    driver: str
    protections: dict[Protection, ProtectionState]
