"""C27 The embedding process dies or leaves, at any moment and in any way: its sandboxes end and nothing stays."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.host import all_pids, cgroup_directories, eventually, pid_namespace

ATOLL = Path(sys.executable).with_name("atoll")
EMBEDDER = """
import asyncio, os, sys
from atoll import AsyncSandbox

async def main():
    boxes = await asyncio.gather(*(AsyncSandbox.create(level=sys.argv[1]) for _ in range(9)))
    await asyncio.gather(*(box.commands.run("setsid sleep 300 & (trap '' TERM; sleep 300) &") for box in boxes[:5]))
    commands = [asyncio.create_task(box.commands.run("yes")) for box in boxes[5:7]]
    starting = [asyncio.create_task(AsyncSandbox.create(level=sys.argv[1])) for _ in range(3)]
    await asyncio.sleep(0.02)
    print("up", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
LEAVERS = {
    "the end of the script": "",
    "sys.exit": "sys.exit(3)",
    "an exception": "raise RuntimeError('a mistake')",
    "os._exit": "os._exit(4)",
    "a signal that ends it": "os.kill(os.getpid(), 15)",
    "a crash": "os.abort()",
    "a thread whose command still runs": (
        "threading.Thread(target=lambda: sandbox.commands.run('sleep 300'), daemon=True).start(); time.sleep(0.3)"
    ),
    "Ctrl-C": "os.kill(os.getpid(), 2); time.sleep(10)",
    "exec of another program": "os.execv('/bin/true', ['true'])",
}
LEAVER = """
import os, sys, threading, time
from atoll import Sandbox
sandbox = Sandbox.create(level=sys.argv[1])
sandbox.commands.run("setsid sleep 300 & echo up")
print(sandbox.sandbox_id, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory that only the crashing process uses, reaped at the end."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("ATOLL_STATE", str(tmp_path))
    yield tmp_path
    subprocess.run([ATOLL, "reap"], check=False)


def ids(state: Path) -> list[str]:
    return [path.name for path in state.glob("sandboxes/*")]


def processes_in(namespaces: set[str | None]) -> list[int]:
    return [pid for pid in all_pids() if pid_namespace(pid) in namespaces - {None}]


def namespaces_of(state: Path) -> set[str | None]:
    metas = [json.loads(path.read_text()) for path in state.glob("sandboxes/*/meta.json")]
    return {pid_namespace(meta["agent_pid"]) for meta in metas}


def test_c27_kill_9_ends_every_sandbox_and_the_next_start_cleans_up(level: str, own_state: Path) -> None:
    embedder = subprocess.Popen([sys.executable, "-c", EMBEDDER, level], stdout=subprocess.PIPE)
    assert embedder.stdout is not None
    assert embedder.stdout.readline() == b"up\n"
    namespaces, made = namespaces_of(own_state), ids(own_state)
    assert len(made) >= 9
    assert len(processes_in(namespaces)) >= 9 + 5 * 2 + 2
    embedder.kill()
    embedder.wait()
    embedder.stdout.close()

    assert eventually(lambda: processes_in(namespaces), within_s=3) == []
    listed = subprocess.run([ATOLL, "ps", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(listed.stdout) == {"sandboxes": []}

    began = time.monotonic()
    done = subprocess.run([ATOLL, "run", "--level", level, "--", "echo", "next"], capture_output=True, check=True)
    assert done.stdout == b"next\n"
    assert time.monotonic() - began < 5
    assert ids(own_state) == []
    assert [path for name in made for path in cgroup_directories(name) if path.exists()] == []


@pytest.mark.parametrize("way", LEAVERS)
def test_c27_however_the_process_leaves_nothing_stays(level: str, own_state: Path, way: str) -> None:
    script = f"{LEAVER}\n{LEAVERS[way]}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script, level], **pipes) as process:  # type: ignore[call-overload]
        name = process.stdout.readline().decode().strip()
        namespaces = namespaces_of(own_state)
        assert len(processes_in(namespaces)) == 2
        process.stdin.write(b"go\n")
        process.stdin.flush()
        process.wait(20)
    assert eventually(lambda: processes_in(namespaces), within_s=3) == []
    subprocess.run([ATOLL, "reap"], check=True)
    assert ids(own_state) == []
    assert [path for path in cgroup_directories(name) if path.exists()] == []


@pytest.mark.parametrize(
    "way", ["the end of the script", "sys.exit", "an exception", "Ctrl-C", "a thread whose command still runs"]
)
def test_an_orderly_end_of_the_interpreter_needs_no_reaper(level: str, own_state: Path, way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{LEAVER}\n{LEAVERS[way]}", level],
        input=b"go\n",
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert ids(own_state) == []
    name = done.stdout.decode().strip()
    assert [path for path in cgroup_directories(name) if path.exists()] == []


def test_a_forked_child_ends_nothing_of_its_parent(level: str, own_state: Path) -> None:
    script = LEAVER + (
        "if not os.fork(): sys.exit(0)\n"
        "os.wait()\n"
        "print(sandbox.commands.run('echo alive').stdout.strip(), sandbox.is_running())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, level],
        input=b"go\n",
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.stdout.split()[1:] == [b"alive", b"True"], done.stderr
    assert ids(own_state) == []


def test_another_process_can_kill_it_and_the_owner_is_told(level: str, own_state: Path) -> None:
    script = LEAVER + (
        "result = sandbox.commands.run('echo up; sleep 60', on_stdout=lambda _: print('running', flush=True))\n"
        "print(result.reason, result.detail, sandbox.is_running())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, level], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        name = process.stdout.readline().decode().strip()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"running\n"
        subprocess.run([ATOLL, "kill", name], check=True, capture_output=True)
        assert process.stdout.readline() == b"killed by another process of this host False\n"
        assert process.wait(20) == 0
    assert ids(own_state) == []


def test_a_stopped_owner_is_not_taken_for_a_dead_one(level: str, own_state: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEAVER, level], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().decode().strip()
        os.kill(process.pid, signal.SIGSTOP)
        subprocess.run([ATOLL, "reap"], check=True)
        assert ids(own_state) == [name]
        os.kill(process.pid, signal.SIGCONT)
        process.communicate(b"go\n", timeout=20)
    assert ids(own_state) == []
