"""Host trees: the same files under other flags, without a way back to the host's own mounts."""

import os
import socket
from pathlib import Path

import pytest

from tests.launcher.conftest import Factory
from tests.launcher.rig import BASE, USER

RDONLY, NOSUID, NODEV = 1, 2, 4  # mount(2)


def options(mountinfo: str, place: str) -> set[str]:
    """The flags of the mount at the end of `place`, from proc_pid_mountinfo(5)."""
    mounts = [line.split() for line in mountinfo.splitlines() if " - " in line]
    (flags,) = (mount[5] for mount in mounts if mount[4].endswith(place))
    return set(flags.split(","))


@pytest.fixture
def source(scratch: Path) -> Path:
    """A host directory that anyone may write to, with a file and a subdirectory."""
    path = scratch / "source"
    (path / "sub").mkdir(parents=True)
    (path / "file").write_text("host")
    for each in (path, path / "sub", path / "file"):
        each.chmod(0o777)
    return path


def test_read_only(either: Factory, source: Path) -> None:
    launch = either().staged()
    launch.op("tree", launch.fd(source), "root/tree", "ro", "tree", launch.fd(source / "file"), "root/one", "ro")
    result = launch.userns().sh(
        "cat root/tree/file root/one; echo; "
        "for name in tree/file one tree/new; do (echo guest >> root/$name) 2>&1 || :; done; cat /proc/self/mountinfo"
    )
    assert result.lines[0] == "hosthost"
    assert [line.split(": ")[-1] for line in result.lines[1:4]] == ["Read-only file system"] * 3
    for place in ("/root/tree", "/root/one"):
        assert options(result.text, place) >= {"ro", "nosuid", "nodev"}
    assert (source / "file").read_text() == "host"


def test_read_write(either: Factory, source: Path) -> None:
    launch = either().staged()
    launch.op("tree", launch.fd(source), "root/tree", "rw", "tree", launch.fd(source / "file"), "root/one", "rw")
    write = "echo -n 1 >> root/tree/file; echo -n 2 >> root/one; : > root/tree/new"
    result = launch.userns().sh(f"{write}; cat /proc/self/mountinfo")
    assert (source / "file").read_text() == "host12"
    assert (source / "new").stat().st_uid == (USER if launch.user else BASE)
    for place in ("/root/tree", "/root/one"):
        assert options(result.text, place) >= {"rw", "nosuid", "nodev"}


def test_mounts_below_the_source_come_along_with_the_same_flags(either: Factory, source: Path) -> None:
    launch = either().staged().op("tree", 7, "root/tree", "ro").userns()
    result = launch.sh(
        "cat root/tree/sub/below; (: > root/tree/sub/new) 2>&1 || :; cat /proc/self/mountinfo",
        mounts=f'mount -t tmpfs x {source}/sub; echo below > {source}/sub/below; exec 7<{source}; "$@"',
    )
    assert result.lines[0] == "below"
    assert result.lines[1].endswith("Read-only file system")
    assert options(result.text, "/root/tree/sub") >= {"ro", "nosuid", "nodev"}


def test_mounts_made_inside_stay_inside(either: Factory, source: Path) -> None:
    launch = either().staged().op("tree", 7, "root/tree", "rw").userns()
    result = launch.run(
        "/bin/sh",
        "-euc",
        "mount -t tmpfs inside root/tree/sub; grep -c ' inside ' /proc/self/mountinfo",
        mounts=f'exec 7<{source}; cat /proc/self/mountinfo >&2; "$@"; cat /proc/self/mountinfo >&2',
    )
    assert (result.code, result.text) == (0, "1\n")
    half = len(result.err) // 2
    assert result.err[:half] == result.err[half:]
    assert "shared:" in result.err


def test_mounts_made_outside_later_stay_outside(either: Factory, source: Path) -> None:
    launch = either().staged().op("tree", 7, "root/tree", "ro").userns()
    up, go = source / "up", source / "go"
    for fifo in (up, go):
        os.mkfifo(fifo)
        fifo.chmod(0o666)
    result = launch.run(
        "/bin/sh",
        "-euc",
        f"echo up > {up}; read line < {go}; grep outside /proc/self/mountinfo || echo unseen",
        mounts=f'exec 7<{source}; "$@" & read line < {up}; mount -t tmpfs outside {source}/sub; echo go > {go}; wait',
    )
    assert (result.code, result.text, result.err) == (0, "unseen\n", "")


