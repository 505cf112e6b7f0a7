"""The command line, and fixtures for what documents say about sandboxes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandboxes import level, make  # noqa: F401 - fixtures

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs words in a directory of its own, with `atoll` on PATH as after an installation."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "ATOLL_STATE": str(state), "COLUMNS": "120"}

    def words(*argv: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)

    return words
