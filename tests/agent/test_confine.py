"""What the agent gives up, what it takes from commands, and the cgroups they are put into."""

from __future__ import annotations

import errno
import os
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.test_end import eventually
from tests.agent.test_exec import proc_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.conftest import Launch
    from tests.agent.rig import Rig

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="capabilities, filters and cgroups need root")

KEPT = 0x800000EB  # CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID SETFCAP; FSETID left out, so the mask has a hole
ALLOW = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
CGROUP = f"atoll-test-{os.getpid()}"


def filter_fd(program: bytes) -> int:
    fd = os.memfd_create("filter")
    os.write(fd, program)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def launch_filtered(launch: Launch, program: bytes, *arguments: str, fds: list[int] | None = None) -> Rig:
    fd = filter_fd(program)
    try:
        return launch(*arguments, "--seccomp", str(fd), fds=[fd, *(fds or [])])
    finally:
        os.close(fd)


def python(rig: Rig, script: str, **options: int) -> bytes:
    command = rig.finish(rig.peer.start(sys.executable, "-c", script, **options))  # type: ignore[arg-type]
    assert command.error is None
    return bytes(command.stdout + command.stderr)


def test_capabilities_are_exactly_the_mask(launch: Launch) -> None:
    rig = launch("--keep-caps", f"{KEPT:x}").ready()
    rig.finish(rig.peer.start("true"))
    mask, none = f"{KEPT:016x}", "0" * 16
    root = rig.peer.start("sleep", "100")
    user = rig.peer.start("sleep", "100", uid=1000, gid=1000)
    rig.until(lambda: bool(root.pid and user.pid))
    for pid, permitted in ((rig.pid, mask), (root.pid or 0, mask), (user.pid or 0, none)):
        status = proc_status(pid)
        assert (status["CapPrm"], status["CapEff"], status["CapBnd"]) == (permitted, permitted, mask)
        assert (status["CapInh"], status["CapAmb"], status["NoNewPrivs"]) == (none, none, "1")


def test_inheritable_and_ambient_capabilities_are_dropped_also_without_a_mask(launch: Launch) -> None:
    caps = "-all,+kill,+setuid,+setgid"
    rig = launch(prefix=["setpriv", f"--inh-caps={caps}", f"--ambient-caps={caps}"]).ready()
    status = proc_status(rig.pid)
    assert (status["CapInh"], status["CapAmb"]) == ("0" * 16, "0" * 16)


def test_capability_the_agent_does_not_have(launch: Launch) -> None:
    code, text = launch("--keep-caps", "3", prefix=["setpriv", "--bounding-set=-chown"]).ending()
    assert (code, text) == (1, b"atoll-agent: --keep-caps: Operation not permitted\n")


@pytest.mark.parametrize("name", ["environ", "mem", "maps", "auxv", "exe", "cwd", "root/etc", "fd/0", "fd/1", "fd/2"])
def test_agent_is_closed_to_guest_root(launch: Launch, name: str) -> None:
    rig = launch("--keep-caps", f"{KEPT:x}").ready()
    script = f"""
import os
try:
    os.close(os.open("/proc/{rig.pid}/{name}", os.O_RDONLY))
except OSError as error:
    print(error.errno)
"""
    assert python(rig, script) == b"%d\n" % errno.EACCES
    assert python(rig, script.replace(str(rig.pid), "self")) == b""  # the twin that is allowed


def test_agent_cannot_be_traced_by_guest_root(launch: Launch) -> None:
    rig = launch("--keep-caps", f"{KEPT:x}").ready()
    attach = "import ctypes; print(ctypes.CDLL(None, use_errno=True).ptrace(16, {}, 0, 0), ctypes.get_errno())"
    sleeper = rig.peer.start("sleep", "100")
    rig.until(lambda: sleeper.pid is not None)
    assert python(rig, attach.format(rig.pid)) == b"-1 1\n"
    assert python(rig, attach.format(sleeper.pid)) == b"0 0\n"  # the twin that is allowed


def test_seccomp_listener_is_handed_over_and_closed(launch: Launch) -> None:
    rig = launch_filtered(launch, ALLOW)
    rig.until(lambda: rig.peer.hello is not None)
    assert rig.peer.hello is not None
    listener = rig.peer.hello[2]
    link = Path(f"/proc/{rig.pid}/fd/{listener}")
    assert listener >= 3
    assert os.readlink(link) == "anon_inode:seccomp notify"
    rig.ready()
    rig.idle(0.05)
    assert eventually(lambda: not link.is_symlink())
    assert not [fd for fd in link.parent.iterdir() if "seccomp" in os.readlink(fd)]
    assert rig.finish(rig.peer.shell("echo confined")).stdout == b"confined\n"


def test_clone3_is_unknown_to_commands_of_a_filtered_agent(launch: Launch) -> None:
    script = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(435, 0, 0), ctypes.get_errno())
