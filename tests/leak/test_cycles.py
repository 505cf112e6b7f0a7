"""Lives that end in an ordinary way leave nothing, however many there are and however they end."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll import AsyncSandbox, Sandbox
from atoll.model.errors import AtollError
from atoll.teardown.state import state_dir
from tests.leak.host_state import own, quiet, settled

CYCLES, FULL_CYCLES = 500, 2000
AT_ONCE = 8
RSS_GROWTH_KIB = 8 * 1024


async def cycles(count: int) -> None:
    """Create, run, destroy, a few at once."""

    async def one(turn: asyncio.Semaphore) -> None:
        async with turn, await AsyncSandbox.create(memory="64M") as sbx:
            assert (await sbx.commands.run(["/bin/echo", "x"])).stdout == "x\n"

    turn = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(one(turn) for _ in range(count)))


@pytest.mark.timeout(400)
def test_many_cycles_leave_nothing(full: bool) -> None:
    asyncio.run(cycles(50))  # what the process keeps for good (threads, leases, caches) is there now
    state = state_dir()
    before, mine = quiet(state), own()
    asyncio.run(cycles(FULL_CYCLES if full else CYCLES))
    assert settled(state, before) == before
    after = own()
    assert after.fds <= mine.fds
    assert after.threads <= mine.threads
    assert after.rss_kib - mine.rss_kib < RSS_GROWTH_KIB


def test_failed_creates_leave_nothing(tmp_path: Path) -> None:
    state = state_dir()
    Sandbox.create().kill()
    before, mine = quiet(state), own()
    bad: list[dict[str, object]] = [
        {"memory": "1M"},
        {"cpus": -1},
        {"workspace": tmp_path / "missing"},
        {"template": "missing"},
        {"user": "missing"},
        {"level": "gvisor"},
        {"name": "Not A Name"},
        {"envs": {"A=B": "c"}},
        {"open_files": 1 << 20},
        {"without": ["uid_range"]},
    ]
    for options in bad * 3:
        with pytest.raises(AtollError):
            Sandbox.create(**options)
    assert settled(state, before) == before
    assert own().fds <= mine.fds


PROGRAMS = {
    "no kill": "sbx = Sandbox.create(); sbx.commands.run('(sleep 99 &) ; :')",
    "an exception": "sbx = Sandbox.create(); raise SystemExit(0)",
    "a fork": "sbx = Sandbox.create()\nif os.fork() == 0: sys.exit(0)\n"
    "os.wait(); print(sbx.commands.run('echo alive').stdout)",
    "a closed loop": "asyncio.run(AsyncSandbox.create())",
    "a thread that ended": "import threading\nt = threading.Thread(target=lambda: g.append(Sandbox.create())); g = []\n"
    "t.start(); t.join(); print(g[0].commands.run('echo alive').stdout)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_just_ends_leaves_nothing(tmp_path: Path, name: str) -> None:
    tmp_path.chmod(0o700)
    state = tmp_path / "state"
    baseline = quiet(state)
    code = f"import asyncio, os, sys\nfrom atoll import AsyncSandbox, Sandbox\n{PROGRAMS[name]}"
    env = dict(os.environ, ATOLL_STATE=str(state), PYTHONPATH=str(Path(__file__).parents[2] / "src"))
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    if "alive" in PROGRAMS[name]:
        assert "alive" in done.stdout
    assert settled(state, baseline) == baseline
