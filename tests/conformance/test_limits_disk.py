"""The writable layer: its size holds everywhere, a full disk is ENOSPC and no out-of-memory kill, and it recovers."""

import pytest

from atoll import Sandbox
from tests.conformance.test_limits_memory import assert_alive
from tests.sandboxes import Make

PLACES = ["/tmp", "/home/user", "/dev/shm", "/var/tmp"]


def fill(path: str) -> list[str]:
    return ["dd", "if=/dev/zero", f"of={path}/big", "bs=256K", "status=none"]


def root(sandbox: Sandbox) -> str:
    """Who may write anywhere."""
    return sandbox.plan.user if sandbox.plan.single_uid else "root"


def test_a_full_disk_is_said_inside_named_outside_and_freed_by_deleting(make: Make) -> None:
    sandbox = make(memory="64M", disk="8M")
    for place in PLACES:
        result = sandbox.commands.run(fill(place))
        assert (result.exit_code, result.reason) == (1, "disk_full")
        assert "No space left on device" in result.stderr
        assert "disk limit 8 MiB" in result.detail
        assert result.usage.oom_kills == 0
        assert_alive(sandbox)
        freed = sandbox.commands.run(["sh", "-c", f"rm {place}/big; head -c 4M /dev/zero > /tmp/some; rm /tmp/some"])
        assert (freed.exit_code, freed.reason) == (0, "exited")


@pytest.mark.parametrize(
    "place",
    ["/", *(pytest.param(place, marks=pytest.mark.slow_in_vm) for place in ("/etc", "/opt", "/root", "/workspace"))],
)
def test_root_meets_the_same_limit_everywhere(make: Make, place: str) -> None:
    sandbox = make(memory="64M", disk="2M")
    result = sandbox.commands.run(fill(place), user=root(sandbox))
    assert (result.exit_code, result.reason) == (1, "disk_full")
    assert "No space left on device" in result.stderr
    size = sandbox.commands.run(["stat", "-c", "%s", f"{place}/big"], user=root(sandbox)).stdout
    assert (1 << 20) < int(size) <= 2 << 20
    assert_alive(sandbox)


def test_all_places_share_one_limit(make: Make) -> None:
    sandbox = make(memory="64M", disk="8M")
    sandbox.commands.run("head -c 5M /dev/zero > /tmp/a", check=True)
    result = sandbox.commands.run("head -c 5M /dev/zero > /dev/shm/b")
    assert (result.exit_code, result.reason) == (1, "disk_full")


def test_a_full_disk_of_the_largest_size_never_runs_out_of_memory(make: Make) -> None:
    sandbox = make(memory="64M", disk="32M")
    result = sandbox.commands.run(fill("/tmp"))
    assert (result.exit_code, result.reason, result.usage.oom_kills) == (1, "disk_full", 0)
    work = sandbox.commands.run(["python3", "-c", "x = bytearray(8 << 20); print('fits')"])
    assert (work.stdout, work.usage.oom_kills) == ("fits\n", 0)


def test_as_many_files_as_there_is_room_for(make: Make) -> None:
    sandbox = make(memory="64M", disk="2M")
    script = "i=0; while : 2>/dev/null > /tmp/f$i; do i=$((i+1)); done; echo $i; touch /tmp/last"
    result = sandbox.commands.run(["bash", "-c", script])
    assert (result.exit_code, result.reason) == (1, "disk_full")
    assert 256 <= int(result.stdout) <= 1024
    assert "No space left on device" in result.stderr
    assert "1024 files" in result.detail
    assert_alive(sandbox)
    assert sandbox.commands.run("find /tmp -delete -mindepth 1 2>/dev/null; touch /tmp/again").exit_code == 0


@pytest.mark.as_root  # without root an overlay needs Linux 6.6
def test_a_workspace_takes_no_more_than_the_disk(make: Make, tmp_path_factory: pytest.TempPathFactory) -> None:
    project = tmp_path_factory.mktemp("project")
    (project / "file").write_bytes(bytes(1 << 20))
    sandbox = make(memory="64M", disk="4M", workspace=project)
    result = sandbox.commands.run(["dd", "if=/dev/zero", "of=big", "bs=256K", "status=none"])
    assert (result.exit_code, result.reason) == (1, "disk_full")
    sandbox.commands.run("rm big; echo changed >> file", check=True)
    assert sorted(path.name for path in project.iterdir()) == ["file"]
    assert (project / "file").stat().st_size == 1 << 20


def test_df_shows_the_limit(make: Make) -> None:
    sandbox = make(memory="64M", disk="8M")
    sizes = sandbox.commands.run(["df", "--block-size=1", "--output=size", "/", "/tmp", "/dev/shm"]).stdout.split()[1:]
    assert sizes == [str(8 << 20)] * 3
