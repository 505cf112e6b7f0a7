"""A live sandbox per module and level, and the two kinds of guest every attack is tried as."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll import Sandbox
from tests.sandboxes import LEVELS, level, make  # noqa: F401 - fixtures


@pytest.fixture(scope="module", params=LEVELS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """One sandbox for the attacks of a module that do not spoil it."""
    with Sandbox.create(level=request.param, memory="512M", cpus=2) as sbx:
        yield sbx


@pytest.fixture(params=["user", "root"])
def user(request: pytest.FixtureRequest) -> str:
    """As whom the attack runs."""
    return str(request.param)


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compile C source to a static program in a directory of its own, to be shown as a workspace."""

    def build(source: str) -> Path:
        directory = tmp_path_factory.mktemp("c")
        directory.chmod(0o755)
        (directory / "attack.c").write_text(source)
        command = ["gcc", "-O1", "-static", "-w", "-o", str(directory / "attack"), str(directory / "attack.c")]
        subprocess.run(command, check=True)
        return directory

    return build
