"""The share of processor time that a sandbox has, however many processes it runs."""

import pytest

from tests.conformance.test_limits_memory import assert_alive
from tests.sandboxes import Make

BURN = "while :; do :; done"


@pytest.mark.parametrize(
    ("cpus", "script"),
    [
        pytest.param(0.5, BURN, id="half a core", marks=pytest.mark.slow_in_vm),
        pytest.param(0.5, f"({BURN}) & ({BURN}) & ({BURN}) & {BURN}", id="half a core for four"),
        pytest.param(0.1, f"({BURN}) & {BURN}", id="a tenth for two", marks=pytest.mark.slow_in_vm),
    ],
)
def test_processor_time_stays_below_the_share(make: Make, cpus: float, script: str) -> None:
    usage = make(cpus=cpus).commands.run(["sh", "-c", script], timeout=2).usage
    share = usage.cpu_s / usage.wall_s
    assert share < cpus * 1.25 + 0.02
    assert share > cpus * 0.2  # the machine has other work


@pytest.mark.slow_in_vm
def test_two_commands_share_what_their_sandbox_has(make: Make) -> None:
    sandbox = make(cpus=0.4)
    sandbox.commands.run(["sh", "-c", f"({BURN}) >/dev/null 2>&1 & exit"])
    usage = sandbox.commands.run(["sh", "-c", BURN], timeout=2).usage
    assert usage.cpu_s / usage.wall_s < 0.3


@pytest.mark.slow_in_vm
def test_busy_leftovers_starve_neither_the_agent_nor_the_next_command(make: Make) -> None:
    sandbox = make(cpus=0.3, memory="64M")
    script = f"i=0; while [ $i -lt 20 ]; do ({BURN}) & i=$((i+1)); done >/dev/null 2>&1; exit"
    sandbox.commands.run(["sh", "-c", script])
    for _ in range(3):
        assert_alive(sandbox)
    result = sandbox.commands.run(["sleep", "30"], timeout=0.5)
    assert (result.reason, result.usage.wall_s < 2.5) == ("timeout", True)
    assert sandbox.is_running()
