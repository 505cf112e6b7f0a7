"""What cannot be done is refused with a typed error that names field, value and fix, and nothing is half-created."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll import Sandbox
from atoll.model.errors import AtollError, DriverUnavailableError, InvalidSpecError, NotFoundError
from tests.conformance.host import Footprint
from tests.sandboxes import Make

ATOLL = Path(sys.executable).with_name("atoll")
NAN, INFINITY = float("nan"), float("inf")

LIMITS: list[tuple[str, Any, str]] = [
    ("memory", "15M", "memory_bytes: not between .* got 15728640 .give at least 16M"),
    ("memory", 0, "memory_bytes: not between .* got 0 .give at least 16M"),
    ("memory", -1, "memory_bytes: not between .* got -1 .give at least 16M"),
    ("memory", "-1G", "memory: not a size, got '-1G' .write it like 512M"),
    ("memory", "12 parsecs", "memory: not a size, got '12 parsecs' .write it like 512M"),
    ("memory", "", "memory: not a size, got ''"),
    ("memory", "1e9", "memory: not a size, got '1e9'"),
    ("memory", 0.5, "memory: not a size, got 0.5"),
    ("memory", True, "memory: not a size, got True"),
    ("memory", ["512M"], r"memory: not a size, got \['512M'\]"),
    ("memory", "9" * 18 + "T", "memory_bytes: not between"),
    ("memory", "9" * 400, "memory: not a size"),
    ("cpus", 0, "cpus: not between .* got 0 .give at least 0.01 cores"),
    ("cpus", -2, "cpus: not between .* got -2"),
    ("cpus", "two", "cpus: not a number, got 'two'"),
    ("cpus", NAN, "cpus: not between .* got nan"),
    ("cpus", INFINITY, "cpus: not between .* got inf"),
    ("cpus", True, "cpus: not a number, got True"),
    ("pids", 7, "pids_max: not between .* got 7 .give at least 8 processes"),
    ("pids", -1, "pids_max: not between .* got -1"),
    ("pids", 64.5, "pids_max: not a whole number, got 64.5"),
    ("pids", "many", "pids_max: not a number, got 'many'"),
    ("pids", 10**12, "pids_max: not between .* got 1000000000000"),
    ("disk", "100K", "disk_bytes: not between .* got 102400 .*1M up to half of memory_bytes"),
    ("disk", "257M", "disk_bytes: not between .* got 269484032 .*half of memory_bytes, or raise the memory limit"),
    ("disk", -5, "disk_bytes: not between .* got -5"),
    ("disk", "lots", "disk: not a size, got 'lots'"),
    ("open_files", 15, "open_files: not between .* got 15 .give at least 16 files"),
    ("open_files", 64.5, "open_files: not a whole number, got 64.5"),
    ("open_files", 10**9, "open_files: not between"),
    ("output", "1K", "output_bytes: not between .* got 1024 .give at least 4K"),
    ("output", "x", "output: not a size, got 'x'"),
    ("timeout", 0, "wall_time_s: not between .* got 0.* .give a positive number of seconds"),
    ("timeout", -1, "timeout: not a duration, got -1 .write it like 30s"),
    ("timeout", "soon", "timeout: not a duration, got 'soon'"),
    ("timeout", NAN, "timeout: not a duration, got nan"),
    ("idle_timeout", "-1s", "idle_timeout: not a duration, got '-1s'"),
    ("idle_timeout", 1e12, "idle_timeout: not a duration, got 1000000000000.0"),
]
WORDS: list[tuple[str, Any, str]] = [
    ("user", "", "user: no such user, got ''"),
    ("user", "nobody", "user: no such user, got 'nobody' .the template has root, user"),
    ("user", 0, "user: .*got 0"),
    ("name", "Not A Name", "name: not a host name, got 'Not A Name' .use up to 63 of a-z"),
    ("without", ["seccomp "], "without: no such protection, got 'seccomp ' .use one of .*cgroup_memory"),
    ("without", ["everything"], "without: no such protection, got 'everything'"),
    ("without", ["pid_namespace"], "without: cannot be switched off, got 'pid_namespace' .only cgroup_cpu, .* can"),
    ("without", ["user_namespace", "uid_range"], "cannot be switched off"),
    ("without", "seccomp", "without: not a list of protections, got 'seccomp'"),
    ("without", 5, "without: not a list of protections, got 5"),
    ("workspace_mode", "rw", "workspace_mode: unknown, got 'rw' .use one of overlay, ro"),
]
PRIVILEGES = [
    "privileged",
    "capabilities",
    "cap_add",
    "devices",
    "seccomp",
    "network",
    "pid",
    "mounts",
    "runtime",
    "xyz",
]
COMMANDS: list[tuple[str, Any, str]] = [
    ("cmd", [], "cmd: empty, got .*give a program to run"),
    ("cmd", [""], "cmd: empty"),
    ("cmd", "a\0b", "cmd: holds a NUL byte, got 'a.x00b' .remove it"),
    ("cmd", ["a", "b\0"], r"argv\[1\]: holds a NUL byte"),
    ("cmd", ["a", 5], r"argv\[1\]: not a string, got 5 .give str or bytes"),
    ("cmd", ["a", None], r"argv\[1\]: not a string, got None"),
    ("cmd", b"ls", "cmd: neither text nor a list of words, got b'ls' .give a string for the shell"),
    ("cmd", 5, "cmd: neither text nor a list of words, got 5"),
    ("cmd", None, "cmd: neither text nor a list of words, got None"),
    ("cmd", ["\ud800"], r"argv\[0\]: not encodable as UTF-8"),
    ("cmd", ["echo", "x" * (1 << 17)], r"argv\[1\]: longer than 131071 bytes"),
    ("cmd", "x" * (1 << 17), "cmd: longer than 131071 bytes.*through a file or stdin"),
    ("cmd", ["echo", *["x" * 100_000] * 11], "argv and env: together over 1000000 bytes"),
    ("user", "nobody", "user: no such user"),
    ("user", 0, "user: .*got 0"),
    ("cwd", "/nowhere", "cwd: cannot be entered .No such file or directory.*create it first"),
    ("cwd", b"/tmp\0", "cwd: holds a NUL byte"),
    ("envs", {"A=B": ""}, "env key: empty or holds '='"),
    ("timeout", "soon", "timeout: not a duration"),
    ("stdin", 5, "stdin: not text, bytes or an iterable"),
]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = Footprint()
    yield
    assert before.growth() == []


def refused(level: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=problem) as caught:
        Sandbox.create(level=level, **options).kill()
    assert caught.value.hint
    assert caught.value.field
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("option", "value", "problem"), LIMITS)
def test_impossible_limits_are_refused(level: str, option: str, value: object, problem: str) -> None:
    refused(level, {option: value}, problem)


@pytest.mark.parametrize(("option", "value", "problem"), WORDS)
def test_unknown_words_are_refused(level: str, option: str, value: object, problem: str, tmp_path: Path) -> None:
    options = {option: value} | ({"workspace": tmp_path} if option == "workspace_mode" else {})
    refused(level, options, problem)


@pytest.mark.parametrize("name", ["ubuntu", "", "../host", "host\0"])
def test_an_unknown_template_is_refused(level: str, name: str) -> None:
    with pytest.raises(NotFoundError, match=r"template: no such template, got .*the only template is `host`"):
        Sandbox.create(level=level, template=name)


@pytest.mark.parametrize("option", PRIVILEGES)
def test_no_option_asks_for_a_privilege(level: str, option: str) -> None:
    refused(level, {option: True}, f"{option}: no such option, got True")


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match=r"level: unknown, got 'docker' .use one of process, gvisor"):
        Sandbox.create(level="docker")


def test_a_level_without_a_driver_is_not_replaced_by_another() -> None:
    with pytest.raises(DriverUnavailableError, match="level wasm: this release has no driver for it"):
        Sandbox.create(level="wasm")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("{tmp}/missing", "workspace: No such file or directory, got '.*/missing' .create it first"),
        ("{tmp}/file", "workspace: not a directory"),
        ("{tmp}/loop", "workspace: .*create it first"),
        ("{tmp}/to-root", "workspace: contains the whole host or Atoll's own state"),
        ("/", "workspace: contains the whole host or Atoll's own state, got '/' .give the project's own directory"),
        ("{state}", "workspace: contains the whole host or Atoll's own state"),
        ("{state}/sandboxes", "workspace: contains the whole host or Atoll's own state"),
        ("{state}/..", "workspace: contains the whole host or Atoll's own state"),
        ("", "workspace: not a path"),
        ("a\0b", "workspace: not a path"),
        (5, "workspace: not a path, got 5"),
    ],
)
def test_impossible_workspaces_are_refused(
    level: str, tmp_path: Path, state: Path, path: str | int, problem: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "to-root").symlink_to("/")
    given = path.format(tmp=tmp_path, state=state) if isinstance(path, str) else path
    refused(level, {"workspace": given}, problem)


@pytest.mark.parametrize(("option", "value", "problem"), COMMANDS)
def test_impossible_commands_are_refused(sandbox: Sandbox, option: str, value: object, problem: str) -> None:
    options: dict[str, Any] = {"cmd": "true", option: value}
    with pytest.raises(InvalidSpecError, match=problem) as caught:
        sandbox.commands.run(**options)
    assert caught.value.hint
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_a_refused_request_can_be_made_again_rightly(make: Make) -> None:
    with pytest.raises(AtollError):
        make(memory="1M")
    assert make(memory="32M").commands.run("echo fine").stdout == "fine\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--memory", "12 parsecs"], 2, "memory: not a size, got '12 parsecs'\nhint: write it like 512M"),
        (["--workspace", "/no/such"], 2, "workspace: No such file or directory, got '/no/such'\nhint: create it"),
        (["--workspace", "/tmp:rw"], 2, "workspace_mode: unknown, got 'rw'\nhint: use one of overlay, ro"),
        (["--user", "admin"], 2, "user: no such user, got 'admin'\nhint: the template has root, user"),
        (["--template", "none"], 125, "template: no such template, got 'none'\nhint: the only template is `host`"),
        (["--level", "wasm"], 125, "level wasm: this release has no driver for it"),
        (["--cwd", "/no/such"], 2, "cwd: cannot be entered (No such file or directory), got '/no/such'"),
        (["--env", "NOVALUE"], 2, "env: not K=V, got 'NOVALUE'"),
        (["--privileged"], 2, "No such option"),
    ],
)
def test_the_command_line_refuses_in_the_same_words(arguments: list[str], code: int, words: str) -> None:
    done = subprocess.run([ATOLL, "run", *arguments, "--", "true"], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
