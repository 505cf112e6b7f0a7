"""The host side of SECCOMP_RET_USER_NOTIF: refuses the denied calls of all sandboxes and reports them.

A denied call stops the guest's thread and becomes readable on the listener of its sandbox (seccomp_unotify(2)).
One permanent daemon thread per host process answers all listeners with the errno of `seccomp.refusal`. It never looks
into guest memory, only at registers, and lets nothing go on (SECCOMP_USER_NOTIF_FLAG_CONTINUE is racy where memory
decides) but the opening of a netlink socket, of which a sandbox may hold `MAX_NETLINK_SOCKETS`. The lifecycle calls
`take_listener` and ``supervisor().add`` before it tells the agent to go on.
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import logging
import os
import select
import signal
import struct
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from errno import EBADF
from pathlib import Path
from typing import Final

from atoll.kernel import seccomp
from atoll.kernel.ration import Bucket, Ration
from atoll.kernel.syscalls import SYS_PIDFD_GETFD, SYS_SECCOMP
from atoll.model.errors import GuestProtocolError
from atoll.model.protection import Protection

OnDenied = Callable[[str, str], None]
"""Called with a kind (always ``seccomp``) and a detail such as ``socket(AF_VSOCK)``, before the guest goes on, so that
no denial is missing once the guest has ended. Runs in the supervisor's thread, under its lock: short, not blocking."""

RATE_PER_S = 2_000.0
"""Denied calls per second that one sandbox gets answered in the long run."""
BURST = 200
"""Denied calls that an idle sandbox gets answered at once."""
TOTAL_PER_S = 10_000.0
"""Bound on the long-run rate of all sandboxes together, shared by those that were denied something lately."""
MAX_NETLINK_SOCKETS = 32
"""That one sandbox may hold; a name lookup takes one for a moment, a program with many threads that many."""
_PAUSE_S = 0.01
"""Shortest pause of a listener without tokens; batching its answers keeps the cost of a flood low."""

# linux/seccomp.h: _IOWR('!', 0, struct seccomp_notif), _IOWR('!', 1, struct seccomp_notif_resp)
_NOTIF_RECV, _NOTIF_SEND = 0xC050_2100, 0xC018_2101
_NOTIF = struct.Struct("<QIIiIQ6Q")  # id, pid, flags; seccomp_data: nr, arch, instruction pointer, args
_FLAG_CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_RESPONSE = struct.Struct("<QqiI")  # id, value, error, flags
_GET_NOTIF_SIZES = 3

LOG = logging.getLogger(__name__)


def take_listener(pid: int, fd: int) -> int:
    """Copy the seccomp listener `fd` of process `pid` (pidfd_getfd(2)); the caller owns the copy.

    Only for an agent that has not run guest code yet: a second reader could leave the supervisor's thread waiting.

    Raises:
        GuestProtocolError: the agent named a descriptor that is not open or is no seccomp listener.
        OSError: the process has ended or may not be looked at.
    """
    pidfd = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        taken = int(libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0))
    finally:
        os.close(pidfd)
    if taken < 0 and ctypes.get_errno() != EBADF:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"descriptor {fd} of process {pid}")
    if taken < 0 or str(Path(f"/proc/self/fd/{taken}").readlink()) != "anon_inode:seccomp notify":
        if taken >= 0:
            os.close(taken)
        raise GuestProtocolError(f"the agent named descriptor {fd}, which is no seccomp listener", fd=fd, pid=pid)
    return taken


@dataclass(eq=False)
class Listener:
    """One sandbox at the supervisor: what `Supervisor.add` returns and `Supervisor.remove` takes."""

    fd: int
    on_denied: OnDenied
    netlink_sockets: Callable[[], int]
    bucket: Bucket
    since: int
    """The round of the supervisor's loop in which it was added."""


_LOCK = threading.RLock()
"""Guards every supervisor. Held over each single answer, so that a descriptor is never closed under one, and over
fork(2), so that no child inherits half of an answer."""


