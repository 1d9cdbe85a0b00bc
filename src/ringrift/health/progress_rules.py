"""Is a config making progress? Decided by what it did before, not by a fixed time.

A config that brings games every minute is late after a few minutes; one that brings them every hour is not.
The rating is expected to rise within a multiple of the time that its promotions took so far, and never
sooner than six hours: below that, noise looks like a plateau.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringrift.health.progress_view import ConfigSeen, RatingPoint

INTERVALS_KEPT = 50
WORK_LATE_S_MIN = 300.0
WORK_LATE_TIMES = 4.0
RATING_FLAT_S_MIN = 6 * 3600.0
RATING_FLAT_TIMES = 3.0
BOOSTS = (1.0, 1.25, 1.5, 2.0)  # by tier
ACTIONS = ("watch", "boost_selfplay", "boost_selfplay", "ask_a_person")
_PAUSED = frozenset({"paused", "stopped", "stopping"})


@dataclass(frozen=True, slots=True)
class Progress:
    """How a config gets on."""

    stalled: bool
    reason: str
    late_s: float = 0.0  # beyond what was expected
    expected_s: float = 0.0
    tier: int = 0


@dataclass(slots=True)
class ConfigTrack:
    """What was seen of one config. Bounded."""

    work: tuple[int, ...] = ()
    work_s: float = 0.0  # when it last changed
    best_rating: float | None = None
    best_s: float = 0.0
    intervals_s: deque[float] = field(default_factory=lambda: deque(maxlen=INTERVALS_KEPT))
    stalled_s: float | None = None
    tier: int = 0

    def see(self, seen: ConfigSeen, now_s: float) -> None:
        """Take in the newest look."""
        work = (seen.games + seen.games_unchecked, seen.sample_steps, seen.promotions)
        if work != self.work:
            if self.work:
                self.intervals_s.append(max(0.0, now_s - self.work_s))
            self.work, self.work_s = work, now_s
        if seen.rating is not None and (self.best_rating is None or seen.rating > self.best_rating):
            self.best_rating, self.best_s = seen.rating, now_s


def judge(track: ConfigTrack, seen: ConfigSeen, now_s: float, *, run_state: str = "running") -> Progress:
    """Say whether the config stalls, and why, in words."""
    if run_state in _PAUSED or seen.stage in _PAUSED:
        return Progress(False, f"nothing is expected: {seen.stage if run_state == 'running' else run_state}")
    expected_s = expected_work_s(track)
    idle_s = now_s - track.work_s
    if idle_s > expected_s:
        why = _why(seen) or f"no game, training or promotion for {_time(idle_s)}"
        return _stall(f"{why}; at least one was expected within {_time(expected_s)}", idle_s, expected_s)
    flat_s = 0.0 if track.best_rating is None else now_s - track.best_s
    expected_s = expected_rise_s(seen.curve)
    if flat_s > expected_s:
        rating = f"the rating has not risen above {track.best_rating:.0f} for {_time(flat_s)}"
        return _stall(f"{rating}; it was expected to within {_time(expected_s)}", flat_s, expected_s)
    return Progress(False, seen.next or "it works as it did before", expected_s=expected_s)


def expected_work_s(track: ConfigTrack) -> float:
    """How long a config may bring nothing: a multiple of what it usually takes."""
    if len(track.intervals_s) < 3:
        return 2 * WORK_LATE_S_MIN
    ordered = sorted(track.intervals_s)
    usual_s = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return max(WORK_LATE_S_MIN, WORK_LATE_TIMES * usual_s)


def expected_rise_s(curve: Sequence[RatingPoint]) -> float:
    """How long the rating may stay where it is."""
    gaps_s = [after.at_s - before.at_s for before, after in itertools.pairwise(curve)]
    usual_s = statistics.median(gaps_s) if gaps_s else 0.0
    return max(RATING_FLAT_S_MIN, RATING_FLAT_TIMES * usual_s)


def velocity_per_hour(curve: Sequence[RatingPoint]) -> float | None:
    """Slope of the rating, by least squares around the mean; None with fewer than two points in time.

    Times are centred first: seconds since the epoch squared would lose all precision.
    """
    if len(curve) < 2:
        return None
    mean_s = statistics.fmean(point.at_s for point in curve)
    mean = statistics.fmean(point.rating for point in curve)
    spread = sum((point.at_s - mean_s) ** 2 for point in curve)
    if spread <= 0:
        return None
    slope = sum((point.at_s - mean_s) * (point.rating - mean) for point in curve) / spread
    return slope * 3600.0


def _stall(reason: str, late_s: float, expected_s: float) -> Progress:
    tier = 1 if late_s < 2 * expected_s else 2 if late_s < 4 * expected_s else 3
    return Progress(True, reason, late_s - expected_s, expected_s, tier)


def _why(seen: ConfigSeen) -> str:
    """The block that explains a standstill, if there is one."""
    if not seen.blocked:
        return ""
    stage, block = next(iter(seen.blocked.items()))
    return f"{stage} is blocked: {block.get('reason', 'no reason was given')}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
