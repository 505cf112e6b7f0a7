"""From what people write (strings, paths, keyword arguments) to checked values."""

import os
from collections.abc import Iterable
from pathlib import Path

from atoll.model.command import Command, env_items, to_bytes
from atoll.model.errors import InvalidSpecError
from atoll.model.limits import Limits, parse_duration, parse_size
from atoll.model.plan import LaunchPlan, SandboxSpec
from atoll.model.protection import LEVELS, Level, Protection
from atoll.mount.workspace import check_mode, resolve_workspace
from atoll.plan import check_user

DEFAULT_TIMEOUT_S = 60.0
"""Of one command, as in the E2B SDK."""


def sandbox_spec(  # noqa: PLR0913 - one keyword per thing a person may say
    state: Path,
    *,
    level: str = "process",
    template: str = "host",
    workspace: str | os.PathLike[str] | None = None,
    workspace_mode: str = "overlay",
    cpus: float | None = None,
    memory: str | int | None = None,
    pids: int | None = None,
    disk: str | int | None = None,
    open_files: int | None = None,
    output: str | int | None = None,
    timeout: str | float | None = None,
    idle_timeout: str | float | None = None,
    envs: dict[str, str] | None = None,
    user: str | None = None,
    name: str | None = None,
    without: Iterable[str] = (),
    **unknown: object,
) -> SandboxSpec:
    """Check a request for a sandbox as far as that needs no host.

    Raises:
        InvalidSpecError: naming the field, the value and the fix.
    """
    for option, value in unknown.items():
        raise InvalidSpecError(option, value, "no such option", hint="`AsyncSandbox.create` lists them")
    given: dict[str, float | None] = {
        "cpus": cpus,
        "memory_bytes": None if memory is None else parse_size("memory", memory),
        "pids_max": pids,
        "disk_bytes": None if disk is None else parse_size("disk", disk),
        "open_files": open_files,
        "output_bytes": None if output is None else parse_size("output", output),
        "wall_time_s": None if timeout is None else parse_duration("timeout", timeout),
        "idle_time_s": None if idle_timeout is None else parse_duration("idle_timeout", idle_timeout),
    }
    mode = check_mode(workspace_mode)
    limits = Limits(**{field: value for field, value in given.items() if value is not None})  # type: ignore[arg-type]
    limits.validate()
    return SandboxSpec(
        level=_level(level),
        template=template,
        workspace=None if workspace is None else resolve_workspace(workspace, mode, state),
        limits=limits,
        env=_variables(envs),
        user=user,
        name=None if name is None else str(name),
        disable=_protections(without),
    )


def command(
    plan: LaunchPlan,
    cmd: str | Iterable[str | bytes],
    *,
    envs: dict[str, str] | None = None,
    user: str | None = None,
    cwd: str | None = None,
    stdin: bool = False,
) -> Command:
    """Resolve one command: a string runs in a login shell (``bash -l -c``), a list is executed as it is.

    Raises:
        InvalidSpecError: naming the field, the value and the fix.
        UnsupportedError: the user needs root on the host.
    """
    name = check_user(plan.user if user is None else user, plan.template, single_uid=plan.single_uid)
    account = next(found for found in plan.template.users if found.name == name)
    argv = (b"/bin/bash", b"-l", b"-c", to_bytes("cmd", cmd)) if isinstance(cmd, str) else _argv(cmd)
    base = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
    directory = to_bytes("cwd", cwd or (plan.workspace.target if plan.workspace else account.home))
    if not directory.startswith(b"/"):
        raise InvalidSpecError("cwd", cwd, "not absolute", hint="start it with /, as in /workspace/src")
    return Command(
        argv=argv,
        env=env_items(base | plan.env | _variables(envs)),
        cwd=directory,
        uid=account.uid,
        gid=account.gid,
        stdin=stdin,
    )


def _argv(parts: object) -> tuple[bytes, ...]:
    if isinstance(parts, bytes) or not isinstance(parts, Iterable):
        hint = "give a string for the shell, or a list to execute"
        raise InvalidSpecError("cmd", parts, "neither text nor a list of words", hint=hint)
    argv = tuple(to_bytes(f"argv[{index}]", part) for index, part in enumerate(parts))
    if not argv or not argv[0]:
        raise InvalidSpecError("cmd", argv, "empty", hint="give a program to run")
    return argv


def _variables(envs: dict[str, str] | None) -> dict[str, str]:
    if envs is not None and not isinstance(envs, dict):
        raise InvalidSpecError("envs", envs, "not a dictionary", hint="give {name: value}")
    return dict(envs or {})


def _level(text: str) -> Level:
    for level in LEVELS:
        if text == level:
            return level
    raise InvalidSpecError("level", text, "unknown", hint=f"use one of {', '.join(LEVELS)}")


def _protections(words: object) -> frozenset[Protection]:
    hint = f"use one of {', '.join(Protection)}"
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise InvalidSpecError("without", words, "not a list of protections", hint=hint)
    found = set()
    for word in words:
        try:
            found.add(Protection(word))
        except ValueError:
            raise InvalidSpecError("without", word, "no such protection", hint=hint) from None
    return frozenset(found)
