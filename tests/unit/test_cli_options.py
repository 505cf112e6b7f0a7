"""From the words of a command line to what the API takes."""

from typing import Any

import pytest

from atoll.cli.options import exact, sandbox_request, split_workspace, variables
from atoll.model.errors import InvalidSpecError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("proj", ("proj", "overlay")),
        ("proj:ro", ("proj", "ro")),
        ("proj:overlay", ("proj", "overlay")),
        ("proj:rw", ("proj", "rw")),
        ("proj:copy", ("proj", "copy")),
        ("/a:b/c", ("/a:b/c", "overlay")),
        ("/a:b/c:ro", ("/a:b/c", "ro")),
        ("/a:ro:overlay", ("/a:ro", "overlay")),
        ("/a:", ("/a:", "overlay")),
        ("/a:RO", ("/a:RO", "overlay")),
        (":ro", ("", "ro")),
        ("", ("", "overlay")),
    ],
)
def test_workspace(text: str, expected: tuple[str, str]) -> None:
    assert split_workspace(text) == expected


def test_variables_keep_their_values_and_the_last_counts() -> None:
    assert variables(["A=1", "B=x=y\n'\"", "C=", "A=2"]) == {"A": "2", "B": "x=y\n'\"", "C": ""}


def test_a_variable_without_value_is_never_looked_up_on_the_host() -> None:
    with pytest.raises(InvalidSpecError, match=r"env: not K=V, got 'HOME'") as caught:
        variables(["HOME"])
    assert caught.value.hint == "write --env HOME=VALUE; host variables are not read"


@pytest.mark.parametrize("data", [b"plain", "grün".encode(), b"\xff\xfe=\x80", b"a\nb"])
def test_words_keep_their_bytes(data: bytes) -> None:
    word = data.decode("utf-8", "surrogateescape")  # as Python makes sys.argv in a UTF-8 locale
    assert exact(word).encode("utf-8", "surrogateescape") == data


def test_request_has_only_what_was_given() -> None:
    given: dict[str, Any] = {"level": "process", "memory": None, "cpus": "0.5", "pids": "64", "env": ("A=1",)}
    assert sandbox_request(given) == {"level": "process", "cpus": 0.5, "pids": 64, "envs": {"A": "1"}}


def test_request_splits_the_workspace() -> None:
    request = sandbox_request({"workspace": "/x:ro", "env": ()})
    assert request == {"workspace": "/x", "workspace_mode": "ro", "envs": {}}


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("cpus", "12 parsecs", "cpus: not a number, got '12 parsecs'"),
        ("pids", "1.5", "pids: not a whole number, got '1.5'"),
        ("open_files", "many", "open_files: not a whole number, got 'many'"),
    ],
)
def test_a_bad_number_names_field_value_and_fix(field: str, text: str, message: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        sandbox_request({field: text, "env": ()})
    assert caught.value.message == message
    assert caught.value.hint == f"write it like --{field.replace('_', '-')} 2"
