import contextlib
import fcntl
import os
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.kernel.files import LockedFile, open_beneath, open_private_dir, remove_tree
from atoll.model.errors import InvalidSpecError, StateError, TeardownError
from tests.unit.kernel_support import child, sleep_forever

DEEP = 100_000
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems or changes to another uid")


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A directory outside the tree that must survive."""
    directory = tmp_path / "canary"
    directory.mkdir()
    (directory / "file").write_text("alive")
    return directory


def make_chain(top: Path, depth: int) -> None:
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_an_ordinary_tree(tmp_path: Path, parent: int) -> None:
    tree = tmp_path / "tree"
    for number in range(5):
        (tree / f"a{number}" / "b" / "c").mkdir(parents=True)
        (tree / f"a{number}" / "b" / "file").write_text("x")
    os.mkfifo(tree / "fifo")
    (tree / os.fsdecode(b"\xff\n-rf")).write_text("x")
    remove_tree(parent, "tree")
    assert not tree.exists()
    remove_tree(parent, "tree")


def test_a_file_in_place_of_the_tree(tmp_path: Path, parent: int) -> None:
    (tmp_path / "tree").write_text("x")
    remove_tree(parent, "tree")
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "../x"])
def test_only_a_plain_name_is_removed(tmp_path: Path, parent: int, name: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(TeardownError, match="not a file name"):
        remove_tree(parent, name)
    assert (tmp_path / "a" / "b").exists()


def test_links_are_removed_and_not_followed(tmp_path: Path, parent: int, canary: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    for place in (tree, tree / "deep", tree / "deep" / "er"):
        (place / "absolute").symlink_to(canary)
        (place / "relative").symlink_to("../" * 10 + str(canary))
        (place / "hard").hardlink_to(canary / "file")
    (tmp_path / "link").symlink_to(canary)
    remove_tree(parent, "tree")
    remove_tree(parent, "link")
    assert not tree.exists()
    assert not (tmp_path / "link").is_symlink()
    assert (canary / "file").read_text() == "alive"


def test_a_very_deep_tree_with_few_descriptors() -> None:
    """In memory, where making it takes two seconds; on a disk the time is that of rm -rf."""
    directory = tempfile.mkdtemp(dir="/dev/shm")
    parent = os.open(directory, os.O_RDONLY)
    try:
        make_chain(Path(directory) / "tree", DEEP)
        check_few_descriptors(parent)
        assert os.listdir(directory) == []
    finally:
        os.close(parent)
        subprocess.run(["rm", "-rf", directory], check=True)


def check_few_descriptors(parent: int) -> None:
    highest = 0

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.05):
            highest = max(highest, len(os.listdir("/proc/self/fd")))

    done = threading.Event()
    thread = threading.Thread(target=watch)
    before = len(os.listdir("/proc/self/fd"))
    thread.start()
    remove_tree(parent, "tree")
    done.set()
    thread.join()
    assert highest <= before + 5


def test_a_wide_tree(tmp_path: Path, parent: int) -> None:
    tree = tmp_path / "tree"
    for outer in range(12):
        (tree / str(outer)).mkdir(parents=True)
        for inner in range(12):
            (tree / str(outer) / str(inner)).mkdir()
    remove_tree(parent, "tree")
    assert not tree.exists()


@needs_root
def test_a_mount_is_not_crossed(tmp_path: Path, parent: int, canary: Path) -> None:
    tree = tmp_path / "tree"
    inner = tree / "a" / "mounted"
    inner.mkdir(parents=True)
    (tree / "file").write_text("x")
    subprocess.run(["mount", "--bind", canary, inner], check=True)
    try:
        with pytest.raises(TeardownError, match="a file system is mounted on it"):
            remove_tree(parent, "tree")
        assert (canary / "file").read_text() == "alive"
        assert not (tree / "file").exists(), "the rest is removed"
    finally:
        subprocess.run(["umount", *tree.rglob("mounted")], check=True)
    remove_tree(parent, "tree")
    assert not tree.exists()


@needs_root
def test_a_mount_in_place_of_the_tree_is_not_entered(tmp_path: Path, parent: int, canary: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    subprocess.run(["mount", "--bind", canary, tree], check=True)
    try:
        with pytest.raises(TeardownError):
            remove_tree(parent, "tree")
    finally:
        subprocess.run(["umount", tree], check=True)
    assert (canary / "file").read_text() == "alive"


@needs_root
def test_a_file_mounted_on_a_file_is_left(tmp_path: Path, parent: int, canary: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "target").write_text("x")
    subprocess.run(["mount", "--bind", canary / "file", tree / "target"], check=True)
    try:
        with pytest.raises(TeardownError, match="target: a file system is mounted on it"):
            remove_tree(parent, "tree")
    finally:
        subprocess.run(["umount", tree / "target"], check=True)
    assert (canary / "file").read_text() == "alive"


@needs_root
def test_a_user_removes_its_own_trees_whatever_their_mode(tmp_path: Path) -> None:
    """As a module cache with read-only directories."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)

    def as_user() -> None:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        for mode in (0o555, 0o000, 0o300, 0o600):
            (home / "tree" / "a" / "b" / "c").mkdir(parents=True)
            (home / "tree" / "a" / "b" / "file").write_text("x")
            for place in ("tree/a/b/c", "tree/a/b", "tree/a", "tree"):
                (home / place).chmod(mode)
            fd = os.open(home, os.O_RDONLY)
            remove_tree(fd, "tree")
            assert os.listdir(home) == []

    with child(as_user) as process:
        assert process.wait() == 0


