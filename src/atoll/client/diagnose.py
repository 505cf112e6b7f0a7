"""What this host can enforce, what stands in the way, and the command that fixes it (pure).

Decides from `Facts` alone, so that every kind of bad host can be tested on a good one. Called by ``atoll doctor``.
What is in order is not mentioned: where a trial sandbox ran, no setting of the host can be a problem.
"""

from typing import Literal

import msgspec

from atoll.client.advisories import Version, affecting, upstream_version
from atoll.client.facts import Facts, Trial
from atoll.isolate.registry import DRIVERS
from atoll.model.errors import DriverUnavailableError, ProvisionError
from atoll.model.protection import LEVELS, Level

KERNEL_MIN: Version = (5, 12, 0)
"""Since then mount_setattr(2), with which the launcher makes mounts read-only and idmapped."""

_START_FAILED = frozenset({DriverUnavailableError.reason, ProvisionError.reason})


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that stands in the way (problem) or that the operator should know (warning)."""

    severity: Literal["problem", "warning"]
    what: str
    fix: tuple[str, ...]
    """What to do about it, in this order; commands are to be typed as root unless they say ``--user``."""


class LevelState(msgspec.Struct, frozen=True, kw_only=True):
    """What can be had of one level: all of it, less than all, or nothing."""

    level: Level
    state: Literal["works", "reduced", "unavailable"]
    note: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    kernel: str
    """The upstream version."""
    levels: tuple[LevelState, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether level `process` works with everything it can enforce."""
        return any(found.level == "process" and found.state == "works" for found in self.levels)


def diagnose(facts: Facts) -> Diagnosis:
    """Decide what works, and what to do about the rest."""
    version = upstream_version(facts.kernel_release, facts.kernel_build, facts.kernel_signature)
    problems: list[Finding] = []
    if not facts.trial.ok:
        if not _last_trial(facts).ok:
            problems = [*_platform(facts, version), *_user_namespaces(facts), *_programs(facts), *_container(facts)]
        problems += _walls(facts)
        if not problems:
            last = _last_trial(facts)
            problems = [_problem(last.message, *filter(None, [last.hint]))]
    return Diagnosis(
        kernel=".".join(map(str, version)),
        levels=tuple(_level(facts, level) for level in LEVELS),
        findings=(*problems, *_known_flaws(version)),
    )


def _level(facts: Facts, level: Level) -> LevelState:
    if level not in DRIVERS:
        kvm = f"; /dev/kvm is {facts.kvm}" if level == "microvm" else ""
        return LevelState(level=level, state="unavailable", note=f"no driver in this release{kvm}")
    if facts.trial.ok:
        return LevelState(level=level, state="works", note="a trial sandbox ran")
    last = _last_trial(facts)
    if last.ok:
        options = " ".join(f"--without {name}" for name in last.without)
        return LevelState(level=level, state="reduced", note=f"a trial sandbox ran, but only {options}")
    return LevelState(level=level, state="unavailable", note=last.message)


def _last_trial(facts: Facts) -> Trial:
    return facts.trial if facts.reduced_trial is None else facts.reduced_trial


def _problem(what: str, *fix: str) -> Finding:
    return Finding(severity="problem", what=what, fix=fix)


def _platform(facts: Facts, version: Version) -> list[Finding]:
    found = []
    if facts.machine != "x86_64":
        found.append(_problem(f"this machine is {facts.machine}, and Atoll runs on x86_64", "use an x86-64 host"))
    if version < KERNEL_MIN:
        found.append(_problem(f"Linux {facts.kernel_release} lacks mount_setattr(2)", "install Linux 5.12 or newer"))
    return found


def _user_namespaces(facts: Facts) -> list[Finding]:
    found = []
    if facts.max_user_namespaces is None:
        found.append(_problem("the kernel has no user namespaces", "install a kernel with CONFIG_USER_NS=y"))
    if facts.max_user_namespaces == 0:
        found.append(_problem("user namespaces are switched off", *_sysctl("user.max_user_namespaces", 15000)))
    if facts.uid != 0 and facts.unprivileged_userns_clone == 0:
        what = "user namespaces are kept from users other than root"
        found.append(_problem(what, *_sysctl("kernel.unprivileged_userns_clone", 1)))
    if facts.uid != 0 and facts.apparmor_restricts_userns:
        what = "AppArmor keeps user namespaces from programs without a profile that allows them"
        found.append(_problem(what, *_apparmor_fix(facts.launcher, facts.bwrap or "/usr/bin/bwrap")))
    return found


