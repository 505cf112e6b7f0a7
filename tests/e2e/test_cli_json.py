"""`--json`: one object on stdout and nothing else, for ends and for errors."""

import base64
import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Atoll

KEYS = [
    "exit_code",
    "signal",
    "reason",
    "detail",
    "stdout",
    "stderr",
    "truncated",
    "dropped_bytes",
    "usage",
    "posture",
    "violations",
]


def test_an_ordinary_end(atoll: Atoll) -> None:
    done = atoll("run", "--json", "--", "sh", "-c", "echo grün; echo err >&2; exit 4")
    assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (4, b"", 1)
    found = json.loads(done.stdout)
    assert list(found) == KEYS
    expected = {"exit_code": 4, "signal": None, "reason": "exited", "detail": "", "stdout": "grün\n", "stderr": "err\n"}
    assert {key: found[key] for key in expected} == expected
    assert (found["truncated"], found["dropped_bytes"]) == (False, 0)
    assert set(found["usage"]) == {
        "cpu_s",
        "memory_peak_bytes",
        "wall_s",
        "oom_kills",
        "pids_rejected",
        "guest_reported",
    }
    assert found["usage"]["guest_reported"] is False
    assert found["posture"]["level"] == "process"
    assert found["posture"]["protections"]["pid_namespace"] == {"state": "active", "observed": True, "note": ""}
    assert found["violations"] == []


def test_bytes_that_are_no_text_are_given_exactly(atoll: Atoll) -> None:
    found = json.loads(atoll("run", "--json", "--", "sh", "-c", "printf 'a\\377b'").stdout)
    assert found["stdout"] == "a\ufffdb"
    assert base64.b64decode(found["stdout_base64"]) == b"a\xffb"
    assert "stderr_base64" not in found


def test_a_forced_end(atoll: Atoll) -> None:
    done = atoll("run", "--json", "--timeout", "0.2s", "--", "sleep", "60")
    assert (done.returncode, done.stderr) == (124, b"")
    found = json.loads(done.stdout)
    assert (found["exit_code"], found["signal"], found["reason"]) == (137, 9, "timeout")
    assert found["detail"] == "limit 0.2 s"


def test_a_denied_system_call_is_counted(atoll: Atoll) -> None:
    done = atoll("run", "--json", "--", "unshare", "--user", "true")
    found = json.loads(done.stdout)
    assert found["exit_code"] == 1
    assert [violation["kind"] for violation in found["violations"]] == ["seccomp"]
    assert found["violations"][0]["count"] >= 1


def test_long_output_is_cut_in_the_middle_and_says_so(atoll: Atoll) -> None:
    script = "echo head; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo tail"
    found = json.loads(atoll("run", "--json", "--", "sh", "-c", script).stdout)
    assert found["truncated"]
    assert found["stdout"].startswith("head\nx")
    assert found["stdout"].endswith("x\ntail\n")
    assert len(found["stdout"]) + found["dropped_bytes"] == 3000000 + len("head\n\ntail\n")


@pytest.mark.parametrize(
    ("argv", "code", "reason", "field"),
    [
        (["--memory", "12 parsecs"], 2, "invalid_spec", "memory"),
        (["--cwd", "/no/such"], 2, "invalid_spec", "cwd"),
        (["--level", "gvisor"], 125, "driver_unavailable", None),
        (["--template", "x"], 125, "not_found", None),
    ],
    ids=["memory", "cwd", "level", "template"],
)
def test_errors(atoll: Atoll, argv: list[str], code: int, reason: str, field: str | None) -> None:
    done = atoll("run", "--json", *argv, "--", "true")
    assert (done.returncode, done.stderr) == (code, b"")
    (error,) = json.loads(done.stdout).values()
    assert list(error) == ["reason", "message", "hint", "details"]
    assert error["reason"] == reason
    assert error["hint"]
    assert error["details"].get("field") == field


def test_plan(atoll: Atoll, tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    options = ["--memory", "64M", "--workspace", f"{workspace}:ro", "--env", "A=1"]
    done = atoll("plan", "--json", *options, "--", "ls", "-l")
    assert (done.returncode, done.stderr) == (0, b"")
    plan = json.loads(done.stdout)
    assert plan["limits"]["memory_bytes"] == 64 << 20
    assert plan["workspace"]["source"] == str(workspace)
    assert plan["workspace"]["mode"] == "ro"
    assert plan["env"]["A"] == "1"
    assert plan["command"] == {"argv": ["ls", "-l"], "cwd": "/workspace", "uid": 1000, "gid": 1000}
    assert plan["enforce"] == sorted(plan["enforce"])
    assert {"pid_namespace", "seccomp", "cgroup_memory"} <= set(plan["enforce"])
    assert atoll.sandboxes == []


def test_doctor(atoll: Atoll) -> None:
    done = atoll("doctor", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["healthy"]) == (0, True)
    assert [level["level"] for level in found["levels"]] == ["process", "gvisor", "microvm", "wasm"]
    assert found["levels"][0]["state"] == "works"
    assert not [finding for finding in found["findings"] if finding["severity"] == "problem"]
