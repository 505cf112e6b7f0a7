"""From what a failed start printed to an error that names the cause and the fix."""

import re
from typing import NamedTuple

from atoll.model.errors import AtollError, DriverUnavailableError, ProvisionError

MAX_LINES = 4


class _Cause(NamedTuple):
    pattern: re.Pattern[str]
    problem: str
    hint: str


_APPARMOR_HINT = (
    "on Ubuntu allow it with an AppArmor profile for the launcher, see `atoll doctor`,"
    " or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
)

_CAUSES = (
    _Cause(
        re.compile(
            r"RTM_NEWADDR|setting up uid map|No permissions to creat"
            r"|userns-self.*(Operation not permitted|Permission denied)"
        ),
        "user namespaces are restricted for unprivileged programs",
        _APPARMOR_HINT,
    ),
    _Cause(
        re.compile(
            r"(stage|cgroupns|userns|unshare|[Cc]reating new namespace).*(No space left|ENOSPC|Resource temporarily)"
        ),
        "the host's limit of namespaces is used up or 0",
        "sysctl -w user.max_user_namespaces=10000 (and max_net_namespaces, max_pid_namespaces)",
    ),
    _Cause(
        re.compile(r"(stage|userns|cgroupns|unshare|[Cc]reating new namespace).*Operation not permitted"),
        "this process may not make namespaces (a container without CAP_SYS_ADMIN, or its seccomp profile)",
        "run Atoll outside the container, or give the container CAP_SYS_ADMIN and an unconfined seccomp profile",
    ),
)


def explain(diagnostics: str) -> AtollError:
    """The error for a sandbox that ended before its agent answered."""
    lines = [line for line in diagnostics.splitlines() if line.strip()][-MAX_LINES:]
    shown = "; ".join("".join(c if c.isprintable() else "?" for c in line) for line in lines) or "no message"
    for cause in _CAUSES:
        if cause.pattern.search(diagnostics):
            return DriverUnavailableError(f"level process: {cause.problem} ({shown})", hint=cause.hint)
    return ProvisionError(f"the sandbox did not start: {shown}", hint="run `atoll doctor`")
