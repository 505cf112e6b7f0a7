"""The supervisor against real guests: exact counts, floods, deaths, signals, reused descriptors."""

import errno
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.kernel import notify
from atoll.kernel.notify import Supervisor, supervisor
from tests.unit.test_seccomp_guest import Guest

FLOOD = "[libc.syscall(165, 0, 0, 0, 0, 0) for _ in range(int(sys.argv[2]))]; print('done')"
ONE_EACH_LINE = """
for line in sys.stdin.buffer:
    start = time.monotonic()
    result = call(308, 0xFFFFFFFF, 0)
    print(json.dumps([result, time.monotonic() - start]), flush=True)
"""


def unlimited() -> Supervisor:
    return Supervisor(rate=1e9, burst=1e9, total=1e12)


def cpu_of_supervisors() -> float:
    """CPU seconds of all threads but this one (schedstat of proc(5))."""
    others = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != threading.get_native_id()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in others) / 1e9


def ask(guest: Guest) -> tuple[list[int], float]:
    guest.write(b"\n")
    result, seconds = json.loads(guest.readline())
    return result, seconds


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def wait_until(condition: Callable[[], object], timeout: float = 5.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)


def test_every_denied_call_of_many_threads_is_counted_once_by_the_time_the_guest_ends():
    body = """
def work(): [libc.syscall(165, 0, 0, 0, 0, 0) for _ in range(1500)]
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
if os.fork() == 0: call(308, -1, 0); os._exit(0)
os.wait()
"""
    with Guest(body, by=unlimited()) as guest:
        guest.process.wait(timeout=20)
        assert guest.denied() == {"mount": 6000, "setns": 1}


def test_a_flood_is_answered_in_full_when_nothing_limits_it(full: bool):
    calls = 50_000 if full else 10_000
    with Guest(FLOOD, str(calls), by=unlimited()) as guest:
        assert guest.finish() == b"done\n"
        assert guest.denied() == {"mount": calls}


def test_a_flood_is_throttled_while_others_are_answered_at_once():
    ours = Supervisor()
    with Guest(FLOOD, "50000", by=ours) as flooder, Guest(ONE_EACH_LINE, by=ours) as other:
        wait_until(lambda: flooder.denied().get("mount", 0) >= notify.BURST)
        start, before, cpu = time.monotonic(), flooder.denied()["mount"], cpu_of_supervisors()
        waits = []
        for _ in range(80):
            result, seconds = ask(other)
            assert result == [-1, errno.EPERM]
            waits.append(seconds)
            time.sleep(0.015)
        elapsed = time.monotonic() - start
        answered = flooder.denied()["mount"] - before
        cpu = cpu_of_supervisors() - cpu
        # All calls of this supervisor go through its one thread, so a slow one would show in the others' waits.
        assert sorted(waits)[76] < 0.05
        assert 0.2 * notify.RATE_PER_S * elapsed < answered <= notify.RATE_PER_S * elapsed + notify.BURST
        assert cpu < 0.25 * elapsed
        assert other.denied() == {"setns": 80}


def test_floods_of_many_sandboxes_share_the_total():
    ours = Supervisor(rate=1000, burst=10, total=1000)
    flooders = [Guest(FLOOD, "50000", by=ours) for _ in range(5)]
    try:
        for flooder in flooders:
            flooder.__enter__()
        time.sleep(0.4)  # until all five are known as active
        before = [flooder.denied()["mount"] for flooder in flooders]
        start = time.monotonic()
        time.sleep(1.2)
        answered = [flooder.denied()["mount"] - count for flooder, count in zip(flooders, before, strict=True)]
        elapsed = time.monotonic() - start
    finally:
        for flooder in flooders:
            flooder.__exit__()
    assert 0.5 * 1000 * elapsed < sum(answered) < 1.2 * 1000 * elapsed + 50
    assert min(answered) > 0.5 * max(answered)


def test_killing_a_waiting_guest_leaves_the_others_served_and_nothing_open():
    ours = Supervisor(rate=20, burst=1, total=1e9)
    before = open_descriptors()
    with Guest(ONE_EACH_LINE, by=ours) as other:
        for _ in range(10):
            with Guest(FLOOD, "50000", by=ours) as flooder:
                wait_until(lambda flooder=flooder: flooder.denied())
                flooder.process.send_signal(signal.SIGKILL)
                flooder.process.wait()
                wait_until(lambda flooder=flooder: flooder.listener.fd not in ours._listeners)
        assert ask(other)[0] == [-1, errno.EPERM]
    for guest in (flooder, other):
        guest.process.stdin.close()
        guest.process.stdout.close()
    wait_until(lambda: open_descriptors() <= before + 1)  # its epoll


def test_a_guest_interrupted_by_signals_gets_its_answer():
    # No WAIT_KILLABLE_RECV: the timer ends the wait, SA_RESTART (siginterrupt) makes the kernel ask again.
    body = """
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
print([libc.syscall(165, 0, 0, 0, 0, 0) for _ in range(50)] == [-1] * 50)
"""
    with Guest(body, by=Supervisor(rate=500, burst=1, total=1e9)) as guest:
        assert guest.finish() == b"True\n"
        assert 50 <= guest.denied()["mount"] <= 100


def test_without_a_supervisor_calls_stay_denied():
    with Guest(ONE_EACH_LINE) as guest:
        assert ask(guest)[0] == [-1, errno.EPERM]
        supervisor().remove(guest.listener)
        assert ask(guest)[0] == [-1, errno.ENOSYS]
        supervisor().remove(guest.listener)
        assert guest.denied() == {"setns": 1}


