"""`atoll run`: exit codes as timeout(1), docker-run(1) and POSIX shells have them, and one honest line."""

import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import Atoll


@pytest.mark.parametrize(
    ("argv", "code", "line"),
    [
        (["true"], 0, ""),
        (["sh", "-c", "exit 3"], 3, ""),
        (["sh", "-c", "kill -SEGV $$"], 128 + signal.SIGSEGV, ""),
        (["sh", "-c", "kill -KILL $$"], 137, ""),
        (["no-such-program"], 127, "atoll: no-such-program: command not found\n"),
        (["/etc/passwd"], 126, "atoll: /etc/passwd: Permission denied\n"),
        (["/usr"], 126, "atoll: /usr: Permission denied\n"),
        (["bad\x1b[31m"], 127, "atoll: bad\\x1b[31m: command not found\n"),
    ],
    ids=["0", "3", "segv", "kill", "not-found", "not-executable", "directory", "hostile-name"],
)
def test_exit_code_is_the_commands_own(atoll: Atoll, argv: list[str], code: int, line: str) -> None:
    done = atoll("run", "--", *argv)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (code, b"", line)


def test_timeout(atoll: Atoll) -> None:
    done = atoll("run", "--timeout", "300ms", "--", "sh", "-c", "echo before; sleep 60")
    assert (done.returncode, done.stdout, done.stderr) == (124, b"before\n", b"atoll: timeout: limit 0.3 s\n")


def test_out_of_memory(atoll: Atoll) -> None:
    done = atoll("run", "--memory", "32M", "--", "tail", "/dev/zero")
    assert done.returncode == 137
    assert done.stderr.startswith(b"atoll: out_of_memory: memory limit 32 MiB, peak 3")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("options", "script", "line"),
    [
        (["--pids", "8"], "for i in 1 2 3 4 5 6 7 8 9; do sleep 9 & done", b"atoll: pids_limit: limit of 8 processes"),
        (["--disk", "1M"], "head -c 2M /dev/zero > /tmp/x", b"atoll: disk_full: disk limit 1 MiB"),
        (["--output", "4K"], "yes", b"atoll: output_limit: limit 4096 bytes\n"),
    ],
    ids=["pids", "disk", "output"],
)
def test_other_limits_are_named(atoll: Atoll, options: list[str], script: str, line: bytes) -> None:
    done = atoll("run", *options, "--", "sh", "-c", script)
    assert done.returncode not in {0, 124, 125}
    assert line in done.stderr


def test_argv_is_no_shell_text_and_options_end_at_the_command(atoll: Atoll) -> None:
    done = atoll("run", "echo", "--json", "$HOME", "a  b", "*", "--", "-n")
    assert done.stdout == b"--json $HOME a  b * -- -n\n"
    assert atoll("run", "--", "echo", "x").stdout == b"x\n"


def test_undecodable_arguments_and_variables_arrive_as_they_are(atoll: Atoll) -> None:
    done = atoll("run", "--env", b"V=\xff\n'", "--", "sh", "-c", 'printf "%s|%s" "$V" "$1"', "sh", b"\xfe\x80")
    assert done.stdout == b"\xff\n'|\xfe\x80"


def test_only_given_variables_are_seen(atoll: Atoll) -> None:
    atoll.env["SECRET_OF_THE_HOST"] = "x"
    names = {line.split(b"=")[0] for line in atoll("run", "--env", "A=1", "--", "env").stdout.splitlines()}
    assert names == {b"A", b"HOME", b"LANG", b"LOGNAME", b"PATH", b"SHELL", b"TERM", b"USER"}


def test_workspace_modes(atoll: Atoll, tmp_path: Path) -> None:
    workspace = tmp_path / "a:b"
    workspace.mkdir()
    (workspace / "f").write_text("host")
    script = "pwd; cat f; echo guest > f && cat f"
    overlay = atoll("run", "--workspace", str(workspace), "--", "sh", "-c", script)
    assert overlay.stdout == b"/workspace\nhostguest\n"
    read_only = atoll("run", "--workspace", f"{workspace}:ro", "--", "sh", "-c", script)
    assert read_only.stdout == b"/workspace\nhost"
    assert b"Read-only file system" in read_only.stderr
    assert (workspace / "f").read_text() == "host"


def test_user_name_cwd_and_limits_are_those_asked_for(atoll: Atoll) -> None:
    options = ["--user", "root", "--name", "box-1", "--cwd", "/usr/lib", "--open-files", "77", "--cpus", "1"]
    done = atoll("run", *options, "--", "sh", "-c", "id -un; hostname; pwd; ulimit -n; nproc")
    assert done.stdout == b"root\nbox-1\n/usr/lib\n77\n1\n"


def test_what_the_command_leaves_running_neither_delays_nor_survives(atoll: Atoll) -> None:
    done = atoll("run", "--", "sh", "-c", "setsid sleep 60 & echo done")
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_two_at_once(atoll: Atoll) -> None:
    first, second = (atoll.start("run", "--", "sh", "-c", f"sleep 0.3; echo {name}") for name in ("a", "b"))
    assert len({one.id for one in atoll.running(2)}) == 2
    assert [process.communicate()[0] for process in (first, second)] == [b"a\n", b"b\n"]
    assert (first.returncode, second.returncode) == (0, 0)
