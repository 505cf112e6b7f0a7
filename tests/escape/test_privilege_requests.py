"""Threat: a field of the API asks for a privilege. Wall: there is no such field; what is unknown is an error."""

import subprocess
import sys
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.model.errors import AtollError
from atoll.model.plan import SandboxSpec
from tests.sandboxes import Make

ATOLL = Path(sys.executable).with_name("atoll")
WISHES: list[dict[str, object]] = [
    {"privileged": True},
    {"cap_add": ["SYS_ADMIN"]},
    {"devices": ["/dev/kvm"]},
    {"network": "host"},
    {"pid": "host"},
    {"seccomp": "unconfined"},
    {"security_opt": ["no-new-privileges:false"]},
    {"volumes": {"/": "/host"}},
    {"without": ["user_namespace"]},
    {"without": ["no_new_privs"]},
    {"without": ["capabilities_dropped"]},
    {"without": ["net_namespace"]},
    {"user": "0:0"},
    {"user": "nobody"},
    {"workspace_mode": "rw"},
]


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_asking_is_an_error(wish: dict[str, object]) -> None:
    with pytest.raises(AtollError) as caught:
        Sandbox.create(**wish)
    assert next(iter(wish)).split("_")[0] in str(caught.value)


@pytest.mark.parametrize("flag", ["--privileged", "--cap-add=ALL", "--device=/dev/kvm", "--net=host", "--pid=host"])
def test_the_command_line_has_no_such_flag(flag: str) -> None:
    done = subprocess.run([ATOLL, "run", flag, "--", "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No such option" in done.stderr


def test_the_environment_cannot_ask_either(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATOLL_PRIVILEGED", "ATOLL_SECCOMP", "BWRAP_ARGS", "LD_PRELOAD"):
        monkeypatch.setenv(name, "off")
    status = make(envs={"LD_PRELOAD": "/tmp/x.so"}).commands.run(["/bin/cat", "/proc/self/status"]).stdout
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status


def test_the_request_has_only_these_fields() -> None:
    """A new field is a decision: it must not be able to weaken anything but by a named protection."""
    assert set(SandboxSpec.__struct_fields__) == {
        "level", "template", "workspace", "limits", "env", "user", "name", "disable",
    }  # fmt: skip
