"""Strings on their way to execve(2): passed byte for byte, or refused by name. Case C13 is here for the values."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.model.command import MAX_STRING, MAX_TOTAL, Command, check_total, env_items, to_bytes
from atoll.model.errors import InvalidSpecError
from atoll.wire import agent as wire

C13 = {
    "A": "line1\nline2",
    "B": "a'b\"c$HOME`id`\\",
    "C": "  leading and trailing \t",
    "D": "=x",
    "E": "",
    "F": "é漢😀",
    "G": "x" * 100_000,
}


def test_c13_values_are_opaque():
    assert env_items(C13) == tuple(f"{key}={value}".encode() for key, value in C13.items())


@settings(deadline=None)
@given(st.binary(max_size=50).filter(lambda value: b"\0" not in value))
def test_bytes_that_are_no_text_pass_both_ways(value: bytes):
    text = value.decode("utf-8", "surrogateescape")
    assert to_bytes("cmd", text) == to_bytes("cmd", value) == value
    assert env_items({"K": text}) == (b"K=" + value,)


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"A=B": "x"}, "'A=B'"),
        ({"=": "x"}, "'='"),
        ({"": "x"}, "''"),
        ({"A\0B": "x"}, "'A\\x00B'"),
        ({5: "x"}, "got 5"),
        ({None: "x"}, "got None"),
        ({"K\ud800": "x"}, "'K\\ud800'"),
        ({"KEY": "a\0b"}, "env KEY: holds a NUL"),
        ({"KEY": 5}, "env KEY: not a string, got a hidden int"),
        ({"KEY": None}, "env KEY: not a string, got a hidden NoneType"),
        ({"KEY": "\ud800"}, "env KEY: not encodable"),
        ({"KEY": "x" * (MAX_STRING + 1)}, "env KEY: longer than"),
        ({"KY": "x" * (MAX_STRING - 2)}, "env KY: longer than"),
        ({"GOOD": "x", "ALSO": "y", "BAD=": "z"}, "'BAD='"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_c13_what_cannot_be_passed_is_named(variables: dict[str, str], shown: str):
    with pytest.raises(InvalidSpecError) as raised:
        env_items(variables)
    assert shown in str(raised.value)
    assert raised.value.hint


def test_the_longest_variable_passes():
    [item] = env_items({"KEY": "x" * (MAX_STRING - 4)})
    assert len(item) == MAX_STRING == 131_071


@pytest.mark.parametrize("value", [None, 5, True, ["a"], bytearray(b"x"), "a\0b", b"a\0b", "\udfff\ud800"], ids=repr)
def test_what_is_no_argument(value: object):
    with pytest.raises(InvalidSpecError, match=r"argv\[3\]"):
        to_bytes("argv[3]", value)


def of_size(total: int) -> Command:
    """A command whose strings and their NULs are `total` bytes."""
    words, rest = divmod(total - len(b"/\0"), 100_000)
    argv = (*(b"x" * 99_999 for _ in range(words)), b"x" * (rest - 1))
    return Command(argv=argv, env=(), cwd=b"/", uid=0, gid=0)


def test_a_command_that_passes_fits_one_frame():
    command = of_size(MAX_TOTAL)
    check_total(command)
    sent = wire.start(
        1,
        command.argv,
        command.env,
        command.cwd,
        uid=0,
        gid=0,
        stdin=False,
        open_files=0,
        window=0,
        leaf="x" * 32,
    )
    assert len(sent) - wire.HEADER.size <= wire.MAX_PAYLOAD


def test_a_command_that_does_not_fit_is_refused():
    with pytest.raises(InvalidSpecError, match="argv and env: together over"):
        check_total(of_size(MAX_TOTAL + 1))
    many = Command(argv=(b"x",), env=(b"",) * MAX_TOTAL, cwd=b"/", uid=0, gid=0)
    with pytest.raises(InvalidSpecError):
        check_total(many)
