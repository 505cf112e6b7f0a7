"""Threat: raw devices: disks, memory, /dev/kvm, /dev/fuse. Wall: a minimal read-only /dev, nodev, no mknod right."""

from atoll import Sandbox
from tests.escape.attack import attack

HARMLESS = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "core"}
HARMLESS |= {"stdin", "stdout", "stderr", "mqueue", "console"}


def test_only_harmless_devices_exist(sandbox: Sandbox, user: str) -> None:
    facts = attack(
        sandbox,
        """
        import stat
        made = {}
        for name, major, minor in (("mem", 1, 1), ("vda", 254, 0), ("kvm", 10, 232), ("fuse", 10, 229), ("null", 1, 3)):
            for directory in ("/tmp", "/dev", "/dev/shm"):
                path = f"{directory}/made-{name}-{os.getuid()}"
                result = attempt(os.mknod, path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
                made[path] = result if result else attempt(os.open, path, os.O_RDWR)
        report(names=os.listdir("/dev"), made=sorted(set(made.values())), twin=os.write(os.open("/dev/null", os.O_WRONLY), b"x"))
        """,
        user=user,
    )
    assert set(facts["names"]) <= HARMLESS
    assert set(facts["made"]) <= {"EPERM", "EROFS", "EACCES"}
    assert facts["twin"] == 1
