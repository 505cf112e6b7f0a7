"""Threat: the host's environment variables leak in. Wall: everything is spawned with an empty environment."""

import os
from pathlib import Path

import pytest

from atoll import Sandbox
from tests.escape.attack import attack
from tests.sandboxes import Make


def test_no_variable_of_the_host_is_inside(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CANARY_TOKEN", "ghp_canary")
    sandbox: Sandbox = make()
    facts = attack(sandbox, "report(mine=dict(os.environ), agent=read('/proc/1/environ'))", user="root")
    assert "ghp_canary" not in str(facts)
    assert set(facts["mine"]) <= {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "LC_CTYPE"}
    agent = sandbox._aio._running._guest.agent_pid
    assert b"canary" not in Path(f"/proc/{agent}/environ").read_bytes()
    assert os.environ["ATOLL_CANARY_TOKEN"] == "ghp_canary"
