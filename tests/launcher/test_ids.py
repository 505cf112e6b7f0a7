"""User namespaces: who the program is, seen from inside and from outside, and that it cannot become anyone else."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launcher.conftest import Factory
from tests.launcher.rig import BASE, RANGE, USER

READ_MAPS = "cat /proc/self/uid_map /proc/self/gid_map"


def fields(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def status(pid: int | str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {key: value.strip() for key, value in pairs}


def test_range_inside(root: Factory) -> None:
    result = root().op("userns", BASE, RANGE).sh(f"{READ_MAPS}; id -u; id -g; id -G; cat /proc/self/setgroups")
    assert fields(result.text) == [["0", str(BASE), str(RANGE)]] * 2 + [["0"], ["0"], ["0"], ["allow"]]


def test_range_outside(root: Factory) -> None:
    process = root().op("userns", BASE, RANGE).start("/bin/sh", "-c", "echo; exec sleep 9")
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        seen = status(process.pid)
        process.kill()
    assert seen["Uid"].split() == [str(BASE)] * 4
    assert seen["Gid"].split() == [str(BASE)] * 4
    assert seen["Groups"] == ""


def test_the_smallest_and_the_last_range(root: Factory) -> None:
    for base, count in ((65536, 1), (2**32 - 2, 1)):
        result = root().op("userns", base, count).sh(READ_MAPS)
        assert fields(result.text) == [["0", str(base), str(count)]] * 2


def test_self_inside(rootless: Factory) -> None:
    result = rootless().op("userns-self").sh(f"{READ_MAPS}; id -u; id -g; cat /proc/self/setgroups")
    assert fields(result.text) == [["0", str(USER), "1"]] * 2 + [["0"], ["0"], ["deny"]]


def test_root_inside_is_nobody_to_the_host(either: Factory) -> None:
    launch = either().staged().userns()
    result = launch.sh(
        "grep CapEff /proc/self/status; "
        "for file in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel/uevent_helper /etc/shadow; do "
        '  [ ! -e $file ] || ! (: >> $file) 2>/dev/null || echo "wrote $file"; '
        "done; cat /etc/shadow 2>/dev/null || echo denied"
    )
    capabilities, denied = result.lines
    assert int(capabilities.split()[1], 16) & 1 << 21, "CAP_SYS_ADMIN over its own namespace is what makes this a test"
    assert denied == "denied"


def test_a_range_has_no_user_namespaces_below_it(root: Factory) -> None:
    before = Path("/proc/sys/user/max_user_namespaces").read_text()
    script = "cat /proc/sys/user/max_user_namespaces; unshare -U true 2>&1 || :; unshare -m echo others work"
    result = root().op("userns", BASE, RANGE).sh(script)
    assert result.lines == ["0", "unshare: unshare failed: No space left on device", "others work"]
    assert Path("/proc/sys/user/max_user_namespaces").read_text() == before != "0\n"


def test_an_ordinary_user_gets_no_range(rootless: Factory) -> None:
    refusal = rootless().op("userns", BASE, RANGE).refused()
    assert refusal == f"userns {BASE}: Operation not permitted"


def test_an_ordinary_user_gets_no_idmapped_tree(rootless: Factory, scratch: Path) -> None:
    launch = rootless().staged()
    launch.op("idtree", launch.fd(scratch), "root/tree", "ro", 0, 0, BASE, BASE)
    assert launch.refused().endswith("Operation not permitted")


@pytest.fixture
def orphans() -> Iterator[Callable[[], int]]:
    """Makes this process the heir of orphans (PR_SET_CHILD_SUBREAPER(2const)); counts those it was left with."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(36, 1, 0, 0, 0) == 0

    def count() -> int:
        found = 0
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0)[0]:
                found += 1
        return found

    yield count
    assert libc.prctl(36, 0, 0, 0, 0) == 0


@pytest.mark.parametrize("program", ["/bin/true", "/no/such"])
def test_the_helpers_are_gone(root: Factory, scratch: Path, orphans: Callable[[], int], program: str) -> None:
    launch = root().staged()
    launch.op("idtree", launch.fd(scratch), "root/tree", "ro", 0, 0, BASE, BASE).userns()
    launch.run(program)
    assert orphans() == 0


def test_a_helper_of_a_failed_launch_is_gone(rootless: Factory, orphans: Callable[[], int]) -> None:
    rootless().op("userns", BASE, RANGE).refused()
    assert orphans() == 0


def test_children_from_before_are_not_waited_for(root: Factory) -> None:
    launch = root().op("userns", BASE, RANGE)
    result = launch.run("/bin/echo", "fine", before=("/bin/sh", "-c", 'sleep 1 >&- 2>&- & exec "$@"', "sh"))
    assert (result.code, result.text) == (0, "fine\n")


def test_helpers_are_reaped_even_if_the_caller_ignores_sigchld(root: Factory) -> None:
    launch = root().op("userns", BASE, RANGE)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = launch.start("/bin/echo", "fine")
    finally:
        signal.signal(signal.SIGCHLD, before)
    out, err = process.communicate(timeout=9)
    assert (process.returncode, out, err) == (0, b"fine\n", b"")


def test_the_session_keyring_stays_behind(either: Factory, probe: Path) -> None:
    with_key = [str(probe), "with-key"]
    plain = subprocess.run([*with_key, str(probe), "find-key"], capture_output=True, check=True)
    assert plain.stdout == b"ok\n", "without the launcher the key is in reach"
    found = either().staged().userns().run(str(probe), "find-key", before=tuple(with_key))
    assert (found.code, found.text) == (0, "ENOKEY\n")
