"""Threat: the agent on the host's disk is overwritten through /proc/1/exe (CVE-2019-5736). Wall: root-owned, read-only."""

import hashlib
from pathlib import Path

from atoll import Sandbox
from atoll.isolate.binaries import agent_path
from tests.escape.attack import attack


def test_the_agent_cannot_be_overwritten(sandbox: Sandbox, user: str) -> None:
    agent = Path(agent_path())
    before = hashlib.sha256(agent.read_bytes()).hexdigest()
    facts = attack(
        sandbox,
        """
        paths = ["/proc/1/exe", "/.atoll/agent", "/usr/bin/env"]
        opened = {path: attempt(os.open, path, os.O_WRONLY) for path in paths}
        modes = [attempt(os.chmod, "/.atoll/agent", 0o777), attempt(os.unlink, "/.atoll/agent"),
                 attempt(os.rename, "/.atoll/agent", "/tmp/agent")]
        report(opened=opened, modes=modes, twin=read("/.atoll/agent")[1:4])
        """,
        user=user,
    )
    assert facts["opened"]["/proc/1/exe"] in {"EACCES", "EPERM"}
    assert facts["opened"]["/.atoll/agent"] in {"EROFS", "ETXTBSY", "EACCES"}
    assert facts["opened"]["/usr/bin/env"] in {"EROFS", "EACCES"}
    assert facts["modes"][0] == "EROFS", "only its owner protects it"
    assert all(result in {"EROFS", "EPERM", "EBUSY", "EACCES", "EXDEV"} for result in facts["modes"])
    assert facts["twin"] == "ELF"
    assert hashlib.sha256(agent.read_bytes()).hexdigest() == before
