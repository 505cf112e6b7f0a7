"""The project directory: check the request and pin it down as a `Workspace` value.

Runs before anything is created. The source is resolved once, here; the launch opens it by descriptor and
compares, so that a link swapped in between changes nothing.
"""

import os
import stat
from pathlib import Path

from atoll.model.errors import InvalidSpecError
from atoll.model.template import WORKSPACE_MODES, Workspace, WorkspaceMode


def resolve_workspace(source: str | os.PathLike[str], mode: str, forbidden: Path) -> Workspace:
    """Check and resolve a workspace request.

    Args:
        source: directory on the host.
        mode: one of `WORKSPACE_MODES`.
        forbidden: Atoll's own state directory; neither it nor anything above it may be shown.

    Raises:
        InvalidSpecError: it does not exist, is no directory, is / or holds Atoll's state, or the mode is unknown.
    """
    checked = check_mode(mode)
    try:
        text = os.fsdecode(source)
        real = os.path.realpath(text)
    except (TypeError, ValueError):
        text = real = ""
    if not text:
        raise InvalidSpecError("workspace", source, "not a path", hint="give a directory")
    forbidden = forbidden.resolve()
    try:
        found = os.stat(real)
    except OSError as error:
        raise InvalidSpecError("workspace", text, error.strerror or "unreadable", hint="create it first") from error
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidSpecError("workspace", text, "not a directory", hint="give the directory that holds it")
    if real == "/" or forbidden.is_relative_to(real) or Path(real).is_relative_to(forbidden):
        raise InvalidSpecError(
            "workspace", text, "contains the whole host or Atoll's own state", hint="give the project's own directory"
        )
    owner, identity = (found.st_uid, found.st_gid), (found.st_dev, found.st_ino)
    return Workspace(source=real, owner=owner, identity=identity, mode=checked)


def check_mode(mode: str) -> WorkspaceMode:
    """The mode, when there is such a one.

    Raises:
        InvalidSpecError: there is not.
    """
    for known in WORKSPACE_MODES:
        if mode == known:
            return known
    raise InvalidSpecError("workspace_mode", mode, "unknown", hint=f"use one of {', '.join(WORKSPACE_MODES)}")
