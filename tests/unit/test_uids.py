import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.kernel import uids
from atoll.kernel.pidfd import boot_id, start_time
from atoll.kernel.uidclaims import SOURCES, Claim, Sources, leftovers, live_claims, maps_all, static_claims
from atoll.kernel.uids import BLOCK, DIRECTORY_END, END, FIRST, RANGE, UidPool
from atoll.model.errors import CapacityError, PolicyUnenforceableError, StateError
from tests.unit.kernel_support import child, sleep_forever, wait_for

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="uses ids of others")
EVERYTHING = "         0          0 4294967295\n"
LAST_BLOCK = 0x7FE0_0000


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host whose /etc and /proc name no ids of ours, to be changed by the test."""
    files = {
        "etc/subuid": "user:100000:65536\n",
        "etc/subgid": "user:100000:65536\n",
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
        "etc/group": "root:x:0:\nusers:x:100:user\n",
        "proc/self/uid_map": EVERYTHING,
        "proc/self/gid_map": EVERYTHING,
        "proc/key-users": "    0:     9 8/8 3/1000000 40/25000000\n",
        "proc/sysvipc/msg": "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid\n",
        "proc/sysvipc/sem": "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n",
        "proc/sysvipc/shm": "       key      shmid perms       size  cpid  lpid nattch   uid   gid  cuid  cgid\n",
        "proc/1/uid_map": EVERYTHING,
        "proc/1/gid_map": EVERYTHING,
        "proc/1/status": "Name:\tinit\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t \n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def sources(host: Path) -> Sources:
    return Sources(*(str(host / name) for name in ("etc/subuid", "etc/subgid", "etc/passwd", "etc/group", "proc")))


@pytest.fixture
def pool(host: Path) -> Iterator[UidPool]:
    made = UidPool(host / "run", sources(host))
    yield made
    made.close()


def append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_ranges_are_aligned_distinct_and_in_bounds(pool: UidPool) -> None:
    bases = [pool.lease() for _ in range(40)]
    assert len(set(bases)) == 40
    for base in bases:
        assert base >= FIRST
        assert base + RANGE <= END
        assert base % RANGE == 0


def test_blocks_cover_the_documented_ids_and_no_others() -> None:
    blocks = uids._blocks()
    assert sorted(blocks) == list(range(FIRST, LAST_BLOCK + 1, BLOCK))
    first_low = next(number for number, first in enumerate(blocks) if first < DIRECTORY_END)
    assert all(first < DIRECTORY_END for first in blocks[first_low:]), "those of directory services come last"
    assert END - 1 == 2147352575
    assert FIRST == 1879048192


def test_a_released_range_is_reused_last(pool: UidPool) -> None:
    first = pool.lease()
    pool.release(first)
    again = [pool.lease() for _ in range(16)]
    assert again[-1] == first
    assert first not in again[:-1]


def test_release_is_idempotent_and_ignores_what_was_not_leased(pool: UidPool) -> None:
    base = pool.lease()
    others = [pool.lease() for _ in range(15)]
    for _ in range(3):
        pool.release(base)
        pool.release(base + RANGE * 1000)
        pool.release(0)
    assert pool.lease() == base
    assert pool.lease() not in {base, *others}, "a double release must not give a range out twice"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("proc/key-users", "{base:5}:     1 1/1 1/1000000 40/25000000\n"),
        ("proc/key-users", "{last:5}:     1 1/1 1/1000000 40/25000000\n"),
        ("proc/sysvipc/msg", " 0 1 666 0 0 0 0 {base} 0 0 0\n"),
        ("proc/sysvipc/msg", " 0 1 666 0 0 0 0 0 0 0 {last}\n"),
        ("proc/sysvipc/sem", " 0 1 666 1 0 {base} 0 0 0 0\n"),
        ("proc/sysvipc/shm", " 0 1 666 1 0 0 0 0 0 {last} 0\n"),
    ],
)
def test_a_range_with_leftovers_is_quarantined_until_they_are_gone(
    host: Path, pool: UidPool, name: str, line: str
) -> None:
    leased = [pool.lease() for _ in range(16)]
    base = leased[0]
    text = (host / name).read_text()
    append(host / name, line.format(base=base, last=base + RANGE - 1))
    pool.release(base)
    assert pool.lease() not in leased
    (host / name).write_text(text)
    assert base in [pool.lease() for _ in range(16)]


def first_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uids, "_blocks", lambda: [FIRST])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("etc/subuid", "podman:{first}:65536\n"),
        ("etc/subgid", "podman:{last}:65536\n"),
        ("etc/subuid", "podman:1000000000:1000000000\n"),
        ("etc/passwd", "ad:x:{last}:100::/:/bin/sh\n"),
        ("etc/passwd", "ad:x:100:{first}::/:/bin/sh\n"),
        ("etc/group", "ad:x:{first}:\n"),
        ("proc/7/uid_map", "0 {first} 65536\n"),
        ("proc/7/gid_map", "0 {last} 1\n"),
        ("proc/7/uid_map", "0 1000 1\n1 1879000000 100000\n"),
        ("proc/7/status", "Uid:\t0\t0\t{first}\t0\nGid:\t0\t0\t0\t0\nGroups:\t\n"),
        ("proc/7/status", "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t{last}\nGroups:\t\n"),
        ("proc/7/status", "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t4 24 {last}\n"),
        ("proc/key-users", "{first}: 1 1/1 1/200 9/20000\n"),
        ("proc/sysvipc/shm", " 0 1 666 1 0 0 0 {first} 0 0 0\n"),
    ],
)
def test_a_block_in_use_is_not_granted(
    host: Path, pool: UidPool, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    first_block_only(monkeypatch)
    before = (host / name).read_text() if (host / name).exists() else None
    append(host / name, text.format(first=FIRST, last=FIRST + BLOCK - 1))
    with pytest.raises(CapacityError):
        pool.lease()
    if before is None:
        (host / name).unlink()
    else:
        (host / name).write_text(before)
    assert FIRST <= pool.lease() < FIRST + BLOCK


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("etc/subuid", "podman:{below}:1\npodman:{above}:65536\n"),
        ("etc/subuid", "# comment:{first}:1\nbroken\nbroken:x:y\nbroken:{first}:\n:::\n\n"),
        ("proc/7/uid_map", "0 {above} 65536\n"),
        ("proc/7/uid_map", "0 0 4294967295\n"),
        ("proc/7/uid_map", "0 4294967295 65536\n"),
        ("proc/7/uid_map", ""),
        ("proc/key-users", "{above}: 1 1/1 1/200 9/20000\n"),
        ("proc/7/stat", "no process any more"),
    ],
)
def test_neighbours_and_nonsense_do_not_matter(
    host: Path, pool: UidPool, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    first_block_only(monkeypatch)
    append(host / name, text.format(first=FIRST, below=FIRST - 1, above=FIRST + BLOCK))
    assert FIRST <= pool.lease() < FIRST + BLOCK


def test_a_user_namespace_without_these_ids_is_refused(host: Path, pool: UidPool) -> None:
    (host / "proc/self/gid_map").write_text("0 100000 65536\n")
    with pytest.raises(PolicyUnenforceableError, match="lacks the ids") as caught:
        pool.lease()
    assert caught.value.details["protection"] == "uid_range"


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_a_lease_directory_open_to_others_is_refused(host: Path, pool: UidPool, mode: int) -> None:
    (host / "run").mkdir()
    (host / "run").chmod(mode)
    with pytest.raises(StateError):
        pool.lease()


def test_a_lease_says_who_holds_it(host: Path, pool: UidPool) -> None:
    base = pool.lease()
    (file,) = (host / "run").iterdir()
    assert int(file.name, 16) == base - base % BLOCK
    assert json.loads(file.read_text()) == {
        "pid": os.getpid(),
        "start_time": start_time(os.getpid()),
        "boot_id": boot_id(),
    }
    assert file.stat().st_mode & 0o777 == 0o600


def test_many_threads_get_different_ranges(pool: UidPool) -> None:
    found: list[int] = []

    def work() -> None:
        for _ in range(10):
            base = pool.lease()
            found.append(base)
            if len(found) % 2:
                pool.release(base)
                found.remove(base)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found))


def test_a_forked_child_has_no_leases_of_its_parent(pool: UidPool) -> None:
    mine = {pool.lease() for _ in range(3)}

    def in_child() -> None:
        pool.release(next(iter(mine)))
        theirs = {pool.lease() for _ in range(20)}
        assert not theirs & mine
        assert not {base - base % BLOCK for base in theirs} & {base - base % BLOCK for base in mine}

    with child(in_child) as process:
        assert process.wait() == 0
    assert not {pool.lease() for _ in range(20)} & mine


def test_a_child_that_outlives_its_parent_does_not_keep_the_block(
    host: Path, pool: UidPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_block_only(monkeypatch)
    pool.lease()
    with child(sleep_forever) as process:
        pool.close()
        other = UidPool(host / "run", sources(host))
        wait_for(lambda: try_lease(other))
        assert process.runs()
        other.close()


def try_lease(pool: UidPool) -> bool:
    try:
        pool.lease()
    except CapacityError:
        return False
    return True


LEASE_MANY = """
import sys, time
from pathlib import Path
from atoll.kernel.uidclaims import Sources
from atoll.kernel.uids import UidPool
pool = UidPool(Path(sys.argv[1]), Sources(*sys.argv[2:7]))
print(*[pool.lease() for _ in range(int(sys.argv[7]))], flush=True)
time.sleep(60)
"""


def test_processes_that_lease_at_once_never_collide(host: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LEASE_MANY, str(tmp_path / "run"), *sources(host), "100"]
    workers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        lines = [worker.stdout.readline().split() for worker in workers if worker.stdout]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    found = [int(base) for line in lines for base in line]
    assert len(found) == 400
    assert len(set(found)) == 400


def test_a_killed_process_gives_its_block_back(host: Path, pool: UidPool, monkeypatch: pytest.MonkeyPatch) -> None:
    first_block_only(monkeypatch)
    with child(lambda: (pool.lease(), sleep_forever())) as process:
        wait_for(lambda: list((host / "run").glob("*")) and not try_lease(pool))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    wait_for(lambda: try_lease(pool))


@needs_root
def test_a_real_user_namespace_keeps_its_ids_from_being_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that podman, or a sandbox whose owner died, could have made."""
    inner = LAST_BLOCK + 5 * RANGE
    monkeypatch.setattr(uids, "_blocks", lambda: [LAST_BLOCK])
    pool = UidPool(tmp_path / "run")
    namespace = subprocess.Popen(["unshare", "--user", "sleep", "60"])
    try:
        own = os.readlink("/proc/self/ns/user")
        wait_for(lambda: os.readlink(f"/proc/{namespace.pid}/ns/user") != own)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{namespace.pid}/{name}").write_text(f"0 {inner} {RANGE}")
        with pytest.raises(CapacityError):
            pool.lease()
    finally:
        namespace.kill()
        namespace.wait()
    wait_for(lambda: try_lease(pool))
    pool.close()


