"""Ctrl-C, SIGTERM and a lost terminal end the sandbox; whenever they come, nothing is left behind."""

import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

from tests.e2e.conftest import Atoll


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["int", "term", "hup"]
)
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_signal_kills_the_sandbox(atoll: Atoll, number: signal.Signals, code: int, options: list[str]) -> None:
    script = "trap '' INT TERM HUP; setsid sleep 60 & echo ready; exec sleep 60"
    process = atoll.start("run", *options, "--", "sh", "-c", script)
    (resources,) = atoll.running()
    if not options:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    assert set(resources.left) > set(map(str, resources.cgroups))
    process.send_signal(number)
    assert process.communicate(timeout=15) == (b"", b"")
    assert process.returncode == code
    assert resources.left == []


def test_signals_at_any_moment(atoll: Atoll) -> None:
    """From the first import to the end; repeated, as by an impatient user."""
    for step in range(12):
        process = atoll.start("run", "--", "sleep", "60")
        time.sleep(step * 0.025)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.wait(15)
        assert process.returncode in {143, -signal.SIGTERM}  # the latter before Atoll has begun
        assert atoll.sandboxes == []


def test_a_signal_while_nobody_reads_the_output(atoll: Atoll) -> None:
    process = atoll.start("run", "--", "yes")
    (resources,) = atoll.running()
    time.sleep(0.3)  # the pipe is full now
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 130
    assert time.monotonic() - began < 1.5
    assert resources.left == []


def test_an_ignored_signal_stays_ignored(atoll: Atoll) -> None:
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *atoll.command("run", "--", "sleep", "1")]
    process = subprocess.Popen(command, env=atoll.env, stdin=subprocess.DEVNULL)  # as nohup(1) does
    atoll.running()
    process.send_signal(signal.SIGHUP)
    assert process.wait(15) == 0


def on_terminal(atoll: Atoll, *argv: str) -> tuple[int, int]:
    """Starts it as the foreground job of a terminal of its own; returns its pid and our end of the terminal."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(atoll.command()[0], atoll.command(*argv), atoll.env)
    return pid, fd


def read_until(fd: int, pattern: bytes) -> bytes:
    seen = b""
    deadline = time.monotonic() + 15
    while not re.search(pattern, seen):
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, seen
        seen += os.read(fd, 4096)
    return seen


def test_ctrl_c_on_a_terminal(atoll: Atoll) -> None:
    pid, fd = on_terminal(atoll, "run", "--", "sh", "-c", "echo rea''dy; sleep 60")
    read_until(fd, b"ready")
    (resources,) = atoll.running()
    os.write(fd, b"\x03")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    os.close(fd)
    assert resources.left == []


def test_a_terminal_is_passed_as_stdin(atoll: Atoll) -> None:
    pid, fd = on_terminal(atoll, "run", "--", "sh", "-c", "read line; echo got-$line")
    os.write(fd, b"words\n")
    read_until(fd, b"got-words")
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0


def test_progress_is_shown_on_a_terminal_after_a_second_and_cleared(atoll: Atoll) -> None:
    pid, fd = on_terminal(atoll, "run", "--json", "--", "sleep", "1.5")
    seen = read_until(fd, rb'"exit_code":0')
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0
    shown, _, _ = seen.partition(b'{"exit_code"')
    assert b"running" in shown
    assert shown.rstrip(b"\r").endswith(b"\x1b[2K") or b"\x1b[2K" in shown.rpartition(b"running")[2]
