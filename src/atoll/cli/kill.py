"""`atoll kill`: end sandboxes that other processes own."""

import click

from atoll.cli.options import json_option
from atoll.cli.output import put_json, put_text
from atoll.cli.progress import progress
from atoll.client.remote import kill_remote, list_remote, select
from atoll.teardown.state import state_dir


@click.command()
@click.option("--all", "everything", is_flag=True, help="All of this user on this host.")
@json_option
@click.argument("sandboxes", nargs=-1, metavar="[ID|NAME]...")
def kill(sandboxes: tuple[str, ...], everything: bool, as_json: bool) -> int:
    """Destroy running sandboxes, and wait until nothing of them is left.

    What runs in them ends with the reason `killed`; an `atoll run` that owns one exits.
    """
    if bool(sandboxes) == everything:
        raise click.UsageError("give ids or names, or --all")
    state = state_dir()
    found = list_remote(state)
    with progress("killing"):
        killed = kill_remote(state, found if everything else select(found, sandboxes))
    if as_json:
        put_json({"sandboxes": killed})
    elif killed:
        put_text("\n".join(f"{one.outcome} {one.id}" for one in killed))
    return 0
