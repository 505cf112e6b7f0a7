"""C10 Out of memory: the limit holds, the end is named with limit and peak, and the agent lives on."""

import time

import pytest

from atoll import Sandbox
from tests.conformance.host import IN_VM
from tests.sandboxes import Make

MIB = 1 << 20


ALIVE_S = 20.0 if IN_VM else 2.0


def assert_alive(sandbox: Sandbox) -> None:
    """The sandbox answers promptly."""
    began = time.monotonic()
    result = sandbox.commands.run(["echo", "alive"])
    assert (result.stdout, result.exit_code, result.reason) == ("alive\n", 0, "exited")
    assert time.monotonic() - began < ALIVE_S


def test_c10_a_too_large_allocation_is_out_of_memory_with_limit_and_peak(make: Make) -> None:
    sandbox = make(memory="64M")
    result = sandbox.commands.run(["python3", "-c", "x = bytearray(10**9)"])
    assert (result.reason, result.exit_code, result.signal) == ("out_of_memory", 137, 9)
    assert "memory limit 64 MiB" in result.detail
    assert result.usage.oom_kills >= 1
    peak = result.usage.memory_peak_bytes
    if peak is not None:  # kept by the kernel
        assert 32 * MIB < peak <= 64 * MIB
        assert "peak" in result.detail
    assert_alive(sandbox)


@pytest.mark.slow_in_vm
def test_c10_a_one_process_allocates_a_gigabyte(make: Make) -> None:
    sandbox = make(cpus=1, memory="256M", pids=128)
    result = sandbox.commands.run(["python3", "-c", "x=bytearray(10**9)"])
    assert (result.exit_code, result.signal, result.reason) == (137, 9, "out_of_memory")
    assert "memory limit 256 MiB, peak 25" in result.detail
    assert_alive(sandbox)


@pytest.mark.slow_in_vm
def test_c10_b_a_pool_of_64_processes_with_16_mib_each(make: Make) -> None:
    sandbox = make(cpus=1, memory="256M", pids=128)
    code = "import multiprocessing as m;m.Pool(64).map(len,[bytes(2**24)]*64)"
    result = sandbox.commands.run(["python3", "-c", code], timeout=8)
    assert result.reason in {"out_of_memory", "pids_limit", "timeout", "exited"}
    if result.reason == "exited":  # it fits when the pool takes one item after the other
        assert (result.exit_code, result.usage.oom_kills) == (0, 0)
    else:
        assert result.exit_code != 0
        assert result.detail
    assert_alive(sandbox)


@pytest.mark.slow_in_vm
def test_c10_many_processes_together_cannot_take_more_than_one(make: Make) -> None:
    sandbox = make(memory="128M")
    code = "import time; x = bytearray(30 << 20); time.sleep(3)"
    result = sandbox.commands.run(f"for i in 1 2 3 4 5 6 7 8; do python3 -c '{code}' & done; wait -n; exit $?")
    assert (result.reason, result.exit_code) == ("out_of_memory", 137)
    assert_alive(sandbox)


def test_an_out_of_memory_background_child_is_not_the_commands_own_end(make: Make) -> None:
    sandbox = make(memory="64M")
    result = sandbox.commands.run("python3 -c 'x = bytearray(10**9)' & wait; echo still here")
    assert (result.stdout, result.exit_code, result.reason) == ("still here\n", 0, "exited")
    assert result.usage.oom_kills == 1
    assert_alive(sandbox)


def test_a_leftover_that_runs_out_of_memory_later_hurts_no_other_command(make: Make) -> None:
    sandbox = make(memory="64M")
    first = sandbox.commands.run("(sleep 0.3; exec python3 -c 'x = bytearray(10**9)') >/dev/null 2>&1 & echo up")
    assert (first.stdout, first.reason) == ("up\n", "exited")
    second = sandbox.commands.run("while pgrep -x 'sleep|python3' >/dev/null; do sleep 0.05; done; exit 7")
    assert (second.exit_code, second.reason, second.usage.oom_kills) == (7, "exited", 0)
    assert_alive(sandbox)


@pytest.mark.slow_in_vm
def test_what_fits_is_not_touched(make: Make) -> None:
    sandbox = make(memory="64M")
    result = sandbox.commands.run(["python3", "-c", "x = bytearray(30 << 20); print(len(x))"])
    assert (result.stdout, result.reason, result.usage.oom_kills) == (f"{30 * MIB}\n", "exited", 0)


def test_the_smallest_sandbox_works(make: Make) -> None:
    assert_alive(make(memory="16M", pids=8, cpus=0.1, open_files=16, disk="1M"))
