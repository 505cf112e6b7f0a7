"""Fixtures of the posture suite."""

from tests.sandboxes import level, make  # noqa: F401 - fixtures
