import json
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.kernel import cgroup, uids
from atoll.kernel.pidfd import boot_id, start_time
from atoll.model.errors import InvalidSpecError, PolicyUnenforceableError, StateError, TeardownError
from atoll.model.names import new_id
from atoll.teardown import undo as undo_module
from atoll.teardown.journal import QUOTA, Cgroup, Directory, Journal, Process, Step, UidLease
from atoll.teardown.state import JOURNAL, state_dir
from atoll.teardown.steps import Header, decode, encode
from tests.unit.kernel_support import SMALL, beside_agent, child, require_cgroups, sleep_forever, wait_for


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal.create(tmp_path, new_id())
    yield made
    made.undo_all()


def contents(journal: Journal) -> tuple[Header | None, list[object]]:
    header, steps = decode((journal.directory / JOURNAL).read_bytes())
    return header, list(steps)


def test_the_header_says_who_owns_the_sandbox(journal: Journal) -> None:
    header, steps = contents(journal)
    assert header is not None
    assert (header.pid, header.start_time, header.boot_id, header.uid) == (
        os.getpid(),
        start_time(os.getpid()),
        boot_id(),
        os.geteuid(),
    )
    assert steps == []


def test_everything_is_private(journal: Journal, tmp_path: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"sandboxes": 0o700, journal.sandbox_id: 0o700, JOURNAL: 0o600}


def test_each_step_is_on_disk_when_record_returns(journal: Journal) -> None:
    steps: list[Step] = [UidLease(5), Cgroup(["/sys/fs/cgroup/atoll/x"]), Process(7, 9), Directory("logs")]
    journal._steps.clear()
    for number, step in enumerate(steps, 1):
        journal.record(step)
        assert contents(journal)[1] == steps[:number]
    journal._steps.clear()  # nothing of this exists


def test_a_second_sandbox_of_the_same_id_is_refused(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="already"):
        Journal.create(tmp_path, journal.sandbox_id)
    assert contents(journal)[0] is not None


