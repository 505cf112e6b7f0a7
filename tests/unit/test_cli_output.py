"""What reaches a terminal or a pipe: escapes, tables, JSON, outputs nobody can take."""

import json
import os
import threading
from enum import StrEnum

import msgspec
import pytest

from atoll.cli.output import StoppedError, printable, put, put_json, put_text, say, table, unwritable
from atoll.cli.ps import age


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain grün 漢字 ☃", "plain grün 漢字 ☃"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\x07\x9b", "\\x07\\x9b"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("bad\udcffbyte", "bad\\udcffbyte"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_nothing_printed_can_drive_a_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_say_is_one_line_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    say("two\nlines \x1b]0;title\x07")
    say("fix it", prefix="hint: ")
    assert capfd.readouterr() == ("", "atoll: two\\nlines \\x1b]0;title\\x07\nhint: fix it\n")


def test_table_pads_columns_and_escapes_cells() -> None:
    assert table(("A", "LONG"), [("wide cell", "x"), ("\x1b", "")]) == "A          LONG\nwide cell  x\n\\x1b"
    assert table(("A", "B"), []) == "A  B"


class Colour(StrEnum):
    RED = "red"


class Thing(msgspec.Struct):
    colour: Colour
    data: bytes
    names: list[str]


def test_json_takes_structs_enums_bytes_and_undecodable_text(capfd: pytest.CaptureFixture[str]) -> None:
    put_json({"thing": Thing(Colour.RED, b"\xff", ["b", "a"]), "bad": "x\udcff", Colour.RED: 1, "odd": E})
    line = capfd.readouterr().out
    assert line.endswith("\n")
    assert line.count("\n") == 1
    found = json.loads(line)
    assert found.pop("odd").startswith("<class")
    assert found == {"thing": {"colour": "red", "data": "/w==", "names": ["b", "a"]}, "bad": "x?", "red": 1}


class E:
    """Something JSON does not know."""


def test_text_is_utf8_whatever_the_locale(capfd: pytest.CaptureFixture[str]) -> None:
    put_text("grün")
    assert capfd.readouterr().out == "grün\n"


def test_put_ends_quietly_when_the_reader_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr("atoll.cli.output.STDOUT", writer)
    with pytest.raises(StoppedError) as caught:
        put(b"x")
    os.close(writer)
    assert (caught.value.code, caught.value.message) == (141, "")


def test_put_waits_for_an_output_that_somebody_made_non_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    monkeypatch.setattr("atoll.cli.output.STDOUT", writer)
    data = bytes(1 << 20)

    def write() -> None:
        put(data)
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    with open(reader, "rb") as file:
        assert file.read() == data
    thread.join()


def test_an_output_that_fails_is_named() -> None:
    stopped = unwritable("stdout", OSError(28, "No space left on device"))
    assert (stopped.code, stopped.message) == (125, "stdout cannot be written: No space left on device")


@pytest.mark.parametrize(("seconds", "shown"), [(0.2, "0s"), (59.4, "59s"), (60, "1m"), (7199, "1h"), (200000, "2d")])
def test_age(seconds: float, shown: str) -> None:
    assert age(seconds) == shown
