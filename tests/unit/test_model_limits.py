"""Sizes, durations and limits as people write them, right and wrong; a wrong one names field, value and fix."""

import math

import pytest

from atoll.model.errors import InvalidSpecError
from atoll.model.limits import GIB, KIB, MIB, Limits, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512M", 512 * MIB),
        ("512m", 512 * MIB),
        ("512MB", 512 * MIB),
        ("512MiB", 512 * MIB),
        ("1.5G", 3 * GIB // 2),
        ("1 GiB", GIB),
        (" 64k ", 64 * KIB),
        ("2T", 2 << 40),
        ("4096", 4096),
        ("4096B", 4096),
        ("0.5k", 512),
        (4096, 4096),
        (0, 0),
    ],
    ids=repr,
)
def test_sizes(text: str | int, size: int):
    assert parse_size("memory", text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("12 parsecs", "", " ", "M", "-1M", "+1M", "1e9", "1,5G", "1.5.5M", "512 M B", "nan", "inf", "0x10", "1M\n1M"),
        *("9" * 19, "1.1234567M", True, False, 1.5, math.nan, math.inf, None, b"512M", [], {}),
    ],
    ids=repr,
)
def test_what_is_no_size(text: object):
    with pytest.raises(InvalidSpecError) as raised:
        parse_size("memory", text)
    assert_names(raised.value, "memory", text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("2 M", 120.0),
        ("7", 7.0),
        (" 0.25 ", 0.25),
        (7, 7.0),
        (0.5, 0.5),
        (0, 0.0),
    ],
    ids=repr,
)
def test_durations(text: str | float, seconds: float):
    assert parse_duration("timeout", text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *(
            "12 parsecs",
            "",
            "s",
            "-1",
            "-5s",
            "+5s",
            "1e3",
            "1m30s",
            "5 minutes",
            "nan",
            "inf",
            "1:30",
            "5s5s",
            "5 s s",
        ),
        *(-1, -0.001, math.nan, math.inf, -math.inf, 10**400, True, False, None, b"5s", []),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_duration(text: object):
    with pytest.raises(InvalidSpecError) as raised:
        parse_duration("timeout", text)
    assert_names(raised.value, "timeout", text)


def assert_names(error: InvalidSpecError, field: str, value: object) -> None:
    assert error.field == error.details["field"] == field
    assert error.message.startswith(f"{field}: ")
    shown = repr(value)
    assert shown[:80] in error.message
    assert len(error.details["value"]) <= 83
    assert error.hint
    assert str(error).endswith(f"({error.hint})")


BAD = [
    ("cpus", 0),
    ("cpus", 0.009),
    ("cpus", -1),
    ("cpus", 4097),
    ("cpus", "2"),
    ("cpus", True),
    ("cpus", math.nan),
    ("cpus", math.inf),
    ("cpus", 10**400),
    ("memory_bytes", 16 * MIB - 1),
    ("memory_bytes", 0),
    ("memory_bytes", -(512 * MIB)),
    ("memory_bytes", 1 << 51),
    ("memory_bytes", True),
    ("pids_max", 7),
    ("pids_max", -1),
    ("pids_max", 5_000_000),
    ("pids_max", "100"),
    ("pids_max", 10**400),
    ("open_files", 15),
    ("open_files", (1 << 20) + 1),
    ("output_bytes", 4095),
    ("output_bytes", -1),
    ("disk_bytes", MIB - 1),
    ("disk_bytes", -1),
    ("disk_bytes", 256 * MIB + 1),
    ("disk_inodes", 255),
    ("disk_inodes", -1),
    ("wall_time_s", 0),
    ("wall_time_s", -1.0),
    ("wall_time_s", math.nan),
    ("wall_time_s", math.inf),
    ("idle_time_s", 0),
    ("idle_time_s", True),
    ("idle_time_s", 2e9),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda value: repr(value)[:20])
def test_impossible_limits(field: str, value: object):
    with pytest.raises(InvalidSpecError) as raised:
        Limits(**{field: value}).validate()
    assert_names(raised.value, field, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpus", 0.01),
        ("cpus", 4096),
        ("memory_bytes", 16 * MIB),
        ("pids_max", 8),
        ("open_files", 16),
        ("output_bytes", 4096),
        ("disk_bytes", MIB),
        ("disk_bytes", 256 * MIB),
        ("disk_inodes", 256),
        ("wall_time_s", 0.001),
        ("idle_time_s", 1e9),
    ],
)
def test_the_edges_are_possible(field: str, value: float):
    assert getattr(Limits(**{field: value}).validate(), field) == value


def test_disk_over_half_of_the_memory_says_which_two_limits_to_change():
    with pytest.raises(InvalidSpecError, match=r"half of memory_bytes, or raise the memory limit"):
        Limits(memory_bytes=64 * MIB, disk_bytes=33 * MIB).validate()
    assert Limits(memory_bytes=64 * MIB, disk_bytes=32 * MIB).validate().disk_bytes == 32 * MIB


@pytest.mark.parametrize(
    ("memory", "disk", "inodes"),
    [
        (16 * MIB, 4 * MIB, 1024),
        (512 * MIB, 128 * MIB, 16384),
        (512 * MIB + 12345, 128 * MIB + 3086, 16384),
        (1 << 50, 1 << 48, 1 << 30),
    ],
)
def test_derived_limits_are_filled_in_and_stay(memory: int, disk: int, inodes: int):
    limits = Limits(memory_bytes=memory).validate()
    assert (limits.disk_bytes, limits.disk_inodes) == (disk, inodes)
    assert limits.validate() == limits


def test_limits_cannot_be_changed_or_extended():
    with pytest.raises(AttributeError):
        Limits().cpus = 5
    with pytest.raises(TypeError):
        Limits(privileged=True)
