"""What bubblewrap, the launcher and the agent say when a start fails, and what the user is told."""

import pytest

from atoll.isolate.failures import explain
from atoll.model.errors import DriverUnavailableError, ProvisionError

RESTRICTED = "restricted for unprivileged programs"
USED_UP = "limit of namespaces is used up"
CONTAINED = "may not make namespaces"

# The real words: bubblewrap 0.8 (bubblewrap.c), atoll-launch, Ubuntu 24.04 with AppArmor's restriction.
KNOWN = {
    "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted": RESTRICTED,
    "bwrap: setting up uid map: Permission denied": RESTRICTED,
    "bwrap: setting up uid map: Operation not permitted": RESTRICTED,
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user"
    " namespaces. See <https://deb.li/bubblewrap>.": RESTRICTED,
    "bwrap: No permissions to creating new namespace, likely because the kernel does not allow": RESTRICTED,
    "atoll-launch: userns-self: Operation not permitted": RESTRICTED,
    "atoll-launch: userns-self: Permission denied": RESTRICTED,
    "atoll-launch: userns 100000 65536: No space left on device": USED_UP,
    "atoll-launch: userns-self: No space left on device": USED_UP,
    "atoll-launch: stage /mnt: No space left on device": USED_UP,
    "atoll-launch: cgroupns: No space left on device": USED_UP,
    "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)": USED_UP,
    "bwrap: Creating new namespace failed: No space left on device": USED_UP,
    "bwrap: Creating new namespace failed: Resource temporarily unavailable": USED_UP,
    "atoll-launch: stage /mnt: Operation not permitted": CONTAINED,
    "atoll-launch: userns 100000 65536: Operation not permitted": CONTAINED,
    "atoll-launch: cgroupns: Operation not permitted": CONTAINED,
    "bwrap: Creating new namespace failed: Operation not permitted": CONTAINED,
}


@pytest.mark.parametrize("said", KNOWN, ids=lambda said: said[:70])
def test_known_causes_name_the_fix(said: str):
    error = explain(f"warning: something before\n{said}\n")
    assert isinstance(error, DriverUnavailableError)
    assert KNOWN[said] in error.message
    assert said in error.message
    assert any(word in error.hint for word in ("sysctl -w", "outside the container"))


@pytest.mark.parametrize(
    "said",
    [
        "bwrap: Can't find source path /x: No such file or directory",
        "bwrap: execvp /.atoll/agent: Permission denied",
        "atoll-launch: tree 7: Operation not permitted",
        "atoll-launch: write 5 0: No space left on device",
        "atoll-launch: overlay layer/root/workspace: Invalid argument",
        "atoll-launch: refused: would run as kernel uid 0",
        "atoll-agent: seccomp: Operation not permitted",
    ],
)
def test_other_failures_are_shown_as_they_are(said: str):
    error = explain(said)
    assert isinstance(error, ProvisionError)
    assert error.message == f"the sandbox did not start: {said}"
    assert error.hint == "run `atoll doctor`"


@pytest.mark.parametrize("said", ["", "\n", " \n\t\n"], ids=repr)
def test_silence_is_said_to_be_silence(said: str):
    assert str(explain(said)).startswith("the sandbox did not start: no message")


def test_causes_do_not_reach_over_lines():
    said = "atoll-launch: stage /mnt: done\nagent: Operation not permitted"
    assert isinstance(explain(said), ProvisionError)


def test_the_last_lines_are_shown_and_nothing_that_a_terminal_would_obey():
    said = "\n".join(f"line {number}" for number in range(10)) + "\n\x1b]0;owned\x07\r\u202etext\ufffd\n"
    message = explain(said).message
    assert message == "the sandbox did not start: line 8; line 9; ?]0;owned?; ?text\ufffd"
