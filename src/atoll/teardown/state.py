"""Where Atoll keeps what it must remember: the state directory and the layout below it.

    <state>/sandboxes/<id>/journal.jsonl     what to undo, and who owns the sandbox
    <state>/sandboxes/<id>/meta.json         what `atoll ps` shows besides, written by the owner
    <state>/sandboxes/<id>/killed            put there to say that somebody else ended it

Called by everything that opens a sandbox or looks for them. The directory is private to its user, so that
what is read back from it can be trusted as far as that user.
"""

import os
import pwd
from pathlib import Path

from atoll.kernel.files import open_private_dir

SANDBOXES = "sandboxes"
JOURNAL = "journal.jsonl"
META = "meta.json"
KILL_MARK = "killed"


def state_dir() -> Path:
    """The state directory, made private (mode 0700) if it is not there.

    ATOLL_STATE, or /var/lib/atoll for root, or atoll below $XDG_STATE_HOME or ~/.local/state.

    Raises:
        InvalidSpecError: ATOLL_STATE is not an absolute path.
        StateError: it belongs to or can be changed by somebody else.
    """
    path = _path()
    os.close(open_private_dir(path))
    return path


def _path() -> Path:
    if chosen := os.environ.get("ATOLL_STATE"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/atoll")
    base = os.environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):  # others are to be ignored (XDG Base Directory Specification)
        return Path(base) / "atoll"
    home = os.environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir
    # A home directory may be reached over a link that the administrator made.
    return Path(os.path.realpath(home)) / ".local" / "state" / "atoll"
