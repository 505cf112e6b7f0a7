"""The whole way: launcher, bubblewrap, a shell as the payload; and what the host looks like afterwards."""

import os
import shutil
from pathlib import Path

import pytest

from tests.launcher.conftest import Factory
from tests.launcher.rig import BASE, RANGE, USER, Launch, Result, facts

BWRAP = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETFCAP", "SETGID", "SETUID"]

pytestmark = pytest.mark.skipif(BWRAP is None, reason="bubblewrap is not installed")


@pytest.fixture
def project(idmappable: None, scratch: Path) -> Path:
    path = scratch / "project"
    path.mkdir()
    (path / "file").write_text("host\n")
    for each in (path, path / "file"):
        os.chown(each, USER, USER)
    return path


def sandbox(launch: Launch, project: Path) -> Launch:
    """The ops of a sandbox as Atoll's driver writes them: layer, trees, users, a workspace shown copy-on-write."""
    owner = launch.root if launch.user else BASE + 1000
    launch.staged()
    for name in ("root/etc", "root/proc", "root/dev", "root/usr", "root/workspace"):
        launch.op("dir", name, "755", launch.root, launch.root)
    launch.op("dir", "root/tmp", "1777", launch.root, launch.root)
    for name in ("upper", "inner"):
        launch.op("dir", f"root/{name}", "755", owner, owner)
    launch.op("file", "root/etc/passwd", "644", launch.root, launch.root, "user:x:1000:1000::/:/bin/sh\n")
    for name in ("bin", "lib", "lib64", "sbin"):
        launch.op("symlink", f"usr/{name}", f"root/{name}")
    launch.op("tree", launch.fd("/usr"), "root/usr", "ro")
    if launch.user:
        launch.op("tree", launch.fd(project), "lower", "ro")
    else:
        launch.op("idtree", launch.fd(project), "lower", "ro", USER, USER, owner, owner)
    return launch.userns().op("overlay", "root/workspace", "lower", "root/upper", "root/inner", "userxattr")


def run(launch: Launch, script: str) -> Result:
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--die-with-parent", "--new-session"]
    options += ["--as-pid-1", "--cap-drop", "ALL"]
    if launch.user:
        options += ["--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"]
    else:
        options += [word for name in CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    options += ["--bind", f"{launch.stage}/root", "/", "--proc", "/proc", "--dev", "/dev", "--chdir", "/"]
    assert BWRAP is not None
    return launch.run(BWRAP, *options, "--", "/bin/sh", "-euc", script)


def test_who_and_where(either: Factory, project: Path) -> None:
    launch = sandbox(either(), project)
    script = "id -u; echo $$; cat /proc/self/uid_map; ls /proc/self/fd; ls /; grep CapEff /proc/self/status"
    result = run(launch, script)
    expected = ["0", "1", f"0 {BASE} {RANGE}"] if launch.user is None else ["1000", "1", "1000 0 1"]
    assert result.err == ""
    assert [" ".join(line.split()) for line in result.lines[:3]] == expected
    assert result.lines[3:7] == ["0", "1", "2", "3"]
    names = ["bin", "dev", "etc", "inner", "lib", "lib64", "proc", "sbin", "tmp", "upper", "usr", "workspace"]
    assert result.lines[7:-1] == names
    assert result.lines[-1].split()[1] == ("00000000800000fb" if launch.user is None else "0" * 16)


def test_no_mount_of_the_host_is_left_inside(either: Factory, project: Path) -> None:
    result = run(sandbox(either(), project), "cut -d' ' -f5 /proc/self/mountinfo")
    places = [place for place in result.lines if not place.startswith("/dev")]
    assert places == ["/", "/usr", "/workspace", "/proc"]


def test_the_workspace_is_copied_on_write(either: Factory, project: Path) -> None:
    script = "stat -c %u workspace/file; echo guest >> workspace/file; cat workspace/file"
    result = run(sandbox(either(), project), script)
    assert result.text == "1000\nhost\nguest\n"
    assert (project / "file").read_text() == "host\n"


def test_the_layer_is_the_only_place_to_write(either: Factory, project: Path) -> None:
    script = "touch /usr/new 2>&1 || head -c 99m /dev/zero > /tmp/f 2>/dev/null || stat -c %s /tmp/f"
    result = run(sandbox(either(), project), script)
    assert result.lines[0] == "touch: cannot touch '/usr/new': Read-only file system"
    assert 0 < int(result.lines[1]) <= 1 << 24


def test_no_user_namespace_below(either: Factory, project: Path) -> None:
    result = run(sandbox(either(), project), "unshare -U true 2>&1 || :")
    assert result.text == "unshare: unshare failed: No space left on device\n"


def test_kept_fds_reach_the_program(either: Factory, project: Path) -> None:
    launch = sandbox(either(), project)
    launch.op("keep", launch.fd(project / "file", os.O_RDONLY), 9)
    assert run(launch, "cat <&9").text == "host\n"


def test_the_host_is_as_before(either: Factory, project: Path, scratch: Path) -> None:
    def picture() -> tuple[object, ...]:
        files = sorted(map(facts, scratch.rglob("*")))
        return Path("/proc/self/mountinfo").read_text(), files, sorted(os.listdir("/mnt")), os.listdir("/proc/self/fd")

    before = picture()
    assert run(sandbox(either(), project), "echo x > workspace/new; rm workspace/file").code == 0
    refused = sandbox(either(), project).op("dir", "root/usr/x", "755", 0, 0)
    assert refused.run("/bin/true").code == 125
    assert picture() == before
