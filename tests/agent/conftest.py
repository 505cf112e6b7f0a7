"""Compiles the agent twice, as it ships and with sanitizers; every test here runs against both."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Launch = Callable[..., Rig]

SOURCES = Path(__file__).parents[2] / "agent"
FLAVOURS = {
    "shipped": ["-Os", "-static", "-s"],
    "sanitized": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
}


def compile_c(target: Path, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this machine")
    subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE", *flags, "-o", target, *sources], check=True)
    return target


@pytest.fixture(scope="session", params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def agent(flavour: str) -> Iterator[Path]:
    """The agent's binary, where any user can execute it (pytest's own directories are closed to others)."""
    with tempfile.TemporaryDirectory(prefix=f"atoll-agent-{flavour}-") as directory:
        Path(directory).chmod(0o755)
        yield compile_c(Path(directory, "atoll-agent"), sorted(SOURCES.glob("*.c")), FLAVOURS[flavour])


@pytest.fixture
def launch(agent: Path) -> Iterator[Launch]:
    """`launch(*arguments, prefix=..., fds=...)` starts an agent, which ends with the test."""
    rigs: list[Rig] = []

    def start(*arguments: str, prefix: Sequence[str] = (), fds: Sequence[int] = ()) -> Rig:
        rigs.append(Rig(agent, *arguments, prefix=prefix, fds=fds))
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.close()


@pytest.fixture
def rig(launch: Launch) -> Rig:
    """An agent that is ready for START."""
    return launch().ready()
