"""Threat: core_pattern pipes a crash into host root code. Wall: never kernel uid 0."""

from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack

PATTERN = Path("/proc/sys/kernel/core_pattern")


def test_core_pattern_cannot_be_written(sandbox: Sandbox, user: str) -> None:
    before = PATTERN.read_text()
    facts = attack(
        sandbox,
        """
        pattern = "/proc/sys/kernel/core_pattern"
        report(seen=bool(read(pattern)), written=write(pattern, b"|/tmp/pwn"), mode=attempt(os.chmod, pattern, 0o666))
        """,
        user=user,
    )
    assert facts["seen"] is True
    assert facts["written"] in {"EACCES", "EROFS", "EPERM"}
    assert facts["mode"] in {"EACCES", "EROFS", "EPERM"}
    assert PATTERN.read_text() == before


def test_a_crash_starts_no_program_of_the_host(sandbox: Sandbox, user: str) -> None:
    """A pipe in core_pattern runs as root of the host at any core limit but 1 (core(5)), so that limit has to stay."""
    facts = attack(
        sandbox,
        """
        import resource, signal
        def core(): return list(resource.getrlimit(resource.RLIMIT_CORE))
        pair = (ctypes.c_uint64 * 2)(0, 0)
        before = core()
        tried = [syscall(160, 4, ctypes.byref(pair)), syscall(302, 0, 4, ctypes.byref(pair), None)]
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        status = os.waitpid(child, 0)[1]
        open_files = attempt(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64))
        report(before=before, tried=tried, after=core(), dumped=os.WCOREDUMP(status), signal=os.WTERMSIG(status), twin=open_files)
        """,
        user=user,
    )
    assert facts["before"] == facts["after"] == [1, 1]
    assert facts["tried"] == [0, 0]
    assert facts["signal"] == 11
    assert facts["dumped"] is False
    assert facts["twin"] is None
