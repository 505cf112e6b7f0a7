"""Threat: a working directory in /proc/self/fd/N leads to the host (CVE-2024-21626). Wall: no descriptor leaks."""

import pytest

from atoll import Sandbox
from atoll.model.errors import AtollError
from tests.escape.attack import attack


@pytest.mark.parametrize("fd", [*range(3, 24), 100, 255])
def test_cwd_in_a_descriptor_is_refused(sandbox: Sandbox, fd: int) -> None:
    with pytest.raises(AtollError, match="cwd"):
        sandbox.commands.run(["/bin/ls", "-la", ".."], cwd=f"/proc/self/fd/{fd}")


def test_the_twin_works(sandbox: Sandbox) -> None:
    assert sandbox.commands.run(["/bin/pwd"], cwd="/proc/self").stdout.startswith("/proc/")
    facts = attack(sandbox, "report(up=sorted(os.listdir('/proc/self/cwd/../..')) == sorted(os.listdir('/')))")
    assert facts["up"] is True
