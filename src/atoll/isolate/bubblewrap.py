"""Level `process`: namespaces, cgroups and seccomp around the host's own kernel, by bubblewrap.

The command is ``atoll-launch OPS -- bwrap ARGS -- agent``: the launcher places itself in the sandbox's
cgroups, builds the root file system in a mount namespace of its own and enters the sandbox's user namespace;
bubblewrap makes the remaining namespaces, /proc and /dev, drops capabilities and boots the agent as PID 1.
bubblewrap never runs as kernel uid 0, which is escapable (containers/bubblewrap issues 287 and 561): with
root on the host each sandbox has a uid range of its own, without it the caller's one uid.
"""

import itertools
import math
import os
import platform
import resource
import secrets
import shutil
from functools import cache

from atoll.isolate.binaries import agent_path, launcher_path
from atoll.isolate.driver import Launch, Resources
from atoll.kernel import cgroup, seccomp
from atoll.model.errors import AtollError, InvalidSpecError, ProvisionError, UnsupportedError
from atoll.model.plan import LaunchPlan
from atoll.model.protection import REQUIRED, Capabilities, Level, Protection
from atoll.model.template import Workspace

RANGE = 65536
"""Ids of one sandbox."""

KEPT_CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETFCAP": 31,
}
"""What guest root keeps, over its own user namespace only (capabilities(7)): files, ids and signals of the sandbox."""

KEPT_MASK = sum(1 << bit for bit in KEPT_CAPABILITIES.values())

AGENT_PATH = "/.atoll/agent"
STAGE = "/mnt"
"""Covered by the stage in the launcher's own mount namespace; the host's stays as it is."""

TERMINALS = 64
"""Pseudo-terminals of one sandbox; kernel.pty.max (pty(7)) is one number for all."""

OVERLAY_USERXATTR_SINCE = (6, 6)
"""Linux release since which tmpfs has user.* attributes, which an overlay mounted in a user namespace needs
for opaque directories (Documentation/filesystems/overlayfs, tmpfs(5))."""

_MASKED = ("keys", "key-users", "kcore", "timer_list")
"""Files of /proc that show the host's kernel rather than the sandbox (as OCI runtimes mask them)."""

_turn = itertools.count(secrets.randbelow(1 << 16))


class Bubblewrap:
    """The driver."""

    name = "bubblewrap"
    level: Level = "process"
    kept_capabilities = KEPT_MASK

    def probe(self) -> Capabilities:
        """What bubblewrap can enforce on this host; asked once per process."""
        return _probe()

    def launch(self, plan: LaunchPlan, resources: Resources) -> Launch:
        """The command that boots the agent.

        Raises:
            InvalidSpecError: more open files than this process may have.
            UnsupportedError: this kernel cannot do that without root.
            ProvisionError: a tree or the workspace cannot be opened, or is no longer what was checked.
        """
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if plan.limits.open_files > hard != resource.RLIM_INFINITY:
            raise InvalidSpecError(
                "open_files",
                plan.limits.open_files,
                f"above this process's own hard limit of {hard}",
                hint="raise that first (ulimit -Hn, LimitNOFILE=), or ask for less",
            )
        launch = Launch()
        try:
            _Builder(plan, resources, launch).build()
        except OSError as error:
            launch.close()
            raise ProvisionError(f"{error.filename}: {error.strerror}") from error
        except AtollError:
            launch.close()
            raise
        return launch


