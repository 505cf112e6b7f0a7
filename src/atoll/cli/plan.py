"""`atoll plan`: what `run` would launch, without launching it."""

from typing import Any

import click
import msgspec

from atoll.cli.options import command_options, exact, json_option, sandbox_options, sandbox_request
from atoll.cli.output import printable, put_json, put_text, table
from atoll.client.request import command, sandbox_spec
from atoll.lifecycle import make_plan
from atoll.model.command import Command
from atoll.model.limits import GIB, KIB, MIB, parse_duration
from atoll.model.names import new_id
from atoll.model.plan import LaunchPlan
from atoll.model.protection import Protection
from atoll.teardown.state import state_dir

KNOBS = {
    "cpus": "cpu.max; v1 cpu.cfs_quota_us",
    "memory_bytes": "memory.max; v1 memory.limit_in_bytes",
    "pids_max": "pids.max",
    "disk_bytes": "tmpfs size=",
    "disk_inodes": "tmpfs nr_inodes=",
    "open_files": "RLIMIT_NOFILE",
    "output_bytes": "counted by Atoll",
    "wall_time_s": "timed by Atoll",
    "idle_time_s": "timed by Atoll",
}
"""Field of `Limits` -> what enforces it."""


@click.command(context_settings={"allow_interspersed_args": False})
@sandbox_options
@command_options
@json_option
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED)
def plan(cmd: tuple[str, ...], as_json: bool, timeout: str | None, cwd: str | None, **given: Any) -> int:  # noqa: ANN401
    """Show what `atoll run` with the same options would launch; make nothing.

    Fails as `run` would where this host cannot do it.
    """
    if timeout is not None:
        parse_duration("timeout", timeout)
    launch = make_plan(sandbox_spec(state_dir(), **sandbox_request(given)), new_id())
    resolved = command(launch, list(map(exact, cmd)), cwd=None if cwd is None else exact(cwd)) if cmd else None
    if as_json:
        ordered = {"enforce": sorted(launch.enforce), "disabled": sorted(launch.disabled)}
        put_json(msgspec.structs.asdict(launch) | ordered | {"command": resolved and _shown(resolved)})
    else:
        put_text("\n\n".join(_paragraphs(launch, resolved)))
    return 0


def _shown(resolved: Command) -> dict[str, object]:
    argv = [part.decode("utf-8", "replace") for part in resolved.argv]
    return {"argv": argv, "cwd": resolved.cwd.decode("utf-8", "replace"), "uid": resolved.uid, "gid": resolved.gid}


def _paragraphs(launch: LaunchPlan, resolved: Command | None) -> list[str]:
    users = ", ".join(f"{user.name} ({user.uid})" for user in launch.template.users)
    workspace = launch.workspace
    shown = "none" if workspace is None else f"{workspace.source} at {workspace.target}, {workspace.mode}"
    facts = [
        ("level", f"{launch.level}, by {launch.driver}"),
        ("template", f"{launch.template.name} {launch.template.digest[:12]}"),
        ("name", launch.hostname),
        ("user", f"{launch.user} of {users}{'; one host uid' if launch.single_uid else '; a uid range of its own'}"),
        ("workspace", shown),
        ("variables", " ".join(sorted(launch.env))),
    ]
    if resolved is not None:
        words = _shown(resolved)
        facts.append(("command", f"{words['argv']} in {words['cwd']}"))
    return [
        "\n".join(f"{name:<10} {printable(value)}" for name, value in facts),
        table(("PROTECTION", "STATE", "WHY"), _protections(launch)),
        table(("LIMIT", "VALUE", "ENFORCED BY"), _limits(launch)),
        table(("SHOWN READ-ONLY", "AT"), [(tree.source, tree.target) for tree in launch.template.rootfs.trees]),
    ]


def _protections(launch: LaunchPlan) -> list[tuple[str, str, str]]:
    rows = []
    for protection in Protection:
        if protection in launch.enforce:
            rows.append((protection.value, "enforced", ""))
        elif protection in launch.disabled:
            rows.append((protection.value, "disabled", "switched off by name"))
        else:
            why = launch.not_applicable.get(protection, f"belongs to other levels than {launch.level}")
            rows.append((protection.value, "not applicable", why))
    return rows


def _limits(launch: LaunchPlan) -> list[tuple[str, str, str]]:
    return [(field, _amount(field, getattr(launch.limits, field)), knob) for field, knob in KNOBS.items()]


def _amount(field: str, value: float | None) -> str:
    if value is None:
        return "unlimited"
    if not field.endswith("_bytes"):
        return f"{value:.12g}"
    unit, name = next(((unit, name) for unit, name in ((GIB, "G"), (MIB, "M"), (KIB, "K")) if value >= unit), (1, ""))
    return f"{value / unit:g}{name}"
