"""`./dev demo`: untrusted work on real input, and what it could not do.

Three jobs in throw-away sandboxes: a data analysis with a plot over a CSV file that ships in a PyPI package,
the test suite of a third-party source distribution, and code that tries to wreck the machine. Ends with a
table of what happened, what protected the host and how long each took. Input is fetched once into build/demo.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from atoll import CommandResult, Reason, Sandbox

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / "build" / "demo"
PYTHON = "/usr/bin/python3"
SDIST = "more-itertools==10.8.0"
CONSOLE = Console()


class Row(NamedTuple):
    """One line of the closing table."""

    job: str
    outcome: str
    protected_by: str
    seconds: float


def main() -> int:
    """Run the three jobs; 0 when each came out as it should."""
    rows = [analyse(), test_sdist(), *attacks()]
    table = Table(title="What happened", title_justify="left")
    for heading in ("job", "outcome", "what protected the host"):
        table.add_column(heading, overflow="fold")
    table.add_column("seconds", justify="right")
    for row in rows:
        table.add_row(row.job, row.outcome, row.protected_by, f"{row.seconds:.2f}")
    CONSOLE.print(table)
    return 0


def analyse() -> Row:
    """A script that nobody has read analyses a real CSV file and draws a plot."""
    workspace = prepare_analysis()
    say("analysing seattle-weather.csv in a sandbox")
    began = time.monotonic()
    with Sandbox.create(workspace=workspace, memory="1G", cpus=2) as sbx:
        env = {"PYTHONPATH": "/workspace/site", "MPLCONFIGDIR": "/tmp/mpl"}
        result = sbx.commands.run(f"{PYTHON} analyse.py data/seattle-weather.csv plot.png", envs=env).check()
        CONSOLE.print(result.stdout, highlight=False)
        plot = sbx.commands.run(["/bin/cat", "plot.png"]).check().stdout_bytes
    seconds = time.monotonic() - began
    expect(plot.startswith(b"\x89PNG"), "the analysis gave no PNG")
    expect(not (workspace / "plot.png").exists(), "the sandbox wrote to the host's directory")
    (BUILD / "plot.png").write_bytes(plot)
    return Row(
        "analysis of a CSV with a plot",
        f"plot of {len(plot)} bytes in /workspace, copied to {BUILD.name}/plot.png",
        "the workspace is copy-on-write: the host's directory is unchanged",
        seconds,
    )


def test_sdist() -> Row:
    """A stranger's source distribution is unpacked and runs its own tests, both inside."""
    archive = prepare_sdist()
    say(f"unpacking {archive.name} and running its tests in a sandbox")
    began = time.monotonic()
    with Sandbox.create(workspace=archive.parent, memory="512M") as sbx:
        sbx.commands.run(["tar", "xzf", archive.name, "--strip-components=1"]).check()
        result = sbx.commands.run([PYTHON, "-m", "unittest", "-q"], timeout=300).check()
    seconds = time.monotonic() - began
    summary = next(line for line in result.stderr.splitlines() if line.startswith("Ran "))
    expect(list(archive.parent.iterdir()) == [archive], "the sandbox unpacked onto the host")
    wall = "no network, no host files, its own uids and limits"
    return Row(f"tests of {archive.name}", f"{summary}: OK", wall, seconds)


def attacks() -> list[Row]:
    """What hostile code comes to."""
    say("letting hostile code loose")
    bomb = f"exec {PYTHON} -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'"
    rows = [
        attack("fork bomb", bomb, {Reason.TIMEOUT, Reason.PIDS_LIMIT, Reason.OUT_OF_MEMORY}, "cgroup pids limit"),
        attack(
            "2 GB allocation", f"exec {PYTHON} -c 'bytearray(2 * 10**9)'", {Reason.OUT_OF_MEMORY}, "cgroup memory limit"
        ),
        attack("endless loop", "while :; do :; done", {Reason.TIMEOUT}, "deadline, cgroup CPU limit"),
    ]
    began = time.monotonic()
    with Sandbox.create(user="root") as sbx:
        sbx.commands.run("rm -rf --no-preserve-root /", timeout=30)
        expect(sbx.commands.run(["/bin/sh", "-c", ":"], cwd="/").exit_code == 127, "rm -rf left the sandbox its shell")
    with Sandbox.create() as sbx:
        expect(sbx.commands.run("echo alive").stdout == "alive\n", "rm -rf hurt the next sandbox")
    expect(Path(PYTHON).exists() and Path("/etc/passwd").exists(), "rm -rf reached the host")
    outcome = "it removed its own view only; the host is whole, the next sandbox works"
    rows.append(Row("rm -rf / as root", outcome, "read-only host trees, own uid range", time.monotonic() - began))
    return rows


def attack(name: str, script: str, wanted: set[Reason], wall: str) -> Row:
    """Run `script`, check that it ended for one of the `wanted` reasons and that the sandbox survived it."""
    began = time.monotonic()
    with Sandbox.create(memory="256M", pids=128) as sbx:
        result: CommandResult = sbx.commands.run(script, timeout=3)
        alive = sbx.commands.run("echo alive")
    expect(result.reason in wanted, f"{name} ended with {result.reason}")
    expect(alive.stdout == "alive\n", f"the sandbox did not survive the {name}: {alive.error}")
    refused = f", {result.usage.pids_rejected} forks refused" if result.usage.pids_rejected else ""
    return Row(name, f"{result.reason}: {result.detail}{refused}", wall, time.monotonic() - began)


def prepare_analysis() -> Path:
    """A project directory with the data, the script and the libraries it needs."""
    workspace = BUILD / "analysis"
    if not (workspace / "ready").exists():
        say("fetching pandas, matplotlib and a data set (once)")
        version = subprocess.run(
            [PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        packages = ["pandas", "matplotlib", "vega-datasets"]
        options = ["--only-binary=:all:", "--python-version", version, "--target", str(workspace / "site")]
        pip("install", "--upgrade", *options, *packages)
        (workspace / "data").mkdir(exist_ok=True)
        shipped = workspace / "site/vega_datasets/_data/seattle-weather.csv"
        (workspace / "data/seattle-weather.csv").write_bytes(shipped.read_bytes())
        (workspace / "ready").touch()
    (workspace / "analyse.py").write_text((HERE / "analyse.py").read_text())
    return workspace


def prepare_sdist() -> Path:
    """The archive, alone in its directory; it is unpacked only inside."""
    directory = BUILD / "sdist"
    if not list(directory.glob("*.tar.gz")):
        say(f"fetching the source of {SDIST} (once)")
        pip("download", "--no-deps", "--no-binary=:all:", "--dest", str(directory), SDIST)
    return next(directory.glob("*.tar.gz"))


def pip(*arguments: str) -> None:
    """Run this environment's pip quietly."""
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def say(text: str) -> None:
    """A progress line."""
    CONSOLE.print(f"[bold]demo:[/bold] {text}", highlight=False)


def expect(ok: bool, problem: str) -> None:
    """Stop the demo with `problem` unless `ok`."""
    if not ok:
        sys.exit(f"demo: {problem}")


if __name__ == "__main__":
    sys.exit(main())
