"""The life of a sandbox: it ends once, for a true reason, with everything in it, however its owner behaves."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.client.result import CommandResult
from atoll.model.errors import AtollError, InvalidSpecError, StateError
from tests.conformance.host import Footprint, View, sandbox_directory
from tests.sandboxes import Make


def run_aside(sandbox: Sandbox, script: str) -> "Aside":
    """Start a command in a thread; it runs once this has returned."""
    aside = Aside(sandbox, script)
    aside.running.wait(10)
    return aside


class Aside:
    """A command in a thread of its own."""

    def __init__(self, sandbox: Sandbox, script: str) -> None:
        self.running = threading.Event()
        self._found: list[CommandResult | AtollError] = []
        self._thread = threading.Thread(target=self._run, args=(sandbox, script))
        self._thread.start()

    def _run(self, sandbox: Sandbox, script: str) -> None:
        try:
            self._found.append(sandbox.commands.run(f"echo up; {script}", on_stdout=lambda _text: self.running.set()))
        except AtollError as error:
            self._found.append(error)

    def result(self) -> CommandResult:
        self._thread.join(10)
        (found,) = self._found
        assert isinstance(found, CommandResult), found
        return found


def test_kill_says_whether_it_was_alive(make: Make) -> None:
    sandbox = make()
    assert sandbox.is_running()
    assert sandbox.kill() is True
    assert sandbox.is_running() is False
    assert sandbox.kill() is False
    assert sandbox.kill() is False


def test_kill_leaves_nothing(level: str) -> None:
    before = Footprint()
    sandbox = Sandbox.create(level=level)
    sandbox.commands.run("sleep 300 & (setsid sleep 300 &) ; head -c 3000000 /dev/zero")
    view, directory = View(sandbox), sandbox_directory(sandbox)
    assert directory.is_dir()
    sandbox.kill()
    assert not directory.exists()
    assert view.processes() == {}
    assert before.growth() == []


def test_kill_ends_a_running_command_with_its_reason(make: Make) -> None:
    sandbox = make()
    aside = run_aside(sandbox, "sleep 300")
    began = time.monotonic()
    sandbox.kill()
    result = aside.result()
    assert time.monotonic() - began < 5
    assert (result.reason, result.exit_code, result.signal) == ("killed", 137, 9)
    assert (result.stdout, result.detail) == ("up\n", "by its owner")


def test_kills_at_the_same_time_are_one(make: Make) -> None:
    sandbox = make()
    sandbox.commands.run("sleep 300 &")
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(sandbox.kill())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    assert any(answers)
    assert not sandbox.is_running()


def test_use_after_the_end_is_a_typed_error(make: Make) -> None:
    sandbox = make()
    sandbox.kill()
    for _ in range(2):
        with pytest.raises(StateError, match=rf"sandbox {sandbox.sandbox_id} has ended.*create a new one"):
            sandbox.commands.run("true")
    assert sandbox.plan.level
    assert sandbox.posture.protections
    assert sandbox.violations == []


def test_leaving_the_block_destroys_it_also_by_an_exception(level: str) -> None:
    before = Footprint()
    kept: list[Sandbox] = []

    def mistake() -> None:
        with Sandbox.create(level=level) as sandbox:
            kept.append(sandbox)
            sandbox.commands.run("sleep 300 &")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mistake()
    assert not kept[0].is_running()
    assert before.growth() == []


def test_wall_time_ends_the_sandbox_and_its_commands(level: str) -> None:
    before = Footprint()
    began = time.monotonic()
    sandbox = Sandbox.create(level=level, timeout="1.5s")
    result = sandbox.commands.run("echo up; sleep 300")
    assert 1.5 <= time.monotonic() - began < 3.5
    assert (result.reason, result.exit_code, result.stdout) == ("timeout", 137, "up\n")
    assert result.detail == "sandbox wall time of 1.5 s"
    with pytest.raises(StateError, match=r"has ended.*timeout"):
        sandbox.commands.run("true")
    assert before.growth() == []
    assert sandbox.kill() is False


def test_idle_time_ends_a_sandbox_that_nobody_uses(level: str) -> None:
    before = Footprint()
    sandbox = Sandbox.create(level=level, idle_timeout="0.8s")
    sandbox.commands.run("sleep 300 >/dev/null 2>&1 &")
    time.sleep(2)
    assert not sandbox.is_running()
    with pytest.raises(StateError, match=r"has ended.*idle_timeout"):
        sandbox.commands.run("true")
    assert before.growth() == []


def test_a_long_silent_command_is_not_idle(make: Make) -> None:
    sandbox = make(idle_timeout="0.6s")
    result = sandbox.commands.run("sleep 2; echo done")
    assert (result.stdout, result.reason) == ("done\n", "exited")
    assert sandbox.is_running()


def test_use_keeps_an_idle_clock_from_running_out(make: Make) -> None:
    sandbox = make(idle_timeout="1s")
    for _ in range(8):
        time.sleep(0.3)
        assert sandbox.commands.run(["true"]).exit_code == 0


@pytest.mark.parametrize("name", ["a", "0", "a-b", "x" * 63, "123", "box--1"])
def test_s11_a_host_name_can_be_chosen(make: Make, name: str) -> None:
    sandbox = make(name=name)
    result = sandbox.commands.run("hostname; cat /etc/hostname; getent hosts $(hostname)")
    assert result.stdout.split()[:2] == [name, name]
    assert result.exit_code == 0
    assert socket.gethostname() != name


def test_s11_names_may_repeat_and_default_to_something_usable(make: Make) -> None:
    one, two, three = make(name="same"), make(name="same"), make()
    assert one.commands.run("hostname").stdout == two.commands.run("hostname").stdout == "same\n"
    assert one.sandbox_id != two.sandbox_id
    assert three.commands.run("hostname").stdout == f"atoll-{three.sandbox_id[:8]}\n"


ODD_NAMES = [
    "",
    "x" * 64,
    "x" * 500,
    "UPPER",
    "ümlaut",
    "漢",
    "a b",
    "a.b",
    "a_b",
    "-a",
    "a-",
    "a/b",
    "..",
    "a\n",
    "a\0b",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_s11_an_impossible_name_is_a_typed_error(level: str, name: str) -> None:
    before = Footprint()
    with pytest.raises(InvalidSpecError, match=r"^name: not a host name, got.*use up to 63 of a-z") as caught:
        Sandbox.create(level=level, name=name)
    assert caught.value.field == "name"
    assert before.growth() == []


def test_a_workspace_stays_as_it_is(make: Make, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("original")
    sandbox = make(workspace=tmp_path)
    sandbox.commands.run("echo changed > kept; echo new > added; mkdir d", check=True)
    sandbox.kill()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "original"


def test_a_sandbox_is_used_from_many_threads(make: Make) -> None:
    made: list[Sandbox] = []
    maker = threading.Thread(target=lambda: made.append(make()))
    maker.start()
    maker.join()
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(made[0].commands.run(f"echo {n}").stdout)) for n in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(f"{n}\n" for n in range(10))


def test_a_sandbox_that_does_not_answer_is_not_running(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = View(sandbox).agent_pid
    assert sandbox.is_running() is True
    os.kill(agent, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr("atoll.lifecycle.ANSWER_TIMEOUT_S", 0.3)
        assert sandbox.is_running() is False
    os.kill(agent, signal.SIGCONT)
    assert sandbox.is_running() is True
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
