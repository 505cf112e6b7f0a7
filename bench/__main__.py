"""`./dev bench [--json] [--quick]`: what the sandbox costs, as ratios to floors measured in the same loop.

Every pair is run alternately (floor, Atoll, floor, Atoll, ...) so that a machine whose speed drifts drifts for
both. Medians are quoted, the first round is not counted. Nothing here asserts: SPECIFICATION.md states the
figures with date and machine.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable

from rich.console import Console
from rich.table import Table

from bench import process
from bench.figure import Figure

Case = Callable[[int], Awaitable[list[Figure]]]
CASES: tuple[Case, ...] = (
    process.cold,
    process.execute,
    process.sporadic,
    process.stream,
    process.idle_memory,
    process.burst,
    process.churn,
    process.command_line,
)
QUICK = 10
"""What `--quick` divides every count by: enough to see that all works, too little for figures to quote."""
WIDTH = 110
"""Columns of the table where the terminal has fewer, or is none."""


async def main() -> None:
    """Run every case and print what came out."""
    parser = argparse.ArgumentParser(prog="./dev bench", description="What the sandbox costs.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK}th of every count; not for figures to quote")
    options = parser.parse_args()
    figures: list[Figure] = []
    load = [_load()]
    for case in CASES:
        print(f"bench: {(case.__doc__ or case.__name__).splitlines()[0]}", file=sys.stderr)
        figures += await case(QUICK if options.quick else 1)
    load.append(_load())
    machine = {
        "date": time.strftime("%Y-%m-%d"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load before and after": load,
    }
    if options.json:
        print(json.dumps({"machine": machine, "figures": [figure.row() for figure in figures]}, indent=1))
        return
    caption = ", ".join(f"{name} {value}" for name, value in machine.items())
    table = Table(title="Atoll, level process", title_justify="left", caption=caption, caption_justify="left")
    for heading in ("what", "Atoll", "floor", "ratio", "target"):
        table.add_column(heading, justify="left" if heading == "what" else "right", overflow="fold")
    for figure in figures:
        table.add_row(*figure.cells())
    Console(width=max(WIDTH, Console().width)).print(table)


def _load() -> float:
    return os.getloadavg()[0]


if __name__ == "__main__":
    asyncio.run(main())
