"""What one sandbox tried and was denied, summed up within a fixed bound.

Walls report each denial here (`kernel/notify.py` for system calls); the result goes into run reports as
`model.status.Violation`. The guest decides how often and with which details it is denied, so neither count nor
variety may cost the host memory: entries are summed, distinct ones are bounded, long details are cut.
"""

import threading

from atoll.model.status import Violation

MAX_DISTINCT = 64
"""Entries kept apart; denials beyond are summed under the kind ``other``."""
MAX_DETAIL_CHARS = 200

_OTHER = ("other", "further kinds of denials")


class Violations:
    """Denials of one sandbox; safe to use from any thread."""

    def __init__(self) -> None:
        """Begin with nothing denied."""
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}

    def record(self, kind: str, detail: str) -> None:
        """Count one denial."""
        key = (kind, detail[:MAX_DETAIL_CHARS])
        with self._lock:
            if key not in self._counts and len(self._counts) >= MAX_DISTINCT:
                key = _OTHER
            self._counts[key] = self._counts.get(key, 0) + 1

    def snapshot(self) -> list[Violation]:
        """Return the sums so far, in the order in which each was first seen."""
        with self._lock:
            counts = list(self._counts.items())
        return [Violation(kind=kind, detail=detail, count=count) for (kind, detail), count in counts]
