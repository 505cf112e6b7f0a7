"""`atoll`: the command group, and the one place where errors become words and exit codes.

Commands are imported when they are run, so that ``atoll --help`` and ``atoll run`` start fast; importing this
module must stay cheap. No error of a user, of the host or of a guest shows a stack trace.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from atoll.cli.output import SIGNAL_BASE, StoppedError, put_json, say
from atoll.model.errors import AtollError, codes_for

COMMANDS = {
    "run": "Run a command in a fresh sandbox.",
    "plan": "Show what `run` would launch; make nothing.",
    "ps": "List the running sandboxes.",
    "kill": "Destroy running sandboxes.",
    "reap": "Clean up what crashed owners left behind.",
    "doctor": "Tell what this host can enforce, and how to fix what it cannot.",
}
"""Name (of the module and the function in it) -> what `atoll --help` says about it."""

_INTERNAL_ERROR = 125


class State:
    """Shared by all commands of one invocation, as click's context object."""

    json = False
    """Whether stdout gets one JSON object, an error included."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        gc.disable()  # an import makes little garbage, and looking for it costs 5 ms
        try:
            command: click.Command = getattr(import_module(f"atoll.cli.{cmd_name}"), cmd_name)
        finally:
            gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="atoll", message="%(version)s")
def atoll() -> None:
    """Safe, isolated, ephemeral environments for code that nobody has read."""


def main() -> NoReturn:
    """The console script."""
    _open_standard_streams()
    code = invoke(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # all is done: taking the interpreter apart would only cost 12 ms


def invoke(argv: Sequence[str]) -> int:
    """Run one command line; returns its exit code."""
    state = State()
    try:
        return int(atoll.main(list(argv), prog_name="atoll", standalone_mode=False, obj=state) or 0)
    except StoppedError as error:
        if error.message:
            say(error.message)
        return error.code
    except (KeyboardInterrupt, click.Abort):
        return SIGNAL_BASE + 2
    except Exception as error:  # noqa: BLE001 - the boundary: whatever it is becomes words and an exit code
        return _fail(error, as_json=state.json)


def _fail(error: Exception, *, as_json: bool) -> int:
    if os.environ.get("ATOLL_DEBUG"):
        import traceback

        traceback.print_exception(error)
    details: dict[str, object] = {}
    match error:
        case AtollError():
            code, reason, message, hint = codes_for(error).exit, error.reason, error.message, error.hint
            details = error.details
        case click.ClickException():
            if not as_json:
                error.show()
                return error.exit_code
            code, reason, message, hint = error.exit_code, "usage", error.format_message(), "see --help"
        case _:
            code, reason, message = _INTERNAL_ERROR, "internal", f"internal error: {type(error).__name__}: {error}"
            hint = "set ATOLL_DEBUG=1 to see where, and please report it"
    if as_json:
        try:
            put_json({"error": {"reason": reason, "message": message, "hint": hint, "details": details}})
        except StoppedError as stopped:
            return stopped.code
        return code
    say(message)
    if hint:
        say(hint, prefix="hint: ")
    return code


def _open_standard_streams() -> None:
    """Fill closed descriptors 0-2 with ones that fail when used, or the next file opened would take their place."""
    for fd, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", mode)  # the lowest free number, which is this one
