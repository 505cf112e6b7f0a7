"""The real `atoll` as a subprocess, with a state directory of its own, and a look at what it leaves behind."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

ATOLL = str(Path(sys.executable).parent / "atoll")
WAIT_S = 20.0
NOBODY = 65533
"""A uid that nobody has."""

PIPE = subprocess.PIPE
Stream = int | IO[bytes]
Bytes = subprocess.CompletedProcess[bytes]


class Resources:
    """The host resources of one live sandbox, as its journal announces them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.id = directory.name
        steps = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
        self.cgroups = [Path(path) for step in steps if step.get("step") == "cgroup" for path in step["paths"]]
        self.pids = [step["pid"] for step in steps if step.get("step") == "process"]

    @property
    def left(self) -> list[str]:
        """What of them is still there."""
        processes = [f"process {pid}" for pid in self.pids if _runs(pid)]
        return processes + [str(path) for path in (*self.cgroups, self.directory) if path.exists()]


def _runs(pid: int) -> bool:
    """A zombie does not run: whoever adopted an orphan may take its time to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class Atoll:
    """Runs `atoll` command lines against one state directory."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.env = {**os.environ, "ATOLL_STATE": str(state)}
        # Compiled once for the whole session, also where the environment keeps Python from caching.
        self.env["PYTHONPYCACHEPREFIX"] = str(state.parent.parent / "pycache")
        for name in ("ATOLL_DEBUG", "PYTHONDONTWRITEBYTECODE"):
            self.env.pop(name, None)
        self._started: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def command(*args: str) -> list[str]:
        """The whole command line."""
        return [ATOLL, *args]

    def __call__(self, *args: str | bytes, stdin: bytes | None = None) -> Bytes:
        """Run it to its end; stdin is /dev/null unless given."""
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run([ATOLL, *args], capture_output=True, check=False, env=self.env, timeout=60, **given)

    def within(self, wrapper: list[str], *args: str) -> Bytes:
        """Run it to its end as the last words of another command."""
        return subprocess.run(
            [*wrapper, *self.command(*args)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=self.env,
            timeout=60,
        )

    def start(
        self, *args: str, stdin: Stream = subprocess.DEVNULL, stdout: Stream = PIPE, stderr: Stream = PIPE
    ) -> "subprocess.Popen[bytes]":
        """Start it."""
        process = subprocess.Popen([ATOLL, *args], env=self.env, stdin=stdin, stdout=stdout, stderr=stderr)
        self._started.append(process)
        return process

    def json(self, *args: str) -> Any:  # noqa: ANN401 - JSON
        """What a command prints with --json."""
        return json.loads(self(*args, "--json").stdout)

    @property
    def sandboxes(self) -> list[Path]:
        directory = self.state / "sandboxes"
        return sorted(directory.iterdir()) if directory.exists() else []

    def running(self, count: int = 1) -> list[Resources]:
        """Waits for `count` sandboxes that have begun to run their commands."""
        deadline = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(FileNotFoundError, ValueError):
                found = [Resources(path) for path in self.sandboxes if (path / "logs").exists()]
                if len(found) == count and all(one.pids for one in found):
                    return found
            if time.monotonic() > deadline:
                pytest.fail(f"not {count} sandboxes within {WAIT_S} s: {self.sandboxes}")
            time.sleep(0.01)

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture(scope="session")
def usable(tmp_path_factory: pytest.TempPathFactory, require_driver: Callable[[str, str | None], None]) -> None:
    """Skips where this host cannot sandbox; fails where it must."""
    done = Atoll(tmp_path_factory.mktemp("usable") / "state")("run", "--", "true")
    require_driver("bubblewrap", None if done.returncode == 0 else done.stderr.decode())


@pytest.fixture
def atoll(tmp_path: Path, usable: None) -> Iterator[Atoll]:
    """`atoll` with a fresh state directory, in which nothing may be left when the test ends."""
    runner = Atoll(tmp_path / "state")
    yield runner
    runner.end()
    left = runner.sandboxes
    if left:
        runner("reap")
    assert left == []


@pytest.fixture
def unprivileged(atoll: Atoll) -> Iterator[list[str]]:
    """A wrapper that runs a command as an ordinary user without a session; the state directory becomes theirs."""
    if os.geteuid() != 0:
        pytest.skip("only root can become an ordinary user who owns no cgroup")
    with tempfile.TemporaryDirectory(prefix="atoll-user-") as home:  # pytest's own directories are root's alone
        os.chown(home, NOBODY, NOBODY)
        env, state = atoll.env, atoll.state
        atoll.env, atoll.state = {**env, "HOME": home, "ATOLL_STATE": f"{home}/state"}, Path(home) / "state"
        yield ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        left = atoll.sandboxes
        atoll.env, atoll.state = env, state
        assert left == []