def test_with_every_capability_inside_nothing_comes_loose(root: Factory, source: Path, probe: Path) -> None:
    def attempt(*applet: str | int) -> str:
        launch = root().staged()
        launch.op("file", "root/tree/below", "644", BASE, BASE, "covered")
        launch.op("tree", launch.fd(source), "root/tree", "ro", "dir", "root/empty", "755", BASE, BASE)
        return launch.userns().run(str(probe), *applet).text

    assert attempt("remount", "root/tree", NOSUID | NODEV) == "EPERM\n"
    assert attempt("remount", "root/tree", RDONLY | NODEV) == "EPERM\n"
    assert attempt("remount", "root/tree", RDONLY | NOSUID) == "EPERM\n"
    assert attempt("remount", "root/tree", RDONLY | NOSUID | NODEV) == "ok\n"
    assert attempt("remount-fs", "root", "size=1g") == "EPERM\n"
    assert attempt("umount", "root/tree") == "EINVAL\n"
    assert attempt("umount", "root") == "EINVAL\n"
    assert attempt("bind", "root", "root/empty") == "EINVAL\n"
    assert attempt("bind", "root/tree", "root/empty") == "ok\n"


def test_those_attempts_work_where_nothing_is_locked(rootless: Factory, source: Path, probe: Path) -> None:
    """The control for the test above; bubblewrap's own user namespace is what locks these mounts."""

    def attempt(*applet: str | int) -> str:
        launch = rootless().staged()
        launch.op("tree", launch.fd(source), "root/tree", "ro", "dir", "root/empty", "755", 0, 0)
        return launch.run(str(probe), *applet).text

    assert attempt("remount", "root/tree", NOSUID | NODEV) == "ok\n"
    assert attempt("remount-fs", "root", "size=1g") == "ok\n"
    assert attempt("umount", "root/tree") == "ok\n"
    assert attempt("bind", "root", "root/empty") == "ok\n"


def test_a_source_below_the_stage(either: Factory, scratch: Path) -> None:
    below = scratch / "stage" / "project"
    below.mkdir()
    (below / "file").write_text("below")
    launch = either().staged()
    launch.op("tree", launch.fd(below), "root/tree", "ro")
    assert launch.userns().sh("cat root/tree/file").text == "below"


def test_the_same_source_twice(either: Factory, source: Path) -> None:
    launch = either().staged()
    fd = launch.fd(source)
    launch.op("tree", fd, "root/a", "ro", "tree", fd, "root/b", "rw").userns()
    assert launch.sh("cat root/a/file root/b/file").text == "hosthost"


def test_a_source_that_was_renamed(either: Factory, source: Path) -> None:
    launch = either().staged()
    launch.op("tree", launch.fd(source), "root/tree", "ro")
    source.rename(source.with_name("new name\nof it"))
    assert launch.userns().sh("cat root/tree/file").text == "host"


def test_a_source_that_is_gone(either: Factory, source: Path) -> None:
    launch = either().staged()
    launch.op("tree", launch.fd(source / "sub"), "root/tree", "ro").userns()
    (source / "sub").rmdir()
    assert launch.refused() == "tree root/tree: No such file or directory"


def test_a_source_whose_name_leads_elsewhere(rootless: Factory, source: Path) -> None:
    launch = rootless().staged().op("tree", 7, "root/tree", "ro")
    refusal = launch.refused(mounts=f'exec 7<{source}; mount -t tmpfs cover {source}; "$@"')
    assert refusal == "tree root/tree: the name of this fd leads to another file"


def test_a_source_the_caller_may_not_reach(rootless: Factory, source: Path) -> None:
    source.chmod(0o700)
    launch = rootless().staged()
    launch.op("tree", launch.fd(source / "sub"), "root/tree", "ro")
    assert launch.refused() == "tree root/tree: Permission denied"


def test_only_directories_and_files(either: Factory, source: Path) -> None:
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
    (source / "link").symlink_to("file")
    for path in (source / "fifo", source / "socket", source / "link", Path("/dev/null")):
        launch = either().staged()
        launch.op("tree", launch.fd(path, os.O_PATH | os.O_NOFOLLOW), "root/tree", "ro").userns()
        assert launch.refused() == "tree root/tree: neither a directory nor a regular file"


