"""Threat: overlay tricks change the host's workspace. Wall: copy-up only, user.overlay only, no redirect_dir, no metacopy."""

import hashlib
import os
import socket
from pathlib import Path

from tests.escape.attack import attack
from tests.sandboxes import Make


def picture(root: Path) -> dict[str, tuple[object, ...]]:
    """Every name with its type, mode, owner, times, link target and contents."""
    found = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        data = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
        target = os.readlink(path) if path.is_symlink() else ""
        names = tuple(os.listxattr(path, follow_symlinks=False))
        found[str(path)] = (
            info.st_mode,
            info.st_uid,
            info.st_mtime_ns,
            info.st_nlink,
            info.st_ino,
            target,
            data,
            names,
        )
    return found


def test_hostile_changes_never_reach_the_host(make: Make, tmp_path: Path, user: str) -> None:
    workspace, outside = tmp_path / "work", tmp_path / "outside"
    (workspace / "tree/deep").mkdir(parents=True)
    outside.mkdir()
    (outside / "canary").write_text("whole")
    for name in ("a", "b", "tree/c", "tree/deep/d"):
        (workspace / name).write_text(name)
    (workspace / "out").symlink_to(outside)
    (workspace / "absolute").symlink_to("/etc/passwd")
    os.link(workspace / "a", workspace / "hard")
    os.mkfifo(workspace / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(workspace / "socket"))
    before = picture(tmp_path)
    facts = attack(
        make(workspace=str(workspace)),
        """
        import shutil
        os.chdir("/workspace")
        done = {
            "write": write("a", b"changed"), "hard": write("hard", b"changed too"),
            "chmod": attempt(os.chmod, "b", 0o6777), "rename": attempt(os.rename, "tree/c", "moved"),
            "unlink": attempt(os.unlink, "tree/deep/d"), "tree": attempt(shutil.rmtree, "tree"),
            "again": attempt(os.mkdir, "tree"), "link": write("out/canary"), "passwd": write("absolute"),
            "opaque": attempt(os.setxattr, "tree", "trusted.overlay.opaque", b"y"),
            "redirect": attempt(os.setxattr, "tree", "trusted.overlay.redirect", b"/../outside"),
            "user_redirect": attempt(os.setxattr, "tree", "user.overlay.redirect", b"/../outside"),
            "whiteout": attempt(os.mknod, "white", 0o20000, 0),
        }
        report(done=done, listed=sorted(os.listdir(".")), emptied=os.listdir("tree"))
        """,
        user=user,
    )
    assert picture(tmp_path) == before
    assert facts["emptied"] == [], "a removed directory shows its old contents again"
    assert "white" not in facts["listed"] or facts["done"]["whiteout"] is None
    if user == "user":
        assert facts["done"]["write"] is None
        assert facts["done"]["tree"] is None
        assert facts["done"]["redirect"] in {"EPERM", "ENOTSUP", "EOPNOTSUPP"}
    assert facts["done"]["link"] == "ENOENT"


def test_the_mount_has_no_dangerous_option(make: Make, tmp_path: Path) -> None:
    mounts = make(workspace=str(tmp_path)).commands.run(["/bin/cat", "/proc/self/mounts"]).stdout
    row = next(line for line in mounts.splitlines() if " /workspace " in line)
    options = row.split()[3].split(",")
    assert row.startswith("overlay ")
    assert {"nosuid", "nodev"} <= set(options)
    assert "metacopy=on" not in options
    assert "redirect_dir=on" not in options
    assert str(tmp_path) not in row
