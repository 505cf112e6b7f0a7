"""The embedding process dies by SIGKILL at every point of a sandbox's life: then the reaper leaves nothing (C27)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atoll.teardown import reaper
from tests.leak.host_state import host_state, quiet, settled

EMBEDDER = Path(__file__).with_name("embedder.py")
FEWEST_POINTS = 25
"""Below this the embedder has lost its hooks and the test would prove little."""

CROWD = """
import sys, time
from atoll import Sandbox
crowd = [Sandbox.create() for _ in range(10)]
for sbx in crowd[:5]:
    sbx.commands.run("(while :; do sleep 1; done &) ; :")
print("up", flush=True)
time.sleep(60)
"""


def embed(argv: list[str], state: Path) -> "subprocess.Popen[str]":
    """Run a program that embeds Atoll with a state directory of its own."""
    root = Path(__file__).parents[2]
    env = dict(os.environ, ATOLL_STATE=str(state), PYTHONPATH=f"{root / 'src'}:{root}")
    return subprocess.Popen([sys.executable, *argv], env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(300)
def test_kill_at_every_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A directory that is so young that its owner may still be writing the first line is left alone; not here.
    monkeypatch.setattr(reaper, "NEWBORN_S", -1.0)
    tmp_path.chmod(0o700)
    state = tmp_path / "state"
    baseline = quiet(state)
    point = 0
    while True:
        point += 1
        with embed([str(EMBEDDER), str(point)], state) as program:
            output = program.communicate(timeout=60)[0]
        if program.returncode == 0:
            break
        assert program.returncode == -signal.SIGKILL, f"point {point}: {output}"
        found = reaper.reap(state)
        assert {reaped.outcome for reaped in found} <= {"removed"}, f"point {point}: {found}"
        assert settled(state, baseline) == baseline, f"point {point}"
    assert point > FEWEST_POINTS, output


def test_a_crowd_with_background_jobs_dies_with_its_owner(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    state = tmp_path / "state"
    baseline = quiet(state)
    with embed(["-c", CROWD], state) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        assert len(host_state(state).sandboxes) == 10
        program.kill()
    began = time.monotonic()
    assert len(reaper.reap(state)) == 10
    assert time.monotonic() - began < 5
    assert settled(state, baseline) == baseline


def test_the_next_start_cleans_up_by_itself(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    state = tmp_path / "state"
    baseline = quiet(state)
    with embed(["-c", CROWD], state) as program:
        assert program.stdout is not None
        program.stdout.readline()
        program.kill()
    with embed(["-c", "from atoll import Sandbox\nSandbox.create().kill()"], state) as program:
        assert program.wait(60) == 0
    assert settled(state, baseline) == baseline
