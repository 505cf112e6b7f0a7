"""How the supervisor lives in its host process: taking listeners, fork(2), the kernel's structures."""

import os
import subprocess
import sys

import pytest

from atoll.kernel import notify
from atoll.kernel.notify import take_listener
from atoll.model.errors import GuestProtocolError
from tests.unit.test_notify import open_descriptors

FORKING_HOST = """
import os
from tests.unit.test_notify import ONE_EACH_LINE, ask
from tests.unit.test_seccomp_guest import CALLS, Guest

def in_the_child():
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    links = [os.readlink(path) for path in paths if os.path.lexists(path)]
    print([link for link in links if "seccomp" in link or "eventpoll" in link], flush=True)
    with Guest(CALLS, "[[165, 0, 0, 0, 0, 0]]") as own:
        print(own.finish(), own.denied(), flush=True)

with Guest(ONE_EACH_LINE) as guest:
    child = os.fork()
    if child == 0:
        try:
            in_the_child()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    print(ask(guest)[0], guest.denied())
"""


def test_a_forked_host_process_lets_go_of_the_listeners_and_has_a_supervisor_of_its_own():
    env = {"PYTHONPATH": ":".join(path for path in sys.path if path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-W", "ignore", "-c", FORKING_HOST]
    out = subprocess.run(command, env=env, check=True, capture_output=True, timeout=20).stdout
    assert out.decode().splitlines() == ["[]", r"b'[[-1, 1]]\n' {'mount': 1}", "[-1, 1] {'setns': 1}"]


def test_taking_a_listener_refuses_what_is_none():
    with pytest.raises(GuestProtocolError, match="descriptor 0, which is no seccomp listener"):
        take_listener(os.getpid(), 0)
    for fd in (-1, 1_000_000):
        with pytest.raises(GuestProtocolError):
            take_listener(os.getpid(), fd)
    before = open_descriptors()
    with pytest.raises(GuestProtocolError):
        take_listener(os.getpid(), 1)
    assert open_descriptors() == before


def test_taking_a_listener_of_an_ended_process_is_an_os_error():
    child = os.spawnv(os.P_NOWAIT, "/bin/true", ["true"])
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with pytest.raises(OSError, match=f"process {child}") as caught:
        take_listener(child, 0)
    assert not isinstance(caught.value, GuestProtocolError)
    os.waitpid(child, 0)
    with pytest.raises(ProcessLookupError):
        take_listener(child, 0)


def test_structures_have_the_sizes_of_the_kernel():
    assert notify._notification_size() >= notify._NOTIF.size == 80
    assert notify._RESPONSE.size == 24
    assert (notify._NOTIF_RECV >> 16 & 0x3FFF, notify._NOTIF_SEND >> 16 & 0x3FFF) == (80, 24)
