"""What the command line writes, and the exceptions that end it early.

Standard output belongs to the caller: bytes go there by write(2), whole, or the command line stops. Everything
Atoll itself has to say goes to stderr, one line each. Text that a guest, a path or a name may have had a hand in
passes `printable` first, so that it cannot drive the terminal. Imported by every command: keep it light.
"""

import contextlib
import os
import select
import signal
from collections.abc import Sequence

STDOUT, STDERR = 1, 2
SIGNAL_BASE = 128
"""Exit code of a process ended by signal n, as POSIX shells show it, is this plus n."""


class StoppedError(Exception):
    """The command line ends now with `code`; `message`, if any, is all there is to say."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def unwritable(stream: str, error: OSError) -> StoppedError:
    """The end that an output nobody can take means; quiet when its reader has left, as SIGPIPE would be."""
    if isinstance(error, BrokenPipeError):
        return StoppedError(SIGNAL_BASE + signal.SIGPIPE)
    return StoppedError(125, f"{stream} cannot be written: {error.strerror}")


def put(data: bytes) -> None:
    """Write all of `data` to stdout.

    Raises:
        StoppedError: it cannot be written.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(STDOUT, view) :]
        except BlockingIOError:  # somebody we share it with has made it non-blocking
            select.select([], [STDOUT], [])
        except OSError as error:
            raise unwritable("stdout", error) from error


def put_text(text: str) -> None:
    """Write text made of `printable` parts, and a newline, to stdout; UTF-8 whatever the locale."""
    put(f"{text}\n".encode("utf-8", "backslashreplace"))


def put_json(value: object) -> None:
    """Write `value` (structs and enums included) as one JSON object and a newline to stdout."""
    import msgspec

    put(msgspec.json.encode(_encodable(msgspec.to_builtins(value, enc_hook=repr))) + b"\n")


def _encodable(value: object) -> object:
    """The value with undecodable bytes in strings (surrogates, which no JSON may hold) replaced by question marks."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(inner) for inner in value]
    return value


def say(text: str, prefix: str = "atoll: ") -> None:
    """Write one line to stderr; a stderr that is closed has nobody to tell."""
    with contextlib.suppress(OSError):
        os.write(STDERR, f"{prefix}{printable(text)}\n".encode("utf-8", "backslashreplace"))


def printable(text: str) -> str:
    """The text with everything that could drive a terminal, reorder or hide text written as an escape."""
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    try:
        return char.encode("unicode_escape").decode()
    except UnicodeEncodeError:
        return ascii(char)[1:-1]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width without borders, good for people, grep and awk."""
    lines = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
