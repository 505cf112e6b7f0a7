"""One command at a time: what it gets, how it ends, and what is said when it cannot start."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.peer import Kind

if TYPE_CHECKING:
    from tests.agent.conftest import Launch
    from tests.agent.rig import Rig

RESOURCES, CGROUP, CREDENTIALS, CWD, EXEC, CONFINE = range(1, 7)
NOBODY = 1000


def proc_status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def executable(path: Path, text: str, mode: int = 0o755) -> bytes:
    path.write_text(text)
    path.chmod(mode)
    return bytes(path)


def test_hello_comes_first_and_names_version_pid_and_no_listener(rig: Rig) -> None:
    assert rig.peer.hello == (1, rig.pid, -1)


@pytest.mark.parametrize("code", [0, 1, 42, 125, 126, 127, 128, 255])
def test_exit_code(rig: Rig, code: int) -> None:
    assert rig.finish(rig.peer.shell(f"exit {code}")).status == code


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGPIPE])
def test_death_by_signal(rig: Rig, signo: signal.Signals) -> None:
    assert rig.finish(rig.peer.shell(f"kill -{signo.value} $$")).status == -signo


def test_both_outputs_carry_any_bytes(rig: Rig, tmp_path: Path) -> None:
    every = bytes(range(256)) * 300
    (tmp_path / "bytes").write_bytes(every)
    command = rig.finish(rig.peer.shell("cat bytes; cat bytes >&2", cwd=bytes(tmp_path)))
    assert (bytes(command.stdout), bytes(command.stderr), command.status) == (every, every, 0)


def test_usage_of_the_leader(rig: Rig) -> None:
    script = "x = bytearray(64 << 20)\nfor i in range(1500000): pass"
    command = rig.finish(rig.peer.start("python3", "-c", script, env=[f"PATH={os.environ['PATH']}".encode()]))
    assert command.exit is not None
    assert command.exit.utime_us > 10_000
    assert command.exit.maxrss_kib > 64 << 10


def test_what_a_command_starts_with(rig: Rig) -> None:
    command = rig.peer.start("sleep", "100")
    rig.until(lambda: command.pid is not None)
    process = Path(f"/proc/{command.pid}")
    status = proc_status(command.pid or 0)
    assert sorted(os.listdir(process / "fd")) == ["0", "1", "2"]
    assert os.readlink(process / "fd/0") == "/dev/null"
    assert os.getsid(command.pid or 0) == command.pid
    assert (status["SigBlk"], status["SigIgn"], status["Umask"]) == ("0" * 16, "0" * 16, "0022")
    assert (status["NoNewPrivs"], status["CapInh"], status["CapAmb"]) == ("1", "0" * 16, "0" * 16)
    assert (process / "oom_score_adj").read_text() == "500\n"
    assert "Max core file size        1                    1 " in (process / "limits").read_text()


def test_the_agent_itself_stays_a_bad_oom_victim(rig: Rig) -> None:
    rig.finish(rig.peer.start("true"))
    assert Path(f"/proc/{rig.pid}/oom_score_adj").read_text() == Path("/proc/self/oom_score_adj").read_text()


def test_open_file_limit_as_asked_else_as_the_agent_got_it(launch: Launch) -> None:
    rig = launch(prefix=["prlimit", "--nofile=300:400"]).ready()
    asked = rig.finish(rig.peer.shell("ulimit -Sn; ulimit -Hn", nofile=77))
    left = rig.finish(rig.peer.shell("ulimit -Sn; ulimit -Hn"))
    assert (bytes(asked.stdout), bytes(left.stdout)) == (b"77\n77\n", b"300\n400\n")


def test_open_file_limit_above_the_hard_one(launch: Launch) -> None:
    rig = launch("--keep-caps", "0", prefix=["prlimit", "--nofile=300:400"]).ready()
    command = rig.finish(rig.peer.start("true", nofile=401))
    assert command.error == (CONFINE, errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize(
    ("argv0", "code"),
    [
        ("no-such-program", errno.ENOENT),
        ("/no/such/program", errno.ENOENT),
        ("", errno.ENOENT),
        ("/etc", errno.EACCES),
        ("/etc/passwd", errno.EACCES),
        ("/etc/passwd/x", errno.ENOTDIR),
        ("x" * 5000, errno.ENOENT),
    ],
)
def test_program_that_cannot_be_executed(rig: Rig, argv0: str, code: int) -> None:
    command = rig.finish(rig.peer.start(argv0))
    assert command.error is not None
    assert command.error[:2] == (EXEC, code)
    assert command.log == [Kind.ERROR]


def test_path_search_goes_on_after_a_file_without_permission(rig: Rig, tmp_path: Path) -> None:
    for name in ("denied", "good"):
        (tmp_path / name).mkdir()
    executable(tmp_path / "denied/tool", "#!/bin/sh\necho denied\n", 0o644)
    path = b"PATH=%b/denied:%b/good" % (bytes(tmp_path), bytes(tmp_path))
    assert rig.finish(rig.peer.start("tool", env=[path])).error == (EXEC, errno.EACCES, "Permission denied")
    executable(tmp_path / "good/tool", "#!/bin/sh\necho good\n")
    assert rig.finish(rig.peer.start("tool", env=[path])).stdout == b"good\n"


def test_path_without_variable_and_with_empty_element(rig: Rig, tmp_path: Path) -> None:
    executable(tmp_path / "here", "#!/bin/sh\necho here\n")
    assert rig.finish(rig.peer.start("true", env=[])).status == 0
    assert rig.finish(rig.peer.start("here", env=[b"PATH=/none::/bin"], cwd=bytes(tmp_path))).stdout == b"here\n"


def test_script_without_interpreter_line_runs_under_sh(rig: Rig, tmp_path: Path) -> None:
    script = executable(tmp_path / "script", 'printf "%s|" "$0" "$@"\n')
    for argv0, env in ((script, []), (b"script", [b"PATH=" + bytes(tmp_path)])):
        command = rig.finish(rig.peer.start(argv0, "a b", "", env=env))
        assert command.stdout == script + b"|a b||"


def test_arguments_too_long_for_the_kernel(rig: Rig) -> None:
    command = rig.finish(rig.peer.start("true", "x" * 900_000))
    assert command.error == (EXEC, errno.E2BIG, "Argument list too long")


def test_working_directory(rig: Rig, tmp_path: Path) -> None:
    odd = tmp_path / "a 'b'\n-c"
    odd.mkdir()
    assert rig.finish(rig.peer.start("pwd", cwd=bytes(odd))).stdout == bytes(odd) + b"\n"


@pytest.mark.parametrize(
    ("cwd", "code"), [(b"/no/such", errno.ENOENT), (b"/etc/passwd", errno.ENOTDIR), (b"", errno.ENOENT)]
)
def test_working_directory_that_cannot_be_entered(rig: Rig, cwd: bytes, code: int) -> None:
    command = rig.finish(rig.peer.start("true", cwd=cwd))
    assert command.error is not None
    assert command.error[:2] == (CWD, code)


@pytest.mark.parametrize("link", [b"/proc/self/fd/3", b"/proc/self/fd/5"])
def test_working_directory_through_an_fd_of_the_agent(launch: Launch, link: bytes) -> None:
    """The way out of runc, CVE-2024-21626: no directory fd of the agent may be left when cwd is entered."""
    directory = os.open("/", os.O_RDONLY)
    try:
        rig = launch("--cgroup1", str(directory), fds=[directory]).ready()
        command = rig.finish(rig.peer.start("pwd", cwd=link))
    finally:
        os.close(directory)
    assert command.error is not None
    assert command.error[0] == CWD


def test_environment_is_opaque(rig: Rig) -> None:
    lines = [
        b"PATH=/bin",
        b"A=1\n2",
        b"Q='\"$(id)`",
        b"E=",
        b"=x",
        b"no-equals",
        b"BIG=" + b"x" * 100_000,
        b"\xff=\xfe",
    ]
    command = rig.finish(rig.peer.start("cat", "/proc/self/environ", env=lines))
    assert bytes(command.stdout) == b"".join(line + b"\0" for line in lines)


def test_arguments_are_opaque(rig: Rig) -> None:
    words = [b"", b"a b", b"-n", b"\n", b"\xff\xfe", b"x" * 100_000]
    command = rig.finish(rig.peer.start("sh", "-c", 'printf "%s|" "$@"', "sh", *words))
    assert bytes(command.stdout) == b"".join(word + b"|" for word in words)


def test_many_commands_in_sequence(rig: Rig) -> None:
    for i in range(300):
        command = rig.finish(rig.peer.shell(f"echo {i}; exit {i % 256}"))
        assert (bytes(command.stdout), command.status) == (b"%d\n" % i, i % 256)


def test_many_commands_at_once(rig: Rig) -> None:
    commands = [rig.peer.shell(f"head -c {i * 3000} /dev/zero; exit {i}") for i in range(64)]
    for i, command in enumerate(commands):
        rig.finish(command)
        assert (bytes(command.stdout), command.status) == (bytes(i * 3000), i)


@pytest.mark.skipif(os.geteuid() != 0, reason="switching users needs root")
class TestUsers:
    """The user switch, as root."""

    def test_becomes_the_user_and_nothing_else(self, rig: Rig) -> None:
        command = rig.peer.start("sleep", "100", uid=NOBODY, gid=NOBODY + 1)
        rig.until(lambda: command.pid is not None)
        status = proc_status(command.pid or 0)
        assert status["Uid"].split() == [str(NOBODY)] * 4
        assert status["Gid"].split() == [str(NOBODY + 1)] * 4
        assert status["Groups"].split() == [str(NOBODY + 1)]
        assert status["CapPrm"] == status["CapEff"] == status["CapInh"] == "0" * 16

    def test_can_reopen_its_own_streams(self, rig: Rig) -> None:
        script = "cat /dev/stdin; echo out > /dev/stdout; echo err > /dev/stderr"
        command = rig.peer.shell(script, uid=NOBODY, gid=NOBODY, stdin=True)
        rig.feed(command, b"in\n")
        rig.finish(command)
        assert (bytes(command.stdout), bytes(command.stderr)) == (b"in\nout\n", b"err\n")

    def test_directory_is_entered_as_the_user(self, rig: Rig, tmp_path: Path) -> None:
        private = tmp_path / "private"
        private.mkdir(0o700)
        command = rig.finish(rig.peer.start("true", uid=NOBODY, gid=NOBODY, cwd=bytes(private)))
        assert command.error == (CWD, errno.EACCES, "Permission denied")

    @pytest.mark.parametrize(("uid", "gid"), [(2**32 - 1, 0), (0, 2**32 - 1), (2**32 - 1, 2**32 - 1)])
    def test_minus_one_is_not_leave_as_it_is(self, rig: Rig, uid: int, gid: int) -> None:
        command = rig.finish(rig.peer.start("id", uid=uid, gid=gid))
        assert command.error == (CREDENTIALS, errno.EINVAL, "Invalid argument")

    @pytest.mark.parametrize(("uid", "gid"), [(0, 0), (NOBODY, 0), (0, NOBODY), (2000, NOBODY)])
    def test_agent_without_root_starts_only_itself(self, launch: Launch, uid: int, gid: int) -> None:
        as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        rig = launch(prefix=as_user).ready()
        command = rig.finish(rig.peer.start("true", uid=uid, gid=gid))
        assert command.error == (CREDENTIALS, errno.EPERM, "Operation not permitted")
        own = rig.peer.start("sleep", "100", uid=NOBODY, gid=NOBODY)
        rig.until(lambda: own.pid is not None)
        assert Path(f"/proc/{own.pid}/oom_score_adj").read_text() == "500\n"
