"""Fixtures of the benchmark's own test."""

from tests.sandboxes import level  # noqa: F401 - fixture
