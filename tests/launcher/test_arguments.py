"""What the launcher refuses before it does anything: every case costs nothing but an error line."""

import os
from pathlib import Path

import pytest

from tests.launcher.conftest import Factory
from tests.launcher.rig import BASE, RANGE

RANGE_ERROR = "not a number in range"
NAME_ERROR = "not a relative name without . and .."


def test_root_without_a_user_namespace_is_refused(root: Factory) -> None:
    assert root().refused() == "refused: would run as kernel uid 0"


def test_root_with_every_other_op_is_still_refused(root: Factory) -> None:
    assert root().staged().refused() == "refused: would run as kernel uid 0"


def test_root_cannot_pass_as_an_ordinary_user(root: Factory) -> None:
    assert root().op("userns-self").refused() == "userns-self: would run as kernel uid 0"


def test_an_ordinary_user_needs_no_namespace_to_stay_one(rootless: Factory) -> None:
    assert rootless().sh("id -u").text == "12345\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["chroot", "/"], "unknown op chroot: see launcher/README.md"),
        (["\n\x1b[2J"], r"unknown op \x0a\x1b[2J: see launcher/README.md"),
        ([b"\xff\\"], r"unknown op \xff\x5c: see launcher/README.md"),
        (["userns", "65535", "65536"], f"userns 65535: {RANGE_ERROR}"),
        (["userns", "0", "65536"], f"userns 0: {RANGE_ERROR}"),
        (["userns", "4294967295", "1"], f"userns 4294967295: {RANGE_ERROR}"),
        (["userns", "4294967294", "2"], f"userns 4294967294: {RANGE_ERROR}"),
        (["userns", "65536", "0"], f"userns 65536: {RANGE_ERROR}"),
        (["userns", "-65536", "1"], f"userns -65536: {RANGE_ERROR}"),
        (["userns", "0x20000", "1"], f"userns 0x20000: {RANGE_ERROR}"),
        (["userns", "18446744073709617152", "1"], f"userns 18446744073709617152: {RANGE_ERROR}"),
        (["userns", " 65536", "1"], f"userns  65536: {RANGE_ERROR}"),
        (["userns", "", "1"], "userns : empty number"),
        (["userns", str(BASE), "1", "userns", str(BASE), "1"], f"userns {BASE}: more than once"),
        (["userns", str(BASE), "1", "userns-self"], "userns-self: more than once"),
        (["stage", "mnt"], "stage mnt: not an absolute path"),
        (["stage", "/mnt", "stage", "/mnt"], "stage /mnt: more than once"),
        (["write", "0", "x"], f"write 0: {RANGE_ERROR}"),
        (["write", "2", "x"], f"write 2: {RANGE_ERROR}"),
        (["write", "77", "x"], "write 77: Bad file descriptor"),
        (["keep", "77", "5"], "keep 77: Bad file descriptor"),
        (["cpus", ""], "cpus : empty number"),
        (["cpus", "0,"], "cpus 0,: empty number"),
        (["cpus", "0-1"], f"cpus 0-1: {RANGE_ERROR}"),
        (["cpus", "8192"], f"cpus 8192: {RANGE_ERROR}"),
        (["cpus", "00000000"], "cpus 00000000: not a processor number"),
        (["layer", "a", "1", "1"], "layer a: needs `stage` before it"),
        (["dir", "a", "755", "0", "0"], "dir a: needs `stage` before it"),
        (["symlink", "b", "a"], "symlink a: needs `stage` before it"),
        (["stage", "/mnt", "layer", "a", "0", "1"], f"layer a: {RANGE_ERROR}"),
        (["stage", "/mnt", "layer", "a", "1", "0"], f"layer a: {RANGE_ERROR}"),
        (["stage", "/mnt", "layer", "a", "1m", "1"], f"layer a: {RANGE_ERROR}"),
        (["stage", "/mnt", "layer", "a", "9223372036854775808", "1"], f"layer a: {RANGE_ERROR}"),
        (["stage", "/mnt", "dir", "a", "4755", "0", "0"], "dir a: mode above 1777"),
        (["stage", "/mnt", "dir", "a", "7558", "0", "0"], "dir a: mode is not octal"),
        (["stage", "/mnt", "dir", "a", "", "0", "0"], "dir a: mode is not octal"),
        (["stage", "/mnt", "dir", "a", "000755", "0", "0"], "dir a: mode is not octal"),
        (["stage", "/mnt", "dir", "a", "755", "4294967295", "0"], f"dir a: {RANGE_ERROR}"),
        (["stage", "/mnt", "dir", "a", "755", "0", "4294967295"], f"dir a: {RANGE_ERROR}"),
        (["stage", "/mnt", "file", "a", "755", "", "0", ""], "file a: empty number"),
    ],
    ids=lambda value: " ".join(map(repr, value)) if isinstance(value, list) else "",
)
def test_wrong_words(root: Factory, words: list[str | bytes], error: str) -> None:
    assert root().op(*words).refused() == error


