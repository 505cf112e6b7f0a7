"""What docs/levels says of a level, where no other suite looks."""

import re
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.model.limits import Limits
from atoll.model.status import Reason
from tests.sandboxes import Make

PAGE = (Path(__file__).parents[2] / "docs/levels/process.md").read_text()
CALL = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(*map(int, sys.argv[1:]))
print(errno.errorcode[ctypes.get_errno()])
"""
LISTENER = """
import ctypes, errno
class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction))]
allow = Instruction(6, 0, 0, 0x7FFF0000)
program = Program(1, ctypes.pointer(allow))
libc = ctypes.CDLL(None, use_errno=True)
for flags in (8, 0):
    print(libc.syscall(317, 1, flags, ctypes.byref(program)), errno.errorcode.get(ctypes.get_errno()))
"""
SIZES = (
    "import os; print(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')); print(open('/proc/meminfo').read())"
)
LOOPBACK = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())
try:
    socket.create_connection(("192.0.2.1", 80), 2)
except OSError as error:
    print(error.strerror)
"""


def python(sandbox: Sandbox, script: str, *args: str) -> str:
    return sandbox.commands.run(["/usr/bin/python3", "-c", script, *args]).check().stdout


def test_every_reason_is_explained() -> None:
    assert [reason for reason in Reason if str(reason) not in PAGE] == []


def test_the_defaults_are_those_of_the_code() -> None:
    shown = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE))
    limits = Limits()
    assert shown["cpus"] == f"{limits.cpus:g}"
    assert shown["memory"] == f"{limits.memory_bytes >> 20}M"
    assert shown["pids"] == str(limits.pids_max)
    assert shown["open_files"] == str(limits.open_files)
    assert shown["output"] == f"{limits.output_bytes >> 30}G"


@pytest.mark.parametrize(
    ("name", "words", "wanted"),
    [("io_setup", "206 1 0", "ENOSYS"), ("memfd_secret", "447 0", "ENOSYS"), ("chroot", "161 0", "EPERM")],
)
def test_refused_calls(make: Make, name: str, words: str, wanted: str) -> None:
    sandbox = make()
    assert python(sandbox, CALL, *words.split()).strip() == wanted
    assert [violation.detail for violation in sandbox.violations] == [name]


def test_one_seccomp_listener_is_the_most(make: Make) -> None:
    assert python(make(), LISTENER).splitlines() == ["-1 EBUSY", "0 EBUSY"]  # errno stands where the call succeeds


def test_meminfo_shows_the_limit_and_sysinfo_the_host(make: Make) -> None:
    sandbox = make(memory="64M")
    pages, meminfo = python(sandbox, SIZES).split("\n", 1)
    assert int(pages) > 64 << 20
    assert re.findall(r"^(?:MemTotal|MemAvailable): +(\d+) kB", meminfo, re.MULTILINE) == ["65536", "65536"]


def test_sys_holds_cgroups_and_cpus_only(make: Make) -> None:
    found = make().commands.run("find /sys -name cgroup -prune -o -type f -print -o -type l -print").check().stdout
    assert sorted(found.split()) == [f"/sys/devices/system/cpu/{name}" for name in ("online", "possible", "present")]


def test_loopback_works_and_leads_nowhere(make: Make) -> None:
    assert python(make(), LOOPBACK) == "Network is unreachable\n"


def test_leak_sanitizer_has_to_be_switched_off(make: Make) -> None:
    sandbox = make()
    source = 'printf "int main(void){return 0;}" > a.c && gcc -fsanitize=address -o a a.c'
    if sandbox.commands.run(source).exit_code:
        pytest.skip("no gcc with AddressSanitizer")
    assert "LeakSanitizer has encountered a fatal error" in sandbox.commands.run("./a").stderr
    assert sandbox.commands.run("ASAN_OPTIONS=detect_leaks=0 ./a").exit_code == 0


def test_root_changes_users_by_setpriv(make: Make) -> None:
    command = "setpriv --reuid 1000 --regid 1000 --clear-groups id -un"
    assert make().commands.run(command, user="root").check().stdout == "user\n"
