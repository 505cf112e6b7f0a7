"""Threat: addresses, keys and state of the host's kernel. Wall: masked files, no syslog. The version stays visible."""

import platform

from atoll import Sandbox
from tests.escape.attack import attack


def test_files_of_the_kernel_are_masked_or_harmless(sandbox: Sandbox, user: str) -> None:
    facts = attack(
        sandbox,
        """
        def first(path):
            with open(path) as file:
                return file.read(200)
        names = ("keys", "key-users", "kcore", "timer_list", "kmsg", "vmallocinfo", "slabinfo", "pagetypeinfo", "iomem")
        seen = {name: attempt(first, f"/proc/{name}") for name in names}
        addresses = {line.split()[0] for line in open("/proc/kallsyms")} if os.path.exists("/proc/kallsyms") else set()
        null = os.stat("/dev/null").st_rdev
        hidden = [name for name in names[:4] if os.path.exists(f"/proc/{name}") and os.stat(f"/proc/{name}").st_rdev != null]
        report(hidden=hidden, seen=seen, addresses=len(addresses - {"0000000000000000", "00000000"}), dmesg=syscall(103, 3, None, 0),
               version=os.uname().release)
        """,
        user=user,
    )
    assert facts["hidden"] == [], "not masked"
    refused = {"EACCES", "EPERM", "ENOENT", ""}
    iomem = facts["seen"].pop("iomem")
    assert {name: seen for name, seen in facts["seen"].items() if seen not in refused} == {}
    assert iomem in refused or "00000000-00000000" in iomem
    assert facts["addresses"] == 0
    assert facts["dmesg"] == "EPERM"
    assert facts["version"] == platform.release()
