"""What an isolation driver is.

A driver only *builds a command* that boots Atoll's agent confined, from a plan and the resources the
lifecycle has made; starting it, talking to it and ending it is done once, above, for all drivers. A new
level is one file with one `Driver`, added to `DRIVERS` in `isolate/registry.py`.
"""

import contextlib
import os
from typing import Protocol

import msgspec

from atoll.kernel.cgroup import SandboxCgroup
from atoll.model.plan import LaunchPlan
from atoll.model.protection import Capabilities, Level


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Host resources of one sandbox, made and journaled by the lifecycle before the launch."""

    uid_base: int | None
    """First id of its uid range; None without root."""
    cgroup: SandboxCgroup | None
    """None only with cgroups disabled by name."""


class Launch:
    """A command to spawn and the descriptors it inherits; close it after the spawn."""

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.fds: list[int] = []

    def inherit(self, fd: int) -> str:
        """Let the command inherit `fd`, owned by this launch from now on; returns its number as a word."""
        self.fds.append(fd)
        return str(fd)

    def open_path(self, path: str, flags: int = 0) -> str:
        """Open `path` as a location (O_PATH in open(2)) and let the command inherit it."""
        return self.inherit(os.open(path, os.O_PATH | os.O_CLOEXEC | flags))

    def close(self) -> None:
        """Close the host's copies."""
        for fd in self.fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.fds.clear()


class Driver(Protocol):
    """One isolation mechanism."""

    name: str
    level: Level
    kept_capabilities: int
    """Mask of the capabilities its agent keeps (capabilities(7))."""

    def probe(self) -> Capabilities:
        """What it can enforce on this host, found by cheap trials; never raises."""
        ...

    def launch(self, plan: LaunchPlan, resources: Resources) -> Launch:
        """The command that boots the agent for `plan`.

        Raises:
            ProvisionError: something the plan names cannot be opened.
        """
        ...
