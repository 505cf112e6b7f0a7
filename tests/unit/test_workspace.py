"""Which directory may be a workspace, and what every other request is told."""

import os
from pathlib import Path

import pytest

from atoll.model.errors import InvalidSpecError
from atoll.mount.workspace import resolve_workspace

STATE = Path("/nonexistent/state")


def refused(source: object, mode: str = "overlay", forbidden: Path = STATE) -> InvalidSpecError:
    with pytest.raises(InvalidSpecError) as raised:
        resolve_workspace(source, mode, forbidden)
    assert raised.value.hint
    return raised.value


@pytest.mark.parametrize("mode", ["overlay", "ro"])
def test_a_directory(tmp_path: Path, mode: str):
    if os.geteuid() == 0:
        os.chown(tmp_path, 1234, 5678)
    found = tmp_path.stat()
    workspace = resolve_workspace(tmp_path, mode, STATE)
    assert workspace.source == str(tmp_path.resolve())
    assert workspace.owner == (found.st_uid, found.st_gid)
    assert (workspace.mode, workspace.target) == (mode, "/workspace")


@pytest.mark.parametrize(
    "name",
    [
        "a:b",
        "a,b",
        "a+b",
        "a%s",
        "a=b",
        "a b",
        "-rf",
        "--",
        "a\nb",
        "a\tb",
        "$(id)",
        "`id`",
        "'\"",
        "\\",
        "é",
        "\udcff",
        "x" * 255,
    ],
    ids=lambda name: repr(name)[:20],
)
def test_odd_names_are_taken_as_they_are(tmp_path: Path, name: str):
    directory = tmp_path / name
    directory.mkdir()
    for source in (directory, str(directory), os.fsencode(directory)):
        assert resolve_workspace(source, "ro", STATE).source == str(tmp_path.resolve() / name)


def test_links_and_relative_paths_are_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    for source in ("real", "./link", "link/../real", tmp_path / "link", "."):
        resolved = resolve_workspace(source, "ro", STATE).source
        assert resolved == os.path.realpath(source)
        assert not Path(resolved).is_symlink()


@pytest.mark.parametrize("mode", ["rw", "copy", "", "OVERLAY", None, 5], ids=repr)
def test_unknown_modes(tmp_path: Path, mode: str):
    error = refused(tmp_path, mode)
    assert error.field == "workspace_mode"
    assert error.hint == "use one of overlay, ro"


@pytest.mark.parametrize("source", ["", b"", "a\0b", 5, None, 1.5, ["/tmp"], "/tmp/\ud800"], ids=repr)
def test_what_is_no_path(source: object):
    error = refused(source)
    assert error.field == "workspace"
    assert "not a path" in error.message
    assert repr(source)[:60] in error.message


def test_what_is_not_there_or_no_directory(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for source, words in {
        tmp_path / "missing": "No such file",
        tmp_path / ("x" * 256): "File name too long",
        file / "below": "Not a directory",
        file: "not a directory",
        fifo: "not a directory",
        Path("/dev/null"): "not a directory",
        loop: "symbolic links",
    }.items():
        error = refused(source)
        assert error.field == "workspace"
        assert words in error.message
        assert str(source)[:60] in error.message


@pytest.mark.parametrize("source", ["/", "//", "/..", "/usr/..", "/proc/self/root"])
def test_never_the_whole_host(source: str):
    assert "whole host" in refused(source).message


def test_never_atolls_own_state_or_anything_around_it(tmp_path: Path):
    state = tmp_path / "home" / "state"
    (state / "sandboxes").mkdir(parents=True)
    neighbour = tmp_path / "home" / "state-of-the-art"
    neighbour.mkdir()
    link = tmp_path / "link"
    link.symlink_to(state)
    for source in (state, state / "sandboxes", tmp_path / "home", tmp_path, link, link / "sandboxes"):
        assert "Atoll's own state" in refused(source, forbidden=state).message
        assert "Atoll's own state" in refused(source, forbidden=link).message
    assert resolve_workspace(neighbour, "ro", state).source == str(neighbour.resolve())


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_directory_that_its_user_cannot_reach(tmp_path: Path):
    hidden = tmp_path / "hidden"
    (hidden / "inner").mkdir(parents=True)
    hidden.chmod(0o700)
    os.seteuid(65534)
    try:
        error = refused(hidden / "inner")
    finally:
        os.seteuid(0)
    assert "Permission denied" in error.message
