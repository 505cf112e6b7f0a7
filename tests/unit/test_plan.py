"""What may be launched on which host: the table of `compile_plan`, and that nobody can ask for a privilege."""

import itertools
import re

import msgspec
import pytest

from atoll.model.errors import (
    DriverUnavailableError,
    InvalidSpecError,
    PolicyUnenforceableError,
    UnsupportedError,
)
from atoll.model.limits import MIB, Limits
from atoll.model.plan import LaunchPlan, SandboxSpec
from atoll.model.protection import REQUIRED, Capabilities, Protection
from atoll.model.template import Rootfs, Template, User, Workspace
from atoll.plan import MAY_DISABLE, check_user, compile_plan

ID = "abcdefgh01234567"
TEMPLATE = Template(
    name="test",
    digest="",
    rootfs=Rootfs(directories=(), files=(), symlinks=(), trees=()),
    users=(
        User(name="root", uid=0, gid=0, home="/root"),
        User(name="user", uid=1000, gid=1000, home="/home/user"),
        User(name="db", uid=70, gid=70, home="/var/db"),
    ),
    user="user",
    env={"PATH": "/bin", "LANG": "C"},
)
FULL = Capabilities(driver="test", level="process", enforces=REQUIRED)
EXPLAINED = {protection: f"no {protection} here; run fix-{protection}" for protection in REQUIRED}


def without(*protections: Protection) -> Capabilities:
    """A host that cannot enforce these, and says why."""
    missing = {protection: EXPLAINED[protection] for protection in protections}
    return msgspec.structs.replace(FULL, enforces=REQUIRED - set(protections), missing=missing)


ROOTLESS = without(Protection.UID_RANGE)


def planned(capabilities: Capabilities = FULL, **spec: object) -> LaunchPlan:
    return compile_plan(SandboxSpec(**spec), TEMPLATE, capabilities, ID)


# --- protections -----------------------------------------------------------------------------------------------------


def test_everything_is_enforced_unless_it_was_given_up():
    plan = planned()
    assert plan.enforce == REQUIRED
    assert plan.disabled == frozenset()
    assert not plan.single_uid
    assert set(plan.not_applicable) == {Protection.EGRESS_GATEWAY, Protection.SECRET_REDACTION}


@pytest.mark.parametrize("protection", sorted(REQUIRED - {Protection.UID_RANGE}))
def test_a_protection_that_is_missing_stops_the_launch_with_name_and_fix(protection: Protection):
    with pytest.raises(PolicyUnenforceableError) as raised:
        planned(without(protection))
    error = raised.value
    assert str(protection) in error.message
    assert f"run fix-{protection}" in error.message
    assert error.details == {"protection": str(protection), "driver": "test"}
    assert (f"--without {protection}" in error.hint) == (protection in MAY_DISABLE)


def test_a_driver_that_does_not_even_know_a_protection_is_refused():
    silent = msgspec.structs.replace(FULL, enforces=REQUIRED - {Protection.DISK_QUOTA})
    with pytest.raises(PolicyUnenforceableError, match="disk_quota cannot be enforced here: the driver does not"):
        planned(silent)


@pytest.mark.parametrize("protection", sorted(MAY_DISABLE))
def test_what_may_be_given_up_by_name(protection: Protection):
    for capabilities in (FULL, without(protection)):
        plan = planned(capabilities, disable=frozenset({protection}))
        assert plan.enforce == REQUIRED - {protection}
        assert plan.disabled == {protection}


def test_giving_up_one_gives_up_no_other():
    for given_up, missing in itertools.permutations(sorted(MAY_DISABLE), 2):
        with pytest.raises(PolicyUnenforceableError, match=f"^{missing} "):
            planned(without(given_up, missing), disable=frozenset({given_up}))


@pytest.mark.parametrize("protection", sorted(set(Protection) - MAY_DISABLE))
def test_what_cannot_be_switched_off(protection: Protection):
    for capabilities in (FULL, ROOTLESS):
        with pytest.raises(InvalidSpecError) as raised:
            planned(capabilities, disable=frozenset({protection, Protection.SECCOMP}))
        assert raised.value.field == "without"
        assert str(protection) in str(raised.value)
        assert "seccomp" in raised.value.hint


def test_no_wall_of_another_level_is_promised():
    boundaries = {Protection.VM_BOUNDARY, Protection.USERSPACE_KERNEL, Protection.WASM_BOUNDARY}
    assert not boundaries & planned().enforce


def test_a_driver_that_cannot_run_at_all():
    capabilities = msgspec.structs.replace(FULL, unavailable="bubblewrap is not installed")
    with pytest.raises(DriverUnavailableError, match="level process: bubblewrap is not installed") as raised:
        planned(capabilities)
    assert raised.value.details["level"] == "process"


