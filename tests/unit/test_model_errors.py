"""The error tree: each class in the one table, stable reasons, built-in relatives, messages that people can use."""

import pickle
import re

import pytest

from atoll.model import errors
from atoll.model.errors import CODES, AtollError, InvalidSpecError, codes_for

CONNECT_CODES = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "out_of_range": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "data_loss": 500,
    "unauthenticated": 401,
}
"""All that the Connect protocol has."""


def tree(cls: type[AtollError] = AtollError) -> list[type[AtollError]]:
    found = [cls]
    for sub in cls.__subclasses__():
        found += tree(sub)
    return [each for each in found if each.__module__ == errors.__name__]


def made(cls: type[AtollError]) -> AtollError:
    return cls("field", "value", "wrong", hint="fix it") if cls is InvalidSpecError else cls("wrong", hint="fix it")


@pytest.mark.parametrize("cls", tree())
def test_each_class_has_codes_and_a_reason_of_its_own(cls: type[AtollError]):
    codes = CODES[cls]
    assert codes.connect in CONNECT_CODES
    assert 400 <= codes.http < 600
    assert codes.exit in {2, 124, 125}
    assert re.fullmatch(r"[a-z_]+", cls.reason)
    assert [other for other in tree() if other.reason == cls.reason] == [cls]
    assert codes_for(made(cls)) == codes


def test_the_table_has_nothing_else():
    assert set(CODES) == set(tree())


def test_a_class_without_codes_has_those_of_its_nearest_base():
    class SpecialError(InvalidSpecError):
        pass

    assert codes_for(SpecialError("a", "b", "c")) == CODES[InvalidSpecError]


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidSpecError", ValueError),
        ("UnsupportedError", NotImplementedError),
        ("NotFoundError", LookupError),
        ("DeadlineError", TimeoutError),
    ],
)
def test_built_in_relatives(name: str, builtin: type[Exception]):
    with pytest.raises(builtin):
        raise made(getattr(errors, name))


def test_what_a_retry_can_help():
    retryable = {cls.__name__ for cls in tree() if cls.retryable}
    assert retryable == {"CapacityError", "ChannelLostError", "ProvisionError", "TeardownError"}


@pytest.mark.parametrize("cls", tree())
def test_messages_end_with_the_fix(cls: type[AtollError]):
    error = made(cls)
    assert str(error).endswith("(fix it)")
    assert error.hint == "fix it"
    bare = cls("f", "v", "wrong") if cls is InvalidSpecError else cls("wrong")
    assert not str(bare).endswith(")")


def test_details_are_kept():
    error = errors.CapacityError("full", limit=7, free=[])
    assert error.details == {"limit": 7, "free": []}


def test_an_invalid_spec_names_field_value_and_problem():
    error = InvalidSpecError("memory", "12 parsecs", "not a size", hint="write it like 512M")
    assert str(error) == "memory: not a size, got '12 parsecs' (write it like 512M)"
    assert error.details == {"field": "memory", "value": "'12 parsecs'"}


def test_a_long_or_odd_value_is_shown_shortened_and_escaped():
    error = InvalidSpecError("env", "\x1b[31m\n" + "x" * 100_000, "bad")
    assert len(str(error)) < 150
    assert "\x1b" not in str(error)
    assert "\n" not in str(error)
    assert str(error).endswith("...")


@pytest.mark.parametrize("cls", tree())
def test_errors_cross_process_borders(cls: type[AtollError]):
    error = made(cls)
    error.details["limit"] = 5
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (str(copy), copy.hint, copy.details) == (str(error), error.hint, error.details)
