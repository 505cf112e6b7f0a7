"""Run hostile Python inside and bring back what it says it saw.

The payload gets `syscall`, `attempt` and `report`; it must end with `report(...)`, so that an attack that did not
run can never pass for one that was stopped.
"""

import json
import textwrap
from typing import Any

from atoll import Sandbox

PYTHON = "/usr/bin/python3"

PRELUDE = r'''
import ctypes, errno, json, os, sys

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

def syscall(number, *args):
    """The result, or the name of the errno."""
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = _libc.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]

def attempt(function, *args, **options):
    """What `function` returns, or the name of the errno it fails with."""
    try:
        return function(*args, **options)
    except OSError as error:
        return errno.errorcode.get(error.errno) or str(error)

def read(path):
    """The first bytes of a file as text, or the name of the errno."""
    def first():
        with open(path, "rb") as file:
            return file.read(4096).decode("latin-1")
    return attempt(first)

def write(path, data=b"pwned"):
    """None when it could be written, else the name of the errno."""
    def put():
        with open(path, "r+b", buffering=0) as file:
            file.write(data)
    return attempt(put)

def report(**facts):
    print("REPORT " + json.dumps(facts, default=str), flush=True)
'''


def attack(sandbox: Sandbox, payload: str, *, user: str = "user", timeout: float = 30) -> dict[str, Any]:
    """What the payload reported; fails when it did not get to its end."""
    code = PRELUDE + textwrap.dedent(payload)
    result = sandbox.commands.run([PYTHON, "-c", code], user=user, timeout=timeout)
    reports = [line for line in result.stdout.splitlines() if line.startswith("REPORT ")]
    assert len(reports) == 1, f"the attack did not run to its end: {result.error} {result.stdout} {result.stderr}"
    facts: dict[str, Any] = json.loads(reports[0].removeprefix("REPORT "))
    return facts


def denied(sandbox: Sandbox, detail: str) -> int:
    """How often the host counted a denied call whose detail starts with `detail`."""
    return sum(violation.count for violation in sandbox.violations if violation.detail.startswith(detail))
