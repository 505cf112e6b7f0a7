"""From keywords to checked values: every wrong one is an InvalidSpecError naming it; environment is opaque (C13)."""

import inspect
from pathlib import Path

import pytest

from atoll.client import request
from atoll.client.request import DEFAULT_TIMEOUT_S, command, sandbox_spec
from atoll.model.errors import InvalidSpecError, UnsupportedError
from atoll.model.limits import GIB, MIB, Limits
from atoll.model.plan import LaunchPlan, SandboxSpec
from atoll.model.protection import LEVELS, Protection
from tests.unit.test_model_command import C13
from tests.unit.test_plan import FULL, ROOTLESS, TEMPLATE, compile_plan

STATE = Path("/nonexistent/atoll-state")


def plan(*, rootless: bool = False, **spec: object) -> LaunchPlan:
    return compile_plan(SandboxSpec(**spec), TEMPLATE, ROOTLESS if rootless else FULL, "abcdefgh")


# --- sandboxes -------------------------------------------------------------------------------------------------------


def test_nothing_said_means_the_defaults():
    assert sandbox_spec(STATE) == SandboxSpec()


def test_everything_said_arrives(tmp_path: Path):
    spec = sandbox_spec(
        STATE,
        level="gvisor",
        template="host",
        workspace=tmp_path,
        workspace_mode="ro",
        cpus=0.5,
        memory="1G",
        pids=50,
        disk="100M",
        open_files=99,
        output="10M",
        timeout="5m",
        idle_timeout=30,
        envs={"A": "1"},
        user="root",
        name="web",
        without=["seccomp", "cgroup_cpu"],
    )
    assert spec.limits == Limits(
        cpus=0.5,
        memory_bytes=GIB,
        pids_max=50,
        disk_bytes=100 * MIB,
        open_files=99,
        output_bytes=10 * MIB,
        wall_time_s=300.0,
        idle_time_s=30.0,
    )
    assert spec.workspace is not None
    assert (spec.workspace.source, spec.workspace.mode) == (str(tmp_path.resolve()), "ro")
    assert (spec.level, spec.user, spec.name, spec.env) == ("gvisor", "root", "web", {"A": "1"})
    assert spec.disable == {Protection.SECCOMP, Protection.CGROUP_CPU}


WRONG: list[tuple[str, object, str]] = [
    ("level", "docker", "level"),
    ("level", None, "level"),
    ("level", "", "level"),
    ("workspace", "/nonexistent", "workspace"),
    ("workspace", 5, "workspace"),
    ("cpus", 0, "cpus"),
    ("cpus", "many", "cpus"),
    ("memory", "12 parsecs", "memory"),
    ("memory", "15M", "memory_bytes"),
    ("memory", -1, "memory_bytes"),
    ("memory", True, "memory"),
    ("pids", 3, "pids_max"),
    ("pids", "50", "pids_max"),
    ("disk", "10G", "disk_bytes"),
    ("disk", [], "disk"),
    ("open_files", 1, "open_files"),
    ("output", "1k", "output_bytes"),
    ("timeout", -5, "timeout"),
    ("timeout", "soon", "timeout"),
    ("timeout", 0, "wall_time_s"),
    ("timeout", float("nan"), "timeout"),
    ("idle_timeout", "-1s", "idle_timeout"),
    ("idle_timeout", float("inf"), "idle_timeout"),
    ("envs", [("A", "1")], "envs"),
    ("envs", "A=1", "envs"),
    ("without", ["everything"], "without"),
    ("without", ["SECCOMP"], "without"),
    ("without", [None], "without"),
    ("without", "seccomp", "without"),
]


@pytest.mark.parametrize(("keyword", "value", "field"), WRONG, ids=[f"{word}={value!r}" for word, value, _ in WRONG])
def test_a_wrong_option_is_named_with_its_value_and_a_fix(keyword: str, value: object, field: str):
    with pytest.raises(InvalidSpecError) as raised:
        sandbox_spec(STATE, **{keyword: value})
    assert raised.value.field == field
    assert raised.value.hint


@pytest.mark.parametrize(
    "option",
    [
        {"privileged": True},
        {"cap_add": ["CAP_SYS_ADMIN"]},
        {"capabilities": "all"},
        {"devices": ["/dev/kvm"]},
        {"namespaces": {"net": "host"}},
        {"network_mode": "host"},
        {"seccomp": "off"},
        {"security_opt": ["seccomp=unconfined"]},
        {"volumes": {"/": "/host"}},
        {"uid": 0},
        {"limits": None},
        {"memry": "1G"},
    ],
    ids=lambda option: next(iter(option)),
)
def test_no_option_asks_for_a_privilege_and_no_typo_is_ignored(option: dict[str, object]):
    [(name, value)] = option.items()
    with pytest.raises(InvalidSpecError) as raised:
        sandbox_spec(STATE, **option)
    assert raised.value.field == name
    assert repr(value) in str(raised.value)
    assert "no such option" in str(raised.value)


def test_the_options_are_those_that_create_describes():
    from atoll.client.aio import AsyncSandbox  # noqa: PLC0415 - imports everything

    parameters = inspect.signature(sandbox_spec).parameters.values()
    options = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    described = inspect.getdoc(AsyncSandbox.create)
    assert described is not None
    assert {option for option in options if f"`{option}`" not in described} == set()


