"""The share of processor time that a sandbox has, however many processes it runs."""

import pytest

from tests.sandboxes import Make

BURN = "while :; do :; done"


@pytest.mark.parametrize(
    ("cpus", "script"),
    [(0.5, BURN), (0.5, f"({BURN}) & ({BURN}) & ({BURN}) & {BURN}"), (0.1, f"({BURN}) & {BURN}")],
    ids=["half a core", "half a core for four", "a tenth for two"],
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
