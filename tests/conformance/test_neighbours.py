"""Neighbours: what one sandbox does is neither felt nor found in another (S05), not even in the next one."""

import statistics
import time

import pytest

from atoll import Sandbox
from tests.conformance.host import View, status_of
from tests.sandboxes import Make

SLOW_S = 0.5
"""A command that does nothing takes some 3 ms; the neighbour has half of this two-core machine at most."""

STORMS = {
    "fork bomb": "import os, time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.001)",
    "busy threads": "import threading\ndef burn():\n  while True: pass\n"
    "for n in range(50): threading.Thread(target=burn).start()",
    "out of memory, again and again": "import os\nwhile True:\n  if not os.fork(): x = bytearray(10**9)\n  os.wait()",
    "full disk": "import os\nwhile True:\n  try: open('/tmp/big', 'ab').write(bytes(1 << 20))\n"
    "  except OSError: os.truncate('/tmp/big', 0)",
    "denied system calls": "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.unshare(0x10000000)",
}
LEFTOVERS = """
echo secret > /tmp/secret; echo secret > /dev/shm/secret; echo secret > ~/.bash_history; mkdir -p ~/.cache/secret
export SECRET=1; (sleep 300 &) ; python3 -m http.server 8765 >/dev/null 2>&1 & ipcmk -Q -M 4096 -S 1 >/dev/null
python3 - <<'END' >/dev/null 2>&1 &
import socket, time
s = socket.socket(socket.AF_UNIX); s.bind("\\0secret"); s.listen(); time.sleep(300)
END
sleep 0.5
"""
FOUND = {
    "files": "ls -A /tmp /dev/shm /var/tmp /var/log /run /home/user /root /workspace /mnt /opt /srv",
    "processes": "ps -eo comm= | sort | uniq | grep -vxE 'ps|sort|uniq|grep|bash|agent|atoll-agent'",
    "ports": "python3 -c \"import socket; print(socket.socket().connect_ex(('127.0.0.1', 8765)))\"",
    "abstract sockets": "tail -n +2 /proc/net/unix",
    "listeners": "tail -n +2 /proc/net/tcp",
    "system V objects": "tail -qn +2 /proc/sysvipc/*",
    "environment": "echo ${SECRET-none}",
}


def latencies(sandbox: Sandbox, count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.monotonic()
        assert sandbox.commands.run(["true"]).exit_code == 0
        found.append(time.monotonic() - began)
    return found


@pytest.mark.parametrize("storm", STORMS.values(), ids=STORMS)
def test_c10_a_storm_next_door_does_not_slow_commands_down(make: Make, storm: str) -> None:
    calm, stormy = make(memory="128M"), make(cpus=1, memory="128M", pids=128)
    usual = statistics.median(latencies(calm, 20))
    stormy.commands.run(["sh", "-c", 'python3 -c "$0" >/dev/null 2>&1 & sleep 0.3', storm])
    during = latencies(calm, 60)
    assert statistics.median(during) < max(20 * usual, 0.1)
    assert max(during) < SLOW_S
    assert stormy.is_running()


def test_c10_creating_a_sandbox_works_during_a_storm(make: Make) -> None:
    stormy = make(cpus=1, memory="128M", pids=128)
    stormy.commands.run(["sh", "-c", 'python3 -c "$0" >/dev/null 2>&1 & sleep 0.3', STORMS["fork bomb"]])
    began = time.monotonic()
    assert make().commands.run("echo fine").stdout == "fine\n"
    assert time.monotonic() - began < 2
    began = time.monotonic()
    stormy.kill()
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.as_root
def test_s05_a_fresh_sandbox_shows_nothing_of_the_last_one(make: Make, user: str) -> None:
    fresh = {name: make().commands.run(look, user=user).stdout for name, look in FOUND.items()}
    first = make(name="alike")
    first.commands.run(LEFTOVERS, user=user)
    seen = {name: first.commands.run(look, user=user).stdout for name, look in FOUND.items()}
    differing = {name for name in FOUND if seen[name] != fresh[name]}
    assert differing == set(FOUND) - {"environment"}  # the looks can find what there is

    beside = make(name="alike")
    assert {name: beside.commands.run(look, user=user).stdout for name, look in FOUND.items()} == fresh
    first.kill()
    after = make(name="alike")
    assert {name: after.commands.run(look, user=user).stdout for name, look in FOUND.items()} == fresh


@pytest.mark.as_root
def test_two_sandboxes_have_no_uid_in_common(make: Make) -> None:
    bases = [status_of(View(make()).agent_pid, "Uid").split()[0] for _ in range(5)]
    assert len(set(bases)) == 5
    assert min(abs(int(a) - int(b)) for a in bases for b in bases if a != b) >= 65536


def test_two_sandboxes_have_no_namespace_in_common(make: Make) -> None:
    look = "for n in /proc/self/ns/*; do readlink $n; done | sort -u | grep -v time"
    one, two = (set(make().commands.run(look).stdout.split()) for _ in range(2))
    assert len(one) >= 6
    assert one & two == set()