def test_a_bad_request_is_the_callers_mistake_also_where_nothing_runs():
    capabilities = msgspec.structs.replace(FULL, unavailable="nothing works", enforces=frozenset())
    for spec in ({"limits": Limits(memory_bytes=1)}, {"name": "-x"}, {"env": {"A=": "1"}}):
        with pytest.raises(InvalidSpecError):
            planned(capabilities, **spec)


# --- users -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["root", "user", "db"])
def test_users_with_a_uid_range(name: str):
    assert planned(user=name).user == name


def test_the_default_user():
    assert planned().user == planned(ROOTLESS).user == "user"


@pytest.mark.parametrize("capabilities", [FULL, ROOTLESS], ids=["root", "rootless"])
@pytest.mark.parametrize("name", ["nobody", "0", "USER", "root ", "../root", "user\n", "\ud800"], ids=repr)
def test_unknown_users(capabilities: Capabilities, name: str):
    with pytest.raises(InvalidSpecError, match="no such user") as raised:
        planned(capabilities, user=name)
    assert raised.value.field == "user"
    assert raised.value.hint == "the template has root, user, db"


@pytest.mark.parametrize("name", ["root", "db"])
def test_without_root_on_the_host_there_is_one_user(name: str):
    with pytest.raises(UnsupportedError, match=f"{name} needs a uid range") as raised:
        planned(ROOTLESS, user=name)
    assert "start Atoll as root" in raised.value.hint
    with pytest.raises(UnsupportedError):
        check_user(name, TEMPLATE, single_uid=True)


def test_without_root_on_the_host_the_plan_says_why():
    plan = planned(ROOTLESS)
    assert plan.single_uid
    assert plan.enforce == REQUIRED - {Protection.UID_RANGE}
    assert plan.not_applicable[Protection.UID_RANGE] == EXPLAINED[Protection.UID_RANGE]


# --- names: case S11 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "7", "web-1", "a--b", "x" * 63, "0" * 63])
def test_s11_host_names(name: str):
    assert planned(name=name).hostname == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "x" * 64, "x" * 65 + "y", "é", "\uff41", "漢", "Web", "-web", "web-", "-", "a.b", "a_b", "a b", "a/b"),
        *("..", "a\n", "\na", "a\0", "$(id)", "a:b", "a,b", "--unshare-net", "\udcff", "\u0663"),
    ],
    ids=lambda name: f"{len(name)} {name!r}"[:20],
)
def test_s11_what_is_no_host_name(name: str):
    with pytest.raises(InvalidSpecError) as raised:
        planned(name=name)
    assert raised.value.field == "name"
    assert repr(name)[:50] in str(raised.value)
    assert "up to 63" in raised.value.hint


def test_a_name_for_who_gives_none():
    assert planned().hostname == "atoll-abcdefgh"


# --- the rest --------------------------------------------------------------------------------------------------------


def test_the_sandboxs_variables_come_after_the_templates():
    assert planned(env={"LANG": "de", "A": "$HOME"}).env == {"PATH": "/bin", "LANG": "de", "A": "$HOME"}


def test_limits_are_filled_in():
    assert planned(limits=Limits(memory_bytes=64 * MIB)).limits.disk_bytes == 16 * MIB


def test_plans_are_the_same_for_the_same_request():
    workspace = Workspace(source="/src", owner=(1, 2), identity=(3, 4))
    spec = {"workspace": workspace, "env": {"A": "1"}, "disable": frozenset({Protection.SECCOMP})}
    assert planned(**spec) == planned(**spec)
    assert msgspec.json.encode(planned(**spec))  # printable


# --- privileges ------------------------------------------------------------------------------------------------------

PRIVILEGES = re.compile(
    r"privileg|cap_|capabilit|device|namespace|seccomp|host_?net|mount|bind|sysctl|setuid|kernel|root$"
)


@pytest.mark.parametrize("struct", [SandboxSpec, Workspace, Limits, User])
def test_no_field_asks_for_a_privilege(struct: type[msgspec.Struct]):
    assert [field for field in struct.__struct_fields__ if PRIVILEGES.search(field)] == []


def test_the_fields_of_a_request_are_these():
    # A new one is checked by a person for what it lets a caller ask for, and only then added here.
    assert SandboxSpec.__struct_fields__ == (
        *("level", "template", "workspace", "limits", "env", "user", "name", "disable"),
    )


@pytest.mark.parametrize(
    "extra",
    [
        {"privileged": True},
        {"cap_add": ["SYS_ADMIN"]},
        {"devices": ["/dev/kvm"]},
        {"seccomp": "off"},
        {"namespaces": {}},
    ],
    ids=str,
)
def test_no_struct_takes_an_unknown_field(extra: dict[str, object]):
    with pytest.raises(TypeError):
        SandboxSpec(**extra)
    with pytest.raises(TypeError):
        User(name="x", uid=1, gid=1, home="/", **extra)
