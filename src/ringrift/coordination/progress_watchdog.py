"""The progress watchdog: is each config getting anywhere, and if not, why.

It looks at the status that the run keeps in the engine, so it also notices when the run itself is gone. A
stall is told when it begins and each time it gets a tier worse; its end is told once.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import structlog

from ringrift.coordination.handler_base import HandlerBase
from ringrift.engine.opening import get_engine
from ringrift.engine.ports import KeyValue
from ringrift.events.event import Announcement
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import ConfigStatus, Curve, RunStatus, read_run_status
from ringrift.learning.judging.ratings import fit_line
from ringrift.process import SingletonMixin
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult

__all__ = [
    "Progress",
    "ProgressRecords",
    "ProgressWatchdog",
    "StallDetector",
    "create_progress_watchdog",
    "get_stall_detector",
    "reset_stall_detector",
    "velocity_per_hour",
]


# Is a config making progress? Decided by what it did before, not by a fixed time.
#
# A config that brings games every minute is late after a few minutes; one that brings them every hour is not.
# The rating is expected to rise within a multiple of the time that its promotions took so far, and never
# sooner than six hours: below that, noise looks like a plateau.


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
    work_s: float = 0.0  # when it last changed, later by the time in which nothing was expected
    best_rating: float | None = None
    best_s: float = 0.0
    looked_s: float = 0.0
    intervals_s: deque[float] = field(default_factory=lambda: deque(maxlen=INTERVALS_KEPT))
    stalled_s: float | None = None
    tier: int = 0

    def skip(self, now_s: float) -> None:
        """Nothing was expected since the last look: that time is neither idle nor flat."""
        skipped_s, self.looked_s = now_s - self.looked_s, now_s
        self.work_s += skipped_s
        self.best_s += skipped_s

    def see(self, seen: ConfigStatus, now_s: float) -> None:
        """Take in the newest look."""
        self.looked_s = now_s
        work = (seen.games + seen.games_unchecked, seen.sample_steps, seen.promotions)
        if work != self.work:
            # The first look has nothing to measure from.
            if self.work:
                self.intervals_s.append(max(0.0, now_s - self.work_s))
            self.work, self.work_s = work, now_s
        if seen.rating is not None and (self.best_rating is None or seen.rating > self.best_rating):
            self.best_rating, self.best_s = seen.rating, now_s


def judge(track: ConfigTrack, seen: ConfigStatus, now_s: float, *, run_state: str = "running") -> Progress:
    """Say whether the config stalls, and why, in words."""
    if is_paused(seen, run_state):
        return Progress(False, f"nothing is expected: {seen.stage if run_state == 'running' else run_state}")
    expected_s = expected_work_s(track)
    # Work before the rating: where no work is done, no rating can rise.
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


def is_paused(seen: ConfigStatus, run_state: str) -> bool:
    return run_state in _PAUSED or seen.stage in _PAUSED


def expected_work_s(track: ConfigTrack) -> float:
    """How long a config may bring nothing: a multiple of what it usually takes."""
    # So few do not show what is usual, and the first work of a run takes longest.
    if len(track.intervals_s) < 3:
        return 2 * WORK_LATE_S_MIN
    ordered = sorted(track.intervals_s)
    # Near the longest and not the mean: games come often, trainings rarely.
    usual_s = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return max(WORK_LATE_S_MIN, WORK_LATE_TIMES * usual_s)


def expected_rise_s(curve: Sequence[Curve]) -> float:
    """How long the rating may stay where it is."""
    gaps_s = [after.at_s - before.at_s for before, after in itertools.pairwise(curve)]
    usual_s = statistics.median(gaps_s) if gaps_s else 0.0
    return max(RATING_FLAT_S_MIN, RATING_FLAT_TIMES * usual_s)


def velocity_per_hour(curve: Sequence[Curve]) -> float | None:
    """Slope of the rating, by least squares; None with fewer than two points in time."""
    line = fit_line([point.at_s for point in curve], [point.rating for point in curve])
    return None if line is None else line.slope * 3600.0


def _stall(reason: str, late_s: float, expected_s: float) -> Progress:
    tier = 1 if late_s < 2 * expected_s else 2 if late_s < 4 * expected_s else 3
    return Progress(True, reason, late_s - expected_s, expected_s, tier)


def _why(seen: ConfigStatus) -> str:
    """The block that explains a standstill, if there is one."""
    if not seen.blocked:
        return ""
    stage, block = next(iter(seen.blocked.items()))
    return f"{stage} is blocked: {block.get('reason', 'no reason was given')}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


log = structlog.get_logger()

INTERVAL_S = 30.0
STATUS_OLD_S = 120.0
OPERATIONS_MAX = 1000


class ProgressRecords:
    """What was seen of every config, and what there is to tell. Pure but for its memory."""

    def __init__(self) -> None:
        self._tracks: dict[str, ConfigTrack] = {}
        self.verdicts: dict[str, Progress] = {}

    def look(self, run: RunStatus, now_s: float) -> list[Announcement]:
        """Take in a status, and return the events that follow."""
        for gone in self._tracks.keys() - run.configs.keys():
            del self._tracks[gone]
            self.verdicts.pop(gone, None)
        events: list[Announcement] = []
        for config, seen in run.configs.items():
            track = self._tracks.setdefault(config, ConfigTrack())
            if is_paused(seen, run.state):
                track.skip(now_s)
            track.see(seen, now_s)
            verdict = judge(track, seen, now_s, run_state=run.state)
            self.verdicts[config] = verdict
            events += self._changes(config, track, seen, verdict, now_s)
        return events

    def skip(self, now_s: float) -> None:
        """Nobody knows what the configs did since the last look; that counts against none of them."""
        for track in self._tracks.values():
            track.skip(now_s)

    @property
    def stalled(self) -> dict[str, str]:
        return {config: each.reason for config, each in self.verdicts.items() if each.stalled}

    def _changes(
        self, config: str, track: ConfigTrack, seen: ConfigStatus, verdict: Progress, now_s: float
    ) -> list[Announcement]:
        velocity = velocity_per_hour(seen.curve)
        if verdict.stalled:
            worse = verdict.tier > track.tier
            track.stalled_s = now_s if track.stalled_s is None else track.stalled_s
            # Never down while it lasts: a stall that moves between two tiers is told once for each.
            track.tier = max(track.tier, verdict.tier)
            if not worse:
                return []
            stall = {
                "config_key": config,
                "stall_duration_hours": (verdict.late_s + verdict.expected_s) / 3600,
                "action": ACTIONS[verdict.tier],
                "escalation_tier": verdict.tier,
                "boost_multiplier": BOOSTS[verdict.tier],
                "current_velocity": velocity,
            }
            return [("PROGRESS_STALL_DETECTED", stall)]
        if track.stalled_s is None:
            return []
        lasted_s, track.stalled_s, track.tier = now_s - track.stalled_s, None, 0
        back = {"recovery_duration_hours": lasted_s / 3600, "current_velocity": velocity or 0.0}
        return [("PROGRESS_RECOVERED", {"config_key": config, **back})]


class ProgressWatchdog(HandlerBase):
    """PROGRESS_WATCHDOG."""

    capability: ClassVar[str] = "progress_watchdog"
    emits: ClassVar[tuple[str, ...]] = ("PROGRESS_STALL_DETECTED", "PROGRESS_RECOVERED")

    def __init__(
        self,
        *,
        runtime: Runtime | None = None,
        router: UnifiedEventRouter | None = None,
        kv: KeyValue | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__("progress_watchdog", cycle_interval=interval_s, router=router, runtime=runtime)
        self._kv = kv
        self.records = ProgressRecords()
        self._seen_s: float | None = None

    async def _run_cycle(self) -> None:
        kv = self._kv or (await get_engine()).kv
        run = await read_run_status(kv)
        if run is None:
            return
        self._seen_s = run.at_s
        now_s = self._runtime.now_s()
        if now_s - run.at_s > STATUS_OLD_S and run.state == "running":
            # What an old status shows is no news of the configs; the health check tells its age.
            self.records.skip(now_s)
            return
        for event, payload in self.records.look(run, now_s):
            log.info("progress.changed", event_type=event, **payload)
            await self._tell(event, payload)

    def health_check(self) -> HealthCheckResult:
        """Degraded while a config stalls, or while nobody keeps the status up to date."""
        configs = {config: each.reason for config, each in self.records.verdicts.items()}
        return super().health_check().with_details(configs=configs).or_degraded(self._problem())

    def _problem(self) -> str:
        if self._seen_s is None:
            return "no run has told its status yet"
        age_s = self._runtime.now_s() - self._seen_s
        if age_s > STATUS_OLD_S:
            return f"the run's status is {age_s:.0f} s old"
        return "; ".join(f"{config}: {reason}" for config, reason in self.records.stalled.items())


def create_progress_watchdog(
    router: UnifiedEventRouter | None = None, runtime: Runtime | None = None
) -> ProgressWatchdog:
    return ProgressWatchdog(router=router, runtime=runtime)


class StallDetector(SingletonMixin):
    """Operations that should report now and then; one that falls silent beyond its own limit is stalled."""

    def __init__(self, now_s: Callable[[], float] | None = None, *, silent_s: float = 600.0) -> None:
        self._now_s, self._silent_s = now_s or _monotonic_s, silent_s
        self._operations: dict[str, tuple[float, float]] = {}  # last sign of life, seconds allowed

    def report(self, operation: str, *, silent_s: float | None = None) -> None:
        """*operation* lives; *silent_s* is how long it may stay silent from now on."""
        if operation not in self._operations and len(self._operations) >= OPERATIONS_MAX:
            oldest = min(self._operations, key=lambda name: self._operations[name][0])
            del self._operations[oldest]
        self._operations[operation] = (self._now_s(), silent_s or self._silent_s)

    def end(self, operation: str) -> bool:
        return self._operations.pop(operation, None) is not None

    def stalled(self) -> dict[str, float]:
        """Return the seconds of silence of every operation that is stalled."""
        now_s = self._now_s()
        return {
            name: now_s - seen_s
            for name, (seen_s, allowed_s) in self._operations.items()
            if now_s - seen_s > allowed_s
        }


def get_stall_detector(silent_s: float | None = None) -> StallDetector:
    """Return the detector of this process; another *silent_s* than it was made with is a `ConfigError`."""
    return StallDetector.get_instance() if silent_s is None else StallDetector.get_instance(silent_s=silent_s)


reset_stall_detector = StallDetector.reset_instance


def _monotonic_s() -> float:
    # A clock that is set must not make an operation look silent.
    return system_runtime().monotonic_s()
