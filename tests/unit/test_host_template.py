"""The template `host`: what it shows of the host, and above all what it does not."""

import itertools
import os
import re
import stat
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from atoll.model.errors import NotFoundError, ProvisionError
from atoll.model.template import Tree
from atoll.provision import host, resolve_template

TEMPLATE = host.host_template()
SOURCES = {tree.source for tree in TEMPLATE.rootfs.trees}
SECRET = re.compile(
    r"shadow|gshadow|/ssh|sudoers|environment|profile|hostname|hosts|machine-id|krb5|ldap|private|"
    r"NetworkManager|wpa_supplicant|cron|docker|kubernetes|letsencrypt|fstab|crypttab|netrc|apt/|passwd|group$|pam"
)


def test_the_name_of_the_template():
    assert resolve_template("host") == TEMPLATE
    for name in ("", "Host", "host ", "python", "../host", None, 5):
        with pytest.raises(NotFoundError) as raised:
            resolve_template(name)
        assert repr(name) in str(raised.value)
        assert raised.value.hint == "the only template is `host`"


# --- what is shown of the host ---------------------------------------------------------------------------------------


def test_only_usr_its_links_and_parts_of_etc_are_shown():
    allowed = {"/usr", *(f"/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"))}
    assert {source for source in SOURCES if not source.startswith("/etc/")} <= allowed
    assert "/usr" in SOURCES
    assert "/etc" not in SOURCES
    for tree in TEMPLATE.rootfs.trees:
        assert tree.source == tree.target
        assert PurePosixPath(tree.source).is_absolute()
        assert ".." not in PurePosixPath(tree.source).parts


def test_nothing_of_etc_that_may_hold_secrets_or_users_is_shown():
    assert [source for source in SOURCES if SECRET.search(source)] == []


def test_every_source_exists_is_no_link_and_is_readable_by_all():
    for source in SOURCES:
        found = os.lstat(source)
        assert stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode), source
        assert found.st_mode & 0o004, source


def sources_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the template would show of an /etc that is `directory`."""
    real_lstat, real_listdir = os.lstat, os.listdir
    here = {"/etc": str(directory)}
    monkeypatch.setattr(os, "lstat", lambda path: real_lstat(path.replace("/etc", here["/etc"], 1)))
    monkeypatch.setattr(os, "listdir", lambda path: real_listdir(here.get(path, path)))
    return host._etc_sources()


def test_what_root_keeps_to_itself_or_links_elsewhere_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, mode in {"fonts": 0o755, "alternatives": 0o750, "ld.so.conf.d": 0o701, "java-17-x": 0o755}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    for name, mode in {"services": 0o644, "protocols": 0o640, "ld.so.cache": 0o600}.items():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    (tmp_path / "shadow").touch()
    (tmp_path / "mime.types").symlink_to("shadow")
    (tmp_path / "ld.so.conf").symlink_to("/missing")
    os.mkfifo(tmp_path / "java-fifo")
    (tmp_path / "java-link").symlink_to("/root")
    (tmp_path / "ssl" / "certs").mkdir(parents=True)
    (tmp_path / "ssl" / "private").mkdir()
    found = sources_in(tmp_path, monkeypatch)
    assert sorted(found) == ["/etc/fonts", "/etc/java-17-x", "/etc/services", "/etc/ssl/certs"]


def test_an_empty_etc_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert sources_in(tmp_path, monkeypatch) == []


def test_a_host_without_a_shell(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda path, _mode: path != "/bin/sh")
    with pytest.raises(ProvisionError, match="template host: /bin/sh is missing") as raised:
        host.host_template()
    assert raised.value.hint


# --- what is made up -------------------------------------------------------------------------------------------------


def text_of(path: str) -> str:
    [text] = [file.text for file in TEMPLATE.rootfs.files if file.path == path]
    return text


def test_the_users_inside_are_not_those_of_the_host():
    passwd = [line.split(":") for line in text_of("/etc/passwd").splitlines()]
    assert [(line[0], line[1], line[2]) for line in passwd] == [
        ("root", "x", "0"),
        ("user", "x", "1000"),
        ("nobody", "x", "65534"),
    ]
    assert all(len(line) == 7 for line in passwd)
    groups = [line.split(":") for line in text_of("/etc/group").splitlines()]
    assert {line[0] for line in groups} == {"root", "tty", "user", "nogroup"}
    for user in TEMPLATE.users:
        [entry] = [line for line in passwd if line[0] == user.name]
        assert entry[2:] == [str(user.uid), str(user.gid), entry[4], user.home, user.shell]
    assert TEMPLATE.user == "user"


def test_no_made_up_file_holds_host_facts():
    host_name = os.uname().nodename
    for file in TEMPLATE.rootfs.files:
        assert host_name not in file.text
        assert not any(char in file.path for char in "\0\n")
        assert file.mode & 0o222 in {0, 0o200}
    assert text_of("/etc/resolv.conf") == ""


def test_a_login_shell_takes_the_profile():
    script = text_of("/etc/profile") + '\necho "$PATH"; umask'
    for given, expected in (({}, host.PATH), ({"PATH": "/mine"}, "/mine")):
        out = subprocess.run(["/bin/sh", "-c", f"unset PATH\n{script}" if not given else script], env=given,
                             capture_output=True, text=True, check=True).stdout  # fmt: skip
        assert out.splitlines() == [expected, "0022"]


def test_no_host_variable_is_in_the_environment():
    assert TEMPLATE.env == {"PATH": host.PATH, "LANG": "C.UTF-8", "TERM": "dumb"}


# --- that it can be built --------------------------------------------------------------------------------------------


def test_every_parent_is_made_before_its_children():
    made = {"/"}
    for directory in TEMPLATE.rootfs.directories:
        assert str(PurePosixPath(directory.path).parent) in made, directory.path
        made.add(directory.path)
    parts = (TEMPLATE.rootfs.files, TEMPLATE.rootfs.symlinks)
    paths = [part.path for part in itertools.chain(*parts)] + [tree.target for tree in TEMPLATE.rootfs.trees]
    for path in paths:
        assert str(PurePosixPath(path).parent) in made, path
    targets = [path for path in paths if path != "/usr"]
    assert len(set(targets)) == len(targets)
    assert not made & set(targets)


def test_who_owns_what():
    modes = {directory.path: (directory.mode, directory.uid) for directory in TEMPLATE.rootfs.directories}
    assert modes["/tmp"] == modes["/var/tmp"] == (0o1777, 0)
    assert modes["/root"] == (0o700, 0)
    assert modes["/home/user"] == modes["/workspace"] == (0o755, 1000)
    writable = {path for path, (mode, uid) in modes.items() if uid != 0 or mode & 0o022}
    assert writable == {"/tmp", "/var/tmp", "/home/user", "/workspace"}


@pytest.mark.parametrize("name", ["bin", "sbin", "lib", "lib64"])
def test_the_top_directories_lead_where_they_do_on_the_host(name: str):
    top = Path("/") / name
    links = {link.path: link.target for link in TEMPLATE.rootfs.symlinks}
    if top.is_symlink():
        assert links[str(top)] == f"usr/{name}"
    elif top.is_dir():
        assert Tree(source=str(top), target=str(top)) in TEMPLATE.rootfs.trees


def test_the_digest_stands_for_the_contents():
    assert host.host_template().digest == TEMPLATE.digest
    assert re.fullmatch(r"[0-9a-f]{64}", TEMPLATE.digest)


def test_the_digest_changes_with_the_contents(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host, "_PROFILE", "umask 077\n")
    assert host.host_template().digest != TEMPLATE.digest
