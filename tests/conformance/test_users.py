"""Users inside: an ordinary one by default, root on request, and neither is anybody on the host."""

import pytest

from atoll import Sandbox
from atoll.model.errors import InvalidSpecError
from tests.conformance.host import View, status_of
from tests.sandboxes import Make

pytestmark = pytest.mark.as_root


def test_commands_run_as_user_by_default(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("id; echo $USER $LOGNAME $HOME $SHELL; pwd")
    assert result.stdout == (
        "uid=1000(user) gid=1000(user) groups=1000(user)\nuser user /home/user /bin/bash\n/home/user\n"
    )


def test_commands_run_as_root_when_asked(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("id; echo $USER $LOGNAME $HOME $SHELL; pwd", user="root")
    assert result.stdout == "uid=0(root) gid=0(root) groups=0(root)\nroot root /root /bin/bash\n/root\n"


def test_the_default_user_can_be_chosen_for_the_sandbox(make: Make) -> None:
    sandbox = make(user="root")
    assert sandbox.commands.run("whoami").stdout == "root\n"
    assert sandbox.commands.run("whoami", user="user").stdout == "user\n"


def test_s10_an_unknown_user_is_a_typed_error(sandbox: Sandbox) -> None:
    for name in ("nobody", "1000", "root ", "ROOT", "../root", "user\0"):
        with pytest.raises(InvalidSpecError, match=r"user: no such user.*template has root, user") as caught:
            sandbox.commands.run("id", user=name)
        assert caught.value.field == "user"
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_s10_an_unknown_default_user_is_a_typed_error(make: Make) -> None:
    with pytest.raises(InvalidSpecError, match=r"user: no such user.*template has root, user"):
        make(user="admin")


def test_ordinary_permissions_hold_between_the_two(sandbox: Sandbox) -> None:
    sandbox.commands.run("echo secret > /root/note; echo x > /etc/added; chmod 600 /root/note", user="root", check=True)
    for attempt in ("cat /root/note", "echo y >> /etc/added", "chown root /tmp", "kill -0 1", "ls /root"):
        result = sandbox.commands.run(attempt)
        assert result.exit_code != 0
        assert "ermission denied" in result.stderr or "not permitted" in result.stderr
    sandbox.commands.run("touch mine")
    assert (
        sandbox.commands.run("stat -c %U:%G /home/user/mine; rm /home/user/mine", user="root").stdout == "user:user\n"
    )


def test_root_can_do_what_package_managers_do(sandbox: Sandbox) -> None:
    script = (
        "install -o user -g user -m 750 -d /opt/app && chown 33:33 /opt && mknod /tmp/pipe p"
        " && setpriv --reuid user --regid user --clear-groups id -u"
        " && install -o 1234 -g 4321 /etc/passwd /var/lib/copy && chmod 4755 /var/lib/copy"
        " && stat -c %u:%g:%a /opt/app /opt /var/lib/copy"
    )
    result = sandbox.commands.run(script, user="root")
    assert result.stderr == ""
    assert result.stdout.splitlines()[-3:] == ["1000:1000:750", "33:33:755", "1234:4321:4755"]


def test_nobody_inside_is_anybody_on_the_host(make: Make) -> None:
    taken: set[int] = set()
    for sandbox in (make(), make()):
        view = View(sandbox)
        bases = {int(uid) for uid in status_of(view.agent_pid, "Uid").split()}
        for user, offset in (("root", 0), ("user", 1000)):
            sandbox.commands.run("sleep 50 & until pgrep -x sleep; do :; done", user=user)
            (sleeping,) = (pid for pid, name in view.processes().items() if name == "sleep")
            assert {int(uid) - offset for uid in status_of(sleeping, "Uid").split()} == bases
            assert status_of(sleeping, "Groups") in {"", status_of(sleeping, "Gid").split()[0]}
            sandbox.commands.run("pkill sleep", user="root")
        (base,) = bases
        assert base >= 65536
        assert base not in taken
        taken.add(base)