class Supervisor:
    """Answers the denied calls of any number of sandboxes from one thread, started by the first `add`.

    Answers are rationed. A guest that floods waits for its own answers: its listener is disarmed until it has tokens
    again. The thread never sleeps on behalf of one sandbox, and all floods together get at most `TOTAL_PER_S`.

    The agent installs its filter without WAIT_KILLABLE_RECV (Linux 5.19), so a signal ends a guest's wait. The call
    then fails with EINTR or is restarted by the kernel, which asks again; if that happens between the count and the
    answer, a few microseconds, one call is counted twice.
    """

    def __init__(self, *, rate: float = RATE_PER_S, burst: float = BURST, total: float = TOTAL_PER_S) -> None:
        """Take other rations than the module's only in tests; hosts use `supervisor()`."""
        self._ration = Ration(rate, burst, total)
        _SUPERVISORS.add(self)
        self._reset()

    def _reset(self) -> None:
        self._epoll: select.epoll | None = None
        self._listeners: dict[int, Listener] = {}
        self._paused: list[tuple[float, int, Listener]] = []
        self._ticket = itertools.count()
        self._round = 0

    def add(self, listener_fd: int, on_denied: OnDenied, netlink_sockets: Callable[[], int]) -> Listener:
        """Answer `listener_fd` from now on; the supervisor owns it and closes it when its last guest has ended.

        Args:
            listener_fd: of a sandbox.
            on_denied: told of each refusal.
            netlink_sockets: counts those that the sandbox holds.
        """
        with _LOCK:
            if self._epoll is None:
                epoll = select.epoll()
                threading.Thread(target=self._run, args=(epoll,), name="atoll-seccomp", daemon=True).start()
                self._epoll = epoll
            listener = Listener(
                listener_fd, on_denied, netlink_sockets, self._ration.bucket(time.monotonic()), self._round
            )
            self._epoll.register(listener_fd, select.EPOLLIN)
            self._listeners[listener_fd] = listener
        return listener

    def remove(self, listener: Listener) -> None:
        """Close `listener`, if still open; denied calls of its guests fail with ENOSYS from now on."""
        with _LOCK:
            if self._epoll is not None and self._listeners.get(listener.fd) is listener:
                del self._listeners[listener.fd]
                self._epoll.unregister(listener.fd)
                os.close(listener.fd)

    def _run(self, epoll: select.epoll) -> None:
        # An interrupted answer would have to be retried, and the host's handlers run in its main thread anyway.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        buffer = bytearray(max(_NOTIF.size, _notification_size()))
        while True:
            timeout = max(0.0, self._paused[0][0] - time.monotonic()) if self._paused else None
            for fd, event in epoll.poll(timeout):
                # One answer per listener and round is what makes it fair.
                with _LOCK:
                    listener = self._listeners.get(fd)
                    # Events of a descriptor that was closed and reused meanwhile are not about the new listener, on
                    # which RECV would block. What is new in this round is looked at in the next.
                    if listener is not None and listener.since != self._round:
                        self._handle(epoll, listener, event, buffer)
            with _LOCK:
                self._round += 1
                self._resume(epoll)

    def _handle(self, epoll: select.epoll, listener: Listener, event: int, buffer: bytearray) -> None:
        if not event & select.EPOLLIN:  # EPOLLHUP: no task has the filter any more
            self.remove(listener)
            return
        try:
            self._answer(listener, buffer)
        except OSError:
            LOG.exception("seccomp listener failed; denied calls of its sandbox get ENOSYS from now on")
            self.remove(listener)
            return
        if self._listeners.get(listener.fd) is listener:
            listener.bucket.tokens -= 1
            self._arm_or_pause(epoll, listener, armed=True)

    def _answer(self, listener: Listener, buffer: bytearray) -> None:
        """Refuse one pending call."""
        buffer[:] = bytes(len(buffer))  # the kernel refuses a dirty buffer
        try:
            _ioctl(listener.fd, _NOTIF_RECV, buffer)
        except FileNotFoundError:  # the caller was killed, or a signal came first
            return
        ident, _pid, _flags, number, _arch, _ip, *args = _NOTIF.unpack_from(buffer)
        refusal = seccomp.refusal(number, tuple(args))
        if refusal.bounded and listener.netlink_sockets() < MAX_NETLINK_SOCKETS:
            # The one call that is let go on: all that decided stands in registers, which nobody else can change.
            self._send(listener, _RESPONSE.pack(ident, 0, 0, _FLAG_CONTINUE))
            return
        try:
            listener.on_denied(Protection.SECCOMP.value, refusal.detail)
        except Exception:
            LOG.exception("the report of a denied system call failed")
        if self._listeners.get(listener.fd) is not listener:
            return  # removed by its own report
        self._send(listener, _RESPONSE.pack(ident, 0, -refusal.errno, 0))

    @staticmethod
    def _send(listener: Listener, response: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):  # the caller was killed meanwhile
            _ioctl(listener.fd, _NOTIF_SEND, bytearray(response))

    def _arm_or_pause(self, epoll: select.epoll, listener: Listener, *, armed: bool) -> None:
        """Have `listener` watched exactly while it has a token; the thread wakes up for the others in time."""
        now = time.monotonic()
        wait = self._ration.refill(listener.bucket, now)
        if wait > 0:
            heapq.heappush(self._paused, (now + max(wait, _PAUSE_S), next(self._ticket), listener))
        if armed != (wait == 0):
            epoll.modify(listener.fd, 0 if armed else select.EPOLLIN)

    def _resume(self, epoll: select.epoll) -> None:
        """Look again at the listeners whose pause is over."""
        while self._paused and self._paused[0][0] <= time.monotonic():
            listener = heapq.heappop(self._paused)[2]
            if self._listeners.get(listener.fd) is listener:
                self._arm_or_pause(epoll, listener, armed=False)

    def forget(self) -> None:
        """Start anew in a forked child: the listeners are the parent's, and so was the thread.

        Their copies are closed, else the guests would wait for ever, not get ENOSYS, when the parent ends.
        """
        for fd in self._listeners:
            os.close(fd)
        if self._epoll is not None:
            self._epoll.close()
        self._reset()


