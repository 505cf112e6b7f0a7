"""`ps`, `kill`, `reap` and `doctor`: sandboxes seen and ended from another process. C27."""

import json
import os
import signal
import time

import pytest

from tests.e2e.conftest import Atoll


def test_ps_lists_what_runs(atoll: Atoll) -> None:
    process = atoll.start("run", "--name", "box", "--", "sleep", "60")
    (resources,) = atoll.running()
    (found,) = atoll.json("ps")["sandboxes"]
    assert found.pop("age_s") < 30
    assert found == {
        "id": resources.id,
        "name": "box",
        "level": "process",
        "template": "host",
        "owner_pid": process.pid,
        "alive": True,
    }
    header, row = atoll("ps").stdout.decode().splitlines()
    assert header.split() == ["ID", "NAME", "LEVEL", "OWNER", "AGE"]
    assert row.split()[:4] == [resources.id, "box", "process", str(process.pid)]
    process.terminate()
    process.wait(15)
    assert atoll.json("ps") == {"sandboxes": []}


@pytest.mark.parametrize("by", ["id", "name"])
def test_kill_from_another_process(atoll: Atoll, by: str) -> None:
    process = atoll.start("run", "--name", "box", "--", "sh", "-c", "echo ready; sleep 60")
    (resources,) = atoll.running()
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    done = atoll("kill", resources.id if by == "id" else "box")
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, f"killed {resources.id}\n", b"")
    assert resources.left == []
    _, err = process.communicate(timeout=15)
    assert (process.returncode, err) == (137, b"atoll: killed: by another process of this host\n")


def test_kill_all_with_json(atoll: Atoll) -> None:
    processes = [atoll.start("run", "--json", "--name", name, "--", "sleep", "60") for name in ("a", "b")]
    atoll.running(2)
    found = atoll.json("kill", "--all")["sandboxes"]
    assert {(one["name"], one["outcome"]) for one in found} == {("a", "killed"), ("b", "killed")}
    for process in processes:
        out, _ = process.communicate(timeout=15)
        assert json.loads(out)["reason"] == "killed"
        assert process.returncode == 137


def test_kill_while_it_starts(atoll: Atoll) -> None:
    for pause in (0.0, 0.01, 0.02, 0.03):
        process = atoll.start("run", "--", "sleep", "60")
        while not atoll.sandboxes and process.poll() is None:
            time.sleep(0.001)
        time.sleep(pause)
        assert atoll("kill", "--all").returncode == 0
        assert process.wait(15) in {125, 137}
        assert atoll.sandboxes == []


def test_kill_unknown(atoll: Atoll) -> None:
    done = atoll("kill", "nobody")
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr == b"atoll: sandbox: no such id or name, got 'nobody'\nhint: `atoll ps` lists them\n"
    assert atoll("kill", "--all").returncode == 0


def test_what_a_killed_owner_left_is_reaped(atoll: Atoll) -> None:
    process = atoll.start("run", "--", "sleep", "60")
    (resources,) = atoll.running()
    process.send_signal(signal.SIGKILL)
    process.wait(15)
    assert atoll.sandboxes == [resources.directory]
    listed = atoll("ps")
    assert listed.stdout.count(b"\n") == 1
    assert listed.stderr == b"atoll: 1 more left by dead owners; `atoll reap` removes them\n"
    assert atoll.json("reap") == {"sandboxes": [{"id": resources.id, "outcome": "removed", "detail": ""}]}
    assert resources.left == []
    assert atoll("reap").stdout == b""


def test_kill_reaps_what_a_killed_owner_left(atoll: Atoll) -> None:
    process = atoll.start("run", "--name", "box", "--", "sleep", "60")
    (resources,) = atoll.running()
    process.kill()
    process.wait(15)
    done = atoll("kill", "box")
    assert (done.returncode, done.stdout.decode()) == (0, f"reaped {resources.id}\n")
    assert resources.left == []


def test_the_next_run_reaps_too(atoll: Atoll) -> None:
    process = atoll.start("run", "--", "sleep", "60")
    (resources,) = atoll.running()
    process.kill()
    process.wait(15)
    assert atoll("run", "--", "true").returncode == 0
    assert resources.left == []


def test_reap_refuses_a_forged_journal_and_touches_nothing(atoll: Atoll) -> None:
    assert atoll("run", "--", "true").returncode == 0
    forged = atoll.state / "sandboxes" / "forgedforgedforged"
    forged.mkdir(mode=0o700)
    journal = forged / "journal.jsonl"
    journal.write_text("not a journal \x1b[31m\n")
    os.utime(forged, (0, 0))
    done = atoll("reap")
    assert done.returncode == 125
    assert done.stdout.startswith(b"refused forgedforgedforged: ")
    assert b"\x1b" not in done.stdout
    assert journal.exists()
    journal.unlink()
    forged.rmdir()


def test_doctor_shows_levels_and_what_was_seen(atoll: Atoll) -> None:
    done = atoll("doctor")
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert ["process", "works", "a", "trial", "sandbox", "ran"] in lines
    assert ["pid_namespace", "active", "seen", "in", "force"] in lines
    assert ["gvisor", "unavailable", "no", "driver", "in", "this", "release"] in lines


def test_doctor_without_bubblewrap_names_the_package(atoll: Atoll) -> None:
    """S16, for real: in a mount namespace in which bwrap is hidden."""
    hidden = 'mount -t tmpfs none /mnt && : > /mnt/not && mount --bind /mnt/not /usr/bin/bwrap && exec "$@"'
    done = atoll.within(["unshare", "--mount", "sh", "-c", hidden, "sh"], "doctor")
    assert done.returncode == 1
    assert b"problem: bubblewrap (bwrap) is not installed\n  apt-get install bubblewrap\n" in done.stdout
    run = atoll.within(["unshare", "--mount", "sh", "-c", hidden, "sh"], "run", "--", "true")
    assert run.returncode == 125
    assert b"bubblewrap is not installed" in run.stderr


def test_doctor_where_user_namespaces_are_off(atoll: Atoll) -> None:
    """S16, for real: the sysctl is one of each user namespace, so ours can be switched off."""
    off = ["unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"']
    done = atoll.within([*off, "sh"], "doctor")
    assert done.returncode == 1
    assert b"problem: user namespaces are switched off\n  sysctl -w user.max_user_namespaces=15000\n" in done.stdout
    run = atoll.within([*off, "sh"], "run", "--", "true")
    assert run.returncode == 125
    assert run.stderr.startswith(b"atoll: level process: user namespaces are switched off")


def test_doctor_without_root_and_delegation(atoll: Atoll, unprivileged: list[str]) -> None:
    """S16, for real: an ordinary user without a cgroup of their own is refused, never served without limits."""
    done = atoll.within(unprivileged, "doctor")
    assert done.returncode == 1
    assert b"process  reduced      a trial sandbox ran, but only --without cgroup_cpu" in done.stdout
    assert b"problem: memory, process and CPU limits cannot be enforced: " in done.stdout
    run = atoll.within(unprivileged, "run", "--", "true")
    assert run.returncode == 125
    assert run.stderr.startswith(b"atoll: cgroup_cpu cannot be enforced here: ")
    assert b"--without cgroup_cpu" in run.stderr
    given_up = [f"--without=cgroup_{name}" for name in ("cpu", "memory", "pids")]
    assert atoll.within(unprivileged, "run", *given_up, "--", "id", "-un").stdout == b"user\n"
    other = atoll.within(unprivileged, "run", *given_up, "--user", "root", "--", "true")
    assert (other.returncode, other.stderr.split(b"(")[0].startswith(b"atoll: user: root needs")) == (125, True)