import threading
threading.Thread(target=print, args=["thread"]).start()
"""
    filtered = launch_filtered(launch, ALLOW).ready()
    assert python(filtered, script) == b"-1 %d\nthread\n" % errno.ENOSYS
    plain = launch().ready()
    assert python(plain, script) == b"-1 %d\nthread\n" % errno.EINVAL


def test_filter_of_the_host_holds_in_commands(launch: Launch) -> None:
    deny_uname = (
        struct.pack("<HBBI", 0x20, 0, 0, 0)  # load the number
        + struct.pack("<HBBI", 0x15, 0, 1, 63)  # uname(2)?
        + struct.pack("<HBBI", 0x06, 0, 0, 0x00050000 | errno.EPERM)
        + ALLOW
    )
    rig = launch_filtered(launch, deny_uname).ready()
    assert rig.finish(rig.peer.start("uname")).status == 1
    assert rig.finish(rig.peer.start("true")).status == 0


@pytest.mark.parametrize("program", [b"", ALLOW[:7], ALLOW * 4097, b"\xff" * 8])
def test_filter_that_is_none(launch: Launch, program: bytes) -> None:
    code, text = launch_filtered(launch, program).ending()
    assert code == 1
    assert text.startswith(b"atoll-agent: --seccomp: ")
    assert text.count(b"\n") == 1


def test_largest_filter(launch: Launch) -> None:
    rig = launch_filtered(launch, ALLOW * 4096).ready()
    assert rig.finish(rig.peer.start("true")).status == 0


def make_cgroup(parent: Path) -> Iterator[Path]:
    if not (parent / "cgroup.procs").is_file():
        pytest.skip(f"{parent} is not a cgroup hierarchy")
    cgroup = parent / CGROUP
    (cgroup / "x1").mkdir(parents=True)
    yield cgroup
    assert eventually(lambda: not (cgroup / "x1/cgroup.procs").read_text())
    (cgroup / "x1").rmdir()
    cgroup.rmdir()


@pytest.fixture
def memory() -> Iterator[Path]:
    yield from make_cgroup(Path("/sys/fs/cgroup/memory"))


@pytest.fixture
def pids() -> Iterator[Path]:
    yield from make_cgroup(Path("/sys/fs/cgroup/pids"))


@pytest.fixture
def unified() -> Iterator[Path]:
    one, hybrid = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")
    yield from make_cgroup(hybrid if hybrid.is_dir() else one)


def launch_in(launch: Launch, *options: tuple[str, Path], program: bytes = b"") -> Rig:
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for _, path in options]
    arguments = [word for (name, _), fd in zip(options, fds, strict=True) for word in (name, str(fd))]
    try:
        if program:
            return launch_filtered(launch, program, *arguments, fds=fds).ready()
        return launch(*arguments, fds=fds).ready()
    finally:
        for fd in fds:
            os.close(fd)


def cgroups_of(rig: Rig, leaf: bytes) -> list[str]:
    command = rig.finish(rig.peer.start("cat", "/proc/self/cgroup", leaf=leaf))
    assert command.error is None
    return command.stdout.decode().splitlines()


def test_joins_the_leaf_of_each_v1_hierarchy(launch: Launch, memory: Path, pids: Path) -> None:
    rig = launch_in(launch, ("--cgroup1", memory), ("--cgroup1", pids))
    lines = cgroups_of(rig, b"x1")
    for controller in ("memory", "pids"):
        assert any(line.endswith(f":{controller}:/{CGROUP}/x1") for line in lines)
    assert not any(CGROUP in line for line in cgroups_of(rig, b""))
    rig.close()


def test_is_born_in_the_leaf_of_the_v2_hierarchy(launch: Launch, unified: Path) -> None:
    rig = launch_in(launch, ("--cgroup2", unified), program=ALLOW)
    assert f"0::/{CGROUP}/x1" in cgroups_of(rig, b"x1")
    assert not any(CGROUP in line for line in cgroups_of(rig, b""))
    rig.close()


def test_joins_v1_and_v2_together(launch: Launch, memory: Path, unified: Path) -> None:
    rig = launch_in(launch, ("--cgroup1", memory), ("--cgroup2", unified))
    lines = cgroups_of(rig, b"x1")
    assert f"0::/{CGROUP}/x1" in lines
    assert any(line.endswith(f":memory:/{CGROUP}/x1") for line in lines)
    rig.close()


def test_leaf_that_is_not_there(launch: Launch, memory: Path, unified: Path) -> None:
    for option, path in (("--cgroup1", memory), ("--cgroup2", unified)):
        rig = launch_in(launch, (option, path))
        command = rig.finish(rig.peer.start("true", leaf=b"x2"))
        assert command.error == (2, errno.ENOENT, "No such file or directory")
        rig.close()


def test_leaf_that_is_a_link_out(launch: Launch, tmp_path: Path) -> None:
    """Directories named on the command line are trusted, but a leaf is never followed elsewhere."""
    (tmp_path / "x1").symlink_to("/sys/fs/cgroup")
    rig = launch_in(launch, ("--cgroup2", tmp_path))
    command = rig.finish(rig.peer.start("true", leaf=b"x1"))
    assert command.error is not None
    assert command.error[0] == 2


def test_leaf_without_any_cgroup(rig: Rig) -> None:
    command = rig.finish(rig.peer.start("true", leaf=b"x1"))
    assert command.error == (2, errno.EBADF, "Bad file descriptor")