def test_removing_an_ended_sandbox_does_not_touch_one_that_got_its_descriptor():
    with Guest(ONE_EACH_LINE) as first:
        stale = first.listener
        first.process.kill()
        first.process.wait()
        wait_until(lambda: stale.fd not in supervisor()._listeners)
        with Guest(ONE_EACH_LINE) as second:
            assert second.listener.fd == stale.fd
            supervisor().remove(stale)
            assert ask(second)[0] == [-1, errno.EPERM]


def arrive_together(holder: Guest, *callers: Guest) -> None:
    """Have all `callers` make a denied call that the supervisor sees in one round: it is busy with one of `holder`."""
    entered, gate = threading.Event(), threading.Event()
    holder.listener.on_denied = lambda _kind, _detail: entered.set() or (gate.wait(10) and None)
    holder.write(b"\n")
    assert entered.wait(10)
    for caller in callers:
        caller.write(b"\n")
        syscall = Path(f"/proc/{caller.pid}/syscall")
        wait_until(lambda syscall=syscall: syscall.read_text().startswith("308 "))
    gate.set()
    holder.readline()


def test_a_call_withdrawn_before_its_turn_leaves_its_listener_served():
    ours, withdrawn = Supervisor(), []
    interruptible = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)" + ONE_EACH_LINE
    with (
        Guest(ONE_EACH_LINE, by=ours) as holder,
        Guest(interruptible, by=ours) as one,
        Guest(interruptible, by=ours) as two,
    ):

        def interrupt(other: Guest) -> None:
            if not withdrawn:
                other.process.send_signal(signal.SIGUSR1)
                withdrawn.append(json.loads(other.readline())[0])

        one.listener.on_denied = lambda _kind, _detail: interrupt(two)
        two.listener.on_denied = lambda _kind, _detail: interrupt(one)
        arrive_together(holder, one, two)
        wait_until(lambda: withdrawn)
        (answered,) = select.select([one.process.stdout, two.process.stdout], [], [], 5)[0]
        assert json.loads(answered.readline())[0] == [-1, errno.EPERM]
        assert withdrawn == [[-1, errno.EINTR]]
        assert ask(one)[0] == ask(two)[0] == [-1, errno.EPERM]


def test_an_event_of_a_closed_descriptor_is_not_taken_for_one_of_its_successor():
    ours, swapped = Supervisor(), threading.Event()
    with (
        Guest(ONE_EACH_LINE, by=ours) as one,
        Guest(ONE_EACH_LINE, by=ours) as two,
        Guest(ONE_EACH_LINE, by=ours) as quiet,
        Guest(ONE_EACH_LINE, by=ours) as other,
    ):
        spare = os.dup(quiet.listener.fd)

        def replace(second: Guest) -> None:
            # Both have an event in this round: put a listener without one in the place of the second.
            if not swapped.is_set():
                swapped.set()
                ours.remove(second.listener)
                os.dup2(spare, second.listener.fd)
                ours.remove(quiet.listener)
                quiet.listener = ours.add(second.listener.fd, quiet.violations.record, lambda: 0)

        one.listener.on_denied = lambda _kind, _detail: replace(two)
        two.listener.on_denied = lambda _kind, _detail: replace(one)
        arrive_together(other, one, two)
        results = sorted(json.loads(guest.readline())[0] for guest in (one, two))
        assert results == [[-1, errno.EPERM], [-1, errno.ENOSYS]]
        other.write(b"\n")
        answered = select.select([other.process.stdout], [], [], 5)[0]
        if not answered:
            quiet.process.kill()  # ends the wait in which the supervisor is stuck, so that the test can end
        assert answered
        assert ask(quiet)[0] == [-1, errno.EPERM]
        os.close(spare)


def test_a_report_that_fails_or_removes_its_listener_does_not_stop_the_supervisor(caplog: pytest.LogCaptureFixture):
    ours = Supervisor()
    with Guest(ONE_EACH_LINE, by=ours) as failing, Guest(ONE_EACH_LINE, by=ours) as removing:
        failing.listener.on_denied = lambda _kind, _detail: 1 / 0
        assert ask(failing)[0] == [-1, errno.EPERM]
        assert "division by zero" in caplog.text
        removing.listener.on_denied = lambda _kind, _detail: ours.remove(removing.listener)
        assert ask(removing)[0] == [-1, errno.ENOSYS]
        assert "listener failed" not in caplog.text
        assert ask(failing)[0] == [-1, errno.EPERM]


def test_a_broken_listener_costs_only_its_own_sandbox(caplog: pytest.LogCaptureFixture):
    ours = Supervisor()
    readable, writable = os.pipe()
    os.write(writable, b"x")
    with Guest(ONE_EACH_LINE, by=ours) as other:
        broken = ours.add(readable, other.violations.record, lambda: 0)
        wait_until(lambda: broken.fd not in ours._listeners)
        assert "seccomp listener failed" in caplog.text
        assert ask(other)[0] == [-1, errno.EPERM]
    os.close(writable)


def test_the_supervisor_answers_from_one_daemon_thread_that_takes_no_signals():
    ours, before = Supervisor(), set(threading.enumerate())
    with Guest(ONE_EACH_LINE, by=ours) as first, Guest(ONE_EACH_LINE, by=ours) as second:
        ask(first), ask(second)
        (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked = int(status.partition("SigBlk:\t")[2].split()[0], 16)
    assert blocked & 1 << signal.SIGTERM - 1
    assert blocked & 1 << signal.SIGINT - 1
