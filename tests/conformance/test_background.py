"""C03 A background child does not hold the foreground call; what it writes later goes to the log."""

import threading
import time

import pytest

from atoll import AsyncSandbox, Sandbox
from atoll.model.errors import NotFoundError
from tests.conformance.host import View, eventually


def test_c03_a_child_that_keeps_stdout_open_does_not_delay_the_result(sandbox: Sandbox) -> None:
    began = time.monotonic()
    result = sandbox.commands.run("sleep 300 & echo done")
    assert time.monotonic() - began < 1
    assert (result.stdout, result.exit_code, result.reason) == ("done\n", 0, "exited")
    assert sandbox.commands.run(["pgrep", "-a", "sleep"]).stdout.split(maxsplit=1)[1] == "sleep 300\n"


def test_c03_a_server_left_behind_serves_the_next_command(sandbox: Sandbox) -> None:
    began = time.monotonic()
    assert sandbox.commands.run("python3 -m http.server 8123 >/dev/null 2>&1 & echo up").stdout == "up\n"
    assert time.monotonic() - began < 1
    fetch = (
        "import time, urllib.request\n"
        "for attempt in range(100):\n"
        "  try: print(urllib.request.urlopen('http://localhost:8123').status, end=''); break\n"
        "  except OSError: time.sleep(0.1)"
    )
    assert sandbox.commands.run(["python3", "-c", fetch]).stdout == "200"


def test_c03_later_output_goes_to_the_readable_log(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("(sleep 0.5; echo later; echo problem >&2) & echo now")
    assert (result.stdout, result.stderr) == ("now\n", "")
    eventually(lambda: not result.read_log("stderr", 0, 100))
    assert result.read_log("stdout", 0, 100) == b"now\nlater\n"
    assert result.read_log("stderr", 0, 100) == b"problem\n"
    assert result.stdout == "now\n"


def test_c03_a_flood_left_behind_is_bounded_by_the_output_limit(level: str) -> None:
    with Sandbox.create(level=level, output="2M") as sandbox:
        view = View(sandbox)
        result = sandbox.commands.run("(sleep 0.2; yes) & echo now")
        assert result.stdout == "now\n"
        assert eventually(view.processes, within_s=5) == {}
        assert 0 < len(_whole_log(result)) <= 2 << 20
        assert sandbox.commands.run("echo alive").stdout == "alive\n"


def _whole_log(result: object) -> bytes:
    try:
        return result.read_log("stdout", 0, 4 << 20)  # type: ignore[attr-defined,no-any-return]
    except NotFoundError:
        return b"-"


def test_c03_callbacks_get_nothing_after_the_result(sandbox: Sandbox) -> None:
    pieces: list[str] = []
    sandbox.commands.run("(sleep 0.3; echo later) & echo now", on_stdout=pieces.append)
    time.sleep(0.8)
    assert pieces == ["now\n"]


def test_c03_wait_for_descendants_waits_for_all_of_them(sandbox: Sandbox) -> None:
    began = time.monotonic()
    script = "(sleep 0.5; echo second) & setsid sh -c 'exec >/dev/null 2>&1; sleep 1; touch /tmp/third' & echo first"
    result = sandbox.commands.run(script, wait_for_descendants=True)
    assert time.monotonic() - began >= 1
    assert (result.stdout, result.exit_code) == ("first\nsecond\n", 0)
    assert sandbox.commands.run(["test", "-e", "/tmp/third"]).exit_code == 0


def test_c03_wait_for_descendants_delays_nobody_without_any(sandbox: Sandbox) -> None:
    began = time.monotonic()
    assert sandbox.commands.run("exit 5", wait_for_descendants=True).exit_code == 5
    assert time.monotonic() - began < 1


def test_leftovers_die_with_their_sandbox(sandbox: Sandbox) -> None:
    sandbox.commands.run("setsid sleep 300 & (trap '' TERM; sleep 300) & nohup sleep 300 & exit")
    view = View(sandbox)
    assert len(view.processes()) >= 3
    sandbox.kill()
    assert view.processes() == {}
    assert view.in_cgroup() == set()


def test_hundreds_of_leftovers_are_no_burden(sandbox: Sandbox) -> None:
    for _ in range(60):
        sandbox.commands.run("sleep 300 >/dev/null 2>&1 & exit")
    began = time.monotonic()
    assert sandbox.commands.run(["pgrep", "-c", "sleep"]).stdout == "60\n"
    assert time.monotonic() - began < 1
    sandbox.commands.run("pkill sleep")
    assert sandbox.commands.run(["pgrep", "-c", "sleep"]).stdout == "0\n"


@pytest.mark.anyio
async def test_c03_async_too(level: str) -> None:
    async with await AsyncSandbox.create(level=level) as sandbox:
        began = time.monotonic()
        assert (await sandbox.commands.run("sleep 300 & echo done")).stdout == "done\n"
        assert time.monotonic() - began < 1


def test_a_leftover_outlives_the_thread_that_started_it(sandbox: Sandbox) -> None:
    thread = threading.Thread(target=lambda: sandbox.commands.run("sleep 300 >/dev/null 2>&1 & exit"))
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert sandbox.commands.run(["pgrep", "-c", "sleep"]).stdout == "1\n"
