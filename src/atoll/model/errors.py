"""The one error tree.

Every error Atoll raises derives from `AtollError` and carries a stable `reason`, a `hint` that says how to
fix it, whether a retry can help, and structured `details`. Where a built-in exception means the same thing
the class derives from it too, so that ordinary ``except TimeoutError`` works.

One table (`CODES`) maps each class to its Connect code, HTTP status and CLI exit code.
"""

from typing import Any, NamedTuple


class AtollError(Exception):
    """Root of the tree.

    Args:
        message: what went wrong, naming the field and the value.
        hint: what to do about it; an exact command where there is one.
        details: machine-readable facts (field, value, limit, ...).
    """

    reason = "internal"
    retryable = False

    def __init__(self, message: str, *, hint: str = "", **details: Any) -> None:  # noqa: ANN401 - free-form facts
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:  # pickled without calling __init__, whose arguments differ by class
        return type(self).__new__, (type(self), self.message), self.__dict__


class InvalidSpecError(AtollError, ValueError):
    """The caller asked for something malformed or impossible; nothing was created."""

    reason = "invalid_spec"

    def __init__(self, field: str, value: object, problem: str, *, hint: str = "") -> None:
        """Name the `field`, the offending `value` (shortened) and the `problem`."""
        shown = repr(value)
        if len(shown) > MAX_SHOWN_VALUE:
            shown = shown[:MAX_SHOWN_VALUE] + "..."
        super().__init__(f"{field}: {problem}, got {shown}", hint=hint, field=field, value=shown)
        self.field = field
        self.problem = problem


MAX_SHOWN_VALUE = 80
"""Characters of an offending value that an error message repeats."""


class PolicyUnenforceableError(AtollError):
    """A protection that the policy demands cannot be enforced on this host; the launch stops."""

    reason = "policy_unenforceable"


class DriverUnavailableError(AtollError):
    """No driver for the chosen level can run on this host."""

    reason = "driver_unavailable"


class UnsupportedError(AtollError, NotImplementedError):
    """The request is well-formed but this level or release cannot do it."""

    reason = "unsupported"


class NotFoundError(AtollError, LookupError):
    """No such sandbox, template, user or log."""

    reason = "not_found"


class StateError(AtollError):
    """The object is in a state in which this makes no sense (for example already killed)."""

    reason = "bad_state"


class CapacityError(AtollError):
    """The host has no room for it now."""

    reason = "capacity"
    retryable = True


class LimitExceededError(AtollError):
    """A limit of the sandbox stopped the call itself (for example no process slot left for it)."""

    reason = "limit_exceeded"


class DeadlineError(AtollError, TimeoutError):
    """A deadline of the caller passed before the operation was done."""

    reason = "deadline"


class ProcessFailedError(AtollError):
    """Only with ``check=True``: the command ended with a status other than 0."""

    reason = "process_failed"


class GuestProtocolError(AtollError):
    """The guest side sent bytes that the protocol does not allow; its sandbox was destroyed."""

    reason = "guest_protocol"


class ChannelLostError(AtollError):
    """The sandbox ended while an operation was under way; its outcome is unknown."""

    reason = "channel_lost"
    retryable = True


class ProvisionError(AtollError):
    """The sandbox could not be set up."""

    reason = "provision_failed"
    retryable = True


class TeardownError(AtollError):
    """Something of the sandbox could not be removed; the journal keeps it for the reaper."""

    reason = "teardown_failed"
    retryable = True


class Codes(NamedTuple):
    """How one error class looks on each surface."""

    connect: str
    http: int
    exit: int


CODES: dict[type[AtollError], Codes] = {
    InvalidSpecError: Codes("invalid_argument", 400, 2),
    PolicyUnenforceableError: Codes("failed_precondition", 409, 125),
    DriverUnavailableError: Codes("failed_precondition", 409, 125),
    UnsupportedError: Codes("unimplemented", 501, 125),
    NotFoundError: Codes("not_found", 404, 125),
    StateError: Codes("failed_precondition", 409, 125),
    CapacityError: Codes("resource_exhausted", 429, 125),
    LimitExceededError: Codes("resource_exhausted", 429, 125),
    DeadlineError: Codes("deadline_exceeded", 504, 124),
    ProcessFailedError: Codes("aborted", 409, 125),
    GuestProtocolError: Codes("data_loss", 500, 125),
    ChannelLostError: Codes("unavailable", 502, 125),
    ProvisionError: Codes("internal", 500, 125),
    TeardownError: Codes("internal", 500, 125),
    AtollError: Codes("internal", 500, 125),
}
"""Connect codes as in the Connect protocol; exit codes as GNU timeout(1) and docker-run(1) use them."""


def codes_for(error: AtollError) -> Codes:
    """The row of `CODES` for `error`, the nearest base class where it has none of its own."""
    for cls in type(error).__mro__:
        if cls in CODES:
            return CODES[cls]
    return CODES[AtollError]
