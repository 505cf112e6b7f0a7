"""Signals: commands start with a clean slate, how they die is told truly, and nobody reaches the agent."""

import signal

import pytest

from atoll import Sandbox


@pytest.mark.parametrize("name", ["HUP", "INT", "KILL", "ABRT", "SEGV", "PIPE", "TERM", "USR1"])
def test_death_by_a_signal_is_named(sandbox: Sandbox, name: str) -> None:
    number = signal.Signals[f"SIG{name}"].value
    result = sandbox.commands.run(["sh", "-c", f"kill -{name} $$"])
    assert (result.signal, result.exit_code, result.reason) == (number, 128 + number, "signaled")


def test_a_shell_that_reports_its_childs_signal_has_exited(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("sh -c 'kill -TERM $$'; exit $?")
    assert (result.signal, result.exit_code, result.reason) == (None, 143, "exited")


def test_no_signal_is_blocked_or_ignored(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(["cat", "/proc/self/status"])
    found = dict(line.split(":\t") for line in result.stdout.splitlines())
    assert {found[name] for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")} == {"0" * 16}


def test_a_pipe_without_a_reader_ends_its_writer(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("set -o pipefail; yes | head -n 1", timeout=5)
    assert (result.stdout, result.exit_code) == ("y\n", 128 + signal.SIGPIPE)


def test_handlers_work(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("trap 'echo caught; exit 5' TERM; kill -TERM $$; sleep 5")
    assert (result.stdout, result.exit_code) == ("caught\n", 5)


@pytest.mark.parametrize("name", ["TERM", "KILL", "STOP", "HUP", "INT", "CHLD", "USR1", "SEGV"])
def test_signals_to_pid_1_do_nothing(sandbox: Sandbox, name: str) -> None:
    for user in ("user", sandbox.plan.user if sandbox.plan.single_uid else "root"):
        sandbox.commands.run(["sh", "-c", f"kill -{name} 1"], user=user)
        assert sandbox.commands.run("echo alive", timeout=5).stdout == "alive\n"


def test_a_process_group_killed_is_only_the_commands_own(sandbox: Sandbox) -> None:
    sandbox.commands.run("setsid sleep 50 >/dev/null 2>&1 &")
    result = sandbox.commands.run("sleep 40 & kill -KILL 0")
    assert (result.signal, result.reason) == (9, "signaled")
    assert sandbox.commands.run(["pgrep", "-a", "sleep"]).stdout.split(maxsplit=1)[1] == "sleep 50\n"


def test_a_stopped_command_goes_on_when_it_is_continued(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("(sleep 0.3; kill -CONT $$) & kill -STOP $$; echo continued", timeout=10)
    assert (result.stdout, result.exit_code, result.reason) == ("continued\n", 0, "exited")


def test_a_crash_leaves_no_core_file(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("ulimit -c; sh -c 'kill -SEGV $$'; ls -A")
    assert result.stdout == "0\n"