class _Builder:
    """Writes the argv of one launch, in the order in which it takes effect."""

    def __init__(self, plan: LaunchPlan, resources: Resources, launch: Launch) -> None:
        self._plan = plan
        self._base = resources.uid_base
        self._cgroup = resources.cgroup
        self._launch = launch
        self._ops = launch.argv
        self._agent_args: list[str] = []

    def build(self) -> None:
        self._ops.append(launcher_path())
        bwrap = bubblewrap_path()
        self._placement()
        self._ops += ["stage", STAGE]
        self._root()
        self._workspace_lower()
        if self._base is not None:
            if not _userxattr():
                self._workspace_overlay("trusted")
            self._ops += ["userns", str(self._base), str(RANGE)]
        self._ops += ["pts", "pts", str(TERMINALS)]
        if self._base is None or _userxattr():
            self._workspace_overlay("userxattr")
        self._kept_fds()
        self._ops += ["--", bwrap, *self._bwrap_args(), "--", AGENT_PATH, *self._agent_args]

    def _placement(self) -> None:
        """Into the cgroups first, so that no guest instruction ever runs outside them."""
        steps = [] if self._cgroup is None else self._cgroup.join_steps()
        namespaces = ["userns-self"] if self._base is None else []
        for step in steps:
            if step.fd is None:
                # Without root only the owner of a user namespace may make the other namespaces.
                self._ops += [*namespaces, "cgroupns"]
                namespaces = []
            else:
                self._ops += ["write", self._launch.inherit(step.fd), step.text]
        self._ops += namespaces
        cpus = sorted(os.sched_getaffinity(0))
        wanted = math.ceil(self._plan.limits.cpus)
        if wanted < len(cpus):
            # nproc(1) and every runtime size their thread pools by sched_getaffinity(2).
            first = next(_turn) % len(cpus)
            chosen = sorted((cpus + cpus)[first : first + wanted])
            self._ops += ["cpus", ",".join(map(str, chosen))]

    def _id(self, inside: int) -> str:
        """An id inside as the launcher must write it: in the range, or the only one there is."""
        return "0" if self._base is None else str(self._base + inside)

    def _root(self) -> None:
        limits, rootfs = self._plan.limits, self._plan.template.rootfs
        self._ops += ["layer", "layer", str(limits.disk_bytes), str(limits.disk_inodes)]
        self._dir("pts", 0o755)
        self._dir("layer/root", 0o755)
        self._dir("layer/shm", 0o1777)
        self._dir("layer/upper", 0o755, 1000, 1000)
        self._dir("layer/work", 0o755)
        for directory in rootfs.directories:
            self._dir(f"layer/root{directory.path}", directory.mode, directory.uid, directory.gid)
        for tree in rootfs.trees:
            self._ops += ["tree", self._launch.open_path(tree.source, os.O_NOFOLLOW), f"layer/root{tree.target}", "ro"]
        self._ops += ["tree", self._launch.open_path(agent_path()), f"layer/root{AGENT_PATH}", "ro"]
        if self._cgroup is not None:
            for name, path in self._cgroup.views():
                target = f"layer/root/sys/fs/cgroup/{name}".rstrip("/")
                self._ops += ["tree", self._launch.open_path(path), target, "ro"]
        for file in rootfs.files:
            self._file(file.path, file.text, file.mode)
        for link in rootfs.symlinks:
            self._ops += ["symlink", link.target, f"layer/root{link.path}"]
        self._identity()

    def _identity(self) -> None:
        """What differs from sandbox to sandbox: its name, and the limits that programs look up in files."""
        host = self._plan.hostname
        self._file("/etc/hostname", f"{host}\n")
        self._file("/etc/hosts", f"127.0.0.1 localhost {host}\n::1 localhost\n")
        self._file("/etc/machine-id", secrets.token_hex(16) + "\n", 0o444)
        last = min(math.ceil(self._plan.limits.cpus), os.cpu_count() or 1) - 1
        for name in ("online", "possible", "present"):
            self._file(f"/sys/devices/system/cpu/{name}", f"0-{last}\n" if last else "0\n", 0o444)
        self._file("/.atoll/meminfo", _meminfo(self._plan.limits.memory_bytes), 0o444)

    def _dir(self, name: str, mode: int, uid: int = 0, gid: int = 0) -> None:
        self._ops += ["dir", name, f"{mode:o}", self._id(uid), self._id(gid)]

    def _file(self, path: str, text: str, mode: int = 0o644) -> None:
        self._ops += ["file", f"layer/root{path}", f"{mode:o}", self._id(0), self._id(0), text]

    def _workspace_lower(self) -> None:
        workspace = self._plan.workspace
        if workspace is None:
            return
        if self._base is None and workspace.mode == "overlay" and not _userxattr():
            raise UnsupportedError(
                f"workspace: an overlay without root needs Linux 6.6 or newer, this is {platform.release()}",
                hint="show it read-only (:ro), or start Atoll as root",
            )
        fd = self._launch.open_path(workspace.source, os.O_NOFOLLOW | os.O_DIRECTORY)
        _check_same(int(fd), workspace)
        if self._base is None:
            self._ops += ["tree", fd, "lower", "ro"]
        else:
            uid, gid = workspace.owner
            # One pair only: the owner appears as the default user, every other host id as nobody.
            self._ops += ["idtree", fd, "lower", "ro", str(uid), str(gid), self._id(1000), self._id(1000)]

    def _workspace_overlay(self, attributes: str) -> None:
        """The workspace as the guest sees it, whatever its mode.

        Read-only ones go through an overlay too: the guest finds other inodes there, where a bind mount would let it
        connect to a socket or FIFO that somebody on the host listens on.
        """
        workspace = self._plan.workspace
        if workspace is not None:
            target = f"layer/root{workspace.target}"
            self._ops += ["overlay", target, "lower", "layer/upper", "layer/work", attributes]

    def _kept_fds(self) -> None:
        """Descriptors for the agent, at numbers that no inherited one has."""
        sources: list[tuple[str, str, str]] = []
        if Protection.SECCOMP in self._plan.enforce:
            sources.append(("keep", "--seccomp", self._launch.inherit(_filter_fd())))
        if self._cgroup is not None:
            flag = f"--cgroup{self._cgroup.version}"
            sources += [("cgroupdir", flag, self._launch.inherit(fd)) for fd in self._cgroup.dir_fds()]
        numbers = (n for n in range(3, 1 << 16) if n not in self._launch.fds)
        for (op, flag, fd), number in zip(sources, numbers, strict=False):
            self._ops += [op, fd, str(number)]
            self._agent_args += [flag, str(number)]
        if self._base is not None:
            self._agent_args += ["--keep-caps", f"{KEPT_MASK:x}"]

    def _bwrap_args(self) -> list[str]:
        args = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--hostname", self._plan.hostname]
        args += ["--die-with-parent", "--as-pid-1", "--new-session", "--cap-drop", "ALL"]
        if self._base is None:
            args += ["--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"]
        else:
            # SETPCAP lets the agent empty the bounding set, which bubblewrap leaves full; it drops it then.
            for capability in (*KEPT_CAPABILITIES, "CAP_SETPCAP"):
                args += ["--cap-add", capability]
        args += ["--bind", f"{STAGE}/layer/root", "/", "--proc", "/proc", "--dev", "/dev"]
        args += ["--bind", f"{STAGE}/layer/shm", "/dev/shm", "--remount-ro", "/dev"]
        args += ["--dev-bind", f"{STAGE}/pts", "/dev/pts"]
        args += ["--ro-bind", f"{STAGE}/layer/root/.atoll/meminfo", "/proc/meminfo"]
        if self._plan.workspace is not None and self._plan.workspace.mode == "ro":
            args += ["--remount-ro", self._plan.workspace.target]
        for name in _MASKED:
            if os.path.exists(f"/proc/{name}"):
                args += ["--ro-bind", "/dev/null", f"/proc/{name}"]
        return args