def netlink_sockets(pid: int) -> int:
    """How many netlink sockets the network namespace of `pid` holds, by its /proc/net/protocols (proc(5))."""
    try:
        with open(f"/proc/{pid}/net/protocols", encoding="ascii") as table:
            return next((int(row.split()[2]) for row in table if row.startswith("NETLINK ")), 0)
    except OSError:  # it has ended, and its guests with it
        return MAX_NETLINK_SOCKETS


def _ioctl(fd: int, request: int, buffer: bytearray) -> None:
    """ioctl(2) until it is not interrupted (a stopped or frozen host still sees EINTR when it goes on)."""
    while True:
        try:
            fcntl.ioctl(fd, request, buffer)
        except InterruptedError:
            continue
        return


def _notification_size() -> int:
    """The size of this kernel's struct seccomp_notif, which may have grown."""
    sizes = (ctypes.c_uint16 * 3)()
    ctypes.CDLL(None).syscall(SYS_SECCOMP, _GET_NOTIF_SIZES, 0, ctypes.byref(sizes))
    return sizes[0]


_SUPERVISORS: weakref.WeakSet[Supervisor] = weakref.WeakSet()

_SUPERVISOR: Final = Supervisor()


def supervisor() -> Supervisor:
    """Return the one supervisor of this process."""
    return _SUPERVISOR


def _after_fork_in_child() -> None:
    for each in _SUPERVISORS:
        each.forget()
    _LOCK.release()


os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_after_fork_in_child)
