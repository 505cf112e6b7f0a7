"""Which cgroups are chosen on which host: real /proc texts of common layouts."""

import os

import pytest

from atoll.kernel import cgroup, cgroup2
from atoll.kernel.cgroupfs import Mount, is_within, parse_membership, parse_mounts
from tests.unit.kernel_support import require_cgroups

UNIFIED = "25 30 0:23 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = """\
31 23 0:28 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
32 31 0:29 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw
33 31 0:30 / /sys/fs/cgroup/systemd rw,nosuid - cgroup cgroup rw,xattr,name=systemd
34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
"""
DOCKER_V1 = """\
900 899 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid master:1 - cgroup cgroup rw,memory
901 899 0:33 /docker/abc /sys/fs/cgroup/pids ro,nosuid master:1 - cgroup cgroup rw,pids
902 899 0:31 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:1 - cgroup cgroup rw,cpu,cpuacct
"""


def test_unified() -> None:
    mounts = parse_mounts(UNIFIED)
    assert mounts == [Mount(True, "/sys/fs/cgroup", "/", frozenset())]
    assert cgroup.choose_unified(mounts) == mounts[0]


def test_hybrid_takes_v1_although_v2_is_mounted() -> None:
    mounts = parse_mounts(HYBRID)
    assert cgroup.choose_unified(mounts) is None
    chosen = cgroup.choose_v1(mounts)
    assert {name: mount.point for name, mount in chosen.items()} == {
        "cpu": "/sys/fs/cgroup/cpu,cpuacct",
        "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
        "memory": "/sys/fs/cgroup/memory",
        "pids": "/sys/fs/cgroup/pids",
    }


def test_v2_with_some_other_controller_in_v1() -> None:
    mounts = parse_mounts(UNIFIED + "40 25 0:40 / /sys/fs/cgroup/net_cls rw - cgroup cgroup rw,net_cls\n")
    assert cgroup.choose_unified(mounts) == mounts[0]


def test_nothing_mounted() -> None:
    assert parse_mounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n") == []
    assert cgroup.choose_unified([]) is None
    assert cgroup.choose_v1([]) == {}


def test_the_usual_mount_is_preferred() -> None:
    mounts = parse_mounts(UNIFIED.replace("/sys/fs/cgroup", "/mnt/other") + UNIFIED)
    assert cgroup.choose_unified(mounts) == mounts[1]


def test_paths_in_a_container_are_relative_to_what_is_mounted() -> None:
    memory = cgroup.choose_v1(parse_mounts(DOCKER_V1))["memory"]
    assert memory.directory("/docker/abc") == "/sys/fs/cgroup/memory"
    assert memory.directory("/docker/abc/atoll/x") == "/sys/fs/cgroup/memory/atoll/x"
    assert memory.directory("/docker/other") is None
    assert memory.directory("/") is None
    assert memory.cgroup("/sys/fs/cgroup/memory/atoll/x") == "/docker/abc/atoll/x"


def test_escapes_in_mount_points() -> None:
    (mount,) = parse_mounts(UNIFIED.replace("/sys/fs/cgroup", r"/mnt/a\040b\134c"))
    assert mount.point == r"/mnt/a b\c"


def test_membership() -> None:
    text = "9:name=systemd:/\n4:cpu,cpuacct:/a\n3:memory:/atoll/x:1\n0::/user.slice\n"
    assert parse_membership(text) == {
        "name=systemd": "/",
        "cpu": "/a",
        "cpuacct": "/a",
        "memory": "/atoll/x:1",
        "": "/user.slice",
    }


@pytest.mark.parametrize(
    ("inner", "inside"),
    [("/atoll/a", True), ("/atoll/a/x1", True), ("/atoll/ab", False), ("/atoll", False), ("", False), ("/", False)],
)
def test_is_within(inner: str, inside: bool) -> None:
    assert is_within(inner, "/atoll/a") is inside


TOP = Mount(True, "/sys/fs/cgroup", "/", frozenset())
SCOPE = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope"


@pytest.mark.parametrize(
    ("own", "euid", "expected"),
    [
        (SCOPE, 1000, [f"/sys/fs/cgroup{SCOPE}"]),
        (f"{SCOPE}/{cgroup2.HOST_LEAF}", 1000, [f"/sys/fs/cgroup{SCOPE}"]),
        ("/system.slice/x.service", 0, ["/sys/fs/cgroup", "/sys/fs/cgroup/system.slice/x.service"]),
        ("/", 0, ["/sys/fs/cgroup"]),
        (f"/{cgroup2.HOST_LEAF}", 0, ["/sys/fs/cgroup"]),
        ("/../outside", 1000, []),
    ],
)
def test_where_v2_sandboxes_may_be_made(own: str, euid: int, expected: list[str]) -> None:
    assert cgroup2.candidates(TOP, own, euid) == expected


def test_a_cgroup_that_was_not_delegated_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0 or require_cgroups().version == 1:
        pytest.skip("an ordinary user of cgroup v2 is needed")
    monkeypatch.setattr(cgroup, "_text", lambda path: UNIFIED if path.endswith("mountinfo") else "0::/\n")
    found = cgroup.detect()
    assert found.root is None
    assert "is not delegated to uid" in found.why
    assert "systemd-run --user --scope -p Delegate=yes" in found.why


def test_processes_left_in_a_delegated_cgroup_are_moved_into_a_leaf() -> None:
    if os.geteuid() == 0 or require_cgroups().version == 1:
        pytest.skip("a delegated cgroup is needed")
    with open("/proc/self/cgroup", encoding="ascii") as own:
        assert own.read().strip().endswith(f"/{cgroup2.HOST_LEAF}")


def test_without_root_v1_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_text", lambda path: HYBRID if path.endswith("mountinfo") else "0::/\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = cgroup.detect()
    assert found.root is None
    assert "need cgroup v2" in found.why


def test_a_missing_v1_controller_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(line for line in HYBRID.splitlines(keepends=True) if "cpuacct" not in line)
    monkeypatch.setattr(cgroup, "_text", lambda path: text if path.endswith("mountinfo") else "0::/\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = cgroup.detect()
    assert found.root is None
    assert "mount -t cgroup -o cpuacct" in found.why
