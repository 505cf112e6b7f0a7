"""Hosts that cannot sandbox, made out of this one: `atoll` run as somebody else, or with something taken away."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import atoll
from atoll.kernel import bpf

SYSTEM_PYTHON = "/usr/bin/python3"
SCRIPT = "import sys; from atoll.cli.main import main; sys.argv[0] = 'atoll'; main()"
DEPENDENCIES = ("anyio", "click", "idna", "markdown_it", "mdurl", "msgspec", "pygments", "rich", "typing_extensions.py")
OUTSIDER = 54321
"""Uid of nobody in particular."""

UNSHARE_IN_FULL_MAP = """
import os, subprocess, sys, time
command = ["unshare", "--user", "--mount", "sh", "-c", 'read go; exec sh -ec "$@"', "sh", *sys.argv[1:]]
child = subprocess.Popen(command, stdin=subprocess.PIPE)
while os.readlink(f"/proc/{child.pid}/ns/user") == os.readlink("/proc/self/ns/user"): time.sleep(0.01)
for name in ("uid_map", "gid_map"): open(f"/proc/{child.pid}/{name}", "w").write("0 0 4294967295")
child.communicate(b"go\\n")
sys.exit(child.returncode)
"""
"""Runs its first argument as a shell script in a user namespace in which all ids are the host's; the second sh is
executed when uid 0 is mapped, which gives it all capabilities there."""

FORBID_NAMESPACES = """
import ctypes, os, sys
program = bytes.fromhex(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
class Prog(ctypes.Structure): _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Prog(len(program) // 8, program)), 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Installs a seccomp filter, given in hex, and executes the rest."""


class Done(NamedTuple):
    """How an `atoll` ended."""

    code: int
    stdout: str
    stderr: str


class Site:
    """A copy of the package that any user can read, and commands that run it."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="atoll-site-"))
        package = Path(atoll.__file__).parent
        shutil.copytree(package, self.directory / "atoll", ignore=shutil.ignore_patterns("__pycache__"))
        for name in DEPENDENCIES:
            found = next((Path(path, name) for path in sys.path if Path(path, name).exists()), None)
            if found is not None:
                copy = shutil.copytree if found.is_dir() else shutil.copy
                copy(found, self.directory / name)
        subprocess.run(["chmod", "-R", "a+rX", self.directory], check=True)
        self.home = self.directory / "home"
        self.home.mkdir(mode=0o700)
        os.chown(self.home, OUTSIDER, OUTSIDER)

    def close(self) -> None:
        shutil.rmtree(self.directory)

    def command(self, *arguments: str) -> list[str]:
        """The argv of an `atoll`, for the system's Python, which everybody may execute."""
        return [SYSTEM_PYTHON, "-c", SCRIPT, *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "PYTHONPATH": str(self.directory),
            "PYTHONDONTWRITEBYTECODE": "1",
        } | more

    def as_outsider(self, *arguments: str) -> Done:
        """Run `atoll` as an ordinary user."""
        setpriv = ["setpriv", "--reuid", str(OUTSIDER), "--regid", str(OUTSIDER), "--clear-groups"]
        return finish([*setpriv, *self.command(*arguments)], self.environment())

    def as_root(self, *arguments: str, state: Path, before: Sequence[str] = (), **more: str) -> Done:
        """Run `atoll` as root, started by the command `before`."""
        return finish([*before, *self.command(*arguments)], self.environment(ATOLL_STATE=str(state), **more))


def finish(argv: Sequence[str], environment: dict[str, str]) -> Done:
    done = subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def altered(script: str) -> list[str]:
    """A command prefix: what follows runs in a mount namespace of its own, after `script` changed something there."""
    return ["unshare", "--mount", "sh", "-ec", f'{script}; exec "$@"', "sh"]


def in_user_namespace(script: str) -> list[str]:
    """A command prefix: what follows runs as root of a child user namespace, after `script`."""
    return [SYSTEM_PYTHON, "-c", UNSHARE_IN_FULL_MAP, f'{script}; exec "$@" < /dev/null', "sh"]


def in_container() -> list[str]:
    """A command prefix: what follows may not make namespaces or mount, as under a container's seccomp profile."""
    return [SYSTEM_PYTHON, "-c", FORBID_NAMESPACES, container_filter().hex()]


def container_filter() -> bytes:
    """As Docker's default profile: unshare, mount and clone with CLONE_NEWUSER fail with EPERM, clone3 with ENOSYS."""
    unshare, mount, clone, clone3, new_user = 272, 165, 56, 435, 0x1000_0000
    number, flags = bpf.Instruction(bpf.LOAD, 0), bpf.Instruction(bpf.LOAD, 16)  # offsets in struct seccomp_data
    return bpf.assemble(
        [
            number,
            bpf.Instruction(bpf.IF_EQUAL, unshare, yes="eperm"),
            bpf.Instruction(bpf.IF_EQUAL, mount, yes="eperm"),
            bpf.Instruction(bpf.IF_EQUAL, clone3, yes="enosys"),
            bpf.Instruction(bpf.IF_EQUAL, clone, no="allow"),
            flags,
            bpf.Instruction(bpf.AND, new_user),
            bpf.Instruction(bpf.IF_EQUAL, 0, yes="allow"),
            "eperm",
            bpf.Instruction(bpf.RETURN, 0x0005_0000 + errno.EPERM),
            "enosys",
            bpf.Instruction(bpf.RETURN, 0x0005_0000 + errno.ENOSYS),
            "allow",
            bpf.Instruction(bpf.RETURN, 0x7FFF_0000),
        ]
    )
