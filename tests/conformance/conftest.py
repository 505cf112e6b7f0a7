"""Fixtures of the conformance suite: a state directory of its own and a plain sandbox."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll import Sandbox
from tests.conformance.host import IN_VM
from tests.sandboxes import Make, level, make

__all__ = ["level", "make", "sandbox", "state"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow_in_vm: too heavy for the emulated test machine; skipped there")
    config.addinivalue_line("markers", "as_root: needs root on the host; skipped for others")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if IN_VM and item.get_closest_marker("slow_in_vm"):
            item.add_marker(pytest.mark.skip(reason="too heavy under emulation"))
        if os.geteuid() != 0 and item.get_closest_marker("as_root"):
            item.add_marker(pytest.mark.skip(reason="needs root on the host"))


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Atoll's state directory for these tests, so that what they leave in it can be told."""
    directory = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_STATE", str(directory))
        yield directory


@pytest.fixture
def sandbox(make: Make) -> Sandbox:
    """A sandbox with the default limits."""
    return make()
