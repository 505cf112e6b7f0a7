"""One command to run inside, fully resolved: no names, no defaults, only bytes and numbers."""

import msgspec

from atoll.model.errors import InvalidSpecError

MAX_STRING = (1 << 17) - 1
"""Bytes of one argument or KEY=VALUE that execve(2) takes (MAX_ARG_STRLEN less its NUL)."""
MAX_TOTAL = 1_000_000
"""Bytes of all arguments and variables together; fits one START frame."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What `execute` starts."""

    argv: tuple[bytes, ...]
    env: tuple[bytes, ...]
    """KEY=VALUE items."""
    cwd: bytes
    uid: int
    gid: int
    stdin: bool = False
    """True: stdin is a pipe that the caller feeds; False: /dev/null."""


def to_bytes(field: str, value: str | bytes) -> bytes:
    """`value` as the kernel will see it: UTF-8, surrogate escapes back to their bytes.

    Raises:
        InvalidSpecError: it is no string, no bytes can stand for it, or it holds a NUL.
    """
    if not isinstance(value, str | bytes):
        raise InvalidSpecError(field, value, "not a string", hint="give str or bytes")
    try:
        data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise InvalidSpecError(field, value, "not encodable as UTF-8", hint="give bytes instead") from error
    if b"\0" in data:
        raise InvalidSpecError(field, value, "holds a NUL byte", hint="remove it; execve(2) cannot pass it")
    if len(data) > MAX_STRING:
        raise InvalidSpecError(
            field, value, f"longer than {MAX_STRING} bytes", hint="pass it through a file or stdin instead"
        )
    return data


def env_items(variables: dict[str, str]) -> tuple[bytes, ...]:
    """KEY=VALUE items, values untouched byte for byte.

    Raises:
        InvalidSpecError: naming the key that is empty, holds ``=`` or NUL, or whose value cannot be passed.
    """
    items = []
    for key, value in variables.items():
        name = to_bytes("env key", key)
        if not name or b"=" in name:
            raise InvalidSpecError("env key", key, "empty or holds '='", hint="rename the variable")
        try:
            item = to_bytes(f"env {key}", name + b"=" + to_bytes(f"env {key}", value))
        except InvalidSpecError as error:
            # The value may be a secret: it is named by its key and never shown.
            raise InvalidSpecError(error.field, _Hidden(value), error.problem, hint=error.hint) from None
        items.append(item)
    return tuple(items)


class _Hidden:
    """Stands for a value in an error message."""

    def __init__(self, value: object) -> None:
        self._kind = type(value).__name__

    def __repr__(self) -> str:
        return f"a hidden {self._kind}"


def check_total(command: Command) -> None:
    """Refuse what does not fit one START frame.

    Raises:
        InvalidSpecError: arguments and environment together are larger than `MAX_TOTAL`.
    """
    total = sum(len(part) + 1 for part in (*command.argv, *command.env, command.cwd))
    if total > MAX_TOTAL:
        raise InvalidSpecError(
            "argv and env", total, f"together over {MAX_TOTAL} bytes", hint="pass large data through stdin or a file"
        )
