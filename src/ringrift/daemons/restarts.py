"""The one restart authority: what happens after a crash. Pure; times and luck come in.

A run of at least `stable_s` was healthy, so its crash is answered at once. Shorter runs wait: exponential,
with jitter, at least `cooldown_s` apart. More than `max_restarts` in a row, or more than `hourly_max` in an
hour, spend the budget: a critical daemon is then tried at long intervals, any other is given up until a
person clears it or a day has passed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ringrift.daemons.types import RestartTier
from ringrift.errors import ConfigError

HOUR_S = 3600.0
CRASH_LOOP_WINDOW_S = 300.0
CRASH_LOOP_RESTARTS = 3
FORGIVEN_AFTER_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often one daemon is tried again."""

    max_restarts: int = 5
    delay_s: float = 5.0
    delay_s_max: float = 300.0
    jitter_share: float = 0.1
    cooldown_s: float = 10.0
    stable_s: float = 60.0
    degraded_retry_s: float | None = None  # None: give up when the budget is spent

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            may_lack = item.name == "degraded_retry_s" and value is None
            if not may_lack and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ConfigError(f"{item.name} is {value!r}; it must be a number")
        if self.max_restarts < 0 or not 0 <= self.delay_s <= self.delay_s_max:
            raise ConfigError(f"a restart policy cannot be {self}")
        if not 0 <= self.jitter_share < 1:
            raise ConfigError(f"jitter_share is {self.jitter_share}; it must be from 0 to below 1")

    @property
    def hourly_max(self) -> int:
        return 2 * self.max_restarts


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """What is remembered of one daemon's crashes. Times are wall-clock: the record outlives the process."""

    in_a_row: int = 0  # crashes without a stable run between them
    recent_s: tuple[float, ...] = ()  # restarts of the last hour
    failed_for_good_s: float | None = None
    total: int = 0
    last_error: str = ""

    @property
    def restarts_in_a_row(self) -> int:
        """The restarts that answered those crashes; the one that ended it all was not answered."""
        return self.in_a_row if self.failed_for_good_s is None else self.in_a_row - 1

    def within(self, seconds: float, *, now_s: float) -> int:
        """Return how many restarts the last *seconds* saw."""
        return sum(1 for at_s in self.recent_s if now_s - seconds < at_s <= now_s)

    def failed_for_good(self, *, now_s: float) -> bool:
        """Return whether it was given up and not forgiven yet."""
        return self.failed_for_good_s is not None and now_s - self.failed_for_good_s < FORGIVEN_AFTER_S


@dataclass(frozen=True, slots=True)
class RestartVerdict:
    """What to do about a crash."""

    restart_after_s: float | None  # None: never
    tier: RestartTier
    crash_loop: bool  # entered with this crash
    reason: str


def on_crash(
    record: RestartRecord, policy: RestartPolicy, *, now_s: float, ran_s: float, luck: float, error: str
) -> tuple[RestartRecord, RestartVerdict]:
    """Decide about a crash after a run of *ran_s*; *luck* from -1 to 1 spreads the waits."""
    stable = ran_s >= policy.stable_s
    in_a_row = 1 if stable else record.in_a_row + 1
    kept = tuple(at_s for at_s in record.recent_s if now_s - HOUR_S < at_s <= now_s)
    record = replace(record, in_a_row=in_a_row, recent_s=kept, last_error=error)
    if in_a_row > policy.max_restarts or len(kept) >= policy.hourly_max:
        return _budget_spent(record, policy, now_s=now_s)
    delay_s = 0.0 if stable else _backoff_s(policy, in_a_row, luck)
    if kept:
        delay_s = max(delay_s, policy.cooldown_s - ran_s)
    was_looping = record.within(CRASH_LOOP_WINDOW_S, now_s=now_s) >= CRASH_LOOP_RESTARTS
    record = replace(record, recent_s=(*kept, now_s), total=record.total + 1)
    looping = record.within(CRASH_LOOP_WINDOW_S, now_s=now_s) >= CRASH_LOOP_RESTARTS
    tier = RestartTier.ELEVATED if looping else RestartTier.NORMAL
    text = f"restart {in_a_row} of {policy.max_restarts} in {delay_s:.1f} s"
    return record, RestartVerdict(delay_s, tier, looping and not was_looping, text)


def clear(record: RestartRecord) -> RestartRecord:
    """Forget the crashes; keep the total."""
    return RestartRecord(total=record.total)


def _backoff_s(policy: RestartPolicy, attempt: int, luck: float) -> float:
    doubled = policy.delay_s * 2.0 ** min(attempt - 1, 30)
    return min(doubled, policy.delay_s_max) * (1.0 + policy.jitter_share * luck)


def _budget_spent(
    record: RestartRecord, policy: RestartPolicy, *, now_s: float
) -> tuple[RestartRecord, RestartVerdict]:
    spent = f"{record.in_a_row - 1} restarts in a row and {len(record.recent_s)} in an hour did not help"
    if policy.degraded_retry_s is None:
        record = replace(record, failed_for_good_s=now_s)
        return record, RestartVerdict(None, RestartTier.DEGRADED, False, spent)
    record = replace(record, total=record.total + 1)
    text = f"{spent}; next try in {policy.degraded_retry_s:.0f} s"
    return record, RestartVerdict(policy.degraded_retry_s, RestartTier.DEGRADED, False, text)
