"""C13 Environment values are opaque strings: byte for byte, at create and at each command; nothing is logged."""

import json
from collections.abc import Callable

import pytest

from atoll import Sandbox
from atoll.model.errors import InvalidSpecError
from tests.conformance.host import sandbox_directory
from tests.sandboxes import Make

VALUES = {
    "A": "line1\nline2",
    "B": "a'b\"c$HOME`id`\\",
    "C": "  leading and trailing \t ",
    "D": "=x",
    "E": "",
    "F": "é漢\U0001f600",
    "G": "x" * 100_000,
}
READ = "import os, json; print(json.dumps({k: os.environ.get(k) for k in 'ABCDEFG'}))"

Run = Callable[..., str]


@pytest.fixture(params=["at create", "at the command"])
def run(request: pytest.FixtureRequest, make: Make) -> Run:
    """Runs a command with variables that are set in either way; returns its output."""

    def at_create(cmd: list[str], envs: dict[str, str]) -> str:
        return make(envs=envs).commands.run(cmd, check=True).stdout

    def at_command(cmd: list[str], envs: dict[str, str]) -> str:
        return make().commands.run(cmd, envs=envs, check=True).stdout

    return at_create if request.param == "at create" else at_command


def test_c13_values_are_byte_identical(run: Run) -> None:
    assert json.loads(run(["python3", "-c", READ], envs=VALUES)) == VALUES


def test_c13_values_survive_a_login_shell(make: Make) -> None:
    result = make(envs={"A": "from create"}).commands.run(f'exec python3 -c "{READ}"', envs=VALUES)
    assert json.loads(result.stdout) == VALUES


def test_c13_values_that_are_not_utf_8_are_exact(run: Run) -> None:
    code = "import os; print(os.environb[b'RAW'].hex())"
    assert run(["python3", "-c", code], envs={"RAW": "\udcff\udc80é"}) == "ff80c3a9\n"


@pytest.mark.parametrize("name", ["with space", "-dash", "1", "a.b", "é", "'$(id)'", "new\nline", "%n"])
def test_c13_odd_names_are_passed_as_they_are(run: Run, name: str) -> None:
    code = "import os, sys; print(os.environ[sys.argv[1]])"
    assert run(["python3", "-c", code, name], envs={name: "value"}) == "value\n"


@pytest.mark.parametrize(
    ("envs", "problem"),
    [
        ({"A=B": "x"}, "env key: empty or holds '=', got 'A=B'"),
        ({"": "x"}, "env key: empty or holds '=', got ''"),
        ({"A\0B": "x"}, "env key: holds a NUL byte, got 'A.x00B'"),
        ({"KEY": "a\0b"}, "env KEY: holds a NUL byte"),
        ({"KEY": 5}, "env KEY: not a string, got a hidden int"),
        ({"KEY": None}, "env KEY: not a string, got a hidden NoneType"),
        ({5: "x"}, "env key: not a string, got 5"),
        ({"KEY": "\ud800"}, "env KEY: not encodable as UTF-8"),
        ({"KEY": "x" * (1 << 17)}, "env KEY: longer than 131071 bytes"),
        ({f"K{n}": "x" * 120_000 for n in range(9)}, "together over 1000000 bytes"),
        (["A=B"], "envs: not a dictionary"),
        ("A=B", "envs: not a dictionary"),
    ],
)
def test_c13_what_cannot_be_passed_is_a_typed_error_naming_the_key(
    run: Run, envs: dict[str, str], problem: str
) -> None:
    with pytest.raises(InvalidSpecError, match=problem) as caught:
        run(["true"], envs=envs)
    assert caught.value.hint
    assert len(str(caught.value)) < 400


def test_c13_a_bad_variable_leaves_the_sandbox_usable(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidSpecError):
        sandbox.commands.run("true", envs={"A=B": "x"})
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_c13_values_are_not_written_down_on_the_host(make: Make) -> None:
    secret = "canary-6d1f0e"
    sandbox = make(envs={"TOKEN": secret})
    sandbox.commands.run("true", envs={"OTHER": secret})
    files = [path for path in sandbox_directory(sandbox).rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_a_command_overrides_the_sandbox_which_overrides_the_template(make: Make) -> None:
    sandbox = make(envs={"LANG": "C", "X": "create", "Y": "create"})
    result = sandbox.commands.run(["sh", "-c", "echo $LANG $X $Y $TERM"], envs={"Y": "command"})
    assert result.stdout == "C create command dumb\n"
    assert sandbox.commands.run(["sh", "-c", "echo $Y"]).stdout == "create\n"


def test_nothing_of_the_hosts_environment_leaks_in(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "canary-77aa01")
    sandbox = make()
    listed = sandbox.commands.run(["env", "-0"]).stdout.strip("\0").split("\0")
    assert {item.partition("=")[0] for item in listed} == {"PATH", "LANG", "TERM", "HOME", "USER", "LOGNAME", "SHELL"}
    found = sandbox.commands.run("cat /proc/1/environ /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c canary")
    assert found.stdout == "0\n"


def test_each_command_has_its_own(sandbox: Sandbox) -> None:
    sandbox.commands.run("export LEFT=1", envs={"ONCE": "1"})
    assert sandbox.commands.run("echo ${ONCE-none} ${LEFT-none}").stdout == "none none\n"
