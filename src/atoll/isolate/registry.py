"""Which driver serves which level."""

from functools import cache
from importlib import import_module
from typing import cast

from atoll.isolate.driver import Driver
from atoll.model.errors import DriverUnavailableError, InvalidSpecError
from atoll.model.protection import LEVELS

DRIVERS = {"process": "atoll.isolate.bubblewrap:Bubblewrap"}
"""Level -> driver class, imported on first use."""


@cache
def driver_for(level: str) -> Driver:
    """The driver of `level`.

    Raises:
        InvalidSpecError: there is no such level.
        DriverUnavailableError: this release has no driver for it.
    """
    if level not in LEVELS:
        raise InvalidSpecError("level", level, "unknown", hint=f"use one of {', '.join(LEVELS)}")
    if level not in DRIVERS:
        raise DriverUnavailableError(
            f"level {level}: this release has no driver for it", hint=f"use one of {', '.join(DRIVERS)}", level=level
        )
    module, _, name = DRIVERS[level].partition(":")
    return cast("Driver", getattr(import_module(module), name)())
