"""What the sandbox is compared with: the same work by other means, as little of it as possible."""

import asyncio
import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from typing import Any

from atoll.isolate.binaries import launcher_path
from atoll.isolate.bubblewrap import bubblewrap_path
from atoll.kernel import cgroup
from atoll.model.limits import Limits

ECHO = ["/bin/echo", "x"]
READ_SIZE = 1 << 16

# An ordinary uid, as bubblewrap must never run as kernel uid 0; no passwd entry needed.
ORDINARY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}

_turn = itertools.count()


def bubblewrap() -> list[str]:
    """Bare bubblewrap: the same namespaces and the same view of /usr, without Atoll."""
    argv = [bubblewrap_path(), "--unshare-all", "--new-session", "--die-with-parent", "--cap-drop", "ALL"]
    argv += ["--as-pid-1", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for top in ("bin", "sbin", "lib", "lib64"):
        argv += ["--symlink", f"usr/{top}", f"/{top}"]
    return [*argv, "--", *ECHO]


def run_bare() -> None:
    """Run echo under bare bubblewrap."""
    subprocess.run(bubblewrap(), stdout=subprocess.PIPE, check=True, **ORDINARY)


async def run_bare_async() -> None:
    """Likewise, for many at once."""
    child = await asyncio.create_subprocess_exec(*bubblewrap(), stdout=subprocess.PIPE, **ORDINARY)
    await child.communicate()


@contextlib.contextmanager
def placed() -> Iterator[list[str]]:
    """A command that makes the same cgroups as a sandbox's, joins them by the same writes, and then runs bubblewrap.

    They are made before anything is timed, so that only what no sandbox can do without is in the floor: the
    writes to cgroup.procs, which wait for the kernel (docs/decisions/0005).
    """
    root, why = cgroup.detect()
    if root is None:
        raise SystemExit(f"bench: no cgroups: {why}")
    made = root.create(f"bench-{os.getpid()}-{next(_turn)}", Limits().validate())
    steps = made.join_steps()
    argv = [launcher_path()]
    for step in steps:
        # Between the writes Atoll makes the cgroup namespace; bare bubblewrap makes it itself (--unshare-all).
        argv += [] if step.fd is None else ["write", str(step.fd), step.text]
    try:
        yield [*argv, "--", *bubblewrap()]
    finally:
        for step in steps:
            if step.fd is not None:
                os.close(step.fd)
        made.kill()
        made.remove()


def run_placed(argv: list[str]) -> None:
    """Run echo under bubblewrap in those cgroups."""
    fds = [int(argv[index + 1]) for index, word in enumerate(argv) if word == "write"]
    subprocess.run(argv, stdout=subprocess.PIPE, pass_fds=fds, check=True, **ORDINARY)


def read_all(argv: list[str]) -> int:
    """Count the bytes that a raw subprocess writes."""
    seen = 0
    with subprocess.Popen(argv, stdout=subprocess.PIPE, bufsize=0) as child:
        if child.stdout is None:
            return 0
        while data := child.stdout.read(READ_SIZE):
            seen += len(data)
    return seen
