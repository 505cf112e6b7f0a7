"""Threat: kernel parameters and triggers in /proc are written. Wall: never kernel uid 0, no capability."""

from atoll import Sandbox
from tests.escape.attack import attack


def test_no_file_below_proc_sys_can_be_written(sandbox: Sandbox, user: str) -> None:
    facts = attack(
        sandbox,
        """
        tried, opened = 0, []
        for top in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/mtrr", "/proc/scsi", "/proc/acpi"):
            walk = os.walk(top) if os.path.isdir(top) else [(os.path.dirname(top), [], [os.path.basename(top)])]
            for directory, _, names in walk:
                for name in names:
                    path = os.path.join(directory, name)
                    if not os.path.lexists(path):
                        continue
                    tried += 1
                    # Opening only: a write that got through would change the host.
                    fd = attempt(os.open, path, os.O_WRONLY)
                    if isinstance(fd, int):
                        opened.append(path)
                        os.close(fd)
        own = open("/proc/self/comm", "w")
        report(tried=tried, opened=opened, twin=own.write("x"))
        """,
        user=user,
    )
    assert facts["tried"] > 100
    # Parameters of the sandbox's own namespaces may be its root's to set; none of the host's are among them.
    own = ("/proc/sys/net/", "/proc/sys/user/", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/domainname")
    own += ("/proc/sys/kernel/hostname", "/proc/sys/kernel/msg", "/proc/sys/kernel/sem", "/proc/sys/kernel/shm")
    # pid_max belongs to the pid namespace since Linux 6.14 and cannot exceed the parent's.
    own += ("/proc/sys/fs/mqueue/", "/proc/sys/kernel/auto_msgmni", "/proc/sys/kernel/pid_max")
    assert [path for path in facts["opened"] if not path.startswith(own)] == []
    assert facts["twin"] == 1
