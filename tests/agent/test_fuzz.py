"""The parsers against mutated input, under sanitizers."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.agent.conftest import FLAVOURS, SOURCES, compile_c

if TYPE_CHECKING:
    from pathlib import Path


def test_parsers_survive_mutated_input(tmp_path: Path) -> None:
    sources = [SOURCES / name for name in ("fuzz/loop.c", "fuzz/fuzz_frame.c", "frame.c", "start.c")]
    loop = compile_c(tmp_path / "loop", sources, [*FLAVOURS["sanitized"], f"-I{SOURCES}"])
    for seed in ("1", "2", "3"):
        result = subprocess.run([loop, "20000", seed], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stdout, result.stderr) == (0, "20000 inputs\n", "")
