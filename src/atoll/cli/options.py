"""Options that commands share, and how their words become what `client.request` takes.

Values stay words here: sizes, numbers and names are checked where the API checks them, so that the command
line and Python refuse the same things in the same words.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from atoll.model.errors import InvalidSpecError

F = TypeVar("F", bound=Callable[..., Any])

_MODES = ("overlay", "ro", "rw", "copy")
"""Words after the last colon of --workspace that are a mode; the ones this release lacks are refused by name."""

_SANDBOX = (
    click.option("--level", metavar="LEVEL", default="process", show_default=True, help="Isolation level."),
    click.option("--template", metavar="NAME", default="host", show_default=True, help="What the file system holds."),
    click.option("--workspace", metavar="DIR[:MODE]", help="Show DIR at /workspace: overlay (default) or ro."),
    click.option("--cpus", metavar="N", help="CPU cores, like 0.5.  [default: 1]"),
    click.option("--memory", metavar="SIZE", help="Memory, writable files included.  [default: 512M]"),
    click.option("--pids", metavar="N", help="Processes and threads.  [default: 256]"),
    click.option("--disk", metavar="SIZE", help="Writable files.  [default: a quarter of the memory]"),
    click.option("--open-files", metavar="N", help="Open files of one process.  [default: 1024]"),
    click.option("--output", metavar="SIZE", help="Output that ends the command.  [default: 1G]"),
    click.option("--env", metavar="K=V", multiple=True, help="Set a variable; none of the host's is passed."),
    click.option("--user", metavar="NAME", help="User inside.  [default: user]"),
    click.option("--name", metavar="NAME", help="Name of the sandbox, also its host name."),
    click.option("--without", metavar="PROTECTION", multiple=True, help="Give up one protection by name."),
)

_COMMAND = (
    click.option("--timeout", metavar="TIME", help="Kill the command after TIME, like 30s.  [default: none]"),
    click.option("--cwd", metavar="DIR", help="Directory inside.  [default: /workspace, or the home]"),
)


def _remember_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    if value:
        ctx.obj.json = True
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=_remember_json, help="Print one JSON object."
)


def sandbox_options(function: F) -> F:
    """Add the options that describe a sandbox; `sandbox_request` takes what they give."""
    return _add(function, _SANDBOX)


def command_options(function: F) -> F:
    """Add the options that describe one command."""
    return _add(function, _COMMAND)


def _add(function: F, options: Iterable[Callable[[F], F]]) -> F:
    for option in reversed(tuple(options)):
        function = option(function)
    return function


def sandbox_request(given: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `client.request.sandbox_spec` from the values of `sandbox_options`.

    Raises:
        InvalidSpecError: a number, variable or workspace is malformed.
    """
    request = {field: value for field, value in given.items() if value is not None}
    for field, whole in (("cpus", False), ("pids", True), ("open_files", True)):
        if field in request:
            request[field] = _number(field, request[field], whole=whole)
    if "workspace" in request:
        request["workspace"], request["workspace_mode"] = split_workspace(request["workspace"])
    request["envs"] = variables(request.pop("env"))
    return request


def split_workspace(text: str) -> tuple[str, str]:
    """Directory and mode in ``DIR[:MODE]``; a colon before anything but a mode belongs to the path."""
    directory, colon, mode = text.rpartition(":")
    return (directory, mode) if colon and mode in _MODES else (text, "overlay")


def variables(items: Iterable[str]) -> dict[str, str]:
    """Names and values of ``K=V`` words; of one name the last counts.

    Raises:
        InvalidSpecError: a word has no ``=``; a host variable is never copied by its name.
    """
    found = {}
    for item in items:
        name, equals, value = exact(item).partition("=")
        if not equals:
            raise InvalidSpecError(
                "env", item, "not K=V", hint=f"write --env {item}=VALUE; host variables are not read"
            )
        found[name] = value
    return found


def exact(text: str) -> str:
    """The word so that encoding it as UTF-8 gives back the very bytes of the command line, whatever the locale."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def _number(field: str, text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        words = "a whole number" if whole else "a number"
        raise InvalidSpecError(
            field, text, f"not {words}", hint=f"write it like --{field.replace('_', '-')} 2"
        ) from None
