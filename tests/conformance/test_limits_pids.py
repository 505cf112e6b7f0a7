"""C10 Fork storms: the limit holds, what was refused is counted and named, and the agent lives on."""

import time

import pytest

from atoll import Sandbox
from atoll.model.errors import LimitExceededError
from tests.conformance.host import eventually
from tests.conformance.test_limits_memory import assert_alive
from tests.sandboxes import Make

STORM = "import os, time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.01)"
"""Every process forks for ever, and none of them ends."""
LEAVE_STORM = 'python3 -c "$0" >/dev/null 2>&1 & sleep 0.7'
FORK_TOO_MANY = (
    "import os, signal\n"
    "made = []\n"
    "try:\n"
    "  while True:\n"
    "    pid = os.fork()\n"
    "    if not pid: signal.pause()\n"
    "    made.append(pid)\n"
    "except BlockingIOError: print(len(made), flush=True)\n"
    "for pid in made: os.kill(pid, 9)\n"
    "raise SystemExit(4)"
)


def test_a_process_too_many_is_refused_counted_and_named(make: Make) -> None:
    sandbox = make(pids=24)
    result = sandbox.commands.run(["python3", "-c", FORK_TOO_MANY])
    assert 15 <= int(result.stdout) < 24
    assert (result.exit_code, result.reason) == (4, "pids_limit")
    assert result.usage.pids_rejected >= 1
    assert "limit of 24 processes" in result.detail
    assert "forks refused" in result.detail
    assert_alive(sandbox)


def test_threads_count_as_processes(make: Make) -> None:
    sandbox = make(pids=24)
    code = (
        "import threading\n"
        "stop = threading.Event()\n"
        "try:\n"
        "  for n in range(100): threading.Thread(target=stop.wait).start()\n"
        "finally: print(n); stop.set()"
    )
    result = sandbox.commands.run(["python3", "-c", code])
    assert 10 <= int(result.stdout) < 24
    assert (result.exit_code, result.reason) == (1, "pids_limit")


@pytest.mark.slow_in_vm
def test_a_command_that_copes_with_the_limit_has_simply_exited(make: Make) -> None:
    sandbox = make(pids=24)
    result = sandbox.commands.run(["python3", "-c", FORK_TOO_MANY.replace("SystemExit(4)", "SystemExit(0)")])
    assert (result.exit_code, result.reason, result.detail) == (0, "exited", "")
    assert result.usage.pids_rejected >= 1


def test_c10_c_a_storm_ends_at_the_timeout_and_everything_is_dead(make: Make) -> None:
    sandbox = make(memory="64M", pids=32)
    began = time.monotonic()
    result = sandbox.commands.run(["python3", "-c", STORM], timeout=2)
    assert (result.reason, result.exit_code) == ("timeout", 137)
    assert time.monotonic() - began < 12  # emulated; test_timeouts is strict
    assert result.usage.pids_rejected >= 1
    assert_alive(sandbox)
    assert eventually(lambda: sandbox.commands.run(["pgrep", "python3"]).stdout) == ""


@pytest.mark.slow_in_vm
def test_c10_c_the_shells_fork_bomb(make: Make) -> None:
    sandbox = make(cpus=1, memory="256M", pids=128)
    result = sandbox.commands.run(":(){ :|:& };:", timeout=5)
    assert result.reason in {"exited", "pids_limit", "out_of_memory", "timeout"}
    assert result.usage.pids_rejected >= 1 or result.reason == "exited"
    for _ in range(5):
        assert_alive(sandbox)


def test_c10_c_a_storm_that_was_left_behind_does_not_keep_the_next_command_from_starting(make: Make) -> None:
    sandbox = make(memory="64M", pids=32)
    sandbox.commands.run(["sh", "-c", LEAVE_STORM, STORM])
    for _ in range(3):
        assert_alive(sandbox)
    sandbox.commands.run(["sh", "-c", "kill -9 -1"])
    assert eventually(lambda: sandbox.commands.run(["pgrep", "python3"]).stdout) == ""


def leave_storms(sandbox: Sandbox) -> None:
    for _ in range(8):
        sandbox.commands.run(["sh", "-c", LEAVE_STORM, STORM])
        time.sleep(0.3)  # for the storm to take what the command itself has left


@pytest.mark.slow_in_vm
def test_storms_in_every_corner_give_a_typed_error_and_no_hang(make: Make) -> None:
    sandbox = make(memory="64M", pids=32)
    began = time.monotonic()
    with pytest.raises(LimitExceededError, match="no process left of the limit of 32"):
        leave_storms(sandbox)
    assert time.monotonic() - began < 20
    assert sandbox.is_running()
    assert sandbox.kill()


@pytest.mark.slow_in_vm
def test_a_storm_at_its_limit_leaves_the_neighbour_all_its_processes(make: Make) -> None:
    stormy, calm = make(memory="64M", pids=32), make(memory="64M", pids=32)
    stormy.commands.run(["sh", "-c", LEAVE_STORM, STORM])
    result = calm.commands.run("for i in $(seq 20); do sleep 0.2 & done; wait && echo fine")
    assert (result.stdout, result.usage.pids_rejected) == ("fine\n", 0)
