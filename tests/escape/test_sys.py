"""Threat: sysfs: uevent_helper, device power, kernel module parameters. Wall: no sysfs inside."""

from atoll import Sandbox
from tests.escape.attack import attack


def test_there_is_no_sysfs(sandbox: Sandbox, user: str) -> None:
    facts = attack(
        sandbox,
        """
        kinds = {line.split()[2] for line in open("/proc/self/mounts")}
        mounted = syscall(165, b"sysfs", b"/mnt", b"sysfs", 0, None)
        report(kinds=sorted(kinds), mounted=mounted, helper=write("/sys/kernel/uevent_helper", b"/tmp/x"),
               twin=read("/sys/devices/system/cpu/online"))
        """,
        user=user,
    )
    assert not {"sysfs", "debugfs", "tracefs", "securityfs", "bpf", "configfs"} & set(facts["kinds"])
    assert facts["mounted"] == "EPERM"
    assert facts["helper"] == "ENOENT"
    assert facts["twin"].startswith("0")