def _programs(facts: Facts) -> list[Finding]:
    found = []
    if not facts.bwrap:
        found.append(_problem("bubblewrap (bwrap) is not installed", "apt-get install bubblewrap"))
    if not facts.launcher:
        what = "the package lacks its own programs, atoll-agent and atoll-launch"
        found.append(_problem(what, "pip install --force-reinstall atoll"))
    return found


def _container(facts: Facts) -> list[Finding]:
    if not facts.container or _last_trial(facts).reason not in _START_FAILED:
        return []
    return [
        _problem(
            f"this is inside a container ({facts.container}), which may not make namespaces or mounts unless it was"
            f" started so: {_last_trial(facts).message}",
            "run Atoll on the host itself",
            "or, on a machine that has nothing else to lose: docker run --privileged --cgroupns host ...",
        )
    ]


def _walls(facts: Facts) -> list[Finding]:
    """Protections that cannot be enforced here."""
    found = []
    if facts.seccomp_why:
        found.append(_problem(facts.seccomp_why, "install Linux 5.6 or newer with CONFIG_SECCOMP_FILTER=y"))
    if facts.cgroup_why:
        what = f"memory, process and CPU limits cannot be enforced: {facts.cgroup_why}"
        found.append(_problem(what, *_cgroup_fix(facts)))
    return found


def _cgroup_fix(facts: Facts) -> tuple[str, ...]:
    if facts.cgroup_version == 0:
        return ("mount -t cgroup2 none /sys/fs/cgroup",)
    if facts.uid == 0:
        return ("make the memory and pids controllers available and writable here, see cgroups(7)",)
    if facts.cgroup_version == 1:
        return (
            "run Atoll as root",
            "or boot with cgroup v2: add systemd.unified_cgroup_hierarchy=1 to GRUB_CMDLINE_LINUX in /etc/default/grub",
            "update-grub && reboot",
        )
    return (
        "systemd-run --user --scope -p Delegate=yes atoll run ...",
        "or, in the systemd unit that starts Atoll: Delegate=yes below [Service]",
    )


def _sysctl(name: str, value: int) -> tuple[str, str]:
    return f"sysctl -w {name}={value}", f"echo {name}={value} > /etc/sysctl.d/90-atoll.conf"


def _apparmor_fix(launcher: str, bwrap: str) -> tuple[str, ...]:
    fix = []
    for name, path in (("atoll-launch", launcher), ("bwrap", bwrap)):
        if path:
            target = f"/etc/apparmor.d/{name}"
            fix += [f"cat > {target} <<'END'\n{apparmor_profile(name, path)}END", f"apparmor_parser -r {target}"]
    return (*fix, "keep both programs root's: whoever can replace one can make user namespaces")


def apparmor_profile(name: str, path: str) -> str:
    """A profile that lets the program at `path` make user namespaces and restricts nothing (apparmor.d(5))."""
    literal = "".join(f"\\{char}" if char in '\\"*?[]{}^@' else char for char in path)
    return (
        "abi <abi/4.0>,\n"
        "include <tunables/global>\n"
        f'profile {name} "{literal}" flags=(unconfined) {{\n'
        "  userns,\n"
        f"  include if exists <local/{name}>\n"
        "}\n"
    )


def _known_flaws(version: Version) -> list[Finding]:
    return [
        Finding(
            severity="warning",
            what=f"{flaw.cve} ({flaw.name}): kernels of this version have it, unless the distribution fixed it without"
            f" a new number; it {flaw.reach}",
            fix=(
                f"apt changelog linux-image-$(uname -r) | grep {flaw.cve} (Debian, Ubuntu: a line means it is fixed)",
                f"rpm -q --changelog kernel-core-$(uname -r) | grep {flaw.cve} (Fedora, RHEL: likewise)",
                "if it is not, install the distribution's kernel update and reboot",
            ),
        )
        for flaw in affecting(version)
    ]
