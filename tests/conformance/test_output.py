"""C08 Big output is bounded, marked and drained, and what was dropped from memory can still be read."""

import time

import pytest

from atoll import Sandbox
from atoll.model.errors import NotFoundError
from tests.conformance.host import forget_memory_peak, own_memory_peak
from tests.sandboxes import Make

MB = 1_000_000
MIB = 1 << 20
BIG = 200 * MB
C08 = f"head -c {BIG} /dev/zero | tr '\\0' A; echo TAIL; echo ERR >&2; exit 3"


def test_c08_200_mb_keep_head_tail_stderr_and_exit_code(sandbox: Sandbox) -> None:
    before = forget_memory_peak()
    result = sandbox.commands.run(C08)
    grown = own_memory_peak() - before

    assert (result.exit_code, result.reason) == (3, "exited")
    assert result.stderr == "ERR\n"
    assert result.truncated
    assert result.dropped_bytes + len(result.stdout_bytes) == BIG + len("TAIL\n")
    assert len(result.stdout_bytes) <= MIB
    assert result.stdout.startswith("A" * 100_000)
    assert result.stdout.endswith("A" * 100_000 + "TAIL\n")
    assert grown < 50 * MB
    assert result.read_log("stdout", BIG // 2, 1000) == b"A" * 1000
    assert result.read_log("stdout", BIG - 3, 100) == b"AAATAIL\n"
    assert result.read_log("stdout", BIG + 5, 100) == b""
    assert result.read_log("stderr", 0, 100) == b"ERR\n"


def test_c08_streaming_200_mb_keeps_the_host_small_too(sandbox: Sandbox) -> None:
    size = 0

    def count(data: bytes) -> None:
        nonlocal size
        size += len(data)

    before = forget_memory_peak()
    result = sandbox.commands.run(C08, on_stdout_bytes=count)
    assert own_memory_peak() - before < 50 * MB
    assert (size, result.exit_code) == (BIG + 5, 3)


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB])
def test_output_of_up_to_1_mib_is_kept_whole(sandbox: Sandbox, size: int) -> None:
    result = sandbox.commands.run(["sh", "-c", f"head -c {size} /dev/zero; head -c {size} /dev/zero >&2"])
    assert (len(result.stdout_bytes), len(result.stderr_bytes)) == (size, size)
    assert (result.truncated, result.dropped_bytes) == (False, 0)


def test_the_middle_is_what_is_dropped_and_every_byte_is_accounted_for(sandbox: Sandbox) -> None:
    code = "import sys; sys.stdout.buffer.write(b''.join(b'%07d\\n' % i for i in range(400000)))"
    result = sandbox.commands.run(["python3", "-c", code])
    whole = b"".join(b"%07d\n" % number for number in range(400_000))
    kept, dropped = result.stdout_bytes, result.dropped_bytes
    assert len(kept) + dropped == len(whole)
    head = MIB // 2
    assert whole.startswith(kept[:head])
    assert whole.endswith(kept[head:])
    assert len(kept) - head >= 400_000
    assert b"".join(result.read_log("stdout", offset, MIB) for offset in range(0, len(whole), MIB)) == whole


def test_small_output_can_be_read_by_range_as_well(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo 0123456789")
    assert result.read_log("stdout", 3, 4) == b"3456"
    assert result.read_log("stdout", 9, 100) == b"9\n"


def test_output_limit_ends_a_flood_with_its_reason(make: Make) -> None:
    sandbox = make(output="1M")
    began = time.monotonic()
    result = sandbox.commands.run("yes; echo not reached", timeout=20)
    assert time.monotonic() - began < 5
    assert (result.reason, result.exit_code, result.signal) == ("output_limit", 137, 9)
    assert str(MIB) in result.detail
    assert result.truncated
    assert len(result.stdout_bytes) <= MIB
    assert result.stdout.startswith("y\ny\ny\n")
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_output_limit_counts_both_streams_and_kills_everything_that_writes(make: Make) -> None:
    result = make(output="1M").commands.run("(yes >&2) & yes & (yes & setsid yes >&2) & wait", timeout=20)
    assert result.reason == "output_limit"
    assert len(result.stdout_bytes) + len(result.stderr_bytes) <= MIB


def test_output_of_exactly_the_limit_is_no_violation(make: Make) -> None:
    result = make(output="2M").commands.run(["head", "-c", str(2 * MIB), "/dev/zero"])
    assert (result.reason, result.exit_code) == ("exited", 0)
    assert len(result.stdout_bytes) + result.dropped_bytes == 2 * MIB


def test_old_logs_make_room_for_new_ones(make: Make) -> None:
    sandbox = make(output="8M")
    results = [sandbox.commands.run(["head", "-c", "5000000", "/dev/zero"]) for _ in range(3)]
    assert [result.exit_code for result in results] == [0, 0, 0]
    with pytest.raises(NotFoundError, match="log is gone"):
        results[0].read_log("stdout", 0, 10)
    assert results[-1].read_log("stdout", 4_999_990, 100) == bytes(10)
    assert len(results[0].stdout_bytes) == MIB


def test_logs_end_with_their_sandbox(make: Make) -> None:
    sandbox = make()
    result = sandbox.commands.run(["head", "-c", "5000000", "/dev/zero"])
    sandbox.kill()
    with pytest.raises(NotFoundError, match="log is gone"):
        result.read_log("stdout", 0, 10)
    assert len(result.stdout_bytes) == MIB


def test_a_flood_that_nobody_reads_slowly_ends_at_the_timeout(sandbox: Sandbox) -> None:
    began = time.monotonic()
    result = sandbox.commands.run("yes", timeout=1, on_stdout_bytes=lambda _data: time.sleep(0.05))
    assert (result.reason, result.exit_code) == ("timeout", 137)
    assert time.monotonic() - began < 2.5
