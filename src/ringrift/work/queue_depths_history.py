"""How deep a queue was: every few seconds for ten minutes, every five minutes for a week."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

BUCKET_S = 300.0
KEPT_S = 7 * 86_400.0
SAMPLE_S = 5.0  # samples that come faster replace each other
TREND_FROM_S, TREND_TO_S = 600.0, 300.0


@dataclass(slots=True)
class DepthBucket:
    """Five minutes of one queue."""

    start_s: float
    samples: int = 0
    total: float = 0.0
    highest: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.samples if self.samples else 0.0


class DepthHistory:
    """Bounded in both resolutions; what is older falls out."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=int(TREND_FROM_S / SAMPLE_S) + 2)
        self._buckets: deque[DepthBucket] = deque(maxlen=int(KEPT_S / BUCKET_S))

    def note(self, depth: float, now_s: float) -> None:
        if self._samples and 0 <= now_s - self._samples[-1][0] < SAMPLE_S:
            self._samples[-1] = (self._samples[-1][0], depth)
        else:
            self._samples.append((now_s, depth))
        start_s = now_s - now_s % BUCKET_S
        if not self._buckets or self._buckets[-1].start_s != start_s:
            self._buckets.append(DepthBucket(start_s))
        bucket = self._buckets[-1]
        bucket.samples += 1
        bucket.total += depth
        bucket.highest = max(bucket.highest, depth)

    def former(self, now_s: float) -> float | None:
        """The mean depth five to ten minutes ago; None if nothing is known of then."""
        then = [depth for at_s, depth in self._samples if TREND_TO_S <= now_s - at_s <= TREND_FROM_S]
        return sum(then) / len(then) if then else None

    def buckets(self, limit: int = 100) -> list[DepthBucket]:
        """Return up to *limit* buckets, oldest first."""
        return list(self._buckets)[-limit:] if limit > 0 else []
