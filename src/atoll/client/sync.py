"""`Sandbox`: the synchronous face of `AsyncSandbox`.

Generated from client/aio.py by scripts/gen_sync.py; do not edit.
"""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from atoll.client.aio import AsyncCommands, AsyncSandbox
from atoll.client.portal import iterate, off_loop, portal
from atoll.client.request import DEFAULT_TIMEOUT_S
from atoll.client.result import CommandResult
from atoll.model.plan import LaunchPlan
from atoll.model.protection import Posture
from atoll.model.status import Violation

OnText = Callable[[str], Any]
OnBytes = Callable[[bytes], Any]


class Sandbox:
    """One sandbox. Make it with `create`, end it with `kill` or by leaving its ``with`` block."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        """Not for callers: use `create`."""
        self._aio = sandbox
        self.commands = Commands(sandbox.commands)
        """Runs commands."""

    @classmethod
    def create(cls, **options: Any) -> Self:  # noqa: ANN401 - as in client/aio.py
        """Start a sandbox.

        Args:
            **options: `level` (default "process"), `template` ("host"), `workspace` (a directory, shown at
                /workspace), `workspace_mode` ("overlay" or "ro"), `cpus`, `memory`, `pids`, `disk`,
                `open_files`, `output` (sizes like "512M"), `timeout` and `idle_timeout` (of the sandbox, like
                "5m"), `envs`, `user`, `name`, `without` (protections given up by name).

        Raises:
            InvalidSpecError: an option is malformed or impossible; names the field, the value and the fix.
            DriverUnavailableError, PolicyUnenforceableError: this host cannot sandbox like that.
            ProvisionError: it could not be set up.
        """
        return cls(portal.call(AsyncSandbox.create(**options)))

    @property
    def sandbox_id(self) -> str:
        """Its id, as in ``atoll ps``."""
        return self._aio.sandbox_id

    @property
    def plan(self) -> LaunchPlan:
        """What was launched."""
        return self._aio.plan

    @property
    def posture(self) -> Posture:
        """What protects the host from it, and whether that was seen in force."""
        return self._aio.posture

    @property
    def violations(self) -> list[Violation]:
        """System calls it tried and was denied, counted."""
        return self._aio.violations

    def is_running(self) -> bool:
        """Whether it lives and answers."""
        return portal.call(self._aio.is_running())

    def kill(self) -> bool:
        """Destroy it and everything in it; True when it was alive. Safe to call again.

        Raises:
            TeardownError: something of it could not be removed; the reaper will try again.
        """
        return portal.call(self._aio.kill())

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy it."""
        self.kill()


class Commands:
    """Runs commands in one sandbox."""

    def __init__(self, commands: AsyncCommands) -> None:
        """Not for callers: use `Sandbox.commands`."""
        self._aio = commands

    def run(  # noqa: PLR0913 - as in client/aio.py
        self,
        cmd: str | Iterable[str | bytes],
        *,
        envs: dict[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        stdin: str | bytes | Iterable[bytes] | None = None,
        timeout: str | float | None = DEFAULT_TIMEOUT_S,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_stdout_bytes: OnBytes | None = None,
        on_stderr_bytes: OnBytes | None = None,
        check: bool = False,
        wait_for_descendants: bool = False,
    ) -> CommandResult:
        """Run a command to its end.

        A string runs in a login shell, a list is executed as it is. Children that the command leaves in the
        background neither delay the result nor die with it; what they write later goes to the logs only.
        Output callbacks are called in order; a slow one slows the command down.

        Args:
            cmd: what to run.
            envs: variables on top of the sandbox's own; values are passed byte for byte.
            user: "user" (default) or "root".
            cwd: directory inside; default /workspace with a workspace, else the user's home.
            stdin: all of standard input; without it the command reads an empty one.
            timeout: seconds, or "2m"; None or 0 for no limit. Afterwards everything it started is killed.
            on_stdout: called with text as it comes.
            on_stderr: called with text as it comes.
            on_stdout_bytes: called with bytes as they come.
            on_stderr_bytes: called with bytes as they come.
            check: raise when it does not end with exit code 0.
            wait_for_descendants: return only when its background children have ended too.

        Raises:
            InvalidSpecError: cmd, envs, user or cwd cannot be used.
            ProcessFailedError: only with `check`.
            LimitExceededError: the sandbox has no process left for it.
            GuestProtocolError: the sandbox misbehaved and was destroyed.
            StateError, ChannelLostError: the sandbox is gone.
        """
        return portal.call(
            self._aio.run(
                cmd,
                envs=envs,
                user=user,
                cwd=cwd,
                stdin=iterate(stdin),
                timeout=timeout,
                on_stdout=off_loop(on_stdout),
                on_stderr=off_loop(on_stderr),
                on_stdout_bytes=off_loop(on_stdout_bytes),
                on_stderr_bytes=off_loop(on_stderr_bytes),
                check=check,
                wait_for_descendants=wait_for_descendants,
            )
        )


__all__ = ["Commands", "Sandbox"]