def bubblewrap_path() -> str:
    """The system's bubblewrap; AppArmor profiles match /usr/bin/bwrap by path, so that comes first.

    Raises:
        ProvisionError: it is not installed.
    """
    found = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
    if found is None:
        raise ProvisionError("bubblewrap is not installed", hint="apt-get install bubblewrap")
    return found


@cache
def _probe() -> Capabilities:
    missing: dict[Protection, str] = {}
    unavailable = ""
    try:
        bubblewrap_path()
        agent_path()
        launcher_path()
    except AtollError as error:
        unavailable = str(error)
    if platform.machine() != "x86_64":
        unavailable = f"the seccomp filter is written for x86_64, not {platform.machine()}"
    try:
        with open("/proc/sys/user/max_user_namespaces", encoding="ascii") as knob:
            if int(knob.read()) == 0:
                unavailable = "user namespaces are switched off; sysctl -w user.max_user_namespaces=10000"
    except FileNotFoundError:
        unavailable = "this kernel has no user namespaces (CONFIG_USER_NS)"
    why = seccomp.check_kernel()
    if why:
        missing[Protection.SECCOMP] = why
    root, why = cgroup.detect()
    if root is None:
        for protection in (Protection.CGROUP_MEMORY, Protection.CGROUP_PIDS, Protection.CGROUP_CPU):
            missing[protection] = why
    if os.geteuid() != 0:
        missing[Protection.UID_RANGE] = "a range of uids for each sandbox needs root; one uid is used instead"
    enforces = REQUIRED - frozenset(missing)
    return Capabilities(
        driver="bubblewrap", level="process", enforces=enforces, missing=missing, unavailable=unavailable
    )


@cache
def _userxattr() -> bool:
    release = platform.release().split(".")
    return (int(release[0]), int(release[1])) >= OVERLAY_USERXATTR_SINCE


def _filter_fd() -> int:
    """The guest's seccomp program in a file of its own, read from the start."""
    fd = os.memfd_create("atoll-seccomp", os.MFD_CLOEXEC)
    os.write(fd, seccomp.guest_filter())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _check_same(fd: int, workspace: Workspace) -> None:
    """The directory opened is the one that was checked, not something swapped in since."""
    found = os.fstat(fd)
    if (found.st_uid, found.st_gid) != workspace.owner or (found.st_dev, found.st_ino) != workspace.identity:
        raise ProvisionError(f"workspace {workspace.source}: it was replaced while the sandbox was being made")


def _meminfo(memory_bytes: int) -> str:
    """A /proc/meminfo that tells the sandbox's limit as the machine's memory (proc_meminfo(5)); fixed at start."""
    kib = memory_bytes // 1024
    rows = {"MemTotal": kib, "MemFree": kib, "MemAvailable": kib, "Buffers": 0, "Cached": 0, "SwapCached": 0}
    rows |= {"SwapTotal": 0, "SwapFree": 0, "Shmem": 0}
    return "".join(f"{name + ':':<16}{value:>8} kB\n" for name, value in rows.items())
