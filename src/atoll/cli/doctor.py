"""`atoll doctor`: what this host can enforce, and how to fix what it cannot."""

import asyncio

import click

from atoll.cli.options import json_option
from atoll.cli.output import printable, put_json, put_text, table
from atoll.cli.progress import progress
from atoll.cli.stopper import Stopper
from atoll.client.diagnose import Diagnosis, diagnose
from atoll.client.facts import Facts, Trial, gather


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Tell what this host can enforce at each level, and the command that fixes what it cannot.

    Starts a sandbox to see for itself. The exit code is 0 when level process works fully, else 1.
    """
    with progress("trying a sandbox"):
        facts = asyncio.run(_facts())
    found = diagnose(facts)
    if as_json:
        put_json({"healthy": found.healthy, "levels": found.levels, "findings": found.findings, "facts": facts})
    else:
        put_text("\n\n".join(_paragraphs(facts, found)))
    return 0 if found.healthy else 1


async def _facts() -> Facts:
    return await Stopper().step(gather())


def _paragraphs(facts: Facts, found: Diagnosis) -> list[str]:
    rows = [(level.level, level.state, level.note) for level in found.levels]
    limits = f"cgroup v{facts.cgroup_version}" if facts.cgroup_version else "no cgroups"
    paragraphs = [
        f"Linux {found.kernel}, {printable(facts.machine)}, {limits}, uid {facts.uid}",
        table(("LEVEL", "STATE", "NOTE"), rows),
    ]
    seen = facts.trial if facts.reduced_trial is None else facts.reduced_trial
    if seen.posture is not None:
        paragraphs.append(table(("PROTECTION AT LEVEL PROCESS", "STATE", "NOTE"), _rows(seen)))
    for finding in found.findings:
        # A fix of several lines, like a profile, is shown as it is to be typed.
        steps = [f"  {printable(line)}" for step in finding.fix for line in step.split("\n")]
        paragraphs.append("\n".join([f"{finding.severity}: {printable(finding.what)}", *steps]))
    return paragraphs


def _rows(trial: Trial) -> list[tuple[str, str, str]]:
    posture = trial.posture
    assert posture is not None
    return [
        (name.value, row.state.replace("_", " "), row.note or ("seen in force" if row.observed else "not looked at"))
        for name, row in posture.protections.items()
    ]
