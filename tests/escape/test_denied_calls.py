"""Threat: a call is refused by the kernel today and by nobody tomorrow. Wall: seccomp itself, seen by the host's count.

Most of these calls fail without the filter too, for want of a capability; so the errno proves little. That the host
counted the very call proves that the filter stood in its way. The numbers are written out here on purpose: a table
taken from the filter would shrink with it.
"""

import pytest

from tests.escape.attack import attack
from tests.sandboxes import Make

CALLS = {
    "mounts": {
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "open_tree_attr": 467,
        "setns": 308,
    },
    "processes": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "kcmp": 312,
        "migrate_pages": 256, "move_pages": 279,
    },
    "kernel": {
        "bpf": 321, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "userfaultfd": 323,
        "perf_event_open": 298, "add_key": 248, "request_key": 249, "keyctl": 250, "open_by_handle_at": 304,
        "name_to_handle_at": 303, "fanotify_init": 300, "fanotify_mark": 301, "io_setup": 206, "memfd_secret": 447,
        "modify_ldt": 154,
    },
    "host": {
        "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
        "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "quotactl": 179, "quotactl_fd": 443,
        "sethostname": 170, "setdomainname": 171, "settimeofday": 164, "clock_settime": 227, "vhangup": 153,
        "iopl": 172, "ioperm": 173, "syslog": 103,
    },
}  # fmt: skip


@pytest.mark.parametrize("group", CALLS)
def test_the_filter_itself_refuses(make: Make, user: str, group: str) -> None:
    sandbox = make()
    facts = attack(
        sandbox,
        f"""
        tried = {{name: syscall(number, 0, 0, 0, 0, 0, 0) for name, number in {CALLS[group]!r}.items()}}
        report(tried=tried, twin=syscall(39) == os.getpid())
        """,
        user=user,
    )
    assert set(facts["tried"].values()) <= {"EPERM", "ENOSYS", "ENOTSUP"}
    assert facts["twin"] is True
    counted = {violation.detail: violation.count for violation in sandbox.violations}
    assert counted == dict.fromkeys(CALLS[group], 1)