def test_source_and_place_must_be_of_one_kind(either: Factory, source: Path) -> None:
    launch = either().staged().op("file", "root/f", "644", either().root, either().root, "")
    launch.op("tree", launch.fd(source), "root/f", "ro")
    assert launch.userns().refused() == "tree root/f: Not a directory"
    launch = either().staged()
    launch.op("tree", launch.fd(source / "file"), "root", "ro")
    assert launch.userns().refused() == "tree root: Is a directory"


def test_a_file_of_a_host_tree_can_be_covered(either: Factory, source: Path, scratch: Path) -> None:
    (scratch / "mock").write_text("mock")
    launch = either().staged()
    launch.op("tree", launch.fd(source), "root/tree", "rw", "tree", launch.fd(scratch / "mock"), "root/tree/file", "ro")
    assert launch.userns().sh("cat root/tree/file; (: > root/tree/file) 2>/dev/null || echo -n ' ro'").text == "mock ro"
    assert (source / "file").read_text() == "host"


@pytest.fixture
def owned(idmappable: None, source: Path) -> Path:
    """A source with files of host uid 4321, of another user and of root."""
    for name, uid in (("mine", 4321), ("theirs", 4322), ("roots", 0)):
        path = source / name
        path.write_text(name)
        path.chmod(0o600)
        os.chown(path, uid, uid)
    os.chown(source, 4321, 4321)
    source.chmod(0o755)
    return source


def test_idtree_shows_one_owner_as_another(root: Factory, owned: Path) -> None:
    launch = root().staged()
    launch.op("idtree", launch.fd(owned), "root/tree", "ro", 4321, 4321, BASE + 1000, BASE + 100).userns()
    result = launch.sh("find root/tree -maxdepth 1 -printf '%f %U %G\\n'; (: > root/tree/mine) 2>&1 || :")
    assert set(result.lines[:-1]) == {
        "tree 1000 100",
        "mine 1000 100",
        "theirs 65534 65534",
        "roots 65534 65534",
        "file 65534 65534",
        "sub 65534 65534",
    }
    assert result.lines[-1].endswith("Read-only file system")


def test_idtree_opens_nobody_elses_files_to_root_inside(root: Factory, owned: Path) -> None:
    launch = root().staged()
    launch.op("idtree", launch.fd(owned), "root/tree", "rw", 4321, 4321, BASE + 1000, BASE + 1000).userns()
    result = launch.sh("for name in mine theirs roots; do cat root/tree/$name 2>&1 || :; echo; done")
    assert result.lines == [
        "mine",
        "cat: root/tree/theirs: Permission denied",
        "",
        "cat: root/tree/roots: Permission denied",
        "",
    ]


def test_idtree_writes_as_the_owner_on_disk(root: Factory, owned: Path) -> None:
    launch = root().staged()
    launch.op("idtree", launch.fd(owned), "root/tree", "rw", 4321, 4321, BASE + 1000, BASE + 1000).userns()
    result = launch.sh(
        "setpriv --reuid=1000 --regid=1000 --clear-groups sh -c 'echo -n 1 >> root/tree/mine; mkdir root/tree/new'; "
        "(: > root/tree/roots-own) 2>&1 || :"
    )
    assert result.text.endswith("Value too large for defined data type\n")  # root inside has no id on that disk
    assert (owned / "mine").read_text() == "mine1"
    new = (owned / "new").stat()
    assert (new.st_uid, new.st_gid) == (4321, 4321)
    assert not (owned / "roots-own").exists()


def test_idtree_leaves_mounts_below_out(root: Factory, owned: Path) -> None:
    launch = root().staged().op("idtree", 7, "root/tree", "ro", 0, 0, BASE, BASE).userns()
    result = launch.sh(
        "ls root/tree/sub", mounts=f'mount -t tmpfs x {owned}/sub; : > {owned}/sub/f; exec 7<{owned}; "$@"'
    )
    assert result.text == ""


def test_idtree_of_a_file_system_without_idmaps(root: Factory) -> None:
    launch = root().staged()
    launch.op("idtree", launch.fd("/sys/kernel"), "root/tree", "ro", 0, 0, BASE, BASE).userns()
    assert launch.refused() == "idtree root/tree: its file system does not support idmapped mounts"
