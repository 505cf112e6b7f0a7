"""What programs look up: processors, memory, cgroup files and open files all tell the limits they really have."""

import math
import os

import pytest

from tests.sandboxes import Make

MIB = 1 << 20
CGROUP_FILES = {
    1: {
        "memory/memory.limit_in_bytes": str(64 * MIB),
        "pids/pids.max": "40",
        "cpu/cpu.cfs_quota_us": "50000",
        "cpu/cpu.cfs_period_us": "100000",
    },
    2: {"memory.max": str(64 * MIB), "pids.max": "40", "cpu.max": "50000 100000"},
}
"""Name below /sys/fs/cgroup -> content for memory 64M, pids 40, cpus 0.5, by cgroup version."""
ASK_PYTHON = "import os; print(os.cpu_count(), len(os.sched_getaffinity(0)), os.sysconf('SC_NPROCESSORS_CONF'))"


@pytest.mark.parametrize("cpus", [0.5, 1.5, *(pytest.param(n, marks=pytest.mark.slow_in_vm) for n in (1, 2, 64))])
def test_programs_see_as_many_processors_as_they_may_use(make: Make, cpus: float) -> None:
    wanted = min(math.ceil(cpus), len(os.sched_getaffinity(0)))
    sandbox = make(cpus=cpus)
    assert sandbox.commands.run(["nproc"]).stdout == f"{wanted}\n"
    assert sandbox.commands.run(["nproc", "--all"]).stdout == f"{wanted}\n"
    assert sandbox.commands.run(["python3", "-c", ASK_PYTHON]).stdout.split() == [str(wanted)] * 3


def test_programs_see_their_memory(make: Make) -> None:
    sandbox = make(memory="64M")
    meminfo = dict(line.split(":") for line in sandbox.commands.run(["cat", "/proc/meminfo"]).stdout.splitlines())
    assert meminfo["MemTotal"].split() == [str(64 * 1024), "kB"]
    assert 0 < int(meminfo["MemAvailable"].split()[0]) <= 64 * 1024
    assert int(meminfo["SwapTotal"].split()[0]) == 0
    assert sandbox.commands.run("free -b | awk '/^Mem/{print $2}'").stdout == f"{64 * MIB}\n"


def test_cgroup_files_show_the_limits_and_cannot_be_changed(make: Make) -> None:
    sandbox = make(memory="64M", pids=40, cpus=0.5)
    version = 2 if sandbox.commands.run(["test", "-e", "/sys/fs/cgroup/cgroup.controllers"]).exit_code == 0 else 1
    user = sandbox.plan.user if sandbox.plan.single_uid else "root"
    for name, content in CGROUP_FILES[version].items():
        path = f"/sys/fs/cgroup/{name}"
        assert sandbox.commands.run(["cat", path]).stdout == f"{content}\n"
        denied = sandbox.commands.run(["sh", "-c", f"echo max > {path}; mkdir {os.path.dirname(path)}/mine"], user=user)
        assert denied.exit_code != 0
        assert sandbox.commands.run(["cat", path]).stdout == f"{content}\n"


def test_programs_find_their_own_cgroup_where_proc_says_it_is(make: Make) -> None:
    script = (
        "while IFS=: read -r _ controllers path; do case $controllers in"
        " memory) cat /sys/fs/cgroup/memory$path/memory.limit_in_bytes;;"
        " '') [ ! -e /sys/fs/cgroup/cgroup.controllers ] || cat /sys/fs/cgroup$path/memory.max;;"
        " esac; done < /proc/self/cgroup"
    )
    found = make(memory="64M").commands.run(["sh", "-c", script])
    assert found.stdout in {f"{64 * MIB}\n", "max\n"}  # v2: the leaf has none, its parent's holds
    assert found.stderr == ""


def test_open_files_end_at_the_limit(make: Make) -> None:
    sandbox = make(open_files=64)
    code = (
        "import os\nopened = 3\n"
        "try:\n  while os.dup(0): opened += 1\n"
        "except OSError as error: print(error.errno, opened)"
    )
    assert sandbox.commands.run(["python3", "-c", code]).stdout == "24 64\n"
    assert sandbox.commands.run("ulimit -Sn; ulimit -Hn").stdout == "64\n64\n"
    assert sandbox.commands.run("ulimit -n 65").exit_code == 1
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
