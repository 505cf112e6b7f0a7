"""S16: for each kind of host that cannot sandbox, `atoll doctor` names the cause and the command that fixes it."""

from typing import Any

import msgspec
import pytest

from atoll.client.advisories import affecting, upstream_version
from atoll.client.diagnose import Diagnosis, apparmor_profile, diagnose
from atoll.client.facts import Facts, Trial

CGROUP = ("cgroup_cpu", "cgroup_memory", "cgroup_pids")
NO_USERNS = Trial(ok=False, reason="driver_unavailable", message="level process: user namespaces are restricted")
NO_LIMITS = Trial(ok=False, reason="policy_unenforceable", message="cgroup_cpu cannot be enforced here")

GOOD = Facts(
    machine="x86_64",
    kernel_release="6.12.48",
    kernel_build="#1 SMP PREEMPT_DYNAMIC",
    kernel_signature="",
    uid=1000,
    container="",
    max_user_namespaces=15000,
    unprivileged_userns_clone=None,
    apparmor_restricts_userns=False,
    bwrap="/usr/bin/bwrap",
    launcher="/opt/atoll/_bin/atoll-launch",
    cgroup_version=2,
    cgroup_why="",
    seccomp_why="",
    kvm="absent",
    trial=Trial(ok=True),
    reduced_trial=None,
)


def examined(**changes: object) -> Diagnosis:
    return diagnose(msgspec.structs.replace(GOOD, **changes))


def process(found: Diagnosis) -> tuple[str, str]:
    (level,) = (level for level in found.levels if level.level == "process")
    return level.state, level.note


def test_a_good_host_has_nothing_to_fix() -> None:
    found = examined()
    assert found.healthy
    assert found.findings == ()
    assert process(found) == ("works", "a trial sandbox ran")


@pytest.mark.parametrize(
    ("changes", "cause", "fix"),
    [
        pytest.param(
            {"max_user_namespaces": 0, "trial": NO_USERNS},
            "user namespaces are switched off",
            "sysctl -w user.max_user_namespaces=15000",
            id="max_user_namespaces=0",
        ),
        pytest.param(
            {"unprivileged_userns_clone": 0, "trial": NO_USERNS},
            "kept from users other than root",
            "sysctl -w kernel.unprivileged_userns_clone=1",
            id="unprivileged_userns_clone=0",
        ),
        pytest.param(
            {"max_user_namespaces": None, "trial": NO_USERNS},
            "the kernel has no user namespaces",
            "install a kernel with CONFIG_USER_NS=y",
            id="CONFIG_USER_NS=n",
        ),
        pytest.param(
            {"apparmor_restricts_userns": True, "trial": NO_USERNS},
            "AppArmor",
            "apparmor_parser -r /etc/apparmor.d/atoll-launch",
            id="apparmor",
        ),
        pytest.param(
            {"bwrap": "", "trial": Trial(ok=False, reason="driver_unavailable", message="no bwrap")},
            "bubblewrap (bwrap) is not installed",
            "apt-get install bubblewrap",
            id="no-bwrap",
        ),
        pytest.param(
            {"launcher": "", "trial": Trial(ok=False, reason="driver_unavailable", message="atoll-launch is missing")},
            "lacks its own programs",
            "pip install --force-reinstall atoll",
            id="not-built",
        ),
        pytest.param(
            {
                "container": "Docker",
                "uid": 0,
                "trial": Trial(ok=False, reason="driver_unavailable", message="unshare: Operation not permitted"),
            },
            "inside a container (Docker)",
            "run Atoll on the host itself",
            id="docker",
        ),
        pytest.param(
            {"cgroup_version": 1, "cgroup_why": "limits need v2", "trial": NO_LIMITS, "reduced_trial": NO_USERNS},
            "limits need v2",
            "run Atoll as root",
            id="cgroup-v1-rootless",
        ),
        pytest.param(
            {"cgroup_why": "not delegated", "trial": NO_LIMITS},
            "not delegated",
            "systemd-run --user --scope -p Delegate=yes atoll run ...",
            id="no-delegation",
        ),
        pytest.param(
            {"cgroup_version": 0, "cgroup_why": "none mounted", "trial": NO_LIMITS},
            "none mounted",
            "mount -t cgroup2 none /sys/fs/cgroup",
            id="no-cgroups",
        ),
        pytest.param(
            {"seccomp_why": "SECCOMP_RET_USER_NOTIF is not available", "trial": NO_LIMITS},
            "SECCOMP_RET_USER_NOTIF",
            "install Linux 5.6 or newer with CONFIG_SECCOMP_FILTER=y",
            id="no-seccomp-notification",
        ),
        pytest.param(
            {"machine": "aarch64", "trial": NO_USERNS}, "this machine is aarch64", "use an x86-64 host", id="aarch64"
        ),
        pytest.param(
            {"kernel_release": "5.4.300", "trial": NO_USERNS},
            "Linux 5.4.300 lacks mount_setattr(2)",
            "install Linux 5.12 or newer",
            id="old-kernel",
        ),
        pytest.param(
            {"trial": Trial(ok=False, reason="provision_failed", message="odd thing", hint="do this")},
            "odd thing",
            "do this",
            id="anything-else",
        ),
    ],
)
def test_a_bad_host_is_told_the_cause_and_the_fix(changes: dict[str, Any], cause: str, fix: str) -> None:
    found = examined(**changes)
    problems = [finding for finding in found.findings if finding.severity == "problem"]
    assert any(cause in problem.what and fix in problem.fix for problem in problems), problems
    assert not found.healthy
    assert process(found)[0] == "unavailable"


