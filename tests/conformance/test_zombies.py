"""C12 Zombies are reaped: orphans get a parent that waits, and exit statuses stay right meanwhile."""

import threading

from atoll import Sandbox
from tests.conformance.host import View, eventually, status_of

ORPHANS = "for i in $(seq 500); do (sleep 0.01 &) ; done; sleep 2; ps -eo stat | grep -c ^Z"


def test_c12_five_hundred_orphans_leave_no_zombie(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(ORPHANS)
    assert (result.stdout, result.exit_code) == ("0\n", 1)  # grep counts none
    assert result.stderr == ""


def test_c12_exit_statuses_are_right_while_it_reaps(sandbox: Sandbox) -> None:
    orphans = threading.Thread(target=lambda: sandbox.commands.run(ORPHANS))
    orphans.start()
    codes = [sandbox.commands.run(["sh", "-c", f"exit {number % 256}"]).exit_code for number in range(300)]
    orphans.join()
    assert codes == [number % 256 for number in range(300)]


def test_c12_an_orphan_becomes_a_child_of_pid_1(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("sh -c '(sleep 0.2; ps -o ppid= -p $BASHPID > /tmp/parent) &' ; sleep 0.6")
    assert result.exit_code == 0
    ask = "import os, time\nif os.fork(): os._exit(0)\ntime.sleep(0.3)\nprint(os.getppid())"
    assert sandbox.commands.run(["python3", "-c", ask], wait_for_descendants=True).stdout == "1\n"


def test_c12_what_a_command_leaves_behind_is_reaped_after_it(sandbox: Sandbox) -> None:
    view = View(sandbox)
    sandbox.commands.run("for i in $(seq 50); do sleep 0.3 & done >/dev/null 2>&1; exit")
    assert eventually(view.processes) == {}


def test_c12_zombies_of_a_parent_that_never_waits_end_with_it(sandbox: Sandbox) -> None:
    view = View(sandbox)
    code = "import os, time\nfor n in range(30):\n  if not os.fork(): os._exit(0)\ntime.sleep(0.5)"
    sandbox.commands.run(["python3", "-c", code])
    assert eventually(view.processes) == {}


def test_c12_the_host_gets_no_zombies(sandbox: Sandbox) -> None:
    view = View(sandbox)
    sandbox.commands.run(ORPHANS.replace("sleep 2", "sleep 0.5"))
    assert not [pid for pid in view.processes() if status_of(pid, "State").startswith("Z")]
