"""Threat: the host's files and secrets are read. Wall: they are not in the mount namespace; host permissions stand."""

import os
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.teardown.state import state_dir
from tests.escape.attack import attack

TOKEN = "canary-of-the-host"


@pytest.mark.parametrize("directory", ["/root", "/home", "/var", "/opt", "/srv", "/mnt", "/tmp", "/run", "/etc"])
def test_a_canary_outside_usr_is_not_visible(sandbox: Sandbox, user: str, directory: str) -> None:
    canary = Path(directory, f"atoll-canary-{os.getpid()}")
    canary.write_text(TOKEN)
    canary.chmod(0o644)
    try:
        facts = attack(
            sandbox, f'report(seen=read("{canary}"), listed="{canary.name}" in os.listdir("{directory}"))', user="root"
        )
        assert facts == {"seen": "ENOENT", "listed": False}
    finally:
        canary.unlink()


def test_secrets_and_state_are_not_there(sandbox: Sandbox, user: str) -> None:
    names = ["/etc/shadow", "/etc/gshadow", "/etc/ssh", "/root/.ssh", "/etc/environment", "/etc/ssl/private"]
    names += [str(state_dir()), "/proc/1/environ"]
    facts = attack(sandbox, f'report(seen=[read(name) for name in {names!r}], twin=read("/etc/hostname"))', user=user)
    assert set(facts["seen"]) <= {"ENOENT", "EACCES", "EPERM"}
    assert facts["twin"].startswith("atoll-")
    passwd = sandbox.commands.run(["/bin/cat", "/etc/passwd"]).stdout
    assert [line.split(":")[0] for line in passwd.splitlines()] == ["root", "user", "nobody"]


def test_host_trees_are_never_idmapped(sandbox: Sandbox, user: str) -> None:
    """A root-owned 0600 file in the shown tree stays unreadable to guest root; its 0644 twin is readable."""
    directory = Path("/usr/local/etc")
    secret, public = directory / "atoll-secret", directory / "atoll-public"
    try:
        for path, mode in ((secret, 0o600), (public, 0o644)):
            path.write_text(TOKEN)
            path.chmod(mode)
        facts = attack(sandbox, f'report(secret=read("{secret}"), public=read("{public}"))', user=user)
        assert facts == {"secret": "EACCES", "public": TOKEN}
    finally:
        for path in (secret, public):
            path.unlink(missing_ok=True)
