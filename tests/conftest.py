"""Options and fixtures for all tests; the order in which they run; time spent per area at the end.

Nothing here knows the package: what builds sandboxes lies in the conftest.py of the area that needs them.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FIRST = ["unit"]  # fast answers first
LAST = ["leak", "docs", "vm"]  # then what counts leftovers of the others or takes long
UNIT_BUDGET_S = 30.0

RequireDriver = Callable[[str, str | None], None]
spent_s: defaultdict[str, float] = defaultdict(float)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("atoll")
    group.addoption("--full", action="store_true", help="waits and counts as in real use, not scaled down")
    group.addoption(
        "--require-drivers",
        nargs="?",
        const="all",
        default="",
        metavar="NAME,...",
        help="fail, instead of skip, where one of these drivers (no names: any) is unavailable",
    )


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether to take the time for real waits and counts."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(scope="session")
def require_driver(pytestconfig: pytest.Config) -> RequireDriver:
    """``require_driver(name, reason)``: skips, or fails where the driver was required; a reason of None goes on."""
    required = set(str(pytestconfig.getoption("--require-drivers")).split(","))

    def require(name: str, reason: str | None) -> None:
        if reason is None:
            return
        if required & {name, "all"}:
            pytest.fail(f"driver {name} is required here but unavailable: {reason}")
        pytest.skip(f"driver {name} is unavailable: {reason}")

    return require


@pytest.fixture
def anyio_backend() -> str:
    """Tests that are coroutines run on asyncio, as Atoll does."""
    return "asyncio"


def area(path: Path) -> str:
    """The directory below tests/ that a test belongs to."""
    return path.relative_to(TESTS).parts[0]


def over_budget(config: pytest.Config) -> bool:
    """Whether the unit tests have become too slow to be run at every step of the work."""
    emulated = "ATOLL_TEST_VM" in os.environ  # set by tests/vm/machine.py
    return spent_s.get("unit", 0.0) > UNIT_BUDGET_S and not emulated and not config.getoption("--full")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = [*FIRST, "", *LAST]
    items.sort(key=lambda item: order.index(name) if (name := area(item.path)) in order else order.index(""))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    spent_s[Path(report.nodeid).parts[1]] += report.duration


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if over_budget(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("time per area")
    for name, seconds in spent_s.items():
        terminalreporter.line(f"{seconds:7.1f} s  {name}")
    if over_budget(config):
        terminalreporter.line(f"FAILED: the unit tests may take {UNIT_BUDGET_S:.0f} s", red=True)
