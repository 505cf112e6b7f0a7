"""Atoll: safe, isolated, ephemeral environments for code that nobody has read.

>>> from atoll import Sandbox
>>> with Sandbox.create() as sbx:
...     print(sbx.commands.run("echo hello").stdout)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.client.aio import AsyncCommands, AsyncSandbox
    from atoll.client.result import CommandResult
    from atoll.client.sync import Commands, Sandbox
    from atoll.model.errors import AtollError
    from atoll.model.limits import Limits
    from atoll.model.protection import Protection
    from atoll.model.status import Reason

_EXPORTS = {
    "AsyncCommands": "atoll.client.aio",
    "AsyncSandbox": "atoll.client.aio",
    "AtollError": "atoll.model.errors",
    "CommandResult": "atoll.client.result",
    "Commands": "atoll.client.sync",
    "Limits": "atoll.model.limits",
    "Protection": "atoll.model.protection",
    "Reason": "atoll.model.status",
    "Sandbox": "atoll.client.sync",
}

__all__ = [
    "AsyncCommands",
    "AsyncSandbox",
    "AtollError",
    "CommandResult",
    "Commands",
    "Limits",
    "Protection",
    "Reason",
    "Sandbox",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562
    """Import a public name on first use, so that the command line starts fast."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'atoll' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
