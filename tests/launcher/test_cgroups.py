"""Control groups: the program is in its own from the start, sees them as the root, and can join only leaves below."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.conftest import Factory
from tests.launcher.rig import BASE, RANGE, Launch

MOUNT = Path("/sys/fs/cgroup")
NAME = f"atoll-launcher-test-{os.getpid()}"


def hierarchies() -> list[Path]:
    """Writable roots: the one of cgroup v2, or two of v1."""
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    return [MOUNT / name for name in ("memory", "pids") if (MOUNT / name / "cgroup.procs").exists()]


@pytest.fixture
def cgroups() -> Iterator[list[Path]]:
    """A sandbox's directory per hierarchy, with the leaves `agent` and `x1`; the latter given to inside's root."""
    made = [hierarchy / NAME for hierarchy in hierarchies()]
    assert made
    for directory in made:
        for path in (directory, directory / "agent", directory / "x1"):
            path.mkdir()
        for path in (directory, directory / "x1"):  # v2 asks for the common ancestor's too
            os.chown(path / "cgroup.procs", BASE, BASE)
    yield made
    for directory in made:
        for path in (directory / "agent", directory / "x1", directory):
            remove(path)


def remove(directory: Path) -> None:
    """The last process may still be on its way out."""
    for _ in range(200):
        try:
            directory.rmdir()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise AssertionError(f"{directory} is still in use by {(directory / 'cgroup.procs').read_text()}")


def placed(launch: Launch, cgroups: list[Path], leaf: str = "agent") -> Launch:
    for directory in cgroups:
        launch.op("write", launch.fd(directory / "cgroup.procs", os.O_WRONLY), "0")
    launch.op("cgroupns")
    for directory in cgroups:
        launch.op("write", launch.fd(directory / leaf / "cgroup.procs", os.O_WRONLY), "0")
    return launch


def seen(text: str, cgroups: list[Path]) -> set[str]:
    """The paths that proc_pid_cgroup(5) has for these hierarchies."""
    names = {"" if directory.parent == MOUNT else directory.parent.name for directory in cgroups}
    return {path for line in text.splitlines() for _, name, path in [line.split(":", 2)] if name in names}


def test_inside_the_sandboxs_cgroup_is_the_root(root: Factory, cgroups: list[Path]) -> None:
    launch = placed(root(), cgroups).op("userns", BASE, RANGE)
    process = launch.start("/bin/sh", "-c", "cat /proc/self/cgroup; echo; exec sleep 9")
    with process:
        output = process.stdout
        assert output is not None
        inside = "".join(iter(lambda: output.readline().decode(), "\n"))
        outside = Path(f"/proc/{process.pid}/cgroup").read_text()
        process.kill()
    assert seen(inside, cgroups) == {"/agent"}
    assert all(path.endswith(f"/{NAME}/agent") for path in seen(outside, cgroups))


def test_inside_the_namespace_root_itself(root: Factory, cgroups: list[Path]) -> None:
    launch = root()
    for directory in cgroups:
        launch.op("write", launch.fd(directory / "agent" / "cgroup.procs", os.O_WRONLY), "0")
    launch.op("cgroupns", "userns", BASE, RANGE)
    assert seen(launch.sh("cat /proc/self/cgroup").text, cgroups) == {"/"}


def test_the_agent_joins_a_leaf_through_its_directory(root: Factory, cgroups: list[Path]) -> None:
    launch = placed(root().staged(), cgroups)
    numbers = range(20, 20 + len(cgroups))
    for directory, number in zip(cgroups, numbers, strict=True):
        launch.op("cgroupdir", launch.fd(directory), number)
    joins = "".join(f"echo 0 > /proc/self/fd/{number}/x1/cgroup.procs; " for number in numbers)
    result = launch.userns().sh(f"{joins} cat /proc/self/cgroup")
    assert seen(result.text, cgroups) == {"/x1"}


def test_a_cgroup_directory_leads_nowhere_else(either: Factory, cgroups: list[Path]) -> None:
    launch = either().staged()
    launch.op("cgroupdir", launch.fd(cgroups[0]), 20).userns()
    inodes = "stat -c %i /proc/self/fd/20/ /proc/self/fd/20/.. /proc/self/fd/20/../.. /proc/self/fd/20/x1/../.."
    result = launch.sh(f"{inodes}; mkdir /proc/self/fd/20/new 2>&1 || :")
    assert set(result.lines[:4]) == {str(cgroups[0].stat().st_ino)}
    assert result.lines[4].endswith("Permission denied")


def test_a_group_that_takes_nobody(root: Factory, cgroups: list[Path]) -> None:
    launch = root()
    fd = launch.fd(cgroups[0] / "cgroup.procs", os.O_WRONLY)
    launch.op("write", fd, "no pid").op("userns", BASE, RANGE)
    assert launch.refused() == f"write {fd}: Invalid argument"
