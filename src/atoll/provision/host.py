"""The template `host`: a read-only view of the host's own /usr under a synthetic /etc.

No image, no download: what the host has installed below /usr (Python, Node.js, Git, compilers) works inside.
Only trees that every local user may read anyway are shown, each with the host's own permissions (they are
never idmapped, so a root-only file stays unreadable to guest root). /etc holds no host users, no secrets and
no host configuration beyond what programs need to run. Called by the lifecycle; makes nothing.
"""

import hashlib
import os
import stat

import msgspec

from atoll.model.errors import ProvisionError
from atoll.model.template import Directory, File, Rootfs, Symlink, Template, Tree, User

ROOT = User(name="root", uid=0, gid=0, home="/root")
USER = User(name="user", uid=1000, gid=1000, home="/home/user")

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV = {"PATH": PATH, "LANG": "C.UTF-8", "TERM": "dumb"}

_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Directories that are links into /usr on a merged system and trees of their own elsewhere (hier(7))."""

_ETC = ("alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "mime.types", "protocols", "services")
"""Host configuration without secrets that programs below /usr read: the loader's cache, Debian's alternative
links, fonts, and the name tables of netdb(3)."""

_PASSWD = """root:x:0:0:root:/root:/bin/bash
user:x:1000:1000:user:/home/user:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP = """root:x:0:
tty:x:5:
user:x:1000:
nogroup:x:65534:
"""
_PROFILE = f"""# Login shells keep the PATH they were given; without one they get the usual.
PATH="${{PATH:-{PATH}}}"
export PATH
umask 022
"""
_NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"

_DIRECTORIES = (
    Directory(path="/.atoll"),
    Directory(path="/dev"),
    Directory(path="/etc"),
    Directory(path="/etc/ssl"),
    Directory(path="/home"),
    Directory(path="/home/user", uid=USER.uid, gid=USER.gid),
    Directory(path="/mnt"),
    Directory(path="/opt"),
    Directory(path="/proc"),
    Directory(path="/root", mode=0o700),
    Directory(path="/run"),
    Directory(path="/srv"),
    Directory(path="/sys"),
    Directory(path="/sys/devices"),
    Directory(path="/sys/devices/system"),
    Directory(path="/sys/devices/system/cpu"),
    Directory(path="/sys/fs"),
    Directory(path="/sys/fs/cgroup"),
    Directory(path="/tmp", mode=0o1777),
    Directory(path="/usr"),
    Directory(path="/var"),
    Directory(path="/var/cache"),
    Directory(path="/var/lib"),
    Directory(path="/var/log"),
    Directory(path="/var/tmp", mode=0o1777),
    Directory(path="/workspace", uid=USER.uid, gid=USER.gid),
)


def host_template() -> Template:
    """Describe the host as a template.

    Raises:
        ProvisionError: the host has no /usr/bin/env or /bin/sh to show.
    """
    for needed in ("/usr/bin/env", "/bin/sh"):
        if not os.access(needed, os.X_OK):
            raise ProvisionError(f"template host: {needed} is missing", hint="install coreutils and a shell")
    trees = [Tree(source="/usr", target="/usr")]
    symlinks = [
        Symlink(path="/etc/mtab", target="/proc/self/mounts"),
        Symlink(path="/etc/os-release", target="../usr/lib/os-release"),
        Symlink(path="/var/run", target="/run"),
    ]
    for name in _TOP:
        top = f"/{name}"
        if os.path.islink(top):
            symlinks.append(Symlink(path=top, target=os.readlink(top).removeprefix("/")))
        elif os.path.isdir(top):
            trees.append(Tree(source=top, target=top))
    trees += [Tree(source=source, target=source) for source in _etc_sources()]
    files = (
        File(path="/etc/passwd", text=_PASSWD),
        File(path="/etc/group", text=_GROUP),
        File(path="/etc/nsswitch.conf", text=_NSSWITCH),
        File(path="/etc/profile", text=_PROFILE),
        File(path="/etc/resolv.conf", text=""),
        File(path="/etc/shells", text="/bin/sh\n/bin/bash\n"),
    )
    rootfs = Rootfs(directories=_DIRECTORIES, files=files, symlinks=tuple(symlinks), trees=tuple(trees))
    digest = hashlib.sha256(msgspec.json.encode(rootfs)).hexdigest()
    return Template(name="host", digest=digest, rootfs=rootfs, users=(ROOT, USER), user=USER.name, env=ENV)


READ_AND_SEARCH = 0o005
"""Bits that let every user list and enter a directory."""


def _etc_sources() -> list[str]:
    """The parts of /etc to show: those that exist and that every user may read."""
    found = [f"/etc/{name}" for name in _ETC]
    found += sorted(f"/etc/{name}" for name in os.listdir("/etc") if name.startswith("java-"))
    found.append("/etc/ssl/certs")
    return [path for path in found if _world_readable(path)]


def _world_readable(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        return mode & READ_AND_SEARCH == READ_AND_SEARCH
    return stat.S_ISREG(mode) and bool(mode & 0o004)
