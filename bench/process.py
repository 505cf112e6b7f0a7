"""Measurements of the process level. `divisor` scales the counts down."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from atoll import AsyncSandbox
from atoll.kernel.pidfd import children
from bench import floors
from bench.figure import Figure, milliseconds
from bench.floors import ECHO

MIB = 1 << 20
PAUSE_S = 0.1
"""Before each cold create and sporadic command. Writes to cgroup.procs that follow each other closely are cheap,
which nobody who starts one sandbox now and then has anything of (docs/decisions/0005)."""


async def cold(divisor: int) -> list[Figure]:
    """Create to first output of echo, against bare bubblewrap, alone and in cgroups of its own; and teardown."""
    bare, placed, ours, downs = [], [], [], []
    for _ in range(1 + 40 // divisor):
        with floors.placed() as argv:
            await asyncio.sleep(PAUSE_S)
            began = time.perf_counter()
            floors.run_placed(argv)
            placed.append(time.perf_counter() - began)
        await asyncio.sleep(PAUSE_S)
        began = time.perf_counter()
        floors.run_bare()
        bare.append(time.perf_counter() - began)
        await asyncio.sleep(PAUSE_S)
        began = time.perf_counter()
        sandbox = await AsyncSandbox.create()
        (await sandbox.commands.run(ECHO)).check()
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        await sandbox.kill()
        downs.append(time.perf_counter() - began)
    what, value = "cold create to first output", milliseconds(ours[1:])
    return [
        Figure(what, value, "ms", "<= 1.5 x", milliseconds(bare[1:]), "bare bubblewrap"),
        Figure(what, value, "ms", "reported", milliseconds(placed[1:]), "bubblewrap in fresh cgroups"),
        Figure("teardown", milliseconds(downs[1:]), "ms", "<= 20 ms"),
    ]


async def execute(divisor: int) -> list[Figure]:
    """One command after the other in a live sandbox, against the same command as a raw subprocess."""
    raw, ours, logins = [], [], []
    async with await AsyncSandbox.create() as sandbox:
        for _ in range(10 + 300 // divisor):
            raw.append(_raw_echo())
            ours.append(await _echo(sandbox))
        for _ in range(10 + 50 // divisor):
            began = time.perf_counter()
            await sandbox.commands.run("echo x")
            logins.append(time.perf_counter() - began)
    floor = milliseconds(raw[10:])
    return [
        Figure("exec in a live sandbox", milliseconds(ours[10:]), "ms", "<= 1.3 x", floor, "raw subprocess"),
        Figure("exec through bash -l", milliseconds(logins[10:]), "ms", "reported"),
    ]


async def sporadic(divisor: int) -> list[Figure]:
    """The same with a pause before each command, as a person or a model leaves one."""
    raw, ours = [], []
    async with await AsyncSandbox.create() as sandbox:
        for _ in range(1 + 50 // divisor):
            await asyncio.sleep(PAUSE_S)
            raw.append(_raw_echo())
            await asyncio.sleep(PAUSE_S)
            ours.append(await _echo(sandbox))
    floor = milliseconds(raw[1:])
    return [Figure("exec after a pause of 0.1 s", milliseconds(ours[1:]), "ms", "reported", floor, "raw subprocess")]


def _raw_echo() -> float:
    began = time.perf_counter()
    subprocess.run(ECHO, capture_output=True, check=True)
    return time.perf_counter() - began


async def _echo(sandbox: AsyncSandbox) -> float:
    began = time.perf_counter()
    (await sandbox.commands.run(ECHO)).check()
    return time.perf_counter() - began


async def stream(divisor: int) -> list[Figure]:
    """1 GiB of stdout to a callback, against a raw pipe; and the memory that takes here."""
    size, seen = (1 << 30) // divisor, 0
    argv = ["/usr/bin/head", "-c", str(size), "/dev/zero"]

    def count(data: bytes) -> None:
        nonlocal seen
        seen += len(data)

    began = time.perf_counter()
    floors.read_all(argv)
    raw = time.perf_counter() - began
    async with await AsyncSandbox.create(output=2 * size) as sandbox:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is used now (proc_pid_clear_refs(5))
        before = _resident("VmRSS")
        began = time.perf_counter()
        await sandbox.commands.run(argv, on_stdout_bytes=count, timeout=None)
        took = time.perf_counter() - began
        peak = _resident("VmHWM")
    if seen != size:
        sys.exit(f"bench: {seen} of {size} bytes came")
    return [
        Figure("stdout streaming, logged", size / took / 1e6, "MB/s", ">= 300 MB/s", size / raw / 1e6, "raw pipe"),
        Figure("host memory, peak meanwhile", peak, "MiB", "bounded", before, "before"),
    ]


def _resident(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


async def idle_memory(_divisor: int) -> list[Figure]:
    """Private memory of an idle sandbox: bubblewrap's monitor and the agent."""
    async with await AsyncSandbox.create() as sandbox:
        await sandbox.commands.run(ECHO)
        mine = [pid for pid in children(os.getpid()) if "bwrap" in Path(f"/proc/{pid}/cmdline").read_text()]
        pids = mine + [pid for parent in mine for pid in children(parent)]
        private = sum(_private_bytes(pid) for pid in pids)
    return [Figure("idle sandbox, private memory", private / MIB, "MiB", "<= 1.5 MB")]


def _private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


async def burst(divisor: int) -> list[Figure]:
    """100 creates at once, each with a first output, against 100 of bare bubblewrap at once."""
    count = 100 // divisor

    async def one() -> None:
        async with await AsyncSandbox.create() as sandbox:
            (await sandbox.commands.run(ECHO)).check()

    began = time.perf_counter()
    await asyncio.gather(*(floors.run_bare_async() for _ in range(count)))
    bare = time.perf_counter() - began
    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    took = time.perf_counter() - began
    return [Figure(f"{count} creates at once, all used and gone", took, "s", "< 3 s", bare, "bare bubblewrap")]


async def churn(divisor: int) -> list[Figure]:
    """Create and destroy, one after the other."""
    count = 50 // divisor
    began = time.perf_counter()
    for _ in range(count):
        await (await AsyncSandbox.create()).kill()
    return [Figure("create and destroy", count / (time.perf_counter() - began), "per s", "reported")]


async def command_line(divisor: int) -> list[Figure]:
    """`atoll run -- true`, the whole process, against an empty Python process."""
    atoll = str(Path(sys.executable).with_name("atoll"))
    empty, ours = [], []
    with tempfile.TemporaryDirectory() as cache:
        # Compiled in the first round, as by an installation, also where the environment keeps Python from caching.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = cache
        for _ in range(1 + 20 // divisor):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", ""], env=env, check=True)
            empty.append(time.perf_counter() - began)
            began = time.perf_counter()
            subprocess.run([atoll, "run", "--", "true"], env=env, check=True)
            ours.append(time.perf_counter() - began)
    floor = milliseconds(empty[1:])
    return [Figure("atoll run -- true", milliseconds(ours[1:]), "ms", "<= 150 ms", floor, "python -c ''")]