@pytest.mark.parametrize(
    "name", ["", "..", "../../x", "a/b", "short", "UPPERCASE1", "with.dot.s", "a" * 65, "x\nxxxxxxxx"]
)
def test_ids_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSpecError):
        Journal.create(tmp_path, name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a.b", "journal.jsonl", "A", "ä", "a" * 65, "a\n"])
def test_directory_names_that_lead_elsewhere_are_not_read_back(name: str) -> None:
    header = Header(version=1, boot_id="b", pid=1, start_time=1, uid=0, created=0.0)
    with pytest.raises(StateError, match="malformed"):
        decode(encode(header) + encode(Directory("x")).replace(b'"x"', json.dumps(name).encode()))


def test_undo_goes_backwards_and_is_complete(tmp_path: Path) -> None:
    root = require_cgroups()
    journal = Journal.create(tmp_path, new_id())
    journal.record(Cgroup(root.paths_for(journal.sandbox_id)))
    sandbox = root.create(journal.sandbox_id, SMALL)
    journal.record(Directory("logs"))
    (journal.directory / "logs" / "deep").mkdir(parents=True)
    (journal.directory / "unrecorded").write_text("x")
    with child(beside_agent(sandbox, sleep_forever)) as confined, child(sleep_forever) as free:
        wait_for(sandbox.agent.populated)
        journal.record(Process(free.pid, start_time(free.pid)))
        journal.undo_all()
        assert confined.wait() == free.wait() == -signal.SIGKILL
    assert os.listdir(tmp_path / "sandboxes") == []
    assert not any(map(os.path.exists, root.paths_for(journal.sandbox_id)))
    journal.undo_all()


def test_undo_of_steps_that_were_announced_but_never_taken(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, new_id())
    journal.record(UidLease(uids.FIRST))
    root = cgroup.detect().root
    if root is not None:
        journal.record(Cgroup(root.paths_for(journal.sandbox_id)))
    journal.record(Directory("logs"))
    journal.undo_all()
    assert os.listdir(tmp_path / "sandboxes") == []


def test_a_failure_is_reported_the_rest_is_undone_and_a_retry_works(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, new_id())
    released: list[int] = []
    journal.record(UidLease(1))
    journal.record(Cgroup([f"/not/a/cgroup/atoll/{journal.sandbox_id}"]))
    journal.record(Directory("logs"))
    (journal.directory / "logs").mkdir()
    sandboxes = os.open(tmp_path / "sandboxes", os.O_RDONLY)
    try:
        with pytest.raises(TeardownError, match="is not a cgroup directory") as caught:
            undo_module.undo(journal.sandbox_id, journal._steps, sandboxes, release_uids=released.append)
        assert len(caught.value.details["failures"]) == 1
        assert released == [], "something may still use the range"
        assert os.listdir(journal.directory) == [JOURNAL]
        del journal._steps[1]
        undo_module.undo(journal.sandbox_id, journal._steps, sandboxes, release_uids=released.append)
        assert released == [1]
    finally:
        os.close(sandboxes)
    assert os.listdir(tmp_path / "sandboxes") == []
    journal.undo_all()


def test_undo_gives_the_uid_range_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = uids.UidPool(tmp_path / "run")
    monkeypatch.setattr("atoll.kernel.uids.pool", lambda: pool)
    try:
        base = pool.lease()
    except PolicyUnenforceableError as error:
        pytest.skip(str(error))
    journal = Journal.create(tmp_path, new_id())
    journal.record(UidLease(base))
    journal.undo_all()
    assert base in {pool.lease() for _ in range(16)}
    pool.close()


def test_undo_works_when_the_directory_was_taken_away(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, new_id())
    with child(sleep_forever) as process:
        journal.record(Process(process.pid, start_time(process.pid)))
        journal.record(Directory("logs"))
        journal.directory.rename(tmp_path / "elsewhere")
        journal.undo_all()
        assert process.wait() == -signal.SIGKILL
    assert (tmp_path / "elsewhere" / JOURNAL).exists()


def test_a_process_with_the_recorded_pid_but_another_start_is_spared(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, new_id())
    with child(sleep_forever) as process:
        journal.record(Process(process.pid, start_time(process.pid) - 1))
        journal.undo_all()
        assert process.runs()


def test_the_journal_has_a_quota(journal: Journal) -> None:
    step = Cgroup(["/" + "x" * 1000])
    room = (QUOTA - (journal.directory / JOURNAL).stat().st_size) // len(encode(step))
    for _ in range(room):
        journal.record(step)
    with pytest.raises(StateError, match="full"):
        journal.record(step)
    assert QUOTA - 2000 < (journal.directory / JOURNAL).stat().st_size <= QUOTA
    assert len(journal._steps) == len(contents(journal)[1])
    journal._steps.clear()


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    """By RLIMIT_FSIZE, which cuts a write short just as a full disk does (setrlimit(2))."""

    def in_child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        journal = Journal.create(tmp_path, new_id())
        size = (journal.directory / JOURNAL).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
        for _ in range(2):
            with pytest.raises(StateError):
                journal.record(Directory("logs"))
            assert (journal.directory / JOURNAL).stat().st_size == size
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        journal.record(Directory("more"))
        assert contents(journal)[1] == [Directory("more")]
        journal.undo_all()

    with child(in_child) as process:
        assert process.wait() == 0


def test_a_header_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    def in_child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
        with pytest.raises(StateError):
            Journal.create(tmp_path, new_id())

    with child(in_child) as process:
        assert process.wait() == 0
    assert os.listdir(tmp_path / "sandboxes") == []


def test_a_forked_child_does_not_own_the_journal(journal: Journal) -> None:
    def in_child() -> None:
        with pytest.raises(StateError, match="belongs to process"):
            journal.record(Directory("logs"))
        with pytest.raises(StateError, match="belongs to process"):
            journal.undo_all()

    with child(in_child) as process:
        assert process.wait() == 0
    journal.record(Directory("logs"))


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        Journal.create(tmp_path, new_id()).undo_all()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ATOLL_STATE": "{tmp}/chosen"}, "{tmp}/chosen"),
        ({"ATOLL_STATE": "{tmp}/chosen", "XDG_STATE_HOME": "{tmp}/xdg"}, "{tmp}/chosen"),
        ({"XDG_STATE_HOME": "{tmp}/xdg"}, "{tmp}/xdg/atoll"),
        ({"XDG_STATE_HOME": "relative", "HOME": "{tmp}/home"}, "{tmp}/home/.local/state/atoll"),
        ({"HOME": "{tmp}/home"}, "{tmp}/home/.local/state/atoll"),
        ({"HOME": "{tmp}/link"}, "{tmp}/home/.local/state/atoll"),
    ],
)
def test_where_the_state_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to("home")
    for name in ("ATOLL_STATE", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
        if name in environment:
            monkeypatch.setenv(name, environment[name].format(tmp=tmp_path))
    if "ATOLL_STATE" not in environment and os.geteuid() == 0:
        monkeypatch.setattr("atoll.teardown.state.os.geteuid", lambda: 1000)
        monkeypatch.setattr("atoll.teardown.state.open_private_dir", lambda path: os.open(path.anchor, os.O_PATH))
    assert state_dir() == Path(expected.format(tmp=tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_state_of_root_is_not_looked_for_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOLL_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/tmp/elsewhere")
    assert state_dir() == Path("/var/lib/atoll")


@pytest.mark.parametrize("chosen", ["relative", "/tmp/../tmp/x"])
def test_a_state_directory_that_is_not_absolute_is_refused(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv("ATOLL_STATE", chosen)
    with pytest.raises(InvalidSpecError, match="not an absolute path"):
        state_dir()