def test_a_name_that_is_no_string_is_judged_as_one():
    spec = sandbox_spec(STATE, name=["a"])
    with pytest.raises(InvalidSpecError, match="not a host name"):
        compile_plan(spec, TEMPLATE, FULL, "abcdefgh")


@pytest.mark.parametrize("level", LEVELS)
def test_levels(level: str):
    assert sandbox_spec(STATE, level=level).level == level


# --- commands --------------------------------------------------------------------------------------------------------


def test_a_string_runs_in_a_login_shell_as_it_is():
    text = "echo \"$HOME\" 'x' `id` \\ \n*"
    assert command(plan(), text).argv == (b"/bin/bash", b"-l", b"-c", text.encode())
    assert command(plan(), "").argv == (b"/bin/bash", b"-l", b"-c", b"")


def test_a_list_runs_as_it_is():
    resolved = command(plan(), ["-c", "a b", b"\xff", "\udcfe", "", "$HOME"])
    assert resolved.argv == (b"-c", b"a b", b"\xff", b"\xfe", b"", b"$HOME")
    assert command(plan(), (word for word in ("a", "b"))).argv == (b"a", b"b")


@pytest.mark.parametrize(
    ("cmd", "field"),
    [
        ([], "cmd"),
        ([""], "cmd"),
        (["", "x"], "cmd"),
        (["a", None], "argv[1]"),
        (["a", 5], "argv[1]"),
        (["a\0b"], "argv[0]"),
        ("a\0b", "cmd"),
        ("\ud800", "cmd"),
        ("x" * 131_072, "cmd"),
        (["a", "x" * 131_072], "argv[1]"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_command(cmd: object, field: str):
    with pytest.raises(InvalidSpecError) as raised:
        command(plan(), cmd)
    assert raised.value.field == field


def env_of(**arguments: object) -> dict[bytes, bytes]:
    launch = arguments.pop("plan", None) or plan()
    pairs = [item.partition(b"=") for item in command(launch, ["x"], **arguments).env]
    assert len({key for key, _, _ in pairs}) == len(pairs)
    return {key: value for key, _, value in pairs}


def test_c13_values_are_byte_identical_from_the_sandbox_and_from_the_command():
    expected = {key.encode(): value.encode() for key, value in C13.items()}
    for variables in (env_of(plan=plan(env=C13)), env_of(envs=C13)):
        assert variables.items() >= expected.items()


@pytest.mark.parametrize("envs", [{"A=B": "1"}, {"A\0": "1"}, {"": "1"}, {5: "1"}], ids=repr)
def test_c13_invalid_keys_are_named_on_every_way(envs: dict[str, str]):
    [key] = envs
    for ask in (lambda: plan(env=envs), lambda: env_of(envs=envs)):
        with pytest.raises(InvalidSpecError) as raised:
            ask()
        assert (raised.value.field, raised.value.details["value"]) == ("env key", repr(key))


@pytest.mark.parametrize("envs", [[("A", "1")], "A=1", 5, {"A"}], ids=repr)
def test_variables_come_as_a_dictionary(envs: object):
    with pytest.raises(InvalidSpecError, match="envs: not a dictionary"):
        command(plan(), ["x"], envs=envs)


def test_the_nearest_variable_wins():
    launch = plan(env={"A": "sandbox", "LANG": "sandbox"})
    variables = env_of(plan=launch, envs={"A": "command", "HOME": "/elsewhere"})
    assert variables == {
        b"HOME": b"/elsewhere",
        b"USER": b"user",
        b"LOGNAME": b"user",
        b"SHELL": b"/bin/bash",
        b"PATH": b"/bin",
        b"LANG": b"sandbox",
        b"A": b"command",
    }


def test_nothing_of_the_hosts_environment_gets_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("LD_PRELOAD", "/canary.so")
    assert set(env_of()) == {b"HOME", b"USER", b"LOGNAME", b"SHELL", b"PATH", b"LANG"}


def test_users():
    default, root = command(plan(), ["x"]), command(plan(), ["x"], user="root")
    assert (default.uid, default.gid, default.cwd) == (1000, 1000, b"/home/user")
    assert (root.uid, root.gid, root.cwd) == (0, 0, b"/root")
    assert command(plan(user="db"), ["x"]).uid == 70
    assert command(plan(user="db"), ["x"], user="user").uid == 1000
    with pytest.raises(InvalidSpecError, match="no such user"):
        command(plan(), ["x"], user="nobody")
    with pytest.raises(UnsupportedError):
        command(plan(rootless=True), ["x"], user="root")


def test_cwd(tmp_path: Path):
    spec = sandbox_spec(STATE, workspace=tmp_path)
    launch = compile_plan(spec, TEMPLATE, FULL, "abcdefgh")
    assert command(launch, ["x"]).cwd == b"/workspace"
    assert command(launch, ["x"], cwd="/a b/\udcff").cwd == b"/a b/\xff"
    for wrong in ("a\0b", 5, "\ud800", "x" * 200_000):
        with pytest.raises(InvalidSpecError, match=r"^cwd: "):
            command(launch, ["x"], cwd=wrong)


def test_stdin_is_a_pipe_only_when_there_is_some():
    assert not command(plan(), ["x"]).stdin
    assert command(plan(), ["x"], stdin=True).stdin


def test_the_default_timeout_is_that_of_the_e2b_sdk():
    assert DEFAULT_TIMEOUT_S == request.DEFAULT_TIMEOUT_S == 60.0
