"""`atoll reap`: remove what crashed owners left behind."""

import click

from atoll.cli.options import json_option
from atoll.cli.output import printable, put_json, put_text
from atoll.cli.progress import progress
from atoll.teardown import reaper
from atoll.teardown.state import state_dir


@click.command()
@json_option
def reap(as_json: bool) -> int:
    """Remove every sandbox whose owner has died, as each start of a sandbox does too.

    Lists what was removed; what is not to be trusted is refused and left untouched, what could not be removed
    has failed and can be tried again. The exit code is 125 when anything was refused or failed.
    """
    with progress("cleaning up"):
        found = reaper.reap(state_dir())
    if as_json:
        put_json({"sandboxes": found})
    elif found:
        lines = (f"{one.outcome} {one.id}{': ' if one.detail else ''}{one.detail}" for one in found)
        put_text("\n".join(map(printable, lines)))
    return 0 if all(one.outcome == "removed" for one in found) else 125
