"""What a finished command gives back."""

from atoll.execute.output import Output
from atoll.execute.process import Process
from atoll.model.errors import InvalidSpecError, ProcessFailedError
from atoll.model.status import ExitStatus, Reason, Usage


class CommandResult:
    """Outcome of one command.

    The text views decode UTF-8 and replace what is not; the bytes views are exact. When output passed what is
    kept in memory, both hold its head and its tail with `dropped_bytes` missing between them, and `read_log`
    still reads all of it while the sandbox lives.
    """

    def __init__(self, process: Process, status: ExitStatus) -> None:
        self._outputs: dict[str, Output] = {"stdout": process.stdout, "stderr": process.stderr}
        self._status = status
        self.stdout_bytes: bytes = process.stdout.kept()
        self.stderr_bytes: bytes = process.stderr.kept()
        self.dropped_bytes: int = sum(output.dropped + output.refused for output in self._outputs.values())

    @property
    def stdout(self) -> str:
        """Standard output as text."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        """Whether `dropped_bytes` are missing from the middle, or at the end where a limit was reached."""
        return self.dropped_bytes > 0

    @property
    def exit_code(self) -> int:
        """The exit code, or 128 + signal."""
        return self._status.code

    @property
    def signal(self) -> int | None:
        """The signal that ended it."""
        return self._status.signal

    @property
    def reason(self) -> Reason:
        """Why it ended, as the host saw it."""
        return self._status.reason

    @property
    def detail(self) -> str:
        """The limit that was hit and the peak, in words; empty for an ordinary end."""
        return self._status.detail

    @property
    def usage(self) -> Usage:
        """Resources used, from the host's cgroups."""
        return self._status.usage

    @property
    def error(self) -> str | None:
        """One line when it did not end with exit code 0, None when it did."""
        if self.exit_code == 0 and self.reason is Reason.EXITED:
            return None
        return f"{self.reason}: {self.detail}" if self.detail else f"{self.reason}, exit code {self.exit_code}"

    def read_log(self, stream: str, offset: int, size: int) -> bytes:
        """Up to `size` bytes of the whole ``"stdout"`` or ``"stderr"`` from byte `offset`.

        Raises:
            InvalidSpecError: another stream, or a negative range.
            NotFoundError: the log made room for newer ones, or the sandbox has ended.
        """
        if stream not in self._outputs:
            raise InvalidSpecError("stream", stream, "unknown", hint="use stdout or stderr")
        if min(offset, size) < 0:
            raise InvalidSpecError("range", (offset, size), "negative", hint="count from the start, 0")
        return self._outputs[stream].read(offset, size)

    def check(self) -> "CommandResult":
        """Itself, when it ended with exit code 0.

        Raises:
            ProcessFailedError: it did not.
        """
        if self.error is not None:
            tail = self.stderr[-500:].strip()
            raise ProcessFailedError(f"command failed ({self.error}){': ' + tail if tail else ''}", status=self._status)
        return self
