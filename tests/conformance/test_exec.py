"""Running a command: what was asked for is executed, and what is said about its end is true."""

import json
import threading
import time

import pytest

from atoll import Sandbox
from atoll.model.errors import ProcessFailedError
from atoll.model.status import Reason
from tests.conformance.host import View, eventually
from tests.sandboxes import Make

ECHO_ARGV = "import json, os, sys; print(json.dumps([os.fsencode(a).hex() for a in sys.argv[1:]]))"


def test_a_result_holds_output_exit_code_reason_and_usage(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(["sh", "-c", "echo out; echo err >&2"])
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert (result.stdout_bytes, result.stderr_bytes) == (b"out\n", b"err\n")
    assert (result.exit_code, result.signal, result.reason, result.detail) == (0, None, Reason.EXITED, "")
    assert (result.truncated, result.dropped_bytes, result.error) == (False, 0, None)
    assert 0 < result.usage.cpu_s < 5
    assert 0 < result.usage.wall_s < 30
    assert not result.usage.guest_reported


@pytest.mark.parametrize("code", [0, 1, 2, 3, 124, 125, 126, 127, 128, 137, 255])
def test_the_exit_code_is_the_commands_own(sandbox: Sandbox, code: int) -> None:
    result = sandbox.commands.run(["sh", "-c", f"exit {code}"])
    assert (result.exit_code, result.signal, result.reason) == (code, None, Reason.EXITED)
    assert (result.error is None) == (code == 0)


def test_a_string_runs_in_a_login_shell(sandbox: Sandbox) -> None:
    result = sandbox.commands.run('shopt -q login_shell && echo "$BASH" && echo {1..3} | tr -d " "')
    assert (result.stdout, result.exit_code) == ("/bin/bash\n123\n", 0)


def test_a_list_is_executed_without_a_shell(sandbox: Sandbox) -> None:
    literal = "$HOME * `id` ; echo no && $(id) > /tmp/x"
    assert sandbox.commands.run(["printf", "%s", literal]).stdout == literal


def test_arguments_arrive_byte_for_byte(sandbox: Sandbox) -> None:
    arguments = [b"", b" ", b"-rf", b"--", b"a\nb", b"'\"\\", b"\xff\xfe\x80", "é漢😀".encode(), b"x" * 100_000]
    result = sandbox.commands.run(["python3", "-c", ECHO_ARGV, *arguments])
    assert [bytes.fromhex(item) for item in json.loads(result.stdout)] == arguments


def test_many_arguments_arrive(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(["sh", "-c", 'echo $#; eval "echo \\${$#}"', "sh", *map(str, range(20_000))])
    assert result.stdout == "20000\n19999\n"


def test_a_missing_program_is_exit_code_127(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(["no-such-program", "x"])
    assert (result.exit_code, result.reason) == (127, Reason.EXITED)
    assert "no-such-program: command not found" in result.detail
    shell = sandbox.commands.run("no-such-program x")
    assert shell.exit_code == 127
    assert "command not found" in shell.stderr


@pytest.mark.parametrize("path", ["/etc/passwd", "/usr"])
def test_what_cannot_be_executed_is_exit_code_126(sandbox: Sandbox, path: str) -> None:
    result = sandbox.commands.run([path])
    assert (result.exit_code, result.reason) == (126, Reason.EXITED)
    assert path in result.detail


def test_programs_are_found_on_the_commands_own_path(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir /tmp/bin && printf '#!/bin/sh\\necho mine' > /tmp/bin/tool && chmod +x /tmp/bin/tool")
    assert sandbox.commands.run(["tool"]).exit_code == 127
    assert sandbox.commands.run(["tool"], envs={"PATH": "/tmp/bin"}).stdout == "mine\n"


def test_check_raises_with_the_status_and_the_end_of_stderr(sandbox: Sandbox) -> None:
    with pytest.raises(ProcessFailedError, match=r"exit code 3.*the cause") as caught:
        sandbox.commands.run("echo the cause >&2; exit 3", check=True)
    assert caught.value.details["status"].code == 3
    assert sandbox.commands.run("true", check=True).exit_code == 0


def test_files_stay_and_shell_state_does_not(sandbox: Sandbox) -> None:
    sandbox.commands.run("echo kept > note; cd /tmp; export LOST=1; umask 077")
    result = sandbox.commands.run("cat note; pwd; echo ${LOST-unset}; umask")
    assert result.stdout == "kept\n/home/user\nunset\n0022\n"


def test_commands_of_one_sandbox_run_side_by_side(sandbox: Sandbox) -> None:
    answers: dict[int, str] = {}

    def command(number: int) -> None:
        answers[number] = sandbox.commands.run(["sh", "-c", f"sleep 0.7; echo {number}"]).stdout

    threads = [threading.Thread(target=command, args=(number,)) for number in range(16)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 16 * 0.7 / 2
    assert answers == {number: f"{number}\n" for number in range(16)}


def test_usage_counts_all_children(sandbox: Sandbox) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    result = sandbox.commands.run(["sh", "-c", f"python3 -c '{burn}'; python3 -c '{burn}'; true"])
    assert 0.6 <= result.usage.cpu_s < 3
    quiet = sandbox.commands.run(["sleep", "0.3"])
    assert quiet.usage.cpu_s < 0.2
    assert quiet.usage.wall_s >= 0.3


def test_the_memory_peak_is_that_of_the_command_alone(sandbox: Sandbox) -> None:
    big = sandbox.commands.run(["python3", "-c", "x = bytearray(100 << 20)"]).usage.memory_peak_bytes
    small = sandbox.commands.run(["true"]).usage.memory_peak_bytes
    assert big is not None
    assert small is not None
    assert big > 100 << 20
    assert small < 20 << 20


def test_the_cgroup_of_an_ended_command_is_removed(sandbox: Sandbox) -> None:
    view = View(sandbox)
    for _ in range(5):
        sandbox.commands.run(["true"])
    assert eventually(lambda: len(view.leaves()) > 1) is False


def test_a_command_has_no_terminal_and_a_session_of_its_own(sandbox: Sandbox) -> None:
    result = sandbox.commands.run('ps -o pid=,sid=,tty= -p $$ | (read pid sid tty; [ "$pid" = "$sid" ]; echo $? $tty)')
    assert result.stdout == "0 ?\n"
    assert sandbox.commands.run("echo x > /dev/tty").exit_code == 1


def test_killing_everything_it_can_hurts_only_the_guest_itself(sandbox: Sandbox) -> None:
    sandbox.commands.run("kill -9 0")
    sandbox.commands.run("kill -9 -1")
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_two_sandboxes_share_nothing(make: Make) -> None:
    one, two = make(), make()
    one.commands.run("echo secret > /tmp/note; echo secret > /dev/shm/note; sleep 60 &")
    seen = two.commands.run("ls -A /tmp /dev/shm /home/user; pgrep sleep; true")
    assert "note" not in seen.stdout
    assert seen.stdout.split() == ["/dev/shm:", "/home/user:", "/tmp:"]
