"""Bytes, credit and the end of streams."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.peer import BIG_WINDOW, Kind

if TYPE_CHECKING:
    from tests.agent.rig import Rig

MB = 1 << 20


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def rss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


@pytest.mark.parametrize("window", [1000, 65536, BIG_WINDOW])
def test_ten_megabytes_arrive_exactly(rig: Rig, window: int) -> None:
    script = "seq 1 1500000 | head -c 10485760"
    command = rig.finish(rig.peer.shell(script, window=window), 30)
    expected = b"".join(b"%d\n" % i for i in range(1, 1_500_000))[: 10 * MB]
    assert bytes(command.stdout) == expected


def test_stdin_round_trip(rig: Rig) -> None:
    data = bytes(range(251)) * (5 * MB // 251)
    command = rig.peer.start("cat", stdin=True, window=100_000)
    rig.feed(command, data)
    rig.finish(command)
    assert (bytes(command.stdout), command.status) == (data, 0)


def test_stdin_to_a_slow_reader(rig: Rig) -> None:
    data = bytes(range(256)) * 1500
    command = rig.peer.shell("sleep 0.2; dd bs=1000 status=none; sleep 0.1; exec cat", stdin=True)
    rig.feed(command, data)
    assert bytes(rig.finish(command).stdout) == data


def test_stdin_credit_is_what_the_command_took(rig: Rig) -> None:
    command = rig.peer.start("sleep", "100", stdin=True)
    rig.peer.data(command, bytes(65536))
    rig.idle(0.2)
    assert command.stdin_credit == 65536  # all went into the pipe
    rig.peer.data(command, bytes(65536))
    rig.idle(0.2)
    assert command.stdin_credit == 0  # the agent holds it


def test_stdin_of_a_command_that_closed_it_is_dropped(rig: Rig) -> None:
    command = rig.peer.shell("exec <&-; echo closed; exec sleep 0.5", stdin=True)
    rig.until(lambda: bytes(command.stdout) == b"closed\n")
    rig.feed(command, bytes(MB))
    assert rig.finish(command).status == 0


def test_stdin_for_a_command_without_stdin_is_dropped(rig: Rig) -> None:
    command = rig.peer.shell("cat; sleep 0.2")
    rig.feed(command, bytes(MB))
    assert (bytes(rig.finish(command).stdout), command.status) == (b"", 0)


def test_eof_waits_for_what_was_sent_before(rig: Rig) -> None:
    command = rig.peer.shell("sleep 0.2; wc -c", stdin=True)
    rig.feed(command, bytes(130_000))
    rig.peer.eof(command)  # twice is harmless
    assert rig.finish(command).stdout == b"130000\n"


def test_frames_for_a_stream_that_is_over_are_ignored(rig: Rig) -> None:
    command = rig.finish(rig.peer.start("true", stdin=True))
    rig.peer.data(command, b"late")
    rig.peer.eof(command)
    rig.peer.credit(command, 1, 5)
    rig.peer.signal(command, 9, 0)
    assert rig.finish(rig.peer.shell("echo fine")).stdout == b"fine\n"


def test_stream_id_can_be_used_again_after_the_end(rig: Rig) -> None:
    for i in range(3):
        rig.peer._next = 7
        assert rig.finish(rig.peer.shell(f"echo {i}")).stdout == b"%d\n" % i


def test_exit_is_reported_although_a_child_holds_the_pipes(rig: Rig) -> None:
    begin = time.monotonic()
    command = rig.peer.shell("(sleep 1; echo late; echo later >&2) & echo now; exit 5")
    rig.until(lambda: command.exit is not None)
    assert time.monotonic() - begin < 0.8
    assert (command.status, bytes(command.stdout), command.ended) == (5, b"now\n", set())
    rig.finish(command)
    assert (bytes(command.stdout), bytes(command.stderr)) == (b"now\nlate\n", b"later\n")
    assert command.log[-2:] == [Kind.EOF, Kind.EOF]


def test_exit_comes_after_what_was_written_before_it(rig: Rig) -> None:
    command = rig.peer.shell("head -c 50000 /dev/zero; sleep 60 &", window=1000, auto_credit=False)
    rig.idle(0.3)
    assert (len(command.stdout), command.exit) == (1000, None)
    command.window = 60000
    rig.peer.credit(command, 1, 48_999)
    rig.idle(0.2)
    assert (len(command.stdout), command.exit) == (49_999, None)
    rig.peer.credit(command, 1, 1)
    rig.until(lambda: command.exit is not None)
    assert len(command.stdout) == 50_000


def test_exit_does_not_wait_for_bytes_that_another_reader_took(rig: Rig) -> None:
    script = "printf hello; (exec 3</proc/self/fd/1; sleep 0.2; head -c 5 <&3 >/dev/null; sleep 60) & exit 0"
    command = rig.peer.shell(script, window=0, auto_credit=False)
    rig.idle(0.6)
    assert command.exit is None
    command.window = 100
    rig.peer.credit(command, 1, 100)
    rig.until(lambda: command.exit is not None)
    assert bytes(command.stdout) == b""


def test_end_needs_no_credit(rig: Rig) -> None:
    command = rig.peer.shell("printf 12345", window=5, auto_credit=False)
    assert (bytes(rig.finish(command).stdout), command.status) == (b"12345", 0)
    silent = rig.finish(rig.peer.start("true", window=0, auto_credit=False))
    assert silent.status == 0


def test_end_of_output_is_told_although_the_command_goes_on(rig: Rig) -> None:
    command = rig.peer.shell("exec >&- 2>&-; exec sleep 100")
    begin = time.monotonic()
    rig.until(lambda: command.ended == {1, 2})
    assert time.monotonic() - begin < 0.5
    assert command.exit is None


def test_agent_sleeps_while_nothing_happens(rig: Rig) -> None:
    def wakeups() -> str:
        lines = Path(f"/proc/{rig.pid}/status").read_text().splitlines()
        return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))

    command = rig.peer.start("sleep", "100", stdin=True)
    rig.until(lambda: command.pid is not None)
    rig.idle(0.1)
    before = wakeups()
    rig.idle(0.3)
    assert wakeups() == before


def test_without_credit_the_command_blocks_and_the_agent_sleeps(rig: Rig) -> None:
    command = rig.peer.start("yes", window=100_000, auto_credit=False)
    half = rig.peer.shell("head -c 70000 /dev/zero", window=10, auto_credit=False)  # ends with bytes in the pipe
    rig.idle(0.3)
    before = cpu_ticks(rig.pid), cpu_ticks(command.pid or 0)
    rig.idle(0.5)
    assert (len(command.stdout), len(half.stdout)) == (100_000, 10)
    assert (cpu_ticks(rig.pid), cpu_ticks(command.pid or 0)) == before
    command.window = 150_000
    rig.peer.credit(command, 1, 50_000)
    rig.until(lambda: len(command.stdout) == 150_000)


def test_deaf_host_costs_a_bounded_amount_of_memory(rig: Rig, flavour: str) -> None:
    commands = [rig.peer.shell("yes | head -c 4000000; echo err >&2; exit 7") for _ in range(8)]
    rig.until(lambda: all(command.pid for command in commands))
    before = rss_kib(rig.pid)
    time.sleep(0.3)
    ticks = cpu_ticks(rig.pid)
    time.sleep(0.3)
    assert cpu_ticks(rig.pid) <= ticks + 1
    if flavour == "shipped":
        assert rss_kib(rig.pid) < before + 512
    for command in commands:
        rig.finish(command)
        assert (bytes(command.stdout), bytes(command.stderr)) == (b"y\n" * 2_000_000, b"err\n")
        assert command.status == 7


def test_memory_goes_back_when_streams_end(rig: Rig, flavour: str) -> None:
    if flavour != "shipped":
        pytest.skip("sanitizers keep memory")
    command = rig.peer.start("cat", stdin=True)
    rig.feed(command, bytes(3 * MB))
    rig.finish(command)
    rig.idle(0.1)
    assert rss_kib(rig.pid) < 300


def test_quiet_command_is_not_disturbed_by_a_noisy_one(rig: Rig) -> None:
    noisy = rig.peer.start("yes", window=BIG_WINDOW)
    rig.until(lambda: len(noisy.stdout) > 0)
    for _ in range(5):
        begin = time.monotonic()
        assert rig.finish(rig.peer.shell("echo quiet")).stdout == b"quiet\n"
        assert time.monotonic() - begin < 1
        noisy.stdout.clear()
    rig.peer.signal(noisy, 9, 0)
    rig.finish(noisy)


def test_ping_is_answered_in_the_middle_of_everything(rig: Rig) -> None:
    rig.peer.start("yes")
    rig.peer.outgoing += b"".join(b"\x08\0\0\0\0\0\0\0\x0a%08d" % i for i in range(1000))
    rig.until(lambda: len(rig.peer.pongs) == 1000)
    assert rig.peer.pongs == [b"%08d" % i for i in range(1000)]
