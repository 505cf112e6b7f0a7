"""How the end of a command looks from outside: exit code, one line, or one JSON object."""

from atoll.client.aio import AsyncSandbox
from atoll.client.result import CommandResult
from atoll.model.status import Reason

EXIT_CODES = {
    Reason.TIMEOUT: 124,
    Reason.IDLE_TIMEOUT: 124,
    Reason.OUT_OF_MEMORY: 137,
    Reason.SANDBOX_GONE: 125,
    Reason.SERVER_RESTART: 125,
}
"""Reasons with an exit code of their own, as timeout(1) and docker-run(1) have them; the rest keeps the command's."""

_ORDINARY = frozenset({Reason.EXITED, Reason.SIGNALED})


def exit_code(reason: Reason, own: int) -> int:
    """What `atoll run` exits with when the command ended with code `own`."""
    return EXIT_CODES.get(reason, own)


def explanation(reason: Reason, detail: str) -> str:
    """What to say on stderr about an end; empty when the exit code says it all."""
    if reason in _ORDINARY:
        return detail  # of a command that could not be executed
    return f"{reason}: {detail}" if detail else str(reason)


def document(result: CommandResult, sandbox: AsyncSandbox) -> dict[str, object]:
    """All about one finished command, for `put_json`."""
    return {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason,
        "detail": result.detail,
        **_text("stdout", result.stdout_bytes),
        **_text("stderr", result.stderr_bytes),
        "truncated": result.truncated,
        "dropped_bytes": result.dropped_bytes,
        "usage": result.usage,
        "posture": sandbox.posture,
        "violations": sandbox.violations,
    }


def _text(name: str, data: bytes) -> dict[str, object]:
    """The output as text; and as it is where it is no UTF-8 (msgspec writes bytes as Base64)."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: data.decode("utf-8", "replace"), f"{name}_base64": data}
