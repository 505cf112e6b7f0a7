"""What README.md shows works as it stands there."""

import re
import sys
from pathlib import Path

import pytest

from tests.docs.conftest import Run

README = (Path(__file__).parents[2] / "README.md").read_text()
SCRIPT = 'import os, sys\nprint(sorted(os.listdir()), sys.argv[1:])\nopen("written", "w").close()\n'


def block(language: str) -> str:
    """The first code block in `language`."""
    found = re.search(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    (path / "analyse.py").write_text(SCRIPT)
    (path / "data.csv").write_text("a,b\n1,2\n")
    (path / ".env").write_text("KEY=1\n")  # nothing is redacted: the workspace is shown as it is
    return path


def test_the_python_example(level: str, run: Run, project: Path) -> None:
    done = run(sys.executable, "-c", block("python"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['.env', 'analyse.py', 'data.csv'] ['data.csv']\n 0 exited Usage(cpu_s=")
    assert not (project / "written").exists()


def test_the_shell_example(level: str, run: Run, project: Path) -> None:
    done = run("/bin/sh", "-c", block("sh"))
    assert (done.returncode, done.stdout) == (0, "['.env', 'analyse.py', 'data.csv'] []\n"), done.stderr
    assert not (project / "written").exists()


def test_the_synopsis_names_every_command(run: Run) -> None:
    shown = set(re.findall(r"\batoll ([a-z]+)", block("text")))
    commands = run("atoll", "--help").stdout.partition("Commands:")[2]
    assert shown == set(re.findall(r"^  (\w+)", commands, re.MULTILINE))


def test_every_option_of_the_synopsis_exists(run: Run) -> None:
    known = set(re.findall(r"--[a-z-]+", run("atoll", "run", "--help").stdout))
    shown = set(re.findall(r"--[a-z-]+", block("text")))
    assert shown
    assert shown <= known


@pytest.mark.parametrize(
    ("options", "command", "code"),
    [
        ("", "/bin/sh -c 'exit 7'", 7),
        ("", "/bin/sh -c 'kill -TERM $$'", 128 + 15),
        ("--timeout 200ms", "sleep 30", 124),
        ("--memory 32M", "/usr/bin/python3 -c 'bytearray(10**9)'", 137),
        ("--level gvisor", "true", 125),
        ("", "/etc/passwd", 126),
        ("", "no-such-program", 127),
        ("--memory 1", "true", 2),
        ("--no-such-option", "true", 2),
    ],
)
def test_exit_codes(level: str, run: Run, options: str, command: str, code: int) -> None:
    done = run("/bin/sh", "-c", f"atoll run {options} -- {command}")
    assert done.returncode == code, done.stderr
