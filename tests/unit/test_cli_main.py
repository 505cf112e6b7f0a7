"""The boundary: whatever goes wrong becomes words, an exit code, and with --json one object."""

import json
import os
import subprocess
import sys
from importlib import import_module

import click
import pytest

from atoll.cli import main
from atoll.cli.options import json_option
from atoll.cli.output import StoppedError
from atoll.model import errors
from atoll.model.errors import AtollError, InvalidSpecError

Run = pytest.CaptureFixture[str]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> "list[BaseException]":
    """Registers `atoll raise`, which raises the exception put into the list."""
    raised: list[BaseException] = []

    @click.command("raise")
    @json_option
    def fail(as_json: bool) -> None:
        raise raised[0]

    monkeypatch.setattr(main.atoll, "get_command", lambda _ctx, _name: fail)
    return raised


@pytest.mark.parametrize("kind", list(errors.CODES), ids=[kind.__name__ for kind in errors.CODES])
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_every_error_of_the_tree(
    command: list[BaseException], capfd: Run, kind: type[AtollError], as_json: bool
) -> None:
    error = InvalidSpecError("f", 1, "bad", hint="h") if kind is InvalidSpecError else kind("bad", hint="h", limit=3)
    command.append(error)
    code = main.invoke(["raise", *(["--json"] if as_json else [])])
    assert code == errors.CODES[kind].exit
    out, err = capfd.readouterr()
    if as_json:
        expected = {"reason": kind.reason, "message": error.message, "hint": "h", "details": error.details}
        assert json.loads(out) == {"error": expected}
        assert not err
    else:
        assert err == f"atoll: {error.message}\nhint: h\n"
        assert not out


def test_hostile_text_in_an_error_is_escaped(command: list[BaseException], capfd: Run) -> None:
    command.append(AtollError("name \x1b[2J", hint="x\ny"))
    assert main.invoke(["raise"]) == 125
    assert capfd.readouterr().err == "atoll: name \\x1b[2J\nhint: x\\ny\n"


def test_an_unexpected_exception_shows_no_trace(
    command: list[BaseException], capfd: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ATOLL_DEBUG", raising=False)
    command.append(KeyError("x"))
    assert main.invoke(["raise"]) == 125
    shown = "atoll: internal error: KeyError: 'x'\nhint: set ATOLL_DEBUG=1 to see where, and please report it\n"
    assert capfd.readouterr().err == shown


def test_debug_shows_the_trace(command: list[BaseException], capfd: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_DEBUG", "1")
    command.append(KeyError("x"))
    assert main.invoke(["raise"]) == 125
    assert "Traceback (most recent call last)" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (StoppedError(143), 143, ""),
        (StoppedError(125, "stdout is full"), 125, "atoll: stdout is full\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
    ids=["signal", "output", "ctrl-c"],
)
def test_early_ends(command: list[BaseException], capfd: Run, error: BaseException, code: int, words: str) -> None:
    command.append(error)
    assert main.invoke(["raise"]) == code
    assert capfd.readouterr() == ("", words)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run"], "Missing argument 'CMD...'"),
        (["run", "--nonsense", "--", "true"], "No such option '--nonsense'"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["kill"], "give ids or names, or --all"),
        (["kill", "--all", "x"], "give ids or names, or --all"),
        (["run", "--memory"], "Option '--memory' requires an argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors(capfd: Run, argv: list[str], words: str) -> None:
    assert main.invoke(argv) == 2
    out, err = capfd.readouterr()
    assert not out
    assert words in err
    assert "Traceback" not in err


def test_a_usage_error_after_json_is_json(capfd: Run) -> None:
    assert main.invoke(["kill", "--json"]) == 2
    out, err = capfd.readouterr()
    assert json.loads(out)["error"]["reason"] == "usage"
    assert not err


def test_help_says_what_the_commands_say_themselves() -> None:
    for name in main.COMMANDS:
        command = getattr(import_module(f"atoll.cli.{name}"), name)
        assert isinstance(command, click.Command)
        assert command.name == name
        assert command.help


def test_help_imports_no_command() -> None:
    probe = "import sys; from atoll.cli.main import invoke; invoke(['--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "Run a command in a fresh sandbox." in done.stdout
    for module in ("asyncio", "msgspec", "rich", "json"):
        assert f"'{module}'" not in done.stdout


def test_closed_standard_streams_are_filled_and_fail_when_used() -> None:
    probe = (
        "import os; os.close(0); os.close(1); from atoll.cli.main import _open_standard_streams as f; f();"
        "os.write(2, repr([os.open('/dev/null', os.O_RDONLY) > 2]).encode()); os.write(1, b'x')"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("[True]")
    assert f"OSError: [Errno {9}] {os.strerror(9)}" in done.stderr
