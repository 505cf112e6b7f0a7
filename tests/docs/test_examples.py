"""The demo runs to its end on real input. Its first run fetches that from the package registry into build/demo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 300


@pytest.mark.timeout(SECONDS + 20)
def test_the_demo_ends_with_its_table(level: str) -> None:
    plot = ROOT / "build/demo/plot.png"
    plot.unlink(missing_ok=True)
    demo = subprocess.run(
        [sys.executable, "examples/demo.py"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "300"},  # no cell is broken into lines
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "1461 days from 2012-01-01 to 2015-12-31" in demo.stdout  # what examples/analyse.py found in the data
    assert plot.read_bytes().startswith(b"\x89PNG")
    cells = [line.split("│")[1:-1] for line in demo.stdout.splitlines() if line.startswith("│")]
    outcomes = {row[0].strip(): row[1].strip() for row in cells}
    assert outcomes.keys() == {
        "analysis of a CSV with a plot",
        "tests of more_itertools-10.8.0.tar.gz",
        "fork bomb",
        "2 GB allocation",
        "endless loop",
        "rm -rf / as root",
    }
    assert outcomes["2 GB allocation"].startswith("out_of_memory: memory limit 256 MiB")
    assert outcomes["endless loop"] == "timeout: limit 3 s"
