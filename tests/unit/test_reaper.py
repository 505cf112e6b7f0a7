import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.kernel.cgroup import CgroupRoot
from atoll.kernel.pidfd import boot_id, start_time
from atoll.model.names import new_id
from atoll.teardown.journal import QUOTA, Cgroup, Directory, Journal, Process, Step, UidLease
from atoll.teardown.reaper import NEWBORN_S, list_sandboxes, reap
from atoll.teardown.state import JOURNAL, META
from atoll.teardown.steps import Header, encode
from tests.unit.kernel_support import (
    SMALL,
    Child,
    child,
    enter_agent_leaf,
    fresh_name,
    live_sandbox,
    require_cgroups,
    sleep_forever,
    wait_for,
)

NOBODY = 65534
OTHER_BOOT = "00000000-0000-0000-0000-000000000000"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes owners or mounts")


@pytest.fixture
def root() -> CgroupRoot:
    return require_cgroups()


@pytest.fixture
def bystander() -> Iterator[Child]:
    """A live process that has nothing to do with any sandbox."""
    with child(sleep_forever) as process:
        yield process
        assert process.runs()


def dead_header(**changes: object) -> Header:
    """The header of an owner that was never there: pid 1 with an impossible start time."""
    fields: dict[str, object] = {
        "version": 1,
        "boot_id": boot_id(),
        "pid": 1,
        "start_time": 1 << 60,
        "uid": os.geteuid(),
        "created": time.time(),
    }
    return Header(**(fields | changes))  # type: ignore[arg-type]


def forge(state: Path, *entries: Header | Step | bytes, sandbox_id: str | None = None) -> Path:
    """A sandbox directory as a crash leaves it."""
    directory = state / "sandboxes" / (sandbox_id or new_id())
    directory.mkdir(parents=True, mode=0o700)
    (state / "sandboxes").chmod(0o700)
    journal = directory / JOURNAL
    journal.write_bytes(b"".join(entry if isinstance(entry, bytes) else encode(entry) for entry in entries))
    journal.chmod(0o600)
    return directory


def outcomes(state: Path) -> list[str]:
    return [reaped.outcome for reaped in reap(state)]


# --- a real owner is killed after every step ---------------------------------------------------------------------


def own_a_sandbox(state: Path, sandbox_id: str, die_after: int) -> None:
    """Make a sandbox step by step, and die by SIGKILL after one of them."""

    def step(number: int) -> None:
        if number == die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    root = require_cgroups()
    journal = Journal.create(state, sandbox_id)
    step(0)
    journal.record(UidLease(0x7800_0000))
    step(1)
    journal.record(Cgroup(root.paths_for(sandbox_id)))
    step(2)
    sandbox = root.create(sandbox_id, SMALL)
    step(3)
    process = os.fork()
    if process == 0:
        os.setsid()
        enter_agent_leaf(sandbox)
        sleep_forever()
    wait_for(sandbox.agent.populated)
    step(4)
    journal.record(Process(process, start_time(process)))
    (state / "pid").write_text(str(process))
    (state / "start_time").write_text(str(start_time(process)))
    step(5)
    journal.record(Directory("logs"))
    step(6)
    (journal.directory / "logs").mkdir()
    (journal.directory / "logs" / "x.log").write_text("output")
    (journal.directory / META).write_text("{}")
    step(7)


LAST_STEP = 7


@pytest.mark.parametrize("die_after", range(LAST_STEP + 1))
def test_nothing_is_left_of_an_owner_killed_after_any_step(tmp_path: Path, root: CgroupRoot, die_after: int) -> None:
    sandbox_id = new_id()
    with child(lambda: own_a_sandbox(tmp_path, sandbox_id, die_after)) as owner:
        assert owner.wait() == -signal.SIGKILL
    (reaped,) = reap(tmp_path)
    assert (reaped.id, reaped.outcome) == (sandbox_id, "removed")
    assert os.listdir(tmp_path / "sandboxes") == []
    assert not any(map(os.path.exists, root.paths_for(sandbox_id)))
    if die_after >= LAST_STEP - 2:
        pid = int((tmp_path / "pid").read_text())
        wait_for(
            lambda: not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1]
        )
    assert reap(tmp_path) == []


def test_a_live_owner_keeps_its_sandbox(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, new_id())
    assert reap(tmp_path) == []
    assert journal.directory.exists()
    journal.undo_all()


def test_the_sandbox_of_a_live_owner_in_another_process_is_kept(tmp_path: Path) -> None:
    sandbox_id = new_id()
    directory = tmp_path / "sandboxes" / sandbox_id

    def own() -> None:
        journal = Journal.create(tmp_path, sandbox_id)
        (journal.directory / "ready").touch()
        sleep_forever()

    with child(own) as owner:
        wait_for((directory / "ready").exists)
        assert reap(tmp_path) == []
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        assert outcomes(tmp_path) == ["removed"]


