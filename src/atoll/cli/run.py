"""`atoll run`: one command in a fresh sandbox, as if it ran here."""

import asyncio
import os
from typing import Any

import click

from atoll.cli.options import command_options, exact, json_option, sandbox_options, sandbox_request
from atoll.cli.output import STDERR, STDOUT, put_json, say, unwritable
from atoll.cli.progress import progress
from atoll.cli.report import document, exit_code, explanation
from atoll.cli.stdio import Sink, has_stdin, stdin_chunks
from atoll.cli.stopper import Stopper
from atoll.client.aio import AsyncSandbox
from atoll.client.result import CommandResult
from atoll.model.errors import TeardownError
from atoll.model.limits import parse_duration


@click.command(context_settings={"allow_interspersed_args": False})
@sandbox_options
@command_options
@json_option
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
def run(cmd: tuple[str, ...], as_json: bool, timeout: str | None, cwd: str | None, **given: Any) -> int:  # noqa: ANN401
    """Run CMD in a fresh sandbox and destroy it.

    CMD is executed as it stands, without a shell; stdin, stdout and stderr pass through. The exit code is CMD's
    own; or 124 after --timeout, 137 out of memory, 125 when Atoll failed, 126 or 127 when CMD cannot be executed
    or found, 2 for wrong options. Whatever else ended CMD is said in one line on stderr. What CMD leaves running
    dies with the sandbox.
    """
    options = sandbox_request(given)
    keywords: dict[str, Any] = {
        "cmd": [os.fsencode(word) for word in cmd],
        "cwd": None if cwd is None else exact(cwd),
        "timeout": None if timeout is None else parse_duration("timeout", timeout),
    }
    return asyncio.run(_run(options, keywords, as_json=as_json))


async def _run(options: dict[str, Any], keywords: dict[str, Any], *, as_json: bool) -> int:
    stopper = Stopper()
    with progress("starting the sandbox"):
        sandbox = await stopper.step(AsyncSandbox.create(**options))
    try:
        result = await stopper.step(_command(sandbox, stopper, keywords, as_json=as_json))
        stopper.check()
        found = document(result, sandbox) if as_json else None
    finally:
        await _destroy(sandbox)
    if found is not None:
        put_json(found)
    elif line := explanation(result.reason, result.detail):
        say(line)
    return exit_code(result.reason, result.exit_code)


async def _command(
    sandbox: AsyncSandbox, stopper: Stopper, keywords: dict[str, Any], *, as_json: bool
) -> CommandResult:
    if has_stdin():
        keywords["stdin"] = stdin_chunks()
    if as_json:
        with progress("running"):
            return await sandbox.commands.run(**keywords)
    out, err = _sink(STDOUT, "stdout", stopper), _sink(STDERR, "stderr", stopper)
    return await sandbox.commands.run(**keywords, on_stdout_bytes=out.write, on_stderr_bytes=err.write)


def _sink(fd: int, name: str, stopper: Stopper) -> Sink:
    """One of our outputs; nothing more is passed on once we are asked to stop, and failing to write asks for it."""
    sink = Sink(fd, lambda error: stopper.stop(unwritable(name, error)))
    stopper.on_stop.append(sink.drop)
    return sink


async def _destroy(sandbox: AsyncSandbox) -> None:
    """End the sandbox; what could not be removed is said, but takes nothing from the command's own outcome."""
    try:
        with progress("removing the sandbox"):
            await sandbox.kill()
    except TeardownError as error:
        say(str(error))