@needs_root
def test_a_real_process_with_such_a_uid_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uids, "_blocks", lambda: [LAST_BLOCK])
    pool = UidPool(tmp_path / "run")

    def become() -> None:
        os.setresuid(LAST_BLOCK + 70_000, LAST_BLOCK + 70_000, LAST_BLOCK + 70_000)
        sleep_forever()

    with child(become) as process:
        wait_for(lambda: Path(f"/proc/{process.pid}").stat().st_uid == LAST_BLOCK + 70_000)
        with pytest.raises(CapacityError):
            pool.lease()
    wait_for(lambda: try_lease(pool))
    pool.close()


@needs_root
def test_a_real_shared_memory_segment_is_seen() -> None:
    owner = LAST_BLOCK + 123
    made = subprocess.run(
        ["setpriv", "--reuid", str(owner), "--clear-groups", "ipcmk", "-M", "4096"],
        check=True,
        capture_output=True,
        text=True,
    )
    try:
        assert owner in {number for number, _ in leftovers(SOURCES)}
    finally:
        subprocess.run(["ipcrm", "-m", made.stdout.split()[-1]], check=True)
    assert owner not in {number for number, _ in leftovers(SOURCES)}


def test_this_host_can_be_read() -> None:
    assert Claim(0, 1, "user root") in static_claims(SOURCES)
    assert any(claim.meets(os.geteuid(), 1) for claim in live_claims(SOURCES))
    assert maps_all(SOURCES, os.geteuid(), 1)
