"""Limits, accounting and killing through the interface alone: the same for v1 and v2, root and user."""

import contextlib
import ctypes
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from atoll.kernel import cgroup, cgrouptree
from atoll.kernel.cgroup import CgroupRoot, SandboxCgroup
from atoll.kernel.cgroupfs import Place
from atoll.model.errors import InvalidSpecError, PolicyUnenforceableError, StateError, TeardownError
from atoll.model.limits import MIB, Limits
from atoll.model.protection import Protection
from tests.unit.kernel_support import (
    SMALL,
    beside_agent,
    child,
    enter_agent_leaf,
    fresh_name,
    in_leaf,
    join_directories,
    live_sandbox,
    require_cgroups,
    run_in_leaf,
    sleep_forever,
    wait_for,
)

PR_SET_CHILD_SUBREAPER = 36
OUTSIDER = 0x7FFD_0001
"""A host uid that owns nothing."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes to other uids")


@pytest.fixture(scope="module")
def root() -> CgroupRoot:
    return require_cgroups()


@pytest.fixture
def sandbox(root: CgroupRoot) -> Iterator[SandboxCgroup]:
    with live_sandbox(root) as made:
        yield made


def burn(seconds: float, clock: Callable[[], float]) -> None:
    end = clock() + seconds
    while clock() < end:
        pass


def hold(size: int) -> None:
    block = bytearray(size)
    for offset in range(0, size, 4096):
        block[offset] = 1


def fork_until_refused() -> None:
    for _ in range(10_000):
        try:
            if os.fork() == 0:
                sleep_forever()
        except BlockingIOError:
            os._exit(11)


def storm() -> None:
    """Forks as fast as it can; every process goes on doing so in a session of its own."""
    while True:
        with contextlib.suppress(BlockingIOError):
            if os.fork() == 0:
                os.setsid()


def test_a_process_is_placed_and_recognised(sandbox: SandboxCgroup) -> None:
    (pid,) = sandbox.agent.pids()
    with open(f"/proc/{pid}/cgroup", encoding="ascii") as inside, open("/proc/self/cgroup", encoding="ascii") as own:
        assert sandbox.holds(inside.read())
        assert not sandbox.holds(own.read())
    assert not sandbox.holds("")
    assert sandbox.populated()
    assert sandbox.pids() == {pid}


def test_programs_can_look_up_the_limits_of_their_own_leaf(sandbox: SandboxCgroup) -> None:
    sandbox.make_leaf("x1")
    files = {1: ("memory", "memory.limit_in_bytes"), 2: ("", "memory.max")}
    name, file = files[sandbox.version]
    directory = dict(sandbox.views())[name]
    for place in (directory, f"{directory}/x1"):
        with open(f"{place}/{file}", encoding="ascii") as limit:
            assert int(limit.read()) == SMALL.memory_bytes


def test_cpu_time_is_limited_and_counted(root: CgroupRoot) -> None:
    limits = Limits(memory_bytes=32 * MIB, pids_max=32, cpus=0.2)
    without = frozenset(root.missing)
    if without:
        pytest.skip(f"no cpu limit here: {root.missing}")
    with live_sandbox(root, limits) as sandbox:
        leaf = sandbox.make_leaf("x1")
        began = time.monotonic()
        assert run_in_leaf(sandbox, leaf, lambda: burn(1.0, time.monotonic)) == 0
        assert 0.05 < leaf.usage().cpu_s < 0.5 * (time.monotonic() - began)


def test_a_child_that_ended_still_counts(sandbox: SandboxCgroup) -> None:
    def burn_in_child() -> None:
        with child(lambda: burn(0.2, time.process_time)) as process:
            process.wait()

    leaf = sandbox.make_leaf("x1")
    run_in_leaf(sandbox, leaf, burn_in_child)
    assert 0.2 <= leaf.usage().cpu_s < 1
    assert not leaf.populated()


def test_memory_peak_is_that_of_the_leaf(sandbox: SandboxCgroup) -> None:
    first, second = sandbox.make_leaf("x1"), sandbox.make_leaf("x2")
    assert run_in_leaf(sandbox, first, lambda: hold(16 * MIB)) == 0
    assert run_in_leaf(sandbox, second, lambda: hold(4 * MIB)) == 0
    peaks = [leaf.usage().memory_peak_bytes for leaf in (first, second)]
    if peaks == [None, None]:
        pytest.skip("this kernel keeps no peak")
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert 16 * MIB <= peaks[0] <= 24 * MIB
    assert 4 * MIB <= peaks[1] <= 12 * MIB


def test_too_much_memory_is_killed_and_blamed_on_the_right_leaf(sandbox: SandboxCgroup) -> None:
    guilty, innocent = sandbox.make_leaf("x1"), sandbox.make_leaf("x2")
    with child(in_leaf(sandbox, "x2", sleep_forever)) as bystander:
        wait_for(lambda: bystander.pid in innocent.pids())
        assert run_in_leaf(sandbox, guilty, lambda: hold(64 * MIB)) == -signal.SIGKILL
        assert bystander.runs()
    assert guilty.usage().oom_kills == 1
    assert innocent.usage().oom_kills == 0
    assert sandbox.events().oom_kills == 0, "the agent was not killed"
    assert sandbox.agent.populated()


def test_memory_of_two_leaves_together_is_limited(sandbox: SandboxCgroup) -> None:
    leaves = [sandbox.make_leaf("x1"), sandbox.make_leaf("x2")]

    def hold_on() -> None:
        block = bytearray(20 * MIB)
        for offset in range(0, len(block), 4096):
            block[offset] = 1
        sleep_forever()

    with child(in_leaf(sandbox, "x1", hold_on)) as first, child(in_leaf(sandbox, "x2", hold_on)) as second:
        wait_for(lambda: not (first.runs() and second.runs()))
        wait_for(
            lambda: [leaf.usage().oom_kills for leaf in leaves] == [int(not each.runs()) for each in (first, second)]
        )


def test_an_oom_kill_of_the_agent_is_told_from_that_of_a_command(root: CgroupRoot) -> None:
    with live_sandbox(root) as sandbox:
        with child(beside_agent(sandbox, lambda: hold(64 * MIB))) as process:
            assert process.wait() == -signal.SIGKILL
        assert sandbox.events().oom_kills == 1


def test_processes_are_limited_and_refusals_counted(root: CgroupRoot) -> None:
    # Room for 32 copies of the process that runs the tests, whatever it has grown to.
    with live_sandbox(root, msgspec.structs.replace(SMALL, memory_bytes=1024 * MIB)) as sandbox:
        leaf = sandbox.make_leaf("x1")
        assert run_in_leaf(sandbox, leaf, fork_until_refused) == 11
        assert len(sandbox.pids()) <= SMALL.pids_max
        assert leaf.usage().pids_rejected >= 1
        leaf.kill()
        assert not leaf.populated()
        assert sandbox.agent.populated(), "killing a leaf leaves the agent alone"


def test_refusals_before_a_leaf_are_not_its_own(sandbox: SandboxCgroup) -> None:
    first = sandbox.make_leaf("x1")
    run_in_leaf(sandbox, first, fork_until_refused)
    first.kill()
    second = sandbox.make_leaf("x2")
    assert run_in_leaf(sandbox, second, lambda: None) == 0
    assert second.usage().pids_rejected == 0


def test_limits_switched_off_by_name_are_not_set(root: CgroupRoot) -> None:
    everything = frozenset({Protection.CGROUP_MEMORY, Protection.CGROUP_PIDS, Protection.CGROUP_CPU})
    name = fresh_name()
    sandbox = root.create(name, SMALL, everything)
    try:
        with child(beside_agent(sandbox, lambda: hold(64 * MIB))) as process:
            assert process.wait() == 0
    finally:
        sandbox.kill()
        sandbox.remove()


def test_a_missing_limit_refuses_the_sandbox(root: CgroupRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "missing", {Protection.CGROUP_CPU: "for example"})
    name = fresh_name()
    with pytest.raises(PolicyUnenforceableError, match="cgroup_cpu: for example"):
        root.create(name, SMALL)
    assert not any(map(os.path.exists, root.paths_for(name)))


def test_a_limit_that_does_not_stick_leaves_nothing(root: CgroupRoot) -> None:
    name = fresh_name()
    with pytest.raises(PolicyUnenforceableError, match="cgroup_pids") as caught:
        root.create(name, Limits(pids_max=1 << 40))
    assert caught.value.details["protection"] == "cgroup_pids"
    assert not any(map(os.path.exists, root.paths_for(name)))


def test_paths_are_known_before_anything_is_made(root: CgroupRoot) -> None:
    name = fresh_name()
    paths = root.paths_for(name)
    assert paths
    assert not any(map(os.path.exists, paths))
    sandbox = root.create(name, SMALL)
    assert sandbox.paths() == paths
    assert all(map(os.path.isdir, paths))
    sandbox.remove()
    assert not any(map(os.path.exists, paths))
    sandbox.remove()


def test_a_second_sandbox_of_the_same_name_is_refused(root: CgroupRoot, sandbox: SandboxCgroup) -> None:
    with pytest.raises(StateError, match="exists already"):
        root.create(sandbox.name, SMALL)
    assert sandbox.agent.populated()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "A", "a.b", "a\n", "a" * 65, "ä", "%d", "a,b", "-o ro"])
def test_names_are_plain(root: CgroupRoot, sandbox: SandboxCgroup, name: str) -> None:
    for refuse in (root.paths_for, sandbox.make_leaf, lambda bad: root.create(bad, SMALL)):
        with pytest.raises(InvalidSpecError, match="cgroup name"):
            refuse(name)


def test_a_second_leaf_of_the_same_name_is_refused_and_the_first_stays(sandbox: SandboxCgroup) -> None:
    leaf = sandbox.make_leaf("x1")
    with pytest.raises(StateError, match="exists already"):
        sandbox.make_leaf("x1")
    assert leaf.usage().oom_kills == 0
    assert leaf.remove()


def test_a_leaf_is_removed_only_when_it_is_empty(sandbox: SandboxCgroup) -> None:
    leaf = sandbox.make_leaf("x1")
    with child(in_leaf(sandbox, "x1", sleep_forever)) as process:
        wait_for(lambda: process.pid in leaf.pids())
        assert leaf.populated()
        assert not leaf.remove()
        assert process.runs()
    wait_for(leaf.remove)
    assert leaf.remove()


def test_a_leaf_of_a_sandbox_that_is_gone(root: CgroupRoot) -> None:
    sandbox = root.create(fresh_name(), SMALL)
    sandbox.remove()
    with pytest.raises(StateError, match="gone"):
        sandbox.make_leaf("x1")
    sandbox.kill()
    assert not sandbox.populated()


def test_kill_wins_against_a_fork_storm(root: CgroupRoot) -> None:
    with live_sandbox(root, Limits(memory_bytes=64 * MIB, pids_max=64)) as sandbox:
        leaf = sandbox.make_leaf("x1")
        with child(in_leaf(sandbox, "x1", storm)) as process:
            wait_for(lambda: len(leaf.pids()) > 20)
            leaf.kill()
            assert process.wait() == -signal.SIGKILL
        assert not leaf.populated()
        assert leaf.remove()
        assert sandbox.agent.populated()


def relay() -> None:
    """Processes that pass the baton to a child and exit at once, so that every list of them is stale."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(20):
        if libc.fork() == 0:
            while True:
                if libc.fork() > 0:
                    libc._exit(0)
    sleep_forever()


