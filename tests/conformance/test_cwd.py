"""S10 The directory a command starts in: any that its user may enter, else a typed error and not a shell's."""

from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.model.errors import InvalidSpecError
from tests.sandboxes import Make


def where(sandbox: Sandbox, cwd: str, user: str | None = None) -> str:
    """The directory as the kernel sees it, without the newline."""
    return sandbox.commands.run(["pwd", "-P"], cwd=cwd, user=user).stdout.removesuffix("\n")


def test_the_default_is_the_users_home(sandbox: Sandbox) -> None:
    assert sandbox.commands.run(["pwd", "-P"]).stdout == "/home/user\n"


@pytest.mark.as_root
def test_the_default_for_root_is_roots_home(sandbox: Sandbox) -> None:
    assert sandbox.commands.run(["pwd", "-P"], user="root").stdout == "/root\n"


def test_the_default_with_a_workspace_is_the_workspace(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert make(workspace=tmp_path).commands.run("pwd -P; ls").stdout == "/workspace\nfile\n"


@pytest.mark.parametrize(
    ("cwd", "real"),
    [
        ("/", "/"),
        ("//", "/"),
        ("/..", "/"),
        ("/tmp/..", "/"),
        ("/usr/../tmp/.", "/tmp"),
        ("/../../../../usr/lib", "/usr/lib"),
        ("/proc/self", "/proc/"),
        ("/dev/shm", "/dev/shm"),
        ("/bin", "/usr/bin"),
    ],
)
def test_s10_a_directory_is_resolved_inside(sandbox: Sandbox, cwd: str, real: str) -> None:
    found = where(sandbox, cwd)
    assert found == real or (cwd == "/proc/self" and found.startswith(real))


@pytest.mark.parametrize(
    "name", ["a b", "new\nline", "-dash", "'\"$HOME`id`", "é漢", "\udcff\udcfe", "%s{}", "x" * 255]
)
def test_s10_odd_names_are_taken_literally(sandbox: Sandbox, name: str) -> None:
    path = f"/tmp/{name}"
    assert sandbox.commands.run(["mkdir", path]).exit_code == 0
    assert sandbox.commands.run(["pwd", "-P"], cwd=path).stdout_bytes == path.encode("utf-8", "surrogateescape") + b"\n"


def test_s10_a_symbolic_link_to_a_directory_is_followed(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir /tmp/real; ln -s real /tmp/link; ln -s /tmp/link /tmp/link2; ln -s /proc/1/root /tmp/r")
    assert where(sandbox, "/tmp/link2") == "/tmp/real"
    assert sandbox.commands.run("pwd", cwd="/tmp/link").stdout == "/tmp/real\n"


@pytest.mark.parametrize(
    ("cwd", "problem"),
    [
        ("/no/such", "No such file or directory"),
        ("/etc/passwd", "Not a directory"),
        ("/etc/passwd/x", "Not a directory"),
        ("/tmp/loop", "Too many levels of symbolic links"),
        ("/tmp/dangling", "No such file or directory"),
        ("/" + "x" * 256, "File name too long"),
        ("/x" * 3000, "File name too long"),
    ],
)
def test_s10_what_cannot_be_entered_is_a_typed_error(sandbox: Sandbox, cwd: str, problem: str) -> None:
    sandbox.commands.run("ln -s loop /tmp/loop; ln -s nowhere /tmp/dangling")
    with pytest.raises(InvalidSpecError, match=rf"^cwd: cannot be entered .{problem}") as caught:
        sandbox.commands.run(["true"], cwd=cwd)
    assert caught.value.field == "cwd"
    assert "create it first" in caught.value.hint
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


@pytest.mark.as_root
def test_s10_a_directory_the_user_may_not_enter_is_a_typed_error(sandbox: Sandbox) -> None:
    sandbox.commands.run(
        "mkdir -m 700 /tmp/closed; mkdir -m 711 /tmp/searchable; mkdir -m 744 /tmp/listable", user="root"
    )
    for cwd in ("/root", "/tmp/closed", "/tmp/listable"):
        with pytest.raises(InvalidSpecError, match=r"^cwd: cannot be entered .Permission denied"):
            sandbox.commands.run(["true"], cwd=cwd)
        assert sandbox.commands.run(["true"], cwd=cwd, user="root").exit_code == 0
    assert where(sandbox, "/tmp/searchable") == "/tmp/searchable"


def test_s10_an_unwritable_directory_can_be_worked_in(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("pwd; touch x; echo code $?", cwd="/usr/lib")
    assert result.stdout == "/usr/lib\ncode 1\n"
    assert "Read-only file system" in result.stderr


def test_s10_a_nul_is_a_typed_error(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidSpecError, match=r"^cwd: holds a NUL byte") as caught:
        sandbox.commands.run("pwd", cwd="/tmp\0/x")
    assert caught.value.field == "cwd"


def test_s10_a_cwd_that_is_no_string_is_a_typed_error(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidSpecError, match=r"^cwd: not a string, got 5"):
        sandbox.commands.run("pwd", cwd=5)  # type: ignore[arg-type]


def test_a_directory_that_was_removed_under_a_command_is_its_own_problem(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone; ls; echo code $?")
    assert result.stdout == "code 0\n"
    assert where(sandbox, "/tmp") == "/tmp"


@pytest.mark.parametrize("cwd", ["src", "./src", "../etc", "~", "-"])
def test_s10_a_relative_cwd_is_a_typed_error(sandbox: Sandbox, cwd: str) -> None:
    """There is nothing that it could be relative to."""
    with pytest.raises(InvalidSpecError, match=r"^cwd: not absolute, got .*start it with /"):
        sandbox.commands.run("pwd", cwd=cwd)
