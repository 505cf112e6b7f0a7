"""`atoll ps`: the running sandboxes of this user on this host."""

import click

from atoll.cli.options import json_option
from atoll.cli.output import put_json, put_text, say, table
from atoll.client.remote import Remote, list_remote
from atoll.teardown.state import state_dir

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


@click.command()
@json_option
def ps(as_json: bool) -> int:
    """List the running sandboxes of this user on this host, the oldest first."""
    found = list_remote(state_dir())
    running = [one for one in found if one.alive]
    if as_json:
        put_json({"sandboxes": running})
        return 0
    put_text(table(("ID", "NAME", "LEVEL", "OWNER", "AGE"), [_row(one) for one in running]))
    if dead := len(found) - len(running):
        say(f"{dead} more left by dead owners; `atoll reap` removes them")
    return 0


def _row(one: Remote) -> tuple[str, str, str, str, str]:
    return one.id, one.name or "-", one.level or "-", str(one.owner_pid), age(one.age_s)


def age(seconds: float) -> str:
    """A duration in its largest whole unit."""
    return next((f"{seconds // size:.0f}{unit}" for size, unit in _UNITS if seconds >= size), f"{seconds:.0f}s")
