"""Something else in the place of the agent: the start fails with the true reason and nothing stays."""

import os
from pathlib import Path

import pytest

from atoll import stages
from atoll.isolate.driver import Launch, Resources
from atoll.model.errors import (
    AtollError,
    DriverUnavailableError,
    GuestProtocolError,
    PolicyUnenforceableError,
    ProvisionError,
)
from atoll.model.names import new_id
from atoll.model.plan import LaunchPlan, SandboxSpec
from atoll.model.protection import Protection
from atoll.plan import compile_plan
from tests.hostile.rig import play
from tests.unit import guest_frames as frames
from tests.unit.test_plan import FULL, TEMPLATE


class Scripted:
    """A driver whose sandbox is a shell script on the host."""

    name = "scripted"
    level = "process"
    kept_capabilities = 0

    def __init__(self, script: str) -> None:
        self.script = script
        self.launches: list[Launch] = []

    def launch(self, _plan: LaunchPlan, _resources: Resources) -> Launch:
        launch = Launch()
        launch.argv += ["/bin/sh", "-c", self.script]
        launch.open_path("/")
        self.launches.append(launch)
        return launch


def say(*spoken: bytes) -> str:
    return "printf '" + "".join(f"\\{byte:03o}" for byte in b"".join(spoken)) + "'"


CHILD = "sleep 100 &"
"""Is taken for the agent, and killed."""

CASES: dict[str, tuple[str, type[AtollError], str]] = {
    "silence": ("exec sleep 100", ProvisionError, "did not answer within 0.2 s"),
    "a closed channel": ("exec >&-; exec sleep 100", ProvisionError, "did not start: no message"),
    "an exit": ("exit 3", ProvisionError, "did not start: no message"),
    "an exit with words": ("echo the reason >&2; exit 1", ProvisionError, "did not start: the reason"),
    "a refusal of the kernel": (
        "echo bwrap: setting up uid map: Permission denied >&2; exit 1",
        DriverUnavailableError,
        "restricted for unprivileged",
    ),
    "words and silence": ("echo still trying >&2; exec sleep 100", ProvisionError, "did not answer within 0.2 s"),
    "another protocol": ("echo HTTP/1.1 200 OK; exec sleep 100", GuestProtocolError, "frame of"),
    "an agent of another release": (f"{say(frames.hello(version=2))}; exec sleep 100", GuestProtocolError, "version 2"),
    "half a HELLO": (f"{say(frames.hello()[:-1])}; exec sleep 100", ProvisionError, "did not answer within 0.2 s"),
    "a HELLO without bubblewrap": (f"{say(frames.hello())}; exec sleep 100", ProvisionError, "did not start"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_start_that_goes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    script, kind, words = CASES[name]
    refused(tmp_path, monkeypatch, script, kind, words)


@pytest.mark.parametrize("listener", [-1, 1, 2**31 - 1])
@pytest.mark.parametrize("without", [frozenset(), frozenset({Protection.SECCOMP})], ids=["all", "no seccomp"])
def test_an_agent_that_is_not_confined_is_refused_whatever_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: int, without: frozenset[Protection]
):
    script = f"{CHILD} {say(frames.hello(1, listener))}; wait"
    refused(tmp_path, monkeypatch, script, PolicyUnenforceableError, "is not in force", disable=without)


def refused(
    state: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: type[AtollError], words: str, **spec: object
) -> None:
    if "0.2 s" in words:
        monkeypatch.setattr(stages, "BOOT_TIMEOUT_S", 0.2)
    driver = Scripted(f"echo $$ > {state}/pid; {script}")
    plan = compile_plan(SandboxSpec(**spec), TEMPLATE, FULL, "abcdefgh")

    async def start() -> None:
        resources = Resources(uid_base=200_000, cgroup=None)
        async with (
            stages.open_journal(state, new_id()) as journal,
            stages.open_guest(driver, plan, resources, journal),
        ):
            raise AssertionError("it was let in")

    async def scenario() -> None:
        with pytest.raises(kind) as raised:
            await start()
        assert words in str(raised.value)

    play(scenario)
    assert not os.path.exists(f"/proc/{(state / 'pid').read_text().strip()}")
    assert [launch.fds for launch in driver.launches] == [[]]
    assert os.listdir(state / "sandboxes") == []
