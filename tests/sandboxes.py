"""Fixtures for suites that run at every level whose driver exists; a new driver joins by one word in `LEVELS`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from atoll import Sandbox
from atoll.isolate.registry import driver_for
from atoll.model.errors import DriverUnavailableError, PolicyUnenforceableError

LEVELS = ("process",)

Make = Callable[..., Sandbox]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, require_driver: Callable[[str, str | None], None]) -> str:
    """Each isolation level in turn; skipped where this host cannot have it."""
    found = str(request.param)
    require_driver(driver_for(found).name, _unavailable(found))
    return found


@pytest.fixture
def make(level: str) -> Iterator[Make]:
    """A factory of sandboxes at `level`; all of them are destroyed after the test."""
    with ExitStack() as stack:

        def create(**options: object) -> Sandbox:
            return stack.enter_context(Sandbox.create(level=level, **options))

        yield create


@cache
def _unavailable(level: str) -> str | None:
    """Why the host cannot have `level`, found by trying; what else goes wrong is for the tests to show."""
    try:
        Sandbox.create(level=level).kill()
    except (DriverUnavailableError, PolicyUnenforceableError) as error:
        return str(error)
    return None
