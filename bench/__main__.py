"""`./dev bench [--json]`: what the sandbox costs, as ratios to a floor measured in the same loop.

Every pair is run alternately (floor, Atoll, floor, Atoll, ...) so that a machine whose speed drifts drifts for
both. Medians are quoted. Nothing here asserts: SPECIFICATION.md states the figures with date and machine.
"""

import asyncio
import json
import platform
import sys
from collections.abc import Awaitable, Callable

from rich.console import Console
from rich.table import Table

from bench import process
from bench.figure import Figure

CASES: tuple[Callable[[], Awaitable[list[Figure]]], ...] = (
    process.cold,
    process.execute,
    process.stream,
    process.idle_memory,
    process.burst,
    process.churn,
    # process.command_line,
)


async def main() -> int:
    """Run every case and print the table."""
    figures: list[Figure] = []
    for case in CASES:
        print(f"bench: {(case.__doc__ or case.__name__).splitlines()[0]}", file=sys.stderr)
        figures += await case()
    if "--json" in sys.argv:
        machine = {"kernel": platform.release(), "python": platform.python_version()}
        print(json.dumps({"machine": machine, "figures": [figure.row() for figure in figures]}, indent=1))
        return 0
    table = Table(title="Atoll, level process", title_justify="left")
    for heading in ("what", "Atoll", "floor", "ratio", "target"):
        table.add_column(heading, justify="left" if heading == "what" else "right", overflow="fold")
    for figure in figures:
        table.add_row(*figure.cells())
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