def test_kill_wins_against_processes_that_replace_themselves(root: CgroupRoot) -> None:
    with live_sandbox(root, Limits(memory_bytes=64 * MIB, pids_max=64)) as sandbox:
        leaf = sandbox.make_leaf("x1")
        with child(in_leaf(sandbox, "x1", relay)) as process:
            wait_for(lambda: len(leaf.pids()) > 15)
            leaf.kill(5.0)
            assert process.wait() == -signal.SIGKILL
        assert not leaf.populated()
        assert leaf.remove()


def test_nothing_can_be_forked_while_processes_are_killed_one_by_one(
    sandbox: SandboxCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sandbox.version != 1:
        pytest.skip("v2 kills all at once")
    room: list[str] = []
    signal_for_real = cgrouptree._signal

    def spy(pids: Collection[int], places: Sequence[Place]) -> None:
        room.append(Path(f"{dict(sandbox.views())['pids']}/x1/pids.max").read_text().strip())
        signal_for_real(pids, places)

    monkeypatch.setattr(cgrouptree, "_signal", spy)
    leaf = sandbox.make_leaf("x1")
    with child(in_leaf(sandbox, "x1", sleep_forever)) as process:
        wait_for(lambda: process.pid in leaf.pids())
        leaf.kill()
    assert set(room) == {"0"}


def test_kill_reaches_stopped_processes_and_all_leaves(root: CgroupRoot) -> None:
    with live_sandbox(root) as sandbox:
        sandbox.make_leaf("x1")
        sandbox.make_leaf("x2")
        with (
            child(in_leaf(sandbox, "x1", lambda: os.kill(os.getpid(), signal.SIGSTOP))) as stopped,
            child(in_leaf(sandbox, "x2", storm)) as storming,
        ):
            wait_for(lambda: len(sandbox.pids()) > 20)
            sandbox.kill()
            assert stopped.wait() == storming.wait() == -signal.SIGKILL
        assert not sandbox.populated()
        sandbox.remove()
        assert not any(map(os.path.exists, sandbox.paths()))


def test_kill_refuses_the_cgroup_it_is_called_from(root: CgroupRoot) -> None:
    sandbox = root.create(fresh_name(), SMALL)
    try:

        def suicide() -> None:
            enter_agent_leaf(sandbox)
            with pytest.raises(TeardownError, match="this process itself"):
                sandbox.kill()

        with child(suicide) as process:
            assert process.wait() == 0
    finally:
        sandbox.remove()


def test_a_process_outside_is_not_signaled_although_its_pid_was_seen_inside(sandbox: SandboxCgroup) -> None:
    """As when a pid is reused between looking into the cgroup and opening the pidfd."""
    places = cgrouptree.Directories(sandbox.paths())
    with child(sleep_forever) as outsider:
        cgrouptree._signal([outsider.pid], places.places)
        time.sleep(0.05)
        assert outsider.runs()


@needs_root
def test_only_the_owner_of_a_leaf_can_join_it(sandbox: SandboxCgroup) -> None:
    sandbox.make_leaf("x1", OUTSIDER)
    sandbox.make_leaf("x2")

    def join(name: str, uid: int) -> int:
        def body() -> None:
            enter_agent_leaf(sandbox)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            try:
                join_directories(sandbox, name)
            except PermissionError:
                os._exit(13)

        with child(body) as process:
            return process.wait()

    assert join("x1", OUTSIDER) == 0
    assert join("x1", OUTSIDER + 1) == 13
    assert join("x2", OUTSIDER) == 13
    assert join("agent", OUTSIDER) == 13


def test_destroy_by_path_ends_what_a_crash_left(root: CgroupRoot) -> None:
    name = fresh_name()
    sandbox = root.create(name, SMALL)
    with child(beside_agent(sandbox, sleep_forever)) as process:
        wait_for(lambda: process.pid in sandbox.agent.pids())
        cgroup.destroy(root.paths_for(name), name)
        assert process.wait() == -signal.SIGKILL
    assert not any(map(os.path.exists, root.paths_for(name)))
    cgroup.destroy(root.paths_for(name), name)


def test_destroy_takes_only_paths_of_that_sandbox(root: CgroupRoot, sandbox: SandboxCgroup) -> None:
    path, name = sandbox.paths()[0], sandbox.name
    base = path.removesuffix(f"/{name}")
    for bad, named in [
        (base, name),
        (base, "atoll"),
        (f"{base}/../atoll/{name}", name),
        (f"{base}//{name}", name),
        (f"{path}/agent", "agent"),
        (path, fresh_name()),
        (f"/tmp/atoll/{name}", name),
        (f"atoll/{name}", name),
        ("", name),
    ]:
        with pytest.raises(StateError, match="is not a cgroup directory"):
            cgroup.destroy([path, bad] if bad != path else [bad], named)
    assert sandbox.agent.populated()


def test_descriptors_live_as_long_as_what_uses_them(root: CgroupRoot) -> None:
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    sandbox = root.create(fresh_name(), SMALL)
    try:
        leaf = sandbox.agent
        paths = sandbox.paths()
        del sandbox
        assert leaf.pids() == set()
        assert set(os.listdir("/proc/self/fd")) > before
        del leaf
        gc.collect()
        assert set(os.listdir("/proc/self/fd")) == before
    finally:
        cgrouptree.remove_paths(paths)


def test_leaves_from_many_threads(sandbox: SandboxCgroup) -> None:
    def use(number: int) -> bool:
        leaf = sandbox.make_leaf(f"x{number}")
        leaf.usage()
        leaf.kill()
        return leaf.remove()

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(use, range(200)))


