"""Composes one command line for atoll-launch, with the fds it names, and runs it."""

import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

BASE = 3_000_000_000
"""First host uid of the sandboxes made here; nobody else's, so that a process left behind can be told by its uid."""
RANGE = 65536
USER = 12345
"""The ordinary user of the rootless tests; needs no entry anywhere."""
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}

KERNEL = tuple(int(number) for number in os.uname().release.split(".")[:2])

Word = str | bytes | int


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@dataclass
class Launch:
    """`launch.op("stage", ...)` and so on, then `launch.run(program, ...)`."""

    program: Path
    stage: Path
    user: int | None = None
    words: list[str | bytes] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)

    @property
    def root(self) -> int:
        """Inside's root as the ops must name it: a host id before `userns`, the only id after `userns-self`."""
        return BASE if self.user is None else 0

    def op(self, *words: Word) -> Self:
        self.words += [str(word) if isinstance(word, int) else word for word in words]
        return self

    def staged(self) -> Self:
        """The beginning of every sandbox: a stage and a root layer owned by inside's root."""
        if self.user is not None:
            self.op("userns-self")
        self.op("stage", str(self.stage), "layer", "root", 1 << 24, 1000)
        return self.op("dir", "root", "755", self.root, self.root)

    def userns(self) -> Self:
        """The point after which nothing is done as the host's root any more; rootless that was the first op."""
        return self if self.user is not None else self.op("userns", BASE, RANGE)

    def fd(self, path: str | Path, flags: int = os.O_PATH) -> str:
        return self.adopt(os.open(path, flags))

    def adopt(self, fd: int) -> str:
        self.fds.append(fd)
        return str(fd)

    def text_fd(self, text: str) -> str:
        """A fd that reads as `text`."""
        reading, writing = os.pipe()
        os.write(writing, text.encode())
        os.close(writing)
        return self.adopt(reading)

    def argv(self, *program: Word) -> list[str | bytes]:
        given: list[Word] = ["--", *program] if program else []
        return [str(self.program), *self.words, *(str(word) if isinstance(word, int) else word for word in given)]

    def start(self, *program: Word, before: tuple[str, ...] = (), mounts: str = "") -> "subprocess.Popen[bytes]":
        """Starts it.

        `before` is a command in front, such as env(1). `mounts` is a root shell script that may mount things: it runs
        in a copy of the host's mount namespace whose mounts are shared, as systemd has them. Its "$@" is the launch,
        not to be exec'ed: with its last process the copy would go, and with it the names of its files.
        """
        user = self.user
        if mounts:
            switch = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
            mounts = f"mount --make-rprivate / && mount --make-rshared /\n{mounts}"  # shared, but not with the host
            before = ("unshare", "-m", "/bin/sh", "-euc", mounts, "sh", *switch)
            user = None
        process = subprocess.Popen(
            [*before, *self.argv(*program)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd="/",
            pass_fds=self.fds,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        self.close()
        return process

    def run(self, *program: Word, before: tuple[str, ...] = (), mounts: str = "") -> Result:
        process = self.start(*program, before=before, mounts=mounts)
        out, err = process.communicate(timeout=20)
        return Result(process.returncode, out, err.decode())

    def sh(self, script: str, mounts: str = "") -> Result:
        """Runs a shell script as the program and demands that it ended well."""
        result = self.run("/bin/sh", "-euc", script, mounts=mounts)
        assert (result.code, result.err) == (0, ""), result
        return result

    def refused(self, *program: Word, mounts: str = "") -> str:
        """Runs `program`, which must never start, and returns the one line that says why."""
        result = self.run(*(program or ("/bin/echo", "started")), mounts=mounts)
        assert (result.code, result.out) == (125, b""), result
        assert result.err.startswith("atoll-launch: "), result
        assert result.err.endswith("\n"), result
        assert result.err.count("\n") == 1, result
        return result.err.removeprefix("atoll-launch: ").rstrip("\n")

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def open_directory(prefix: str) -> Path:
    """A scratch directory that every user can reach; pytest's own are for root only."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    path.chmod(0o755)
    return path


def facts(path: Path) -> tuple[object, ...]:
    """What a write to the file or a change of it would show; not the access time, which reading may change."""
    st = path.lstat()
    return str(path), st.st_mode, st.st_uid, st.st_gid, st.st_nlink, st.st_size, st.st_mtime_ns, st.st_ctime_ns


def processes() -> dict[int, str]:
    """Processes of the ids used here, with their state line; a leftover of a test."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "\nState:\tZ" in status:  # waits for init, which is not the launcher's to hurry
            continue
        uid = int(status.split("\nUid:\t")[1].split()[0])
        if uid == USER or BASE <= uid < BASE + RANGE:
            found[int(entry.name)] = status.splitlines()[0]
    return found
