"""What a guest can cost the host: the ration of answers (with a clock of the test's own) and the sum of violations."""

import sys
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.kernel.ration import Ration
from atoll.kernel.violations import MAX_DETAIL_CHARS, MAX_DISTINCT, Violations
from atoll.model.status import Violation

STEP = 1 / 64


def spend(ration: Ration, buckets: int, seconds: float, start: float = 1000.0) -> list[int]:
    """Let every bucket take whatever it can, in small steps; what each got."""
    held = [ration.bucket(start) for _ in range(buckets)]
    got = [0] * buckets
    for step in range(int(seconds / STEP)):
        for index, bucket in enumerate(held):
            while ration.refill(bucket, start + step * STEP) == 0.0:
                bucket.tokens -= 1
                got[index] += 1
    return got


def test_one_bucket_gets_its_burst_and_then_its_rate():
    assert spend(Ration(rate=64, burst=10, total=1e9), 1, 10.0) == [10 + 64 * 10 - 1]


def test_an_idle_bucket_never_holds_more_than_the_burst():
    ration = Ration(rate=100, burst=10, total=1e9)
    bucket = ration.bucket(0.0)
    ration.refill(bucket, 1e6)
    assert bucket.tokens == 10


def test_an_empty_bucket_says_when_to_come_back():
    ration = Ration(rate=100, burst=1, total=1e9)
    bucket = ration.bucket(0.0)
    bucket.tokens -= 1
    wait = ration.refill(bucket, 0.0)
    assert wait == 0.01
    assert ration.refill(bucket, wait) == 0.0


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.floats(0, 5000))
def test_all_buckets_together_get_the_total_and_equal_shares(buckets: int, start: float):
    got = spend(Ration(rate=200, burst=5, total=400), buckets, 4.0, start)
    assert sum(got) <= 5 * buckets + 400 * 4.0
    assert sum(got) >= min(200 * buckets, 400) * 3.9 - buckets
    assert max(got) - min(got) <= 0.1 * max(got) + 2


def test_a_bucket_that_stopped_leaves_its_share_to_the_others():
    ration = Ration(rate=100, burst=1, total=100)
    one, other = ration.bucket(0.0), ration.bucket(0.0)
    ration.refill(one, 0.5)
    ration.refill(other, 0.5)
    one.tokens = 0
    assert ration.refill(one, 0.5) == 0.02  # two are active
    one.tokens = 0
    ration.refill(one, 1.5)
    one.tokens = 0
    assert ration.refill(one, 2.5) == 0.0
    one.tokens = 0
    assert ration.refill(one, 2.5) == 0.01


def test_buckets_active_long_ago_take_no_share():
    ration = Ration(rate=100, burst=1, total=100)
    for each in (ration.bucket(0.0), ration.bucket(0.0)):
        ration.refill(each, 0.5)
    late = ration.bucket(5.5)
    late.tokens = 0
    assert ration.refill(late, 5.5) == 0.01


def test_violations_are_summed_in_the_order_of_their_first():
    violations = Violations()
    for detail in ("mount", "setns", "mount"):
        violations.record("seccomp", detail)
    assert violations.snapshot() == [
        Violation(kind="seccomp", detail="mount", count=2),
        Violation(kind="seccomp", detail="setns", count=1),
    ]


def test_violations_are_bounded_whatever_the_guest_invents():
    violations = Violations()
    for number in range(1000):
        violations.record("seccomp", f"socket(family {number})" + "x" * 1000)
    violations.record("seccomp", "socket(family 3)" + "x" * 1000)
    entries = violations.snapshot()
    assert len(entries) == MAX_DISTINCT + 1
    assert sum(entry.count for entry in entries) == 1001
    assert max(len(entry.detail) for entry in entries) == MAX_DETAIL_CHARS
    assert entries[3].count == 2
    assert (entries[-1].kind, entries[-1].count) == ("other", 1000 - MAX_DISTINCT)


def test_violations_recorded_by_many_threads_are_all_there():
    violations = Violations()
    threads = [
        threading.Thread(target=lambda: [violations.record("seccomp", "mount") for _ in range(5000)]) for _ in range(4)
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert violations.snapshot() == [Violation(kind="seccomp", detail="mount", count=20_000)]
