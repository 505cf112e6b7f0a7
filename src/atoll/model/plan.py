"""The launch plan: everything a driver may see, printable and complete."""

import msgspec

from atoll.model.limits import Limits
from atoll.model.protection import Level, Protection
from atoll.model.template import Template, Workspace


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What will be launched; made by `plan.compile_plan`, shown by ``atoll plan``."""

    level: Level
    driver: str
    template: Template
    limits: Limits
    workspace: Workspace | None
    env: dict[str, str]
    """Variables every command gets, before its own."""
    user: str
    """Default user of commands."""
    hostname: str
    enforce: frozenset[Protection]
    """Protections that must be seen in force, or the launch fails."""
    disabled: frozenset[Protection]
    """Protections the caller switched off by name."""
    not_applicable: dict[Protection, str]
    """Protections that mean nothing here, with the reason."""
    single_uid: bool
    """True without root on the host: one user, no uid range."""


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the caller asked for; nothing in it can ask for a privilege."""

    level: Level = "process"
    template: str = "host"
    workspace: Workspace | None = None
    limits: Limits = Limits()
    env: dict[str, str] = {}
    user: str | None = None
    name: str | None = None
    disable: frozenset[Protection] = frozenset()
