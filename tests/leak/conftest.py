"""Fixtures of the leak suite."""

from tests.sandboxes import level, make  # noqa: F401 - fixtures
