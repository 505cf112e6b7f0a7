"""Threat: setuid programs and file capabilities give privilege. Wall: no_new_privs, nosuid mounts."""

from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack


def test_a_setuid_program_gives_nothing(sandbox: Sandbox) -> None:
    """Guest root makes one for itself; run by `user` it stays `user`."""
    made = sandbox.commands.run("cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && ls -l /tmp/id", user="root").check()
    assert "rws" in made.stdout
    assert sandbox.commands.run("/tmp/id -u").stdout == "1000\n"
    assert sandbox.commands.run("/tmp/id -u", user="root").stdout == "0\n"


def test_setuid_programs_of_the_host_give_nothing(sandbox: Sandbox) -> None:
    found = sandbox.commands.run("find /usr/bin /usr/sbin -perm -4000 2>/dev/null").stdout.split()
    assert found, "this host has no setuid program to try"
    facts = attack(sandbox, 'report(flags=os.statvfs("/usr").f_flag & 2, ids=os.getresuid())')
    assert facts == {"flags": 2, "ids": [1000, 1000, 1000]}
    result = sandbox.commands.run("su -c id root < /dev/null")
    assert "uid=0" not in result.stdout


def test_file_capabilities_give_nothing(sandbox: Sandbox) -> None:
    """Guest root may set them; a program that has them still starts without, and reads only what `user` may read."""
    made = sandbox.commands.run("cp /usr/bin/cat /tmp/cat && setcap cap_dac_override+ep /tmp/cat", user="root")
    assert made.exit_code == 0, made.stderr
    assert (
        "security.capability"
        in sandbox.commands.run(["/usr/bin/python3", "-c", "import os; print(os.listxattr('/tmp/cat'))"]).stdout
    )
    sandbox.commands.run("echo secret > /root/file && chmod 600 /root/file", user="root").check()
    result = sandbox.commands.run("/tmp/cat /proc/self/status; /tmp/cat /root/file")
    assert "Name:\tcat" in result.stdout
    assert "CapEff:\t0000000000000000" in result.stdout
    assert "Permission denied" in result.stderr
    assert "secret" not in result.stdout
    assert sandbox.commands.run("/tmp/cat /root/file", user="root").stdout == "secret\n"
    assert not list(Path("/tmp").glob("cat"))
