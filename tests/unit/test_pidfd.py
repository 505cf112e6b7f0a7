import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.kernel import pidfd
from atoll.kernel.pidfd import Pidfd, boot_id, children, is_alive, start_time
from tests.unit.kernel_support import Child, child, sleep_forever, wait_for

SYS_EXIT = 60


@pytest.fixture
def sleeper() -> Iterator[Child]:
    with child(sleep_forever) as process:
        yield process


def test_send_and_wait(sleeper: Child) -> None:
    with Pidfd.open(sleeper.pid) as process:
        assert not process.wait(0.01)
        process.send(signal.SIGTERM)
        assert process.wait(10)
        assert sleeper.wait() == -signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            process.send(0)


def test_wait_does_not_take_the_exit_status_from_the_parent() -> None:
    with child(lambda: os._exit(7)) as process, Pidfd.open(process.pid) as watched:
        assert watched.wait(10)
        assert process.wait() == 7


def test_open_of_a_process_that_is_gone() -> None:
    with child(lambda: None) as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        Pidfd.open(process.pid)


def test_open_refuses_the_same_pid_with_another_start_time(sleeper: Child) -> None:
    started = start_time(sleeper.pid)
    Pidfd.open(sleeper.pid, started).close()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProcessLookupError):
        Pidfd.open(sleeper.pid, started - 1)
    assert len(os.listdir("/proc/self/fd")) == before
    assert sleeper.runs()


def test_close_twice_closes_one_descriptor(sleeper: Child) -> None:
    process = Pidfd.open(sleeper.pid)
    process.close()
    reused = os.open("/", os.O_PATH)
    process.close()
    os.fstat(reused)
    os.close(reused)


def test_start_times_are_ordered_and_in_ticks_since_boot(sleeper: Child) -> None:
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    assert start_time(1) <= start_time(os.getpid()) <= start_time(sleeper.pid) <= uptime


def test_a_process_name_cannot_forge_the_fields_after_it() -> None:
    def rename_and_sleep() -> None:
        with open("/proc/self/comm", "w", encoding="ascii") as comm:
            comm.write("x) Z 1 (1 1")
        sleep_forever()

    with child(rename_and_sleep) as process:
        started = start_time(process.pid)
        wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text().startswith("x)"))
        assert start_time(process.pid) == started
        assert is_alive(process.pid, started)
        assert process.pid in pidfd._children_by_scan(os.getpid())


def test_a_zombie_is_not_alive() -> None:
    with child(sleep_forever) as process:
        started = start_time(process.pid)
        assert is_alive(process.pid, started)
        assert not is_alive(process.pid, started + 1)
        os.kill(process.pid, signal.SIGKILL)
        with Pidfd.open(process.pid) as watched:
            assert watched.wait(10)
        assert os.path.exists(f"/proc/{process.pid}")
        assert not is_alive(process.pid, started)
        process.wait()
        assert not is_alive(process.pid, started)


def test_a_process_whose_first_thread_ended_is_alive() -> None:
    def end_first_thread() -> None:
        threading.Thread(target=sleep_in_thread).start()
        ctypes.CDLL(None).syscall(SYS_EXIT, 0)

    def sleep_in_thread() -> None:
        time.sleep(60)

    with child(end_first_thread) as process:
        wait_for(lambda: pidfd._stat(process.pid)[0] == b"Z")
        assert is_alive(process.pid, start_time(process.pid))


def test_boot_id_is_that_of_the_kernel() -> None:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        assert boot_id() == file.read().strip()


def test_children_of_every_thread(sleeper: Child) -> None:
    started: list[Child] = []
    thread = threading.Thread(target=lambda: started.append(Child(sleep_forever)))
    thread.start()
    thread.join()
    try:
        expected = {sleeper.pid, started[0].pid}
        assert expected <= set(children(os.getpid()))
        assert expected <= set(pidfd._children_by_scan(os.getpid()))
        assert children(sleeper.pid) == []
    finally:
        os.kill(started[0].pid, signal.SIGKILL)
        started[0].wait()


def test_children_of_a_process_that_is_gone() -> None:
    with child(lambda: None) as process:
        process.wait()
    assert children(process.pid) == []
