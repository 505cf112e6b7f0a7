"""Workspaces without root on the host: an overlay needs Linux 6.6, and is refused by name before; read-only works."""

import os
import platform
from pathlib import Path

import pytest

from atoll.isolate.bubblewrap import OVERLAY_USERXATTR_SINCE
from atoll.model.errors import UnsupportedError
from tests.sandboxes import Make

pytestmark = pytest.mark.skipif(os.geteuid() == 0, reason="about hosts without root: runs in the virtual machine")
RELEASE = tuple(int(part) for part in platform.release().split(".")[:2])


def test_an_overlay_works_or_is_refused_by_name(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("whole")
    if RELEASE < OVERLAY_USERXATTR_SINCE:
        with pytest.raises(UnsupportedError, match=r"overlay without root needs Linux 6\.6"):
            make(workspace=tmp_path)
        return
    result = make(workspace=tmp_path).commands.run("rm file && mkdir file && ls -d file")
    assert result.stdout == "file\n"
    assert (tmp_path / "file").read_text() == "whole"


def test_read_only_works(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("whole")
    result = make(workspace=tmp_path, workspace_mode="ro").commands.run("cat file; touch made")
    assert result.stdout == "whole"
    assert "Read-only file system" in result.stderr
