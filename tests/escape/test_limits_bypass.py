"""Threat: limits are raised or charged to nobody. Wall: cgroup limits of the parent, hard rlimits."""

from atoll import Reason, Sandbox
from tests.escape.attack import attack
from tests.sandboxes import Make


def test_rlimits_cannot_be_raised(sandbox: Sandbox, user: str) -> None:
    facts = attack(
        sandbox,
        """
        import resource
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096)); raised = "raised"
        except (ValueError, OSError) as error:
            raised = type(error).__name__
        opened = []
        try:
            while True: opened.append(os.open("/dev/null", 0))
        except OSError as error:
            stopped = errno.errorcode[error.errno]
        report(raised=raised, opened=len(opened), stopped=stopped)
        """,
        user=user,
    )
    assert facts["raised"] in {"ValueError", "PermissionError"}
    assert facts["stopped"] == "EMFILE"
    assert facts["opened"] <= 1024


def test_a_wider_cpu_mask_gives_no_more_time(make: Make) -> None:
    sandbox = make(cpus=0.5)
    burn = (
        "import os, time\nos.sched_setaffinity(0, range(os.cpu_count()))\nos.fork(); os.fork()\nend = time.time() + 3\n"
    )
    result = sandbox.commands.run(["/usr/bin/python3", "-c", burn + "while time.time() < end: pass\nos.waitpid(-1, 0)"])
    assert result.usage.cpu_s < 0.5 * result.usage.wall_s + 0.3


def test_every_kind_of_memory_is_charged(make: Make) -> None:
    """memfd, shared memory, tmpfs, pipes and sockets: none holds more than the limit."""
    ways = {
        "memfd": "f = os.memfd_create('x')\nwhile True: os.write(f, b'x' * 2**20)",
        "shared": "import mmap\nm = mmap.mmap(-1, 2**30)\nfor i in range(0, 2**30, 4096): m[i] = 1",
        "sockets": "import socket\nkept = []\nwhile True:\n a, b = socket.socketpair(); a.setblocking(False); kept += [a, b]\n"
        " try:\n  while True: a.send(b'x' * 2**16)\n except OSError: pass",
    }
    for name, code in ways.items():
        sandbox = make(memory="64M", open_files=10_000)
        result = sandbox.commands.run(["/usr/bin/python3", "-c", f"import os\n{code}"], timeout=30)
        assert result.exit_code != 0, name
        peak = result.usage.memory_peak_bytes
        assert peak is None or peak <= 64 * 2**20, name
        assert result.reason is Reason.OUT_OF_MEMORY or "Errno 24" in result.stderr, (name, result.error, result.stderr)
        assert sandbox.commands.run(["/bin/echo", "alive"]).stdout == "alive\n"
