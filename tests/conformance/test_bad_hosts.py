"""S16 A host that cannot sandbox: a typed refusal that names the cause and the fix, never a weaker sandbox instead."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.kernel import cgroup
from tests.conformance.bad_host import (
    SYSTEM_PYTHON,
    Done,
    Site,
    altered,
    in_container,
    in_user_namespace,
)
from tests.sandboxes import Make

pytestmark = pytest.mark.as_root

NO_LIMITS = ("cgroup_cpu", "cgroup_memory", "cgroup_pids")
RUN = ("run", "--", "echo", "ran")


def without(*protections: str) -> list[str]:
    return [word for name in protections for word in ("--without", name)]


def refused(done: Done, *words: str) -> None:
    """The command did not run, and what is said holds all `words` and no stack trace."""
    assert (done.code, done.stdout) == (125, ""), done
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    version = "import sys; print(sys.version_info[:2])"
    found = subprocess.run([SYSTEM_PYTHON, "-c", version], capture_output=True, text=True, check=False)
    if found.stdout.strip() != str(sys.version_info[:2]):
        pytest.skip(f"{SYSTEM_PYTHON}, which other users can execute, is another version than ours")
    made = Site()
    yield made
    made.close()


@pytest.fixture
def no_delegation() -> None:
    root, _ = cgroup.detect()
    if root is None or root.version == 2:
        pytest.skip("an ordinary user may have limits here")


@pytest.mark.parametrize("missing", NO_LIMITS)
def test_s16_without_root_each_limit_that_is_missing_is_named(site: Site, no_delegation: None, missing: str) -> None:
    given_up = without(*(name for name in NO_LIMITS if name != missing))
    done = site.as_outsider("run", *given_up, "--", "echo", "ran")
    refused(done, f"{missing} cannot be enforced here", "need cgroup v2", f"--without {missing}")
    as_json = site.as_outsider("run", "--json", *given_up, "--", "echo", "ran")
    error = json.loads(as_json.stdout)["error"]
    assert error["reason"] == "policy_unenforceable"
    assert error["details"]["protection"] == missing


def test_s16_without_root_and_limits_given_up_by_name_it_works_with_one_uid(site: Site, no_delegation: None) -> None:
    script = (
        "id -u; cat /proc/self/uid_map; grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; touch /tmp/x"
    )
    done = site.as_outsider("run", "--json", *without(*NO_LIMITS), "--", "sh", "-c", script)
    found = json.loads(done.stdout)
    lines = found["stdout"].split("\n")
    assert lines[0] == "1000"
    assert lines[1].split()[0] == "1000"
    assert lines[1].split()[2] == "1"
    status = dict(line.split(":\t") for line in lines[2:-1])
    assert status == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    assert found["usage"]["guest_reported"] is True
    states = {name: row["state"] for name, row in found["posture"]["protections"].items()}
    assert {states[name] for name in NO_LIMITS} == {"disabled"}
    assert states["uid_range"] == "not_applicable"
    assert {states[name] for name in ("seccomp", "no_new_privs", "pid_namespace", "net_namespace")} == {"active"}


def test_s16_without_root_the_command_still_cannot_reach_the_users_own_files(site: Site, no_delegation: None) -> None:
    (site.home / "secret").write_text("canary")
    (site.home / "secret").chmod(0o644)
    done = site.as_outsider("run", *without(*NO_LIMITS), "--", "sh", "-c", f"cat {site.home}/secret; ls {site.home}")
    assert done.code != 0
    assert "canary" not in done.stdout + done.stderr


def test_s16_without_root_there_is_no_root_inside(site: Site, no_delegation: None) -> None:
    done = site.as_outsider("run", *without(*NO_LIMITS), "--user", "root", "--", "echo", "ran")
    refused(done, "root needs a uid range", "start Atoll as root")
    as_json = site.as_outsider("run", "--json", *without(*NO_LIMITS), "--user", "root", "--", "true")
    assert json.loads(as_json.stdout)["error"]["reason"] == "unsupported"


def test_s16_without_root_a_timeout_still_kills_everything(site: Site, no_delegation: None) -> None:
    script = "setsid sleep 4321 & (trap '' TERM; sleep 4321) & sleep 4321"
    done = site.as_outsider("run", "--timeout", "1s", *without(*NO_LIMITS), "--", "sh", "-c", script)
    assert done.code == 124
    assert "timeout" in done.stderr
    assert subprocess.run(["pgrep", "-f", "sleep 4321"], capture_output=True, check=False).returncode == 1


def test_s16_doctor_tells_an_ordinary_user_what_is_missing_and_how_to_get_it(site: Site, no_delegation: None) -> None:
    done = site.as_outsider("doctor")
    assert done.code == 1
    assert "systemd.unified_cgroup_hierarchy=1" in done.stdout
    assert "--without cgroup_cpu --without cgroup_memory --without cgroup_pids" in done.stdout


TAKEN_AWAY = {
    "bubblewrap": (
        altered("mount --bind /dev/null /usr/bin/bwrap"),
        ("bubblewrap is not installed", "apt-get install bubblewrap"),
    ),
    "cgroups": (
        altered("mount -t tmpfs none /sys/fs/cgroup"),
        ("cgroup_cpu cannot be enforced here", "a container needs its cgroup mount writable"),
    ),
    "writable cgroups": (
        altered("for m in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts); do mount -o remount,ro,bind $m; done"),
        ("cgroup_cpu cannot be enforced here", "a container needs its cgroup mount writable"),
    ),
    "the capability to make namespaces": (
        ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"],
        ("may not make namespaces", "CAP_SYS_ADMIN"),
    ),
    "namespaces, by a container's seccomp profile": (
        in_container(),
        ("may not make namespaces", "unconfined seccomp profile"),
    ),
    "user namespaces": (
        in_user_namespace("echo 0 > /proc/sys/user/max_user_namespaces"),
        ("user namespaces are switched off", "sysctl -w user.max_user_namespaces="),
    ),
    "all ids but its own": (
        ["unshare", "--user", "--map-root-user"],
        ("uid_range: the user namespace of this process lacks the ids", "run as root of the host"),
    ),
    "room for the journal": (
        altered('mount -t tmpfs -o size=4k,mode=700 none "$ATOLL_STATE"; head -c 4096 /dev/zero > "$ATOLL_STATE/x"'),
        ("journal", "No space left on device"),
    ),
    "a writable state directory": (
        altered('mount -t tmpfs -o ro,mode=700 none "$ATOLL_STATE"'),
        ("sandboxes", "Read-only file system"),
    ),
    "a writable /run": (altered("mount -t tmpfs -o ro none /run"), ("/run/atoll", "Read-only file system")),
}


@pytest.mark.parametrize("what", TAKEN_AWAY)
def test_s16_root_is_told_what_the_host_lacks(site: Site, tmp_path: Path, what: str) -> None:
    before, words = TAKEN_AWAY[what]
    tmp_path.chmod(0o700)
    refused(site.as_root(*RUN, state=tmp_path, before=before), *words)
    assert list(tmp_path.glob("sandboxes/*")) == []


@pytest.mark.parametrize("what", ["bubblewrap", "cgroups", "user namespaces", "the capability to make namespaces"])
def test_s16_doctor_names_the_cause_and_the_fix(site: Site, tmp_path: Path, what: str) -> None:
    before, words = TAKEN_AWAY[what]
    tmp_path.chmod(0o700)
    done = site.as_root("doctor", state=tmp_path, before=before)
    assert done.code == 1
    assert "Traceback" not in done.stderr
    assert "problem:" in done.stdout
    assert words[-1] in done.stdout or words[0] in done.stdout


def test_s16_the_parts_of_the_package_itself_are_missed_by_name(site: Site, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    hidden = altered(f"mount -t tmpfs none {site.directory}/atoll/_bin")
    refused(site.as_root(*RUN, state=tmp_path, before=hidden), "is missing", "reinstall the package")


def test_s16_inside_a_sandbox_there_is_no_second_one(site: Site, make: Make) -> None:
    sandbox = make(workspace=site.directory)
    for user in ("user", "root"):
        command = site.command("run", *without(*NO_LIMITS), "--", "echo", "ran")
        result = sandbox.commands.run(command, user=user, envs={"PYTHONPATH": "/workspace"})
        refused(Done(result.exit_code, result.stdout, result.stderr), "namespaces")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755])
def test_a_state_directory_open_to_others_is_refused(site: Site, tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    refused(site.as_root(*RUN, state=tmp_path), "is not private to uid 0", "chmod 700")


def test_a_state_directory_of_somebody_else_is_refused(site: Site, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.chown(tmp_path, 12345, 12345)
    refused(site.as_root(*RUN, state=tmp_path), "is not private to uid 0")


def test_the_same_start_works_where_nothing_is_taken_away(site: Site, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    done = site.as_root(*RUN, state=tmp_path)
    assert (done.code, done.stdout) == (0, "ran\n"), done.stderr