def test_an_owner_without_its_lock_still_counts_as_alive(tmp_path: Path) -> None:
    directory = forge(tmp_path, dead_header(pid=os.getpid(), start_time=start_time(os.getpid())))
    assert reap(tmp_path) == []
    assert directory.exists()


def test_a_child_that_outlives_the_owner_does_not_keep_the_sandbox(tmp_path: Path) -> None:
    def own() -> None:
        Journal.create(tmp_path, new_id())
        survivor = os.fork()
        if survivor == 0:
            os.setsid()
            sleep_forever()
        (tmp_path / "survivor").write_text(str(survivor))

    with child(own) as owner:
        owner.wait()
    try:
        wait_for(lambda: outcomes(tmp_path) == ["removed"])
    finally:
        os.kill(int((tmp_path / "survivor").read_text()), signal.SIGKILL)


# --- stale numbers -----------------------------------------------------------------------------------------------


def test_a_reused_pid_is_not_killed(tmp_path: Path, bystander: Child) -> None:
    forge(tmp_path, dead_header(), Process(bystander.pid, start_time(bystander.pid) - 1))
    assert outcomes(tmp_path) == ["removed"]


def test_an_owner_whose_pid_was_reused_is_dead(tmp_path: Path, bystander: Child) -> None:
    forge(tmp_path, dead_header(pid=bystander.pid, start_time=start_time(bystander.pid) - 1))
    assert outcomes(tmp_path) == ["removed"]


def test_after_a_reboot_only_files_are_removed(tmp_path: Path, root: CgroupRoot, bystander: Child) -> None:
    """Pid, start time and cgroup of the old boot may by chance be somebody else's now."""
    with live_sandbox(root) as sandbox:
        sandbox_id = sandbox.name
        directory = forge(
            tmp_path,
            dead_header(boot_id=OTHER_BOOT),
            Cgroup(sandbox.paths()),
            Process(bystander.pid, start_time(bystander.pid)),
            Directory("logs"),
            sandbox_id=sandbox_id,
        )
        (directory / "logs").mkdir()
        assert outcomes(tmp_path) == ["removed"]
        assert not directory.exists()
        assert sandbox.agent.populated()


def test_cgroups_that_another_boot_had_mounted_elsewhere_do_not_matter(tmp_path: Path) -> None:
    sandbox_id = new_id()
    steps = Cgroup([f"/mnt/cgroup/memory/atoll/{sandbox_id}"])
    forge(tmp_path, dead_header(boot_id=OTHER_BOOT), steps, sandbox_id=sandbox_id)
    assert outcomes(tmp_path) == ["removed"]


def test_an_owner_of_another_boot_is_dead(tmp_path: Path) -> None:
    forge(tmp_path, dead_header(boot_id=OTHER_BOOT, pid=os.getpid(), start_time=start_time(os.getpid())))
    assert outcomes(tmp_path) == ["removed"]


def test_the_lease_of_a_dead_owner_is_not_taken_from_who_has_it_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.kernel.uids.UidPool.release", lambda *_: pytest.fail("released a lease of ours"))
    forge(tmp_path, dead_header(), UidLease(0x7800_0000))
    assert outcomes(tmp_path) == ["removed"]


# --- what is not to be trusted -----------------------------------------------------------------------------------

GOOD = encode(dead_header())


