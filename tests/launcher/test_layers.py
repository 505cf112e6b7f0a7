"""Layers and overlays: size, copy-up, whiteouts; and that the lower tree never changes."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.conftest import Factory
from tests.launcher.rig import BASE, KERNEL, USER, Launch, facts


def test_a_layer_ends_at_its_bytes(either: Factory) -> None:
    launch = either().staged()
    launch.op("layer", "root/small", 1 << 20, 100, "dir", "root/small", "755", launch.root, launch.root)
    result = launch.userns().sh("head -c 9m /dev/zero > root/small/f 2>/dev/null || stat -c %s root/small/f")
    assert 0 < int(result.text) <= 1 << 20


def test_a_layer_ends_at_its_inodes(either: Factory) -> None:
    launch = either().staged()
    launch.op("layer", "root/small", 1 << 20, 10, "dir", "root/small", "755", launch.root, launch.root)
    result = launch.userns().sh("for n in $(seq 99); do touch root/small/$n || break; done 2>/dev/null; ls root/small")
    assert 0 < len(result.lines) <= 10


def test_a_file_that_does_not_fit(either: Factory) -> None:
    launch = either().staged().op("layer", "root/small", 4096, 10)
    launch.op("file", "root/small/f", "644", launch.root, launch.root, "x" * 9999)
    assert launch.userns().refused() == "file root/small/f: No space left on device"


def test_a_layer_has_no_devices_and_no_setuid(either: Factory) -> None:
    mounts = [line.split() for line in either().staged().userns().sh("cat /proc/self/mountinfo").lines]
    (stage,) = (mount for mount in mounts if mount[4].endswith("/stage"))
    (layer,) = (mount for mount in mounts if mount[4].endswith("/stage/root"))
    for mount in (stage, layer):
        assert set(mount[5].split(",")) >= {"nosuid", "nodev"}
    assert "size=16384k,nr_inodes=1000,mode=755" in layer[-1]


def test_after_userns_ids_are_those_of_the_namespace(root: Factory) -> None:
    launch = root().staged().userns().op("layer", "root/late", 4096, 10)
    launch.op("file", "root/late/f", "600", 7, 8, "")
    assert launch.sh("find root/late/f -printf '%m %U %G'").text == "600 7 8"


def test_a_stage_needs_a_directory_that_can_be_covered(root: Factory, scratch: Path) -> None:
    for stage, error in {"/": "cannot be mounted on", "/no/such": "No such file or directory"}.items():
        assert root().op("stage", stage).userns().refused() == f"stage {stage}: {error}"
    (scratch / "file").touch()
    assert root().op("stage", str(scratch / "file")).userns().refused().endswith("Not a directory")


Overlay = Callable[[], Launch]


@pytest.fixture(params=["root-userxattr", "root-trusted", "rootless"])
def overlay(request: pytest.FixtureRequest, root: Factory, rootless: Factory, project: Path) -> Overlay:
    """Launches with the project shown copy-on-write; its owner is uid 1000 (rootless: root) inside."""
    if request.param != "root-trusted" and KERNEL < (6, 6):
        pytest.skip("tmpfs has no user.* attributes before Linux 6.6, so an overlay cannot replace a directory on it")
    if request.param != "rootless":
        request.getfixturevalue("idmappable")

    def make() -> Launch:
        launch = rootless() if request.param == "rootless" else root()
        owner = launch.root if launch.user else BASE + 1000
        launch.staged()
        for name in ("root/upper", "root/inner"):
            launch.op("dir", name, "755", owner, owner)
        words = ["overlay", "root/a place: odd,\n", "lower", "root/upper", "root/inner"]
        if launch.user:
            launch.op("tree", launch.fd(project), "lower", "ro")
        else:
            launch.op("idtree", launch.fd(project), "lower", "ro", USER, USER, owner, owner)
        if request.param == "root-trusted":
            return launch.op(*words, "trusted").userns()
        return launch.userns().op(*words, "userxattr")

    return make


@pytest.fixture
def project(scratch: Path) -> Path:
    """A host directory of USER, with a file that belongs to somebody else."""
    path = scratch / "project"
    (path / "old" / "deep").mkdir(parents=True)
    for name in ("edited", "deleted", "old/inside", "old/deep/inside", "foreign"):
        (path / name).write_text(f"host's {name}")
    shutil.copymode("/usr/bin/env", path / "edited")
    for each in (path, *path.rglob("*")):
        os.chown(each, USER, USER)
    os.chown(path / "foreign", USER + 1, USER + 1)
    return path


def picture(path: Path) -> list[tuple[object, ...]]:
    """Everything of a tree that an overlay could have changed."""
    return sorted(
        (*facts(each), os.listxattr(each), each.read_bytes() if each.is_file() else b"")
        for each in (path, *path.rglob("*"))
    )


IN_OVERLAY = """
cd "root/a place: odd,
"
as=
[ $(stat -c %u .) = 0 ] || as="setpriv --reuid=1000 --regid=1000 --clear-groups"
"""


def test_copy_on_write(overlay: Overlay, project: Path) -> None:
    before = picture(project)
    result = overlay().sh(
        IN_OVERLAY + "$as sh -euc '"
        'echo -n " and mine" >> edited; rm deleted; : > new; '
        "rm -r old; mkdir old; echo -n fresh > old/fresh; "
        "mkdir dir; mv dir moved; mv edited renamed' > /dev/null; "
        "find . -mindepth 1 -printf '%P %m\\n' | sort; cat renamed old/fresh; echo; cat foreign; stat -c ' %u' foreign"
    )
    assert result.lines == [
        "foreign 644",
        "moved 755",
        "new 644",
        "old 755",
        "old/fresh 644",
        "renamed 755",
        "host's edited and minefresh",
        "host's foreign 65534",
    ]
    assert picture(project) == before


def test_a_directory_from_below_is_moved_by_copying(overlay: Overlay, project: Path) -> None:
    """redirect_dir is off: rename(2) of a lower directory is EXDEV, which mv(1) knows."""
    before = picture(project)
    rename = "import os; os.rename(b'old', b'new')"
    result = overlay().sh(f'{IN_OVERLAY} $as python3 -c "{rename}" 2>&1 | tail -1; $as mv old new; cat new/deep/inside')
    assert "Invalid cross-device link" in result.lines[0]
    assert result.lines[1] == "host's old/deep/inside"
    assert picture(project) == before


def test_somebody_elses_file_below_is_not_copied_up(overlay: Overlay, project: Path) -> None:
    before = picture(project)
    result = overlay().sh(IN_OVERLAY + "(echo x >> foreign) 2>&1 || $as sh -c 'echo x >> foreign' 2>&1 || cat foreign")
    assert result.lines[-1] == "host's foreign"
    assert "Permission denied" in result.text or "Value too large" in result.text
    assert picture(project) == before


def test_overlay_flags(overlay: Overlay) -> None:
    launch = overlay()
    (mount,) = (line.split() for line in launch.sh("cat /proc/self/mountinfo").lines if " - overlay " in line)
    assert mount[4].endswith(r"/root/a\040place:\040odd,\012")
    assert set(mount[5].split(",")) >= {"nosuid", "nodev"}
    settings = set(mount[-1].split(","))
    assert "redirect_dir=nofollow" in settings or not any(each.startswith("redirect_dir") for each in settings)
    assert not settings & {"metacopy=on", "redirect_dir=on", "index=on"}
    assert ("userxattr" in settings) == ("trusted" not in launch.words)


@pytest.mark.skipif(KERNEL < (6, 6), reason="tmpfs has no user.* attributes before Linux 6.6")
def test_a_cheating_upper_layer_is_not_believed(root: Factory) -> None:
    """The guest owns the upper directory's attributes; a forged redirect must not lead the overlay to another place."""
    launch = root().staged()
    for name in ("root/upper", "root/inner", "root/upper/sub", "lower/sub", "lower/secret"):
        launch.op("dir", name, "755", BASE, BASE)
    launch.op("file", "lower/secret/f", "644", BASE, BASE, "reached").userns()
    launch.op("overlay", "root/first", "lower", "root/upper", "root/inner", "userxattr")
    forge = "import os; os.setxattr('root/upper/sub', 'user.overlay.redirect', b'/secret')"
    result = launch.sh(f'python3 -c "{forge}"; ls root/first/sub 2>&1 || ls root/first/secret')
    assert result.lines == ["ls: cannot access 'root/first/sub': Operation not permitted", "f"]
