"""The benchmark runs and gives every figure it promises, with its floor. How fast anything is, is never asserted."""

import json
import subprocess
import sys
from pathlib import Path

from bench.__main__ import CASES

ROOT = Path(__file__).parents[2]
FLOORS = {
    ("cold create to first output", "bare bubblewrap"),
    ("cold create to first output", "bubblewrap in fresh cgroups"),
    ("exec in a live sandbox", "raw subprocess"),
    ("exec after a pause of 0.1 s", "raw subprocess"),
    ("stdout streaming, logged", "raw pipe"),
    ("host memory, peak meanwhile", "before"),
    ("10 creates at once, all used and gone", "bare bubblewrap"),
    ("atoll run -- true", "python -c ''"),
}
WITHOUT_FLOOR = {"teardown", "exec through bash -l", "idle sandbox, private memory", "create and destroy"}


def test_every_figure_is_there_with_its_floor(level: str) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("bench: ") == len(CASES)  # a line of progress each; nothing else on stdout than JSON
    found = json.loads(run.stdout)
    assert found["machine"]["kernel"]
    figures = found["figures"]
    assert {(row["what"], row["floor_name"]) for row in figures if row["floor_name"]} == FLOORS
    assert {row["what"] for row in figures if not row["floor_name"]} == WITHOUT_FLOOR
    for row in figures:
        assert row["value"] > 0, row
        assert row["target"], row
        if row["floor_name"]:
            assert row["floor"] > 0, row
            assert row["ratio"] == row["value"] / row["floor"]