@pytest.mark.parametrize(
    "lines",
    [
        b"\n",
        b"{}\n",
        b"null\n",
        b"[]\n" + GOOD,
        b"\xff\xfe\n",
        GOOD + b"garbage\n",
        GOOD + b"\n",
        GOOD + b'{"step":"process","pid":1}\n',
        GOOD + b'{"step":"process","pid":1,"start_time":1,"signal":9}\n',
        GOOD + b'{"step":"shell","argv":["rm"]}\n',
        GOOD + b'{"pid":1,"start_time":1}\n',
        GOOD + encode(dead_header()),
        GOOD.replace(b'"version":1', b'"version":2'),
        GOOD.replace(b'"pid":1', b'"pid":"1"'),
        GOOD.replace(b'"version"', b'"extra":1,"version"'),
        GOOD.replace(f'"uid":{os.geteuid()}'.encode(), b'"uid":4242'),
        GOOD + b'{"step":"directory","name":"../canary"}\n',
        GOOD + b'{"step":"directory","name":".."}\n',
        GOOD + b'{"step":"directory","name":"/etc"}\n',
        GOOD + encode(Cgroup(["/sys/fs/cgroup"])),
        GOOD + encode(Cgroup(["/sys/fs/cgroup/atoll"])),
        GOOD + encode(Cgroup(["/sys/fs/cgroup/memory/atoll/someoneelse"])),
        GOOD + encode(Cgroup(["/tmp/atoll/{id}"])),
        GOOD + encode(Cgroup(["/sys/fs/cgroup/../../tmp/atoll/{id}"])),
        GOOD + encode(Cgroup(["/sys/fs/cgroup/other/{id}"])),
        GOOD + encode(Directory("x")) * (QUOTA // 30),
    ],
    ids=range(26),
)
def test_a_malformed_or_forged_journal_is_refused_untouched(tmp_path: Path, bystander: Child, lines: bytes) -> None:
    directory = forge(tmp_path, lines)
    (directory / JOURNAL).write_bytes(
        lines.replace(b"{id}", directory.name.encode())
        + (encode(Process(bystander.pid, start_time(bystander.pid))) if lines.startswith(GOOD) else b"")
    )
    (directory / "file").write_text("x")
    before = (directory / JOURNAL).read_bytes()
    (refused,) = reap(tmp_path)
    assert (refused.id, refused.outcome) == (directory.name, "refused")
    assert refused.detail
    assert (directory / JOURNAL).read_bytes() == before
    assert (directory / "file").exists()
    assert bystander.runs()


def make_writable(directory: Path) -> None:
    (directory / JOURNAL).chmod(0o620)


def make_world_writable(directory: Path) -> None:
    (directory / JOURNAL).chmod(0o602)


def make_directory_writable(directory: Path) -> None:
    directory.chmod(0o720)


def replace_by_link(directory: Path) -> None:
    (directory / JOURNAL).rename(directory / "real")
    (directory / JOURNAL).symlink_to("real")


def replace_by_pipe(directory: Path) -> None:
    (directory / JOURNAL).unlink()
    os.mkfifo(directory / JOURNAL, 0o600)


def replace_by_directory(directory: Path) -> None:
    (directory / JOURNAL).unlink()
    (directory / JOURNAL).mkdir(0o700)


def link_the_directory(directory: Path) -> None:
    directory.rename(directory.parent.parent / "moved")
    directory.symlink_to(directory.parent.parent / "moved")


@pytest.mark.parametrize(
    "spoil",
    [
        make_writable,
        make_world_writable,
        make_directory_writable,
        replace_by_link,
        replace_by_pipe,
        replace_by_directory,
        link_the_directory,
    ],
)
def test_a_journal_that_others_could_have_written_is_not_obeyed(
    tmp_path: Path, bystander: Child, spoil: Callable[[Path], None]
) -> None:
    directory = forge(tmp_path, dead_header(), Process(bystander.pid, start_time(bystander.pid)))
    spoil(directory)
    (found,) = reap(tmp_path)
    assert found.outcome in {"refused", "failed"}
    assert directory.exists()
    assert bystander.runs()


@needs_root
@pytest.mark.parametrize("what", ["directory", "journal"])
def test_root_obeys_no_journal_of_another_user(tmp_path: Path, bystander: Child, what: str) -> None:
    directory = forge(tmp_path, dead_header(), Process(bystander.pid, start_time(bystander.pid)))
    os.chown(directory if what == "directory" else directory / JOURNAL, NOBODY, NOBODY)
    assert outcomes(tmp_path) == ["refused"]
    assert directory.exists()


@pytest.mark.parametrize("name", ["x.y.z.x.y.z", "UPPERCASEONE", "short", " spaces in it", "..hidden.dots"])
def test_names_that_no_sandbox_has_are_left_alone(tmp_path: Path, name: str) -> None:
    directory = forge(tmp_path, dead_header(), sandbox_id=name)
    assert outcomes(tmp_path) == ["refused"]
    assert directory.exists()


# --- cut short ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 20, -1])
def test_a_torn_last_line_is_ignored_for_what_it_announces_was_not_begun(
    tmp_path: Path, bystander: Child, length: int
) -> None:
    torn = encode(Process(bystander.pid, start_time(bystander.pid)))[:length]
    directory = forge(tmp_path, dead_header(), Directory("logs"), torn)
    (directory / "logs").mkdir()
    assert outcomes(tmp_path) == ["removed"]
    assert not directory.exists()


@pytest.mark.parametrize("journal", [None, b"", b'{"version":1,"boot', b"\0\0\0\0"])
def test_a_directory_without_a_header_is_removed_once_it_is_old(tmp_path: Path, journal: bytes | None) -> None:
    directory = forge(tmp_path, journal or b"")
    if journal is None:
        (directory / JOURNAL).unlink()
    assert reap(tmp_path) == []
    old = time.time() - NEWBORN_S - 1
    os.utime(directory, (old, old))
    assert outcomes(tmp_path) == ["removed"]
    assert not directory.exists()


def test_many_reapers_at_once(tmp_path: Path) -> None:
    victims = []
    for _ in range(20):
        with child(sleep_forever) as process:
            victims.append(forge(tmp_path, dead_header(), Process(process.pid, start_time(process.pid))))
            (victims[-1] / "file").write_text("x")
    with ThreadPoolExecutor(8) as pool:
        reaped = [found for reaper in pool.map(lambda _: reap(tmp_path), range(8)) for found in reaper]
    assert sorted(found.id for found in reaped) == sorted(directory.name for directory in victims)
    assert {found.outcome for found in reaped} == {"removed"}
    assert os.listdir(tmp_path / "sandboxes") == []


REAP = (
    "import sys; from pathlib import Path; from atoll.teardown.reaper import reap; print(len(reap(Path(sys.argv[1]))))"
)


def test_reapers_in_many_processes(tmp_path: Path) -> None:
    for _ in range(30):
        forge(tmp_path, dead_header(), Directory("logs"))
    workers = [
        subprocess.Popen([sys.executable, "-c", REAP, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    counts = [int(worker.communicate()[0]) for worker in workers]
    assert sum(counts) == 30
    assert os.listdir(tmp_path / "sandboxes") == []


# --- what a guest may have left in the files ---------------------------------------------------------------------


def test_links_in_the_sandbox_directory_are_not_followed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "file").write_text("alive")
    directory = forge(tmp_path, dead_header(), Directory("logs"))
    (directory / "logs").symlink_to(canary)
    (directory / "other").symlink_to("../../canary")
    assert outcomes(tmp_path) == ["removed"]
    assert (canary / "file").read_text() == "alive"


def test_a_deep_tree_in_the_sandbox_directory(tmp_path: Path) -> None:
    directory = forge(tmp_path, dead_header(), Directory("logs"))
    fd = os.open(directory, os.O_RDONLY)
    for _ in range(1000):  # more than a path may have
        os.mkdir("logs", dir_fd=fd)
        inner = os.open("logs", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    assert outcomes(tmp_path) == ["removed"]
    assert not directory.exists()


@needs_root
@pytest.mark.parametrize("name", ["logs", "unrecorded"])
def test_a_mount_is_not_crossed_and_the_journal_kept_for_another_try(tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "file").write_text("alive")
    directory = forge(tmp_path, dead_header(), Directory("logs"))
    (directory / name).mkdir()
    subprocess.run(["mount", "--bind", canary, directory / name], check=True)
    try:
        (failed,) = reap(tmp_path)
        assert failed.outcome == "failed"
        assert "mounted" in failed.detail
        assert (directory / JOURNAL).exists()
    finally:
        subprocess.run(["umount", directory / name], check=True)
    assert outcomes(tmp_path) == ["removed"]
    assert (canary / "file").read_text() == "alive"


# --- atoll ps ----------------------------------------------------------------------------------------------------


def test_list_shows_the_living_the_dead_and_what_their_owner_wrote(tmp_path: Path) -> None:
    assert list_sandboxes(tmp_path) == []
    journal = Journal.create(tmp_path, new_id())
    (journal.directory / META).write_text(json.dumps({"template": "host"}))
    dead = forge(tmp_path, dead_header(created=5.0))
    (dead / META).write_text("not json")
    forge(tmp_path, b"garbage\n")
    forge(tmp_path, dead_header(), sandbox_id="not.an.id")
    found = {each.id: each for each in list_sandboxes(tmp_path)}
    assert set(found) == {journal.sandbox_id, dead.name}
    mine = found[journal.sandbox_id]
    assert (mine.alive, mine.owner_pid, mine.meta) == (True, os.getpid(), {"template": "host"})
    assert abs(mine.created - time.time()) < 60
    assert (found[dead.name].alive, found[dead.name].created, found[dead.name].meta) == (False, 5.0, {})
    journal.undo_all()


def test_meta_that_others_could_have_written_is_not_shown(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, new_id())
    (journal.directory / META).write_text("{}")
    (journal.directory / META).chmod(0o666)
    assert list_sandboxes(tmp_path) == []
    journal.undo_all()


def test_an_unsafe_state_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sandboxes").mkdir()
    (tmp_path / "sandboxes").chmod(0o777 | stat.S_ISVTX)
    for call in (reap, list_sandboxes):
        with pytest.raises(Exception, match="not private"):
            call(tmp_path)
    assert fresh_name() not in os.listdir(tmp_path)
