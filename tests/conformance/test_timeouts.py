"""C01 Timeouts are punctual, and nothing that the command started outlives them, however it tries."""

import threading
import time

import pytest

from atoll import Sandbox
from atoll.model.errors import InvalidSpecError
from tests.conformance.host import View, eventually
from tests.sandboxes import Make

LATE_S = 0.5
"""How much later than its limit a command may end."""

REFORK = "import os, time\nwhile True:\n  if os.fork(): os._exit(0)\n  os.setsid()"
"""Ends after each fork: no pid lives long enough to be signalled one at a time."""
BROOD = "import os, time\nfor n in range(60):\n  if not os.fork(): os.setsid(); time.sleep(60)\ntime.sleep(60)"
DAEMON = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(60)"
EVADERS = {
    "plain": "sleep 60",
    "setsid": "setsid sleep 60 & setsid -f sleep 60; sleep 60",
    "nohup": "nohup sleep 60 & sleep 60",
    "disowned": "sleep 60 & disown; sleep 60",
    "double fork": f"python3 -c '{DAEMON}'; sleep 60",
    "stopped": "sleep 60 & kill -STOP $!; sh -c 'kill -STOP $$' & sleep 60",
    "stops itself": "kill -STOP $$",
    "re-forking": f"python3 -c '{REFORK}' & sleep 60",
    "many sessions": f"python3 -c '{BROOD}'",
    "traps": "trap '' TERM INT HUP QUIT; (trap '' TERM; sleep 60) & while :; do sleep 60; done",
    "respawns on TERM": "trap 'sleep 60 & wait' TERM; sleep 60 & wait",
    "busy": "while :; do :; done",
    "flood": "yes",
    "closed output": "exec >&- 2>&-; sleep 60",
    "pipeline": "yes | cat | cat > /dev/null",
}


def test_c01_the_limit_is_punctual_and_the_work_does_not_go_on(sandbox: Sandbox, full: bool) -> None:
    limit, late = (2, 30) if full else (1, 3)
    began = time.monotonic()
    result = sandbox.commands.run(f"echo start; sleep {late}; echo late > /tmp/late", timeout=limit)
    took = time.monotonic() - began
    assert limit <= took < limit + LATE_S
    assert (result.reason, result.exit_code, result.signal) == ("timeout", 137, 9)
    assert f"limit {limit} s" in result.detail
    assert result.stdout == "start\n"
    again = time.monotonic()
    assert sandbox.commands.run("echo at once").stdout == "at once\n"
    assert time.monotonic() - again < LATE_S
    time.sleep(late - (time.monotonic() - began) + 0.5)
    missing = sandbox.commands.run("cat /tmp/late")
    assert missing.exit_code == 1
    assert "No such file" in missing.stderr


@pytest.mark.parametrize("script", EVADERS.values(), ids=EVADERS)
def test_c01_nothing_outlives_a_timeout(sandbox: Sandbox, script: str) -> None:
    view = View(sandbox)
    began = time.monotonic()
    result = sandbox.commands.run(script, timeout=0.7)
    assert 0.7 <= time.monotonic() - began < 0.7 + LATE_S
    assert result.reason == "timeout"
    assert eventually(view.processes, within_s=LATE_S) == {}
    assert view.in_cgroup() == set()
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_c01_a_storm_dies_at_its_timeout(make: Make) -> None:
    sandbox = make(pids=200)
    view = View(sandbox)
    storm = "import os, time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.01)"
    began = time.monotonic()
    result = sandbox.commands.run(["python3", "-c", storm], timeout=1)
    assert time.monotonic() - began < 2.5
    assert result.reason == "timeout"
    assert eventually(view.processes, within_s=LATE_S) == {}


def test_other_commands_survive_the_timeout_of_one(sandbox: Sandbox) -> None:
    sandbox.commands.run("sleep 55 >/dev/null 2>&1 &")
    others: list[str] = []
    thread = threading.Thread(target=lambda: others.append(sandbox.commands.run("sleep 1.5; echo finished").stdout))
    thread.start()
    assert sandbox.commands.run("sleep 54 & sleep 54", timeout=0.5).reason == "timeout"
    thread.join()
    assert others == ["finished\n"]
    assert sandbox.commands.run(["pgrep", "-a", "sleep"]).stdout.split(maxsplit=1)[1] == "sleep 55\n"


def test_many_timeouts_at_once_are_all_punctual(sandbox: Sandbox) -> None:
    took: list[float] = []

    def command() -> None:
        began = time.monotonic()
        assert sandbox.commands.run(["sleep", "60"], timeout=1).reason == "timeout"
        took.append(time.monotonic() - began)

    threads = [threading.Thread(target=command) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(took) == 20
    assert min(took) >= 1
    assert max(took) < 1 + 2 * LATE_S


def test_waiting_for_descendants_ends_at_the_timeout_too(sandbox: Sandbox) -> None:
    view = View(sandbox)
    began = time.monotonic()
    result = sandbox.commands.run("setsid sleep 60 & echo up", timeout=1, wait_for_descendants=True)
    assert 1 <= time.monotonic() - began < 1 + LATE_S
    assert (result.reason, result.stdout, result.exit_code) == ("timeout", "up\n", 0)
    assert result.error == "timeout: limit 1 s"
    assert eventually(view.processes, within_s=LATE_S) == {}


def test_a_command_that_ends_in_time_keeps_its_leftovers(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("sleep 60 >/dev/null 2>&1 & exit 3", timeout=0.5).exit_code == 3
    time.sleep(0.8)
    assert sandbox.commands.run(["pgrep", "-c", "sleep"]).stdout == "1\n"


@pytest.mark.parametrize(("timeout", "seconds"), [("500ms", 0.5), (0.5, 0.5), ("0.01m", 0.6)])
def test_a_timeout_can_be_written_in_several_ways(sandbox: Sandbox, timeout: str | float, seconds: float) -> None:
    began = time.monotonic()
    result = sandbox.commands.run(["sleep", "30"], timeout=timeout)
    assert seconds <= time.monotonic() - began < seconds + LATE_S
    assert (result.reason, result.detail) == ("timeout", f"limit {seconds:g} s")


@pytest.mark.parametrize("timeout", ["12 parsecs", -1, "-5s", float("nan"), float("inf"), True, [1], "", 1e12])
def test_an_impossible_timeout_is_a_typed_error(sandbox: Sandbox, timeout: object) -> None:
    with pytest.raises(InvalidSpecError, match=r"^timeout: not a duration, got .*write it like 30s"):
        sandbox.commands.run("touch /tmp/ran", timeout=timeout)  # type: ignore[arg-type]
    assert sandbox.commands.run(["test", "-e", "/tmp/ran"]).exit_code == 1


@pytest.mark.parametrize("timeout", [0, None, "0s"])
def test_none_and_zero_mean_no_limit(make: Make, timeout: float | str | None) -> None:
    """As in the E2B SDK."""
    result = make().commands.run(["sleep", "0.3"], timeout=timeout)
    assert (result.exit_code, result.reason) == (0, "exited")
