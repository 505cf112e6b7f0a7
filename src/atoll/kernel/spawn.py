"""Start host processes; the only place that does.

Everything is spawned from one permanent thread, because PR_SET_PDEATHSIG (prctl(2)) fires when the *thread*
that forked ends: a sandbox started from a thread pool would die with an idle worker. No preexec_fn, which
would force a full fork of a large host process. Fds are passed by number; all others are closed.
"""

import fcntl
import os
import queue
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from atoll.kernel.pidfd import Pidfd

_Job = tuple["Future[subprocess.Popen[bytes]]", Sequence[str | bytes], dict[str, object]]


class _Spawner:
    """The permanent thread; a forked child of the host process makes its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._pid = 0
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def submit(self, argv: Sequence[str | bytes], options: dict[str, object]) -> "Future[subprocess.Popen[bytes]]":
        with self._lock:
            if self._pid != os.getpid():
                self._jobs = queue.SimpleQueue()
                threading.Thread(target=self._serve, args=(self._jobs,), name="atoll-spawn", daemon=True).start()
                self._pid = os.getpid()
        done: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((done, argv, options))
        return done

    @staticmethod
    def _serve(jobs: "queue.SimpleQueue[_Job]") -> None:
        while True:
            done, argv, options = jobs.get()
            try:
                done.set_result(subprocess.Popen(argv, **options))  # type: ignore[call-overload]
            except BaseException as error:  # noqa: BLE001 - belongs to the caller
                done.set_exception(error)


_spawner = _Spawner()


class Spawned:
    """A host process with its three pipes and a pidfd.

    Attributes:
        pid: its process id.
        stdin: write end of its stdin, non-blocking.
        stdout: read end of its stdout, non-blocking.
        stderr: read end of its stderr, non-blocking.
    """

    def __init__(self, popen: "subprocess.Popen[bytes]", stdin: int, stdout: int, stderr: int) -> None:
        self._popen = popen
        self.pid = popen.pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.pidfd = Pidfd.open(popen.pid)

    def reap(self, timeout_s: float) -> int:
        """Wait for its end and collect it; returns the Popen-style return code.

        Raises:
            TimeoutError: it still runs after `timeout_s`.
        """
        if not self.pidfd.wait(timeout_s):  # Popen.wait would look only every 50 ms
            raise TimeoutError(f"process {self.pid} still runs")
        self.pidfd.close()
        return self._popen.wait()


def spawn(argv: Sequence[str | bytes], pass_fds: Sequence[int] = (), pipe_bytes: int = 0) -> "Future[Spawned]":
    """Start `argv` with an empty environment and pipes for stdio.

    Args:
        argv: program path and arguments.
        pass_fds: inherited under their own numbers.
        pipe_bytes: capacity asked for the stdin and stdout pipes (F_SETPIPE_SZ in fcntl(2)); 0 keeps the default.

    Raises (in the future):
        OSError: the program could not be executed.
    """
    ours, theirs = _pipes(pipe_bytes)
    options: dict[str, object] = {
        "stdin": theirs[0],
        "stdout": theirs[1],
        "stderr": theirs[2],
        "pass_fds": tuple(pass_fds),
        "env": {},
        "cwd": "/",
        # Ctrl-C on a terminal is for the program that embeds Atoll to handle, not for its sandboxes.
        "start_new_session": True,
    }
    result: Future[Spawned] = Future()

    def started(done: "Future[subprocess.Popen[bytes]]") -> None:
        for fd in theirs:
            os.close(fd)
        try:
            result.set_result(Spawned(done.result(), *ours))
        except BaseException as error:  # noqa: BLE001 - belongs to the caller
            for fd in ours:
                os.close(fd)
            result.set_exception(error)

    _spawner.submit(argv, options).add_done_callback(started)
    return result


def _pipes(pipe_bytes: int) -> tuple[list[int], list[int]]:
    (child_in, to_child), (from_child, child_out), (from_err, child_err) = (os.pipe2(os.O_CLOEXEC) for _ in range(3))
    ours = [to_child, from_child, from_err]
    for fd in ours:
        os.set_blocking(fd, False)
    if pipe_bytes:
        for fd in (to_child, from_child):
            try:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, pipe_bytes)
            except OSError:  # over pipe(7)'s per-user soft limit: the default size works, only slower
                break
    return ours, [child_in, child_out, child_err]