@pytest.mark.parametrize(
    "name", ["", "/", "/a", ".", "..", "a/..", "../a", "a/../b", "a/./b", "./a", "a//b", "a/", "/..", "a/b/.."]
)
def test_names_that_could_lead_elsewhere(root: Factory, name: str) -> None:
    for op in (["dir", name, "755", "0", "0"], ["file", name, "644", "0", "0", ""], ["layer", name, "1", "1"]):
        assert root().op("stage", "/mnt", *op).refused() == f"{op[0]} {name}: {NAME_ERROR}"
    assert root().op("stage", "/mnt", "symlink", "x", name).refused() == f"symlink {name}: {NAME_ERROR}"
    launch = root()
    tree = launch.fd("/usr")
    assert launch.op("stage", "/mnt", "tree", tree, name, "ro").refused() == f"tree {name}: {NAME_ERROR}"
    for place in range(1, 5):
        names = ["a", "a", "a", "a"]
        names[place - 1] = name
        assert NAME_ERROR in root().op("stage", "/mnt", "overlay", *names, "userxattr").refused()


def test_names_that_are_too_long(root: Factory) -> None:
    for name in ("n" * 256, "n/" * 2048 + "n"):
        assert root().op("stage", "/mnt", "dir", name, "755", "0", "0").refused().endswith("File name too long")


@pytest.mark.parametrize("name", [":", ",", "\\", "a,upperdir=b", "a b", "é", "a.b", "%41"])
def test_overlay_takes_only_plain_names_into_its_options(root: Factory, name: str) -> None:
    for place in range(1, 4):
        names = ["a", "a", "a", "a"]
        names[place] = name
        refusal = root().op("stage", "/mnt", "overlay", *names, "userxattr").refused()
        assert refusal == "overlay a: lower, upper and work are made of A-Z a-z 0-9 _ / - only"


def test_words_with_a_fixed_choice(root: Factory) -> None:
    launch = root()
    assert launch.op("stage", "/mnt", "tree", launch.fd("/usr"), "a", "RO").refused() == "tree a: neither ro nor rw"
    assert root().op("stage", "/mnt", "overlay", "a", "b", "c", "d", "").refused() == (
        "overlay a: neither userxattr nor trusted"
    )


@pytest.mark.parametrize("place", [2, 3])
def test_idtree_shows_nothing_as_a_low_host_id(root: Factory, place: int) -> None:
    launch = root()
    ids = ["0", "0", str(BASE), str(BASE)]
    ids[place] = "65535"
    assert launch.op("stage", "/mnt", "idtree", launch.fd("/usr"), "a", "ro", *ids).refused() == (
        f"idtree a: {RANGE_ERROR}"
    )


def test_a_kept_number_is_given_once(root: Factory) -> None:
    launch = root()
    fd = launch.fd("/usr")
    assert launch.op("keep", fd, 9, "keep", fd, 9).refused() == f"keep {fd}: number given twice"
    for number in (0, 2, 256):
        launch = root()
        fd = launch.fd("/usr")
        assert launch.op("keep", fd, number).refused() == f"keep {fd}: {RANGE_ERROR}"


def test_the_program_is_a_path_or_a_fd(root: Factory) -> None:
    for program, error in {
        "sh": "exec sh: neither an absolute path nor fd:N",
        "": "exec : neither an absolute path nor fd:N",
        "fd:": "exec fd:: empty number",
        "fd:0": f"exec fd:0: {RANGE_ERROR}",
        "fd:77": "exec fd:77: Bad file descriptor",
    }.items():
        assert root().op("userns", BASE, RANGE).refused(program) == error


def test_a_program_is_needed(root: Factory) -> None:
    for words in ([], ["--"]):
        result = root().op("userns", BASE, RANGE, *words).run()
        assert (result.code, result.err) == (125, "atoll-launch: argv: no program after --\n")


def test_an_op_takes_its_words_whatever_they_are(root: Factory) -> None:
    assert root().op("userns", BASE, RANGE, "symlink", "--").run().err == "atoll-launch: symlink: words missing\n"
    launch = root().staged().op("symlink", "--", "root/dir", "file", "root/f", "644", BASE, BASE, "--").userns()
    assert launch.sh("readlink root/dir; cat root/f").text == "--\n--"


def test_more_ops_than_fit(root: Factory) -> None:
    assert root().op(*["cgroupns"] * 513).refused() == "argv: Argument list too long"


def test_nothing_is_done_before_all_words_are_read(root: Factory, scratch: Path) -> None:
    launch = root()
    reading, writing = os.pipe()
    try:
        launch.op("write", launch.adopt(writing), "done", "userns", BASE, 0).refused()
        assert os.read(reading, 10) == b""
    finally:
        os.close(reading)


def test_closed_stdio(root: Factory) -> None:
    launch = root().op("userns", BASE, RANGE)
    result = launch.run("/bin/echo", "started", before=("/bin/sh", "-c", 'exec "$@" <&-', "sh"))
    assert (result.code, result.out, result.err) == (125, b"", "atoll-launch: stdio: Bad file descriptor\n")
