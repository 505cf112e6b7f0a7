"""What is kept of output in memory and on disk, against a model, and who may read or lose it."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.execute import output as module
from atoll.execute.output import KEEP, LogStore, Output
from atoll.model.errors import NotFoundError
from tests.hostile.rig import open_fds

HALF = KEEP // 2


@pytest.fixture
def store(tmp_path: Path):
    made = LogStore(tmp_path, 64 << 20)
    yield made
    if not made.closed:
        made.close()


def filled(store: LogStore, size: int = KEEP + 1, *, ended: bool = True) -> Output:
    """An output that has spilled `size` bytes."""
    made = Output(store)
    assert made.append(b"x" * size)
    if ended:
        store.ended(made)
    return made


@settings(deadline=None)
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=80), max_size=20),
    reads=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), max_size=5),
)
def test_head_tail_and_log_are_exact(tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], reads: list):
    keep = 64
    whole = b"".join(chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KEEP", keep)
        store = LogStore(tmp_path_factory.mktemp("logs"), 1 << 20)
        kept = Output(store)
        written = 0
        for chunk in chunks:
            assert kept.append(chunk)
            written += len(chunk)
            assert kept.total == written
            so_far = whole[:written]
            assert kept.kept() == (so_far if written <= keep else so_far[: keep // 2] + so_far[-keep // 2 :])
            assert kept.dropped == max(0, written - keep)
            assert kept.spilled == (written > keep)
        for offset, size in reads:
            assert kept.read(offset, size) == whole[offset : offset + size]
        store.close()


@pytest.mark.parametrize(("size", "dropped"), [(KEEP - 1, 0), (KEEP, 0), (KEEP + 1, 1), (3 * KEEP + 7, 2 * KEEP + 7)])
@pytest.mark.parametrize("chunk", [65536, 1 << 22])
def test_the_real_bounds(store: LogStore, size: int, dropped: int, chunk: int):
    whole = os.urandom(size)
    kept = Output(store)
    for at in range(0, size, chunk):
        assert kept.append(whole[at : at + chunk])
    assert (kept.total, kept.dropped, kept.spilled) == (size, dropped, size > KEEP)
    assert kept.kept() == (whole if not dropped else whole[:HALF] + whole[-HALF:])
    assert kept.read(0, size + 1) == whole
    assert kept.read(size - 5, 100) == whole[-5:]
    assert kept.read(size, 1) == b""


def test_memory_does_not_grow_with_output_or_with_small_pieces(store: LogStore):
    kept = Output(store)
    for _ in range(40):
        kept.append(b"x" * 65536)
    assert len(kept._head) + len(kept._tail) <= HALF + KEEP
    for _ in range(5000):
        kept.append(b"ab")
    assert isinstance(kept._tail, bytearray)  # no object for each piece
    assert len(kept._head) + len(kept._tail) <= HALF + KEEP


def test_small_output_makes_no_file_and_takes_no_quota(tmp_path: Path):
    store = LogStore(tmp_path, 0)
    kept = Output(store)
    assert kept.append(b"x" * KEEP)
    assert os.listdir(tmp_path) == []
    assert kept.read(KEEP - 3, 100) == b"xxx"
    assert not kept.append(b"x")
    assert (kept.total, kept.kept()) == (KEEP, b"x" * KEEP)
    store.close()


def test_logs_are_private_and_their_own(store: LogStore, tmp_path: Path):
    one, two = filled(store), filled(store, KEEP + 2)
    found = {path.name: path.lstat() for path in tmp_path.iterdir()}
    assert sorted(found) == ["1.log", "2.log"]
    assert all(stat.S_IMODE(info.st_mode) == 0o600 and stat.S_ISREG(info.st_mode) for info in found.values())
    assert (found["1.log"].st_size, found["2.log"].st_size) == (one.total, two.total)


@pytest.mark.parametrize("dangling", [False, True])
def test_a_planted_link_is_not_followed(store: LogStore, tmp_path: Path, dangling: bool):
    target = tmp_path / "precious"
    if not dangling:
        target.write_bytes(b"precious")
    (tmp_path / "1.log").symlink_to(target)
    with pytest.raises(FileExistsError):
        filled(store)
    assert target.exists() != dangling
    assert dangling or target.read_bytes() == b"precious"


def test_a_planted_file_is_not_reused(store: LogStore, tmp_path: Path):
    (tmp_path / "1.log").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        filled(store)
    assert (tmp_path / "1.log").read_bytes() == b"precious"


def test_logs_are_not_inherited(store: LogStore):
    before = set(open_fds())
    filled(store, ended=False)
    [fd] = set(open_fds()) - before
    assert not os.get_inheritable(int(fd))


def test_the_oldest_ended_logs_make_room(tmp_path: Path):
    store = LogStore(tmp_path, 4 * KEEP)
    running = filled(store, ended=False)
    first, second = filled(store), filled(store)
    third = filled(store, KEEP + 100)
    assert third.read(0, 1) == b"x"
    for output in (running, second):
        assert output.read(KEEP, 5) == b"x"
    with pytest.raises(NotFoundError, match="the log is gone"):
        first.read(0, 1)
    assert first.kept() == b"x" * KEEP
    assert first.dropped == 1
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * KEEP
    store.close()


def test_what_runs_makes_no_room(tmp_path: Path):
    store = LogStore(tmp_path, 3 * KEEP)
    outputs = [filled(store, ended=False) for _ in range(2)]
    late = Output(store)
    assert not late.append(b"y" * (KEEP + 1))
    assert (late.total, late.kept()) == (0, b"")
    assert not outputs[0].append(b"z" * KEEP)
    assert outputs[0].total == KEEP + 1
    store.ended(outputs[1])
    assert outputs[0].append(b"z" * KEEP)
    assert outputs[0].read(KEEP, 3) == b"xzz"
    store.close()


def test_a_log_is_forgotten_once(tmp_path: Path):
    store = LogStore(tmp_path, 2 * KEEP)
    output = filled(store)
    assert output.forget() == KEEP + 1
    assert output.forget() == 0
    store.close()


def test_a_closed_store_leaves_no_descriptor_and_tells_readers(tmp_path: Path):
    before = open_fds()
    store = LogStore(tmp_path, 8 * KEEP)
    small = Output(store)
    small.append(b"small")
    large = filled(store)
    store.close()
    assert open_fds() == before
    assert small.read(0, 5) == b"small"
    with pytest.raises(NotFoundError):
        large.read(0, 1)
    assert large.kept() == b"x" * KEEP


def test_late_output_goes_into_nobody_elses_file(tmp_path: Path):
    logs = tmp_path / "logs"
    logs.mkdir()
    before = set(open_fds())
    store = LogStore(logs, 8 * KEEP)
    late, unspilled = filled(store, ended=False), Output(store)
    [number] = set(open_fds()) - before
    store.close()
    with (tmp_path / "other").open("wb") as other:
        if other.fileno() != int(number):
            os.dup2(other.fileno(), int(number))
        assert late.append(b"secret")
        assert unspilled.append(b"s" * (KEEP + 1))
        if other.fileno() != int(number):
            os.close(int(number))
    assert (tmp_path / "other").read_bytes() == b""
    assert os.listdir(logs) == ["1.log"]