def test_detect_is_repeatable_while_sandboxes_live(sandbox: SandboxCgroup) -> None:
    again = cgroup.detect()
    assert again.why == ""
    assert again.root is not None
    assert again.root.paths_for(sandbox.name) == sandbox.paths()


def test_kill_is_bounded(root: CgroupRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_sandbox(root) as sandbox:
        with monkeypatch.context() as patch:
            patch.setattr(cgrouptree, "_signal", lambda *_: None)
            patch.setattr(cgrouptree, "_try_write", lambda *_: False)
            began = time.monotonic()
            with pytest.raises(TeardownError, match="did not die"):
                sandbox.kill(0.2)
            assert time.monotonic() - began < 5
        assert sandbox.populated()


def test_a_launcher_that_fails_closes_what_was_opened(root: CgroupRoot) -> None:
    sandbox = root.create(fresh_name(), SMALL)
    sandbox.remove()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No such"):
        sandbox.join_steps()
    assert len(os.listdir("/proc/self/fd")) == before


def test_killing_one_leaf_from_two_threads(sandbox: SandboxCgroup) -> None:
    leaf = sandbox.make_leaf("x1")
    with child(in_leaf(sandbox, "x1", storm)) as process:
        wait_for(lambda: len(leaf.pids()) > 5)
        threads = [threading.Thread(target=leaf.kill) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert process.wait() == -signal.SIGKILL
    assert not leaf.populated()
