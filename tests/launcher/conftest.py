"""One build of the launcher and of the probe; a launch as root, as an ordinary user, or as both in turn."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launcher.rig import BASE, USER, Launch, open_directory, processes

ROOT = Path(__file__).resolve().parents[2]
STRICT = ["-std=c11", "-D_GNU_SOURCE", "-Os", "-static", "-s", "-Wall", "-Wextra", "-Werror"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason="the launcher's tests start as root and become others"))


@pytest.fixture(scope="session")
def built() -> Iterator[Path]:
    """A directory with atoll-launch and probe, which any user can run."""
    directory = open_directory("atoll-launcher-bin-")
    sources = sorted(str(path) for path in (ROOT / "launcher").glob("*.c"))
    subprocess.run(["gcc", *STRICT, "-fanalyzer", *sources, "-o", directory / "atoll-launch"], check=True)
    subprocess.run(["gcc", *STRICT, Path(__file__).with_name("probe.c"), "-o", directory / "probe"], check=True)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def probe(built: Path) -> Path:
    return built / "probe"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A host directory for trees and the stage."""
    directory = open_directory("atoll-launcher-")
    (directory / "stage").mkdir()
    yield directory
    shutil.rmtree(directory)


Factory = Callable[[], Launch]


@pytest.fixture
def root(built: Path, scratch: Path) -> Iterator[Factory]:
    """Launches by root: sandboxes with a range of ids."""
    yield from factory(built, scratch, None)


@pytest.fixture
def rootless(built: Path, scratch: Path) -> Iterator[Factory]:
    """Launches by an ordinary user: sandboxes with one id."""
    yield from factory(built, scratch, USER)


@pytest.fixture(params=["root", "rootless"])
def either(request: pytest.FixtureRequest, built: Path, scratch: Path) -> Iterator[Factory]:
    """What must be the same both ways."""
    yield from factory(built, scratch, None if request.param == "root" else USER)


def factory(built: Path, scratch: Path, user: int | None) -> Iterator[Factory]:
    made: list[Launch] = []

    def make() -> Launch:
        made.append(Launch(built / "atoll-launch", scratch / "stage", user))
        return made[-1]

    yield make
    for launch in made:
        launch.close()


@pytest.fixture
def idmappable(root: Factory, scratch: Path) -> None:
    """Skips where the file system of /tmp cannot be idmapped: a tmpfs before Linux 6.3, mount_setattr(2)."""
    launch = root().staged()
    launch.op("idtree", launch.fd(scratch), "lower", "ro", 0, 0, BASE, BASE).userns()
    if "does not support idmapped mounts" in (why := launch.run("/bin/true").err):
        pytest.skip(why)


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Whatever a test started is gone within two seconds of its end."""
    yield
    deadline = time.monotonic() + 2
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left
