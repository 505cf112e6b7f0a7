"""Template x policy x limits x capabilities -> LaunchPlan, or refuse (pure).

The only place that decides whether a request can be met on this host. A protection that the driver cannot
enforce stops here with its name and the fix, unless the caller disabled exactly that one by name.
"""

import re

from atoll.model.command import env_items
from atoll.model.errors import DriverUnavailableError, InvalidSpecError, PolicyUnenforceableError, UnsupportedError
from atoll.model.plan import LaunchPlan, SandboxSpec
from atoll.model.protection import REQUIRED, Capabilities, Protection
from atoll.model.template import Template

MAY_DISABLE = frozenset({Protection.CGROUP_MEMORY, Protection.CGROUP_PIDS, Protection.CGROUP_CPU, Protection.SECCOMP})
"""Protections that exist in degrees a caller may give up; the others are what makes it a sandbox at all."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LATER = {
    Protection.EGRESS_GATEWAY: "egress is denied by an empty network namespace; there is no gateway to enforce",
    Protection.SECRET_REDACTION: "the workspace is shown as it is; nothing is redacted",
}


def compile_plan(spec: SandboxSpec, template: Template, capabilities: Capabilities, sandbox_id: str) -> LaunchPlan:
    """Decide what will be launched.

    Raises:
        InvalidSpecError: a limit, name, variable or user is malformed or unknown.
        DriverUnavailableError: the level cannot run here.
        PolicyUnenforceableError: a required protection cannot be enforced here.
        UnsupportedError: the user is not available without root on the host.
    """
    limits = spec.limits.validate()
    env_items(spec.env)
    name = spec.name if spec.name is not None else f"atoll-{sandbox_id[:8]}"
    if not _NAME.fullmatch(name):
        raise InvalidSpecError(
            "name", name, "not a host name", hint="use up to 63 of a-z, 0-9 and -, not - at either end"
        )
    forbidden = spec.disable - MAY_DISABLE
    if forbidden:
        raise InvalidSpecError(
            "without",
            ", ".join(sorted(forbidden)),
            "cannot be switched off",
            hint=f"only {', '.join(sorted(MAY_DISABLE))} can",
        )
    if capabilities.unavailable:
        raise DriverUnavailableError(
            f"level {spec.level}: {capabilities.unavailable}", hint="run `atoll doctor`", level=spec.level
        )
    single_uid = Protection.UID_RANGE in capabilities.missing
    enforce = REQUIRED - spec.disable - ({Protection.UID_RANGE} if single_uid else set())
    for protection in sorted(enforce - capabilities.enforces):
        why = capabilities.missing.get(protection, "the driver does not enforce it")
        switch = f", or give it up by name: --without {protection}" if protection in MAY_DISABLE else ""
        raise PolicyUnenforceableError(
            f"{protection} cannot be enforced here: {why}",
            hint=f"run `atoll doctor` for the fix{switch}",
            protection=str(protection),
            driver=capabilities.driver,
        )
    not_applicable = dict(_LATER)
    if single_uid:
        not_applicable[Protection.UID_RANGE] = capabilities.missing[Protection.UID_RANGE]
    user = check_user(template.user if spec.user is None else spec.user, template, single_uid=single_uid)
    return LaunchPlan(
        level=spec.level,
        driver=capabilities.driver,
        template=template,
        limits=limits,
        workspace=spec.workspace,
        env=template.env | spec.env,
        user=user,
        hostname=name,
        enforce=enforce,
        disabled=spec.disable,
        not_applicable=not_applicable,
        single_uid=single_uid,
    )


def check_user(name: str, template: Template, *, single_uid: bool) -> str:
    """The name, when the sandbox has such a user.

    Raises:
        InvalidSpecError: the template has no such user.
        UnsupportedError: it has, but without root on the host only the default user exists.
    """
    known = [user.name for user in template.users]
    if name not in known:
        raise InvalidSpecError("user", name, "no such user", hint=f"the template has {', '.join(known)}")
    if single_uid and name != template.user:
        raise UnsupportedError(
            f"user: {name} needs a uid range, which this host gives to root only",
            hint=f"use {template.user}, or start Atoll as root",
        )
    return name