def test_where_a_reduced_sandbox_ran_only_what_it_lacked_is_a_problem() -> None:
    ran = Trial(ok=True, without=CGROUP)
    found = examined(apparmor_restricts_userns=True, cgroup_why="not delegated", trial=NO_LIMITS, reduced_trial=ran)
    assert [finding.what for finding in found.findings] == [
        "memory, process and CPU limits cannot be enforced: not delegated"
    ]
    assert process(found) == (
        "reduced",
        "a trial sandbox ran, but only --without cgroup_cpu --without cgroup_memory --without cgroup_pids",
    )
    assert not found.healthy


def test_settings_that_do_not_bind_root_are_no_problem_for_root() -> None:
    failed = Trial(ok=False, reason="provision_failed", message="odd thing")
    found = examined(uid=0, unprivileged_userns_clone=0, apparmor_restricts_userns=True, trial=failed)
    assert [finding.what for finding in found.findings] == ["odd thing"]


def test_a_container_is_not_blamed_for_other_failures() -> None:
    found = examined(container="Docker", trial=Trial(ok=False, reason="internal", message="KeyError: 'x'"))
    assert [finding.what for finding in found.findings] == ["KeyError: 'x'"]


def test_levels_without_a_driver_say_so() -> None:
    notes = {level.level: (level.state, level.note) for level in examined(kvm="forbidden").levels}
    assert notes["gvisor"] == ("unavailable", "no driver in this release")
    assert notes["microvm"] == ("unavailable", "no driver in this release; /dev/kvm is forbidden")
    assert notes["wasm"] == ("unavailable", "no driver in this release")


def test_apparmor_fix_is_the_text_to_type_and_quotes_the_path() -> None:
    found = examined(apparmor_restricts_userns=True, launcher="/opt/a [b]/atoll-launch", trial=NO_USERNS)
    (problem,) = found.findings
    assert problem.fix[0] == (
        "cat > /etc/apparmor.d/atoll-launch <<'END'\n"
        "abi <abi/4.0>,\n"
        "include <tunables/global>\n"
        'profile atoll-launch "/opt/a \\[b\\]/atoll-launch" flags=(unconfined) {\n'
        "  userns,\n"
        "  include if exists <local/atoll-launch>\n"
        "}\n"
        "END"
    )
    assert problem.fix[1] == "apparmor_parser -r /etc/apparmor.d/atoll-launch"
    assert 'profile bwrap "/usr/bin/bwrap" flags=(unconfined)' in problem.fix[2]
    assert apparmor_profile("x", '/a"b') != apparmor_profile("x", "/a\\b")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((6, 18, 44), set()),
        ((6, 8, 0), set()),
        ((6, 7, 2), {"CVE-2024-1086"}),
        ((6, 1, 76), set()),
        ((6, 1, 75), {"CVE-2024-1086"}),
        ((6, 1, 27), {"CVE-2024-1086", "CVE-2023-32233"}),
        ((6, 1, 8), {"CVE-2024-1086", "CVE-2023-32233", "CVE-2023-0386"}),
        ((5, 10, 102), {"CVE-2024-1086", "CVE-2023-32233"}),
        ((5, 10, 101), {"CVE-2024-1086", "CVE-2023-32233", "CVE-2022-0847"}),
        ((5, 15, 24), {"CVE-2024-1086", "CVE-2023-32233", "CVE-2023-0386", "CVE-2022-0847"}),
        ((5, 16, 10), {"CVE-2024-1086", "CVE-2023-32233", "CVE-2023-0386", "CVE-2022-0847"}),
        ((5, 7, 0), {"CVE-2024-1086", "CVE-2023-32233", "CVE-2022-0185"}),
        ((4, 8, 2), {"CVE-2024-1086", "CVE-2023-32233", "CVE-2016-5195"}),
        ((4, 8, 3), {"CVE-2024-1086", "CVE-2023-32233"}),
        ((2, 6, 21), set()),
    ],
)
def test_known_kernel_flaws(version: tuple[int, int, int], expected: set[str]) -> None:
    assert {advisory.cve for advisory in affecting(version)} == expected


def test_known_flaws_are_warnings_that_say_how_to_check_for_a_backport() -> None:
    found = examined(kernel_release="5.15.24")
    assert found.healthy
    (dirty_pipe,) = (finding for finding in found.findings if "Dirty Pipe" in finding.what)
    assert dirty_pipe.severity == "warning"
    assert "ordinary system calls" in dirty_pipe.what
    assert dirty_pipe.fix[0].startswith("apt changelog linux-image-$(uname -r) | grep CVE-2022-0847")


@pytest.mark.parametrize(
    ("release", "build", "signature", "expected"),
    [
        ("6.18.44-fc-v857", "#1 SMP @0", "", (6, 18, 44)),
        ("6.1.0-21-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.90-1 (2024-05-03)", "", (6, 1, 90)),
        ("5.15.0-91-generic", "#101-Ubuntu SMP", "Ubuntu 5.15.0-91.101-generic 5.15.131", (5, 15, 131)),
        ("6.6-rc1", "#1", "", (6, 6, 0)),
        ("strange", "#1", "", (0, 0, 0)),
    ],
)
def test_upstream_version(release: str, build: str, signature: str, expected: tuple[int, int, int]) -> None:
    assert upstream_version(release, build, signature) == expected
