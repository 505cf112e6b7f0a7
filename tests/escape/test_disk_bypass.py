"""Threat: the disk limit is avoided. Wall: one sized tmpfs is all that can be written; /dev is read-only."""

import os

import pytest

from tests.escape.attack import attack
from tests.sandboxes import Make

PLACES = ["/tmp", "/dev/shm", "/run", "/home/user", "/var/tmp", "/", "/etc", "/root"]


@pytest.mark.parametrize("place", PLACES)
def test_every_writable_place_shares_one_limit(make: Make, place: str) -> None:
    free = os.statvfs("/").f_bavail
    sandbox = make(memory="128M", disk="16M")
    facts = attack(
        sandbox,
        f"""
        total = 0
        try:
            with open("{place}/fill", "wb", buffering=0) as file:
                while True: total += file.write(b"x" * 65536)
        except OSError as error:
            stopped = errno.errorcode[error.errno]
        elsewhere = attempt(lambda: open("/var/tmp/more", "wb", buffering=0).write(b"x" * 2**20))
        os.unlink("{place}/fill")
        report(total=total, stopped=stopped, elsewhere=elsewhere, twin=open("{place}/again", "w").write("x"))
        """,
        user="root",
    )
    assert facts["stopped"] == "ENOSPC"
    assert 8 * 2**20 < facts["total"] <= 16 * 2**20
    assert facts["elsewhere"] in {"ENOSPC", 0}
    assert facts["twin"] == 1
    assert free - os.statvfs("/").f_bavail < 8 * 2**20 / os.statvfs("/").f_frsize * 8


def test_there_is_no_way_around_it(make: Make) -> None:
    """Unlinked open files count; /dev cannot be written; files and sizes are both limited."""
    facts = attack(
        make(memory="128M", disk="16M"),
        """
        held = []
        try:
            for n in range(64):
                held.append(open(f"/tmp/{n}", "wb", buffering=0)); os.unlink(f"/tmp/{n}"); held[-1].write(b"x" * 2**20)
        except OSError as error:
            stopped = errno.errorcode[error.errno]
        for file in held: file.close()
        count = 0
        try:
            while True: open(f"/tmp/i{count}", "w").close(); count += 1
        except OSError as error:
            inodes = errno.errorcode[error.errno]
        report(stopped=stopped, count=count, inodes=inodes, dev=attempt(os.mkdir, "/dev/x"), pts=attempt(os.mkdir, "/dev/pts/x"))
        """,
        user="root",
    )
    assert facts["stopped"] == "ENOSPC"
    assert facts["inodes"] == "ENOSPC"
    assert 256 < facts["count"] <= 2048
    assert facts["dev"] == "EROFS"
    assert facts["pts"] in {"EPERM", "EACCES", "EROFS"}
