"""Sandbox ids: short, unguessable, safe as a file, cgroup and host name (`[a-z0-9]+`)."""

import re
import secrets

from atoll.model.errors import InvalidSpecError

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_LENGTH = 20
_ID = re.compile(r"[a-z0-9]{8,64}")


def new_id() -> str:
    """A fresh id with about 103 bits of randomness."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))


def check_id(text: str) -> str:
    """The id, when it could be one; it then cannot leave a directory it is joined to.

    Raises:
        InvalidSpecError: it could not.
    """
    if not _ID.fullmatch(text):
        raise InvalidSpecError("sandbox id", text, "not an id", hint="see `atoll ps`")
    return text
