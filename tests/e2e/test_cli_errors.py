"""Wrong and impossible requests: field, value and fix in words, the right exit code, nothing half-made. S10, S16."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Atoll


@pytest.mark.parametrize(
    ("options", "code", "field", "value", "hint"),
    [
        (["--level", "strongest"], 2, "level", "strongest", "use one of process, gvisor, microvm, wasm"),
        (["--level", "gvisor"], 125, "level gvisor", "no driver", "use one of process"),
        (["--template", "ubuntu"], 125, "template", "ubuntu", "the only template is `host`"),
        (["--user", "bob"], 2, "user", "bob", "the template has root, user"),
        (["--workspace", "/no/such"], 2, "workspace", "/no/such", "create it first"),
        (["--workspace", "/etc/hostname"], 2, "workspace", "/etc/hostname", "give the directory that holds it"),
        (["--workspace", "/"], 2, "workspace", "/", "give the project's own directory"),
        (["--workspace", "/usr:rw"], 2, "workspace_mode", "rw", "use one of overlay, ro"),
        (["--workspace", "/usr:copy"], 2, "workspace_mode", "copy", "use one of overlay, ro"),
        (["--memory", "1M"], 2, "memory", "1048576", "give at least 16M"),
        (["--memory", "-5M"], 2, "memory", "-5M", "write it like 512M, 1.5G or a number of bytes"),
        (["--memory", "12 parsecs"], 2, "memory", "12 parsecs", "write it like 512M, 1.5G or a number of bytes"),
        (["--cpus", "0"], 2, "cpus", "0", "give at least 0.01 cores"),
        (["--cpus", "nan"], 2, "cpus", "nan", "give at least 0.01 cores"),
        (["--cpus", "many"], 2, "cpus", "many", "write it like --cpus 2"),
        (["--pids", "-1"], 2, "pids", "-1", "give at least 8 processes"),
        (["--pids", "1.5"], 2, "pids", "1.5", "write it like --pids 2"),
        (["--disk", "1T"], 2, "disk", "1099511627776", "raise the memory limit"),
        (["--open-files", "1"], 2, "open_files", "1", "give at least 16 files"),
        (["--output", "1"], 2, "output", "1", "give at least 4K"),
        (["--timeout", "soon"], 2, "timeout", "soon", "write it like 30s"),
        (["--env", "HOME"], 2, "env", "HOME", "write --env HOME=VALUE"),
        (["--env", "=x"], 2, "env key", "''", "rename the variable"),
        (["--name", "../x"], 2, "name", "../x", "use up to 63 of a-z, 0-9 and -"),
        (["--without", "walls"], 2, "without", "walls", "use one of pid_namespace"),
        (["--without", "pid_namespace"], 2, "without", "pid_namespace", "only cgroup_cpu"),
        (["--cwd", "/no/such"], 2, "cwd", "/no/such", "create it first"),
        (["--cwd", "/etc/passwd"], 2, "cwd", "/etc/passwd", "create it first"),
        (["--cwd", "/root"], 2, "cwd", "/root", "create it first"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_names_field_value_and_fix(
    atoll: Atoll, options: list[str], code: int, field: str, value: str, hint: str
) -> None:
    done = atoll("run", *options, "--", "true")
    assert (done.returncode, done.stdout) == (code, b"")
    message, fix = done.stderr.decode().splitlines()
    assert message.startswith(f"atoll: {field}")
    assert value in message
    assert fix.startswith("hint: ")
    assert hint in fix
    assert atoll.sandboxes == []


@pytest.mark.parametrize(
    "argv",
    [["run"], ["run", "--nonsense", "true"], ["run", "--memory"], ["nonsense"], ["kill"], ["ps", "extra"]],
    ids=" ".join,
)
def test_usage_errors(atoll: Atoll, argv: list[str]) -> None:
    done = atoll(*argv)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Error: " in done.stderr
    assert b"Traceback" not in done.stderr


def test_an_argument_with_a_nul_cannot_even_be_written_and_a_long_one_is_refused(atoll: Atoll) -> None:
    done = atoll("run", "--env", "A=" + "x" * 131_000, "--", "true")
    assert done.returncode == 0
    parts = [f"--env=V{index}={'x' * 120_000}" for index in range(10)]
    done = atoll("run", *parts, "--", "true")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, b"hint: pass large data through stdin or a file")


def test_a_state_directory_that_others_can_change_is_refused(atoll: Atoll, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    atoll.env["ATOLL_STATE"] = str(open_to_all / "state")
    done = atoll("run", "--", "true")
    assert done.returncode == 125
    assert f"atoll: {open_to_all} can be changed by other users" in done.stderr.decode()
    assert list(open_to_all.iterdir()) == []


def test_plan_refuses_what_run_refuses(atoll: Atoll) -> None:
    for options in (["--memory", "1M"], ["--level", "gvisor"], ["--user", "bob"], ["--timeout", "soon"]):
        run, plan = atoll("run", *options, "--", "true"), atoll("plan", *options, "--", "true")
        assert (plan.returncode, plan.stderr) == (run.returncode, run.stderr)
