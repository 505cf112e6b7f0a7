"""A program that embeds Atoll and kills itself with SIGKILL at the Nth point of a sandbox's life.

    embedder.py POINT     exit status 0 when the life has fewer than POINT points

Points lie before and after each journal entry, around the start of the processes, and around each step of the undo, so
that a crash is tried in every state that a sandbox can be in.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable

from atoll import Sandbox, stages
from atoll.kernel import cgroup1, cgroup2
from atoll.teardown import undo
from atoll.teardown.journal import Journal

POINT = int(sys.argv[1])
passed = 0


def point() -> None:
    """One more place at which the program may die."""
    global passed  # noqa: PLW0603 - a counter of the whole program
    passed += 1
    if passed == POINT:
        os.kill(os.getpid(), signal.SIGKILL)


def around(owner: object, name: str) -> None:
    """Put a point before and after a function."""
    original: Callable[..., object] = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: object, **options: object) -> object:
        point()
        result = original(*args, **options)
        point()
        return result

    setattr(owner, name, wrapped)


for owner, name in (
    (Journal, "_append"),
    (Journal, "undo_all"),
    (cgroup1, "make_paths"),
    (cgroup2, "make_paths"),
    (stages, "spawn"),
    (stages, "observe"),
    (stages, "open_executor"),
    (undo, "_undo_step"),
    (undo, "_remove"),
):
    if hasattr(owner, name):
        around(owner, name)

with Sandbox.create(name="embedder") as sbx:
    point()
    sbx.commands.run("(sleep 300 &) ; echo up").check()
    point()
print(f"a whole life has {passed} points")
