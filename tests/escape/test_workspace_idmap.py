"""Threat: files of other host users become the guest's. Wall: exactly one pair of ids is mapped."""

import os
from pathlib import Path

import pytest

from tests.escape.attack import attack
from tests.sandboxes import Make


@pytest.mark.parametrize("mode", ["overlay", "ro"])
@pytest.mark.parametrize("owner", [0, 1000, 4242])
def test_only_the_owner_is_mapped(make: Make, tmp_path: Path, mode: str, owner: int, user: str) -> None:
    other = owner + 7
    for name, uid, permissions in (("mine", owner, 0o600), ("theirs", other, 0o600), ("public", other, 0o644)):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(permissions)
        os.chown(tmp_path / name, uid, uid)
    os.chown(tmp_path, owner, owner)
    facts = attack(
        make(workspace=str(tmp_path), workspace_mode=mode),
        """
        os.chdir("/workspace")
        report(owners={name: os.stat(name).st_uid for name in os.listdir(".")}, mine=read("mine"), theirs=read("theirs"),
               public=read("public"), taken=attempt(os.chown, "theirs", 0, 0), wrote=write("public"))
        """,
        user=user,
    )
    assert facts["owners"] == {"mine": 1000, "theirs": 65534, "public": 65534}
    assert facts["mine"] == "mine"
    assert facts["theirs"] == "EACCES"
    assert facts["public"] == "public"
    assert facts["taken"] in {"EPERM", "EOVERFLOW", "EROFS"}
    assert facts["wrote"] in {"EACCES", "EROFS", "EOVERFLOW"}
    assert (tmp_path / "public").read_text() == "public"
