"""Where Atoll's own two C programs are; the package's build puts them beside the Python files."""

import os
from pathlib import Path

from atoll.model.errors import DriverUnavailableError

_DIRECTORY = Path(__file__).resolve().parent.parent / "_bin"


def agent_path() -> str:
    """The guest agent.

    Raises:
        DriverUnavailableError: the package was not built.
    """
    return _built("atoll-agent")


def launcher_path() -> str:
    """The host-side launcher.

    Raises:
        DriverUnavailableError: the package was not built.
    """
    return _built("atoll-launch")


def _built(name: str) -> str:
    path = _DIRECTORY / name
    if not os.access(path, os.X_OK):
        raise DriverUnavailableError(f"{path} is missing", hint="reinstall the package: pip install --force-reinstall")
    return str(path)
