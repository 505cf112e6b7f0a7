"""Threat: cgroup v1 release_agent runs a program on the host; limits are rewritten. Wall: read-only views, no mount."""

from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack


def test_no_cgroup_file_can_be_written(sandbox: Sandbox, user: str) -> None:
    agents = {path: path.read_text() for path in Path("/sys/fs/cgroup").glob("*/release_agent")}
    facts = attack(
        sandbox,
        """
        mounted = [syscall(165, b"cgroup", b"/mnt", kind, 0, option) for kind, option in
                   ((b"cgroup", b"memory"), (b"cgroup", b"rdma"), (b"cgroup2", None))]
        tried, opened = 0, []
        for directory, names, files in os.walk("/sys/fs/cgroup"):
            for name in files:
                tried += 1
                fd = attempt(os.open, os.path.join(directory, name), os.O_WRONLY)
                if isinstance(fd, int):
                    opened.append(os.path.join(directory, name))
        made = attempt(os.mkdir, "/sys/fs/cgroup/memory/x"), attempt(os.mkdir, "/sys/fs/cgroup/x")
        report(mounted=mounted, tried=tried, opened=opened, made=made, twin=bool(read("/proc/self/cgroup")))
        """,
        user=user,
    )
    assert facts["mounted"] == ["EPERM"] * 3
    assert facts["tried"] > 10
    assert facts["opened"] == []
    # Only its own empty directory under the views can take a new one, and that is a directory like any other.
    assert facts["made"][0] in {"EROFS", "ENOENT", "EACCES"}
    assert facts["twin"] is True
    assert {path: path.read_text() for path in agents} == agents
