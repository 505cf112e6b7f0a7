"""What the launcher creates below the stage: exact names, owners, modes and contents, and nothing anywhere else."""

import os
from pathlib import Path

import pytest

from tests.launcher.conftest import Factory
from tests.launcher.rig import BASE, Launch

ODD_NAMES = [
    b":",
    b",",
    b"+",
    b"%41",
    b"a=b",
    b"\\",
    b"new\nline",
    b"-rf",
    b"--",
    b" ",
    b"...",
    b"..a",
    b"\xff\xfe",
    b"\x01\x1b[2J",
    "é".encode(),
    b"*",
    b"n" * 255,
]


def listing(launch: Launch, where: str = "root", form: str = r"%P %m %U %G\n") -> list[str]:
    return launch.sh(f"find {where} -mindepth 1 -printf '{form}'").lines


def test_modes_and_owners_are_exact(root: Factory) -> None:
    launch = root().staged()
    launch.op("dir", "root/tmp", "1777", BASE, BASE + 1)
    launch.op("dir", "root/none", "0", BASE + 65535, BASE)
    launch.op("file", "root/tmp/f", "0640", BASE + 1000, BASE + 100, "text")
    launch.op("file", "root/tmp/x", "755", BASE, BASE, "")
    assert sorted(listing(launch.userns())) == [
        "none 0 65535 0",
        "tmp 1777 0 1",
        "tmp/f 640 1000 100",
        "tmp/x 755 0 0",
    ]


def test_modes_and_owners_with_one_id(rootless: Factory) -> None:
    launch = rootless().staged().op("dir", "root/tmp", "1777", 0, 0, "file", "root/tmp/f", "400", 0, 0, "text")
    assert sorted(listing(launch)) == ["tmp 1777 0 0", "tmp/f 400 0 0"]


def test_an_id_that_is_not_mapped(rootless: Factory) -> None:
    assert rootless().staged().op("dir", "root/a", "755", 1, 0).refused() == "dir root/a: Invalid argument"


def test_missing_parents_belong_to_the_owner_above(root: Factory) -> None:
    launch = root().staged().op("dir", "root/home", "750", BASE + 7, BASE + 8)
    launch.op("dir", "root/home/a/b", "700", BASE + 1, BASE + 1)
    launch.op("file", "root/home/c/d/f", "600", BASE + 2, BASE + 2, "")
    launch.op("symlink", "f", "root/home/c/d/l", "symlink", "f", "root/home/e/l")
    assert sorted(listing(launch.userns(), "root/home")) == [
        "a 755 7 8",
        "a/b 700 1 1",
        "c 755 7 8",
        "c/d 755 7 8",
        "c/d/f 600 2 2",
        "c/d/l 777 7 8",
        "e 755 7 8",
        "e/l 777 7 8",
    ]


def test_an_existing_directory_is_given_away_with_its_contents_untouched(root: Factory) -> None:
    launch = root().staged().op("file", "root/a/f", "600", BASE + 1, BASE + 1, "")
    launch.op("dir", "root/a", "700", BASE + 2, BASE)
    assert sorted(listing(launch.userns())) == ["a 700 2 0", "a/f 600 1 1"]


def test_odd_names(either: Factory) -> None:
    launch = either().staged()
    for name in ODD_NAMES:
        launch.op("dir", b"root/" + name, "755", launch.root, launch.root)
        launch.op("file", b"root/" + name + b"/" + name, "644", launch.root, launch.root, name)
        launch.op("symlink", name, b"root/link" + name[:200])
    result = launch.userns().sh(
        "cd root; find . -type d -printf '%P\\0'; find . -type f -printf '%P\\0' -exec cat {} \\; -printf '\\0';"
        "find . -type l -printf '%P\\0%l\\0'"
    )
    words = [b"", *ODD_NAMES]
    expected = sorted(words)
    for name in ODD_NAMES:
        expected += [name + b"/" + name, name, b"link" + name[:200], name]
    assert sorted(result.out.split(b"\0")[:-1]) == sorted(expected)


def test_large_and_odd_contents(either: Factory) -> None:
    text = b"\xff:,+%=\\\n" * 14000
    launch = either().staged()
    launch.op("file", "root/f", "644", launch.root, launch.root, text)
    assert launch.userns().sh("cat root/f").out == text


def test_a_file_is_never_replaced(either: Factory) -> None:
    launch = either().staged()
    for name in ("root/f", "root/f"):
        launch.op("file", name, "644", launch.root, launch.root, "x")
    assert launch.userns().refused() == "file root/f: File exists"


def test_links_are_not_followed(either: Factory, scratch: Path) -> None:
    outside = scratch / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    for op in (
        ["dir", "root/link/new", "755", "ID", "ID"],
        ["dir", "root/link", "700", "ID", "ID"],
        ["file", "root/link/new", "644", "ID", "ID", ""],
        ["symlink", "x", "root/link/new"],
        ["layer", "root/link", "4096", "10"],
        ["layer", "root/link/new", "4096", "10"],
        ["tree", "FD", "root/link", "ro"],
        ["overlay", "root/link", "root", "root", "root", "userxattr"],
    ):
        launch = either().staged().op("symlink", str(outside), "root/link")
        put = {"ID": str(launch.root), "FD": launch.fd("/usr")}
        assert launch.op(*(put.get(word, word) for word in op)).userns().refused().endswith("Not a directory")
    launch = either().staged().op("symlink", "../../etc", "root/link")
    launch.op("file", "root/link", "644", launch.root, launch.root, "")
    assert launch.userns().refused() == "file root/link: File exists"
    assert list(outside.iterdir()) == []
    assert outside.stat().st_mode & 0o7777 == 0o777


@pytest.mark.parametrize(
    "op",
    [
        ["dir", "root/tree/new", "755", "ID", "ID"],
        ["dir", "root/tree/old/new", "755", "ID", "ID"],
        ["dir", "root/tree", "700", "ID", "ID"],
        ["dir", "root/tree/old", "700", "ID", "ID"],
        ["file", "root/tree/new", "644", "ID", "ID", ""],
        ["file", "root/tree/new/f", "644", "ID", "ID", ""],
        ["symlink", "x", "root/tree/new"],
        ["layer", "root/tree/new", "4096", "10"],
        ["tree", "FD", "root/tree/new", "ro"],
        ["tree", "FILE", "root/tree/new", "ro"],
    ],
    ids=" ".join,
)
def test_nothing_is_created_in_a_host_tree(either: Factory, scratch: Path, op: list[str]) -> None:
    tree = scratch / "tree"
    (tree / "old").mkdir(parents=True)
    for path in (tree, tree / "old"):
        path.chmod(0o777)
    before = sorted((str(path), path.stat().st_mode, path.stat().st_uid) for path in tree.rglob("*"))
    launch = either().staged()
    launch.op("tree", launch.fd(tree), "root/tree", "rw")
    put = {"ID": str(launch.root), "FD": launch.fd("/usr"), "FILE": launch.fd("/usr/bin/env")}
    refusal = launch.op(*(put.get(word, word) for word in op)).userns().refused()
    assert refusal.endswith("lies in an attached tree: nothing is created there")
    assert before == sorted((str(path), path.stat().st_mode, path.stat().st_uid) for path in tree.rglob("*"))


def test_the_host_sees_none_of_it(either: Factory, scratch: Path) -> None:
    launch = either().staged().op("file", "root/f", "644", either().root, either().root, "x").userns()
    assert launch.sh(f"cat {scratch}/stage/root/f").text == "x"
    assert list((scratch / "stage").iterdir()) == []
    assert os.listdir(scratch) == ["stage"]
