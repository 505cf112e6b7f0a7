"""What a sandbox's file system is made of, before any sandbox exists."""

from typing import Literal

import msgspec


class User(msgspec.Struct, frozen=True, kw_only=True):
    """An account inside the sandbox."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str = "/bin/bash"


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A host directory or file shown read-only at `target`; never idmapped, so host permissions stand."""

    source: str
    target: str


class Directory(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of the writable layer."""

    path: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A small file of the writable layer."""

    path: str
    text: str
    mode: int = 0o644


class Symlink(msgspec.Struct, frozen=True, kw_only=True):
    """A symbolic link of the writable layer."""

    path: str
    target: str


class Rootfs(msgspec.Struct, frozen=True, kw_only=True):
    """A root file system as a list of parts, in the order in which they are made."""

    directories: tuple[Directory, ...]
    files: tuple[File, ...]
    symlinks: tuple[Symlink, ...]
    trees: tuple[Tree, ...]


class Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prepared environment from which sandboxes are made."""

    name: str
    digest: str
    """Over all parts; the same digest means the same environment."""
    rootfs: Rootfs
    users: tuple[User, ...]
    user: str
    """Who runs commands unless they say otherwise."""
    env: dict[str, str]


WorkspaceMode = Literal["overlay", "ro"]
WORKSPACE_MODES: tuple[WorkspaceMode, ...] = ("overlay", "ro")
WORKSPACE_TARGET = "/workspace"


class Workspace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one host directory a sandbox sees.

    Modes: ``overlay`` lets the guest change its own copy-on-write view, the host tree stays as it is;
    ``ro`` shows it read-only.
    """

    source: str
    """Absolute, symlinks resolved."""
    owner: tuple[int, int]
    """Host uid and gid of the directory; they appear as the sandbox's default user."""
    identity: tuple[int, int]
    """Device and inode of the directory that was checked; the launch opens no other."""
    mode: WorkspaceMode = "overlay"
    target: str = WORKSPACE_TARGET
