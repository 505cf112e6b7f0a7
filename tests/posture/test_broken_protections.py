"""A protection that is not really there stops the launch and is named: each is broken on purpose, for real."""

from collections.abc import Callable
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.isolate.bubblewrap import Bubblewrap
from atoll.isolate.driver import Launch, Resources
from atoll.model.errors import AtollError, PolicyUnenforceableError, ProvisionError
from atoll.model.plan import LaunchPlan
from atoll.model.protection import Protection
from atoll.teardown.state import SANDBOXES, state_dir

Edit = Callable[[list[str]], list[str]]


def without(*words: str) -> Edit:
    """Leave `words` out of the argv."""
    return lambda argv: [word for word in argv if word not in words]


def without_op(name: str, count: int) -> Edit:
    """Leave every operation `name` with its `count` words out."""

    def edit(argv: list[str]) -> list[str]:
        kept, index = [], 0
        while index < len(argv):
            if argv[index] == name:
                index += count + 1
            else:
                kept.append(argv[index])
                index += 1
        return kept

    return edit


def replaced(old: list[str], new: list[str]) -> Edit:
    """Replace a run of words."""

    def edit(argv: list[str]) -> list[str]:
        for index in range(len(argv)):
            if argv[index : index + len(old)] == old:
                return argv[:index] + new + argv[index + len(old) :]
        raise AssertionError(f"{old} is not in the argv")

    return edit


@pytest.fixture
def break_launch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Edit], None]:
    """Make every launch run an edited argv."""

    def install(edit: Edit) -> None:
        original = Bubblewrap.launch

        def launch(self: Bubblewrap, plan: LaunchPlan, resources: Resources) -> Launch:
            made = original(self, plan, resources)
            made.argv = edit(made.argv)
            return made

        monkeypatch.setattr(Bubblewrap, "launch", launch)

    return install


def nothing_left(before: set[str]) -> None:
    """No directory of a sandbox came to stay."""
    assert {path.name for path in (state_dir() / SANDBOXES).iterdir()} <= before


BROKEN = {
    Protection.NET_NAMESPACE: without("--unshare-net"),
    Protection.PID_NAMESPACE: without("--unshare-pid", "--as-pid-1"),
    Protection.CAPABILITIES_DROPPED: replaced(["--keep-caps", "800000fb"], []),
    Protection.SECCOMP: without("--seccomp"),
    Protection.CGROUP_MEMORY: without_op("write", 2),
    Protection.DISK_QUOTA: replaced(["layer", "layer", str(128 << 20)], ["layer", "layer", str(256 << 20)]),
}


@pytest.mark.parametrize("protection", BROKEN, ids=str)
def test_a_broken_protection_is_named(protection: Protection, break_launch: Callable[[Edit], None]) -> None:
    before = {path.name for path in (state_dir() / SANDBOXES).iterdir()}
    break_launch(BROKEN[protection])
    with pytest.raises(AtollError) as caught:
        Sandbox.create()
    if protection in {Protection.PID_NAMESPACE, Protection.SECCOMP}:
        # These words cannot be left out without bubblewrap or the agent refusing to start at all.
        assert isinstance(caught.value, PolicyUnenforceableError | ProvisionError)
    else:
        assert isinstance(caught.value, PolicyUnenforceableError)
        assert caught.value.details["protection"] == str(protection)
    nothing_left(before)


def test_a_writable_host_tree_is_named(break_launch: Callable[[Edit], None]) -> None:
    def edit(argv: list[str]) -> list[str]:
        index = argv.index("layer/root/usr", argv.index("tree"))
        return [*argv[: index + 1], "rw", *argv[index + 2 :]]

    break_launch(edit)
    with pytest.raises(PolicyUnenforceableError, match="read_only_root"):
        Sandbox.create()
    assert not Path("/usr/pwned").exists()


def test_the_launcher_never_lets_kernel_uid_0_through(break_launch: Callable[[Edit], None]) -> None:
    break_launch(without_op("userns", 2))
    with pytest.raises(AtollError, match="kernel uid 0"):
        Sandbox.create()
