"""Many at once: each command gets its own output and exit code back, none is lost, none is mixed up."""

import queue
import threading
import time
from collections.abc import Callable

import pytest

from atoll import Sandbox
from tests.conformance.host import Footprint, View, eventually

COMMANDS = 12_800
THREADS = 64
LIMIT_S = 90


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` .. `work(count - 1)` in threads of their own; the first error is raised here."""
    errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            errors.put(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not errors.empty():
        raise errors.get()


@pytest.mark.timeout(LIMIT_S + 30)
def test_12800_commands_from_64_threads_are_all_exact(sandbox: Sandbox) -> None:
    wrong: queue.SimpleQueue[tuple[int, int, str, str, str]] = queue.SimpleQueue()

    def work(thread: int) -> None:
        for number in range(thread, COMMANDS, THREADS):
            code = number % 251
            script = f"echo out {number}; echo err {number} >&2; exit {code}"
            result = sandbox.commands.run(["sh", "-c", script])
            found = (result.exit_code, result.stdout, result.stderr, str(result.reason))
            if found != (code, f"out {number}\n", f"err {number}\n", "exited"):
                wrong.put((number, *found))

    view = View(sandbox)
    began = time.monotonic()
    in_threads(THREADS, work)
    assert time.monotonic() - began < LIMIT_S
    assert wrong.empty(), wrong.get()
    assert eventually(view.processes) == {}
    assert eventually(lambda: len(view.leaves()) > THREADS) is False


def test_64_sandboxes_live_side_by_side(level: str) -> None:
    before = Footprint()
    seen: dict[int, str] = {}
    together = threading.Barrier(THREADS, timeout=60)

    def work(number: int) -> None:
        with Sandbox.create(level=level, name=f"box-{number}") as sandbox:
            sandbox.commands.run(f"echo {number} > /tmp/mine", check=True)
            together.wait()
            seen[number] = sandbox.commands.run("cat /tmp/mine; hostname; ls /tmp | wc -l").stdout
            together.wait()

    began = time.monotonic()
    in_threads(THREADS, work)
    assert time.monotonic() - began < 60
    assert seen == {number: f"{number}\nbox-{number}\n1\n" for number in range(THREADS)}
    assert before.growth() == []


def test_as_many_commands_at_once_as_there_are_processes_for(level: str) -> None:
    answers: dict[int, str] = {}
    with Sandbox.create(level=level, pids=160) as sandbox:

        def work(number: int) -> None:
            answers[number] = sandbox.commands.run(["sh", "-c", f"echo {number}; exec sleep 1"]).stdout

        in_threads(120, work)
        assert sandbox.commands.run("echo alive").stdout == "alive\n"
    assert answers == {number: f"{number}\n" for number in range(120)}
