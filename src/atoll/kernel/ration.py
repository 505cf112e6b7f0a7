"""Token buckets with a common bound: how often each sandbox may cost the host a little work.

`kernel/notify.py` rations its answers with it. Pure: the caller brings the time, nothing here sleeps.
"""

from dataclasses import dataclass


@dataclass
class Bucket:
    """What one sandbox has left."""

    tokens: float
    refilled: float
    active_second: int = -1
    """The last second in which it took part."""


class Ration:
    """Gives every bucket `rate` tokens per second, but all active ones together at most `total`."""

    def __init__(self, rate: float, burst: float, total: float) -> None:
        """Rates are per second; `burst` is what a bucket holds at most."""
        self._rate, self._burst, self._total = rate, burst, total
        self._second, self._active, self._active_before = 0, 0, 0

    def bucket(self, now: float) -> Bucket:
        """Return a full bucket."""
        return Bucket(self._burst, now)

    def refill(self, bucket: Bucket, now: float) -> float:
        """Add what is due to `bucket`; return the seconds until it holds a whole token (0.0 when it does).

        A bucket is active when it was refilled in this or the last whole second; the active ones share the total.
        """
        second = int(now)
        if second != self._second:
            self._active_before = self._active if second == self._second + 1 else 0
            self._second, self._active = second, 0
        if bucket.active_second != second:
            bucket.active_second = second
            self._active += 1
        share = min(self._rate, self._total / max(self._active, self._active_before))
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.refilled) * share)
        bucket.refilled = now
        return max(0.0, (1 - bucket.tokens) / share)
