"""What `doctor` needs to know about this host, looked up and tried out.

Everything is read or tried for real, by making a sandbox; nothing on the host is changed. What it means is for
`client.diagnose` to say.
"""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from atoll.client.aio import AsyncSandbox
from atoll.isolate.binaries import agent_path, launcher_path
from atoll.isolate.bubblewrap import bubblewrap_path
from atoll.isolate.registry import driver_for
from atoll.kernel import cgroup, cgroupfs, seccomp
from atoll.model.errors import AtollError
from atoll.model.protection import Posture
from atoll.plan import MAY_DISABLE

TRIAL_TIMEOUT_S = 10.0
_CONTAINER_FILES = {"/.dockerenv": "Docker", "/run/.containerenv": "Podman"}
_CONTAINER_CGROUPS = {"docker": "Docker", "kubepods": "Kubernetes", "libpod": "Podman", "lxc": "LXC"}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox of level `process` that ran `true`, or what kept it from doing so."""

    ok: bool
    without: tuple[str, ...] = ()
    """Protections given up for it."""
    posture: Posture | None = None
    reason: str = ""
    """That of the error; empty when there was none."""
    message: str = ""
    hint: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen."""

    machine: str
    kernel_release: str
    """As ``uname -r``."""
    kernel_build: str
    """As ``uname -v``."""
    kernel_signature: str
    """Ubuntu's /proc/version_signature; empty elsewhere."""
    uid: int
    container: str
    """What kind of container this is; empty outside of one."""
    max_user_namespaces: int | None
    """The sysctl user.max_user_namespaces; None where the kernel has no user namespaces."""
    unprivileged_userns_clone: int | None
    """Debian's sysctl of that name; None elsewhere."""
    apparmor_restricts_userns: bool
    """Ubuntu's sysctl kernel.apparmor_restrict_unprivileged_userns."""
    bwrap: str
    """Path of bubblewrap; empty when it is not installed."""
    launcher: str
    """Path of Atoll's launcher; empty when it or the agent was not built."""
    cgroup_version: Literal[0, 1, 2]
    """0 where none is mounted."""
    cgroup_why: str
    """Why limits cannot be enforced; empty when they can."""
    seccomp_why: str
    """Why system calls cannot be filtered; empty when they can."""
    kvm: Literal["absent", "forbidden", "present"]
    """/dev/kvm; that it is there does not say that a guest would run."""
    trial: Trial
    reduced_trial: Trial | None
    """After a failed trial: one without those protections that may be given up and are missing here."""


async def gather() -> Facts:
    """Look at this host and try a sandbox on it."""
    trial = await _try()
    missing = () if trial.ok else tuple(sorted(MAY_DISABLE & driver_for("process").probe().missing.keys()))
    return Facts(
        machine=platform.machine(),
        kernel_release=platform.release(),
        kernel_build=platform.version(),
        kernel_signature=_text("/proc/version_signature"),
        uid=os.geteuid(),
        container=_container(),
        max_user_namespaces=_number("/proc/sys/user/max_user_namespaces"),
        unprivileged_userns_clone=_number("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restricts_userns=_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1,
        bwrap=_path(bubblewrap_path),
        launcher=_path(agent_path) and _path(launcher_path),
        cgroup_version=_cgroup_version(),
        cgroup_why=_cgroup_why(),
        seccomp_why=seccomp.check_kernel(),
        kvm=_kvm(),
        trial=trial,
        reduced_trial=await _try(missing) if missing else None,
    )


async def _try(without: tuple[str, ...] = ()) -> Trial:
    try:
        async with await AsyncSandbox.create(without=without) as sandbox:
            result = await sandbox.commands.run(["true"], timeout=TRIAL_TIMEOUT_S)
    except AtollError as error:
        return Trial(ok=False, without=without, reason=error.reason, message=error.message, hint=error.hint)
    except Exception as error:  # noqa: BLE001 - on a host this broken, whatever it was is the finding
        return Trial(ok=False, without=without, reason="internal", message=f"{type(error).__name__}: {error}")
    failure = result.error or ""
    reason = result.reason.value if failure else ""
    return Trial(ok=not failure, without=without, posture=sandbox.posture, reason=reason, message=failure)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text else None


def _path(find: Callable[[], str]) -> str:
    try:
        return find()
    except AtollError:
        return ""


def _container() -> str:
    for path, name in _CONTAINER_FILES.items():
        if os.path.exists(path):
            return name
    own = _text("/proc/1/cgroup")
    found = (name for word, name in _CONTAINER_CGROUPS.items() if f"/{word}" in own)
    return _text("/run/systemd/container") or next(found, "")


def _cgroup_version() -> Literal[0, 1, 2]:
    mounts = cgroupfs.parse_mounts(_text("/proc/self/mountinfo"))
    if not mounts:
        return 0
    return 2 if cgroup.choose_unified(mounts) else 1


def _cgroup_why() -> str:
    root, why = cgroup.detect()
    return why if root is None else "; ".join(sorted(set(root.missing.values())))


def _kvm() -> Literal["absent", "forbidden", "present"]:
    if not os.path.exists("/dev/kvm"):
        return "absent"
    return "present" if os.access("/dev/kvm", os.R_OK | os.W_OK) else "forbidden"
