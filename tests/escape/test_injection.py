"""Threat: odd characters in paths, names and environment are read as options. Wall: one word per value, descriptors."""

import os
from pathlib import Path

import pytest

from tests.sandboxes import Make

ODD = [
    b"colon:colon", b"comma,upperdir=etc", b"plus+plus", b"percent%s%n", b"equals=lowerdir=.", b"new\nline", b"-leading",
    b"--bind", b"space in it", b"quote'\"`$(id)", b"back\\slash\\054", b"bytes-\xff\xfe", "\u202egnp.exe".encode(),
]  # fmt: skip


@pytest.mark.parametrize("name", ODD, ids=repr)
def test_a_workspace_of_any_name_is_just_that_directory(make: Make, tmp_path: Path, name: bytes) -> None:
    workspace = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(workspace)
    with open(os.path.join(workspace, name + b".txt"), "w") as file:
        file.write("contents")
    sandbox = make(workspace=os.fsdecode(workspace))
    listed = sandbox.commands.run(["/bin/ls", "-1", "--zero", "/workspace"]).stdout_bytes
    assert listed == name + b".txt\0"
    result = sandbox.commands.run([b"/bin/cat", b"/workspace/" + name + b".txt"])
    assert result.stdout == "contents"
    assert os.listdir(workspace) == [name + b".txt"]
    mounts = sandbox.commands.run(["/bin/cat", "/proc/self/mounts"]).stdout
    assert "upperdir=etc" not in mounts
    assert "lowerdir=.," not in mounts


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_environment_and_arguments_are_opaque(make: Make, value: bytes) -> None:
    text = os.fsdecode(value)
    sandbox = make(envs={"ODD": text})
    shown = sandbox.commands.run([b"/bin/echo", b"-n", b"--", value]).stdout_bytes
    assert shown == b"-- " + value
    assert sandbox.commands.run(["/usr/bin/printenv", "ODD"]).stdout_bytes == value + b"\n"
