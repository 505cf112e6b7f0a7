"""Measurements of the process level."""

import asyncio
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from atoll import AsyncSandbox
from atoll.kernel.pidfd import children
from bench.figure import Figure, milliseconds

ECHO = ["/bin/echo", "x"]
STREAM_BYTES = 1 << 30
MIB = 1 << 20


def bare_bubblewrap() -> list[str]:
    """The same namespaces and the same view of /usr, without Atoll."""
    argv = ["bwrap", "--unshare-all", "--new-session", "--die-with-parent", "--cap-drop", "ALL", "--as-pid-1"]
    argv += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for top in ("bin", "sbin", "lib", "lib64"):
        argv += ["--symlink", f"usr/{top}", f"/{top}"]
    return [*argv, "--", *ECHO]


async def cold() -> list[Figure]:
    """Create to first output of echo, against bare bubblewrap; and teardown."""
    floors, ours, downs = [], [], []
    # An ordinary uid, as bubblewrap must never run as kernel uid 0; no passwd entry needed.
    bare_user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    for _ in range(41):
        began = time.perf_counter()
        subprocess.run(bare_bubblewrap(), stdout=subprocess.PIPE, check=True, **bare_user)  # type: ignore[call-overload]
        floors.append(time.perf_counter() - began)
        began = time.perf_counter()
        sandbox = await AsyncSandbox.create()
        (await sandbox.commands.run(ECHO)).check()
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        await sandbox.kill()
        downs.append(time.perf_counter() - began)
    return [
        Figure(
            "cold create to first output",
            milliseconds(ours[1:]),
            "ms",
            "<= 1.5 x",
            milliseconds(floors[1:]),
            "bare bubblewrap",
        ),
        Figure("teardown", milliseconds(downs[1:]), "ms", "<= 20 ms"),
    ]


async def execute() -> list[Figure]:
    """One command in a live sandbox, against the same command as a raw subprocess."""
    floors, ours, logins = [], [], []
    async with await AsyncSandbox.create() as sandbox:
        for _ in range(300):
            began = time.perf_counter()
            subprocess.run(ECHO, capture_output=True, check=True)
            floors.append(time.perf_counter() - began)
            began = time.perf_counter()
            await sandbox.commands.run(ECHO)
            ours.append(time.perf_counter() - began)
        for _ in range(50):
            began = time.perf_counter()
            await sandbox.commands.run("echo x")
            logins.append(time.perf_counter() - began)
    floor = milliseconds(floors)
    return [
        Figure("exec in a live sandbox", milliseconds(ours), "ms", "<= 1.3 x", floor, "raw subprocess"),
        Figure("exec through bash -l", milliseconds(logins), "ms", "reported"),
    ]


async def stream() -> list[Figure]:
    """1 GiB of stdout to a callback."""
    seen = 0

    def count(data: bytes) -> None:
        nonlocal seen
        seen += len(data)

    async with await AsyncSandbox.create(output=2 * STREAM_BYTES) as sandbox:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        await sandbox.commands.run(f"head -c {STREAM_BYTES} /dev/zero", on_stdout_bytes=count, timeout=None)
        took = time.perf_counter() - began
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if seen != STREAM_BYTES:
        sys.exit(f"bench: {seen} of {STREAM_BYTES} bytes came")
    return [
        Figure("stdout streaming, logged", seen / took / 1e6, "MB/s", ">= 300 MB/s"),
        Figure("host memory growth meanwhile", grown / 1024, "MiB", "bounded"),
    ]


async def idle_memory() -> list[Figure]:
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


async def burst() -> list[Figure]:
    """100 creates at once, each with a first output."""

    async def one() -> None:
        async with await AsyncSandbox.create() as sandbox:
            (await sandbox.commands.run(ECHO)).check()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(100)))
    return [Figure("100 creates at once, all used and gone", time.perf_counter() - began, "s", "< 3 s")]


async def churn() -> list[Figure]:
    """Create and destroy, one after the other."""
    count = 50
    began = time.perf_counter()
    for _ in range(count):
        await (await AsyncSandbox.create()).kill()
    return [Figure("create and destroy", count / (time.perf_counter() - began), "per s", "reported")]


async def command_line() -> list[Figure]:
    """`atoll run -- true`, the whole process, against an empty Python process."""
    atoll = str(Path(sys.executable).with_name("atoll"))
    floors, ours = [], []
    for _ in range(15):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", ""], check=True)
        floors.append(time.perf_counter() - began)
        began = time.perf_counter()
        subprocess.run([atoll, "run", "--", "true"], check=True)
        ours.append(time.perf_counter() - began)
    return [
        Figure("atoll run -- true", milliseconds(ours), "ms", "<= 150 ms", milliseconds(floors), "python -c ''"),
    ]