@needs_root
def test_what_cannot_be_removed_is_named(tmp_path: Path, parent: int) -> None:
    held = tmp_path / "tree" / "a" / "held"
    held.mkdir(parents=True)
    (held / "file").write_text("x")
    if subprocess.run(["chattr", "+i", held], check=False, capture_output=True).returncode:
        pytest.skip("no immutable files on this file system")
    try:
        with pytest.raises(TeardownError, match="held: Operation not permitted"):
            remove_tree(parent, "tree")
    finally:
        subprocess.run(["chattr", "-R", "-i", tmp_path / "tree"], check=True)
    remove_tree(parent, "tree")


def test_a_tree_that_others_change_meanwhile(tmp_path: Path, parent: int, canary: Path) -> None:
    """Directories swapped for links to the canary, removed and re-made while they are being deleted."""
    tree = tmp_path / "tree"
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                (tree / "a").rename(tree / "b")
                (tree / "a").symlink_to(canary)
            with contextlib.suppress(OSError):
                (tree / "a").unlink()
            with contextlib.suppress(OSError):
                (tree / "a" / "x" / "y").mkdir(parents=True)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            tree.mkdir(exist_ok=True)
            with contextlib.suppress(TeardownError):
                remove_tree(parent, "tree")
            assert (canary / "file").read_text() == "alive"
    finally:
        stop.set()
        thread.join()
    remove_tree(parent, "tree")
    assert not tree.exists()
    assert sorted(os.listdir(canary)) == ["file"]


def test_open_beneath_refuses_links_and_ways_out(tmp_path: Path, parent: int, canary: Path) -> None:
    (tmp_path / "link").symlink_to(canary)
    for name in ("link", "link/file", "..", "../..", "/etc"):
        with pytest.raises(OSError, match=r"symbolic links|cross-device"):
            open_beneath(parent, name, os.O_RDONLY)
    os.close(open_beneath(parent, "canary/file", os.O_RDONLY))


def test_a_private_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    for _ in range(2):
        fd = open_private_dir(path)
        assert os.path.samestat(os.fstat(fd), path.stat())
        os.close(fd)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o700, 0o700]


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o770, 0o701, 0o777])
def test_a_directory_open_to_others_is_not_private(tmp_path: Path, mode: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    with pytest.raises(StateError, match="chmod 700"):
        open_private_dir(tmp_path / "a")


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_parent_that_others_can_change_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "a" / "b").mkdir(mode=0o700, parents=True)
    (tmp_path / "a").chmod(mode)
    with pytest.raises(StateError, match="can be changed by other users"):
        open_private_dir(tmp_path / "a" / "b")
    (tmp_path / "a").chmod(mode | stat.S_ISVTX)
    os.close(open_private_dir(tmp_path / "a" / "b"))


@needs_root
@pytest.mark.parametrize("foreign", ["a", "a/b"])
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, foreign: str) -> None:
    (tmp_path / "a" / "b").mkdir(mode=0o700, parents=True)
    os.chown(tmp_path / foreign, NOBODY, NOBODY)
    with pytest.raises(StateError):
        open_private_dir(tmp_path / "a" / "b")


def test_links_are_refused_anywhere_in_the_path(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(mode=0o700, parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "last").symlink_to("inner")
    for path in (tmp_path / "link" / "inner", tmp_path / "real" / "last", tmp_path / "link" / "new"):
        with pytest.raises(StateError, match="is a link"):
            open_private_dir(path)
    assert os.listdir(tmp_path / "real" / "inner") == []


@pytest.mark.parametrize("path", ["relative", "", "/a/../b"])
def test_only_absolute_paths_without_dots(path: str) -> None:
    with pytest.raises(InvalidSpecError, match="not an absolute path"):
        open_private_dir(Path(path))


def test_a_lock_excludes_others_and_ends_with_close(parent: int) -> None:
    first = LockedFile.open("lock", os.O_RDWR | os.O_CREAT, dir_fd=parent)
    assert first is not None
    assert LockedFile.open("lock", os.O_RDWR, dir_fd=parent) is None
    first.close()
    first.close()
    second = LockedFile.open("lock", os.O_RDWR, dir_fd=parent)
    assert second is not None
    second.close()


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(parent: int) -> None:
    lock = LockedFile.open("lock", os.O_RDWR | os.O_CREAT, dir_fd=parent)
    assert lock is not None
    with child(sleep_forever) as process:
        lock.close()
        again = None
        end = time.monotonic() + 5
        while again is None and time.monotonic() < end:
            again = LockedFile.open("lock", os.O_RDWR, dir_fd=parent)
        assert process.runs()
    assert again is not None
    again.close()


def test_a_lock_does_not_follow_links(tmp_path: Path, parent: int) -> None:
    (tmp_path / "target").write_text("x")
    (tmp_path / "lock").symlink_to("target")
    with pytest.raises(OSError, match="symbolic links"):
        LockedFile.open("lock", os.O_RDWR | os.O_CREAT, dir_fd=parent)


def test_locks_are_not_inherited_by_programs(parent: int) -> None:
    lock = LockedFile.open("lock", os.O_RDWR | os.O_CREAT, dir_fd=parent)
    assert lock is not None
    assert fcntl.fcntl(lock.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    lock.close()
