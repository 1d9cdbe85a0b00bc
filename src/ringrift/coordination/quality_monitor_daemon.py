"""QUALITY_MONITOR: looks at the newest games of every config and tells what changed in their quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, ClassVar

from ringrift.coordination.run_coordinator import AskedDaemon
from ringrift.engine.run_reports import reported_health
from ringrift.events.event import Announcement, RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.learning.facts.records import (
    SHARD_QUALITY_MIN,
    ShardState,
    earn,
    refuse_shard,
    steps_to_train,
)
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging.feedback import (
    HIGH,
    LOW,
    SHARDS_SEEN,
    QualityState,
    QualityView,
    passes_gate,
    quality_gate,
    quality_of,
    quality_state,
    quality_view,
)
from ringrift.learning.situation import Situation
from ringrift.process import getter_of
from ringrift.status import HealthCheckResult
from ringrift.work.coordinator import heard_by

__all__ = [
    "QualityMonitorDaemon",
    "QualityState",
    "QualityView",
    "get_quality_monitor",
    "passes_gate",
    "quality_gate",
    "quality_of",
    "quality_state",
    "quality_view",
    "refuse_shard",
    "reset_quality_monitor",
]


# When to say something: on a change that matters, and not too often.


CHANGE_MIN = 0.1
COOLDOWN_S = 30.0
REFUSED_ALERT = 0.1
PARITY_CHANGE_MIN = 0.01
SHARDS_REMEMBERED = 1_000


@dataclass(slots=True)
class _LastReport:
    """What was said last of one config."""

    view: QualityView | None = None
    said_s: float = float("-inf")
    parity_rate: float | None = None
    checks_running: set[str] = field(default_factory=set)
    check_failures: int = 0
    shards_reported: dict[str, None] = field(default_factory=dict)
    alerted: bool = False
    blocked: bool = False


class QualityWatch:
    """Remembers what was said of each config. The numbers themselves come from the state each time."""

    def __init__(self) -> None:
        self._configs: dict[str, _LastReport] = {}

    def view(self, config: str) -> QualityView | None:
        """The view that was last told."""
        memory = self._configs.get(config)
        return None if memory is None else memory.view

    def look(self, state: ConfigState, now_s: float, *, asked: bool = False) -> list[Announcement]:
        """What is to be told of *state*; more readily when somebody *asked*."""
        memory = self._configs.setdefault(state.config, _LastReport())
        view = quality_of(state)
        events = self._checks(state, memory, view)
        events += _refused_shards(state, memory)
        events += _blocked_training(state, memory)
        before = memory.view
        fresh = before is None or _differs(before, view)
        if view.score is not None and (asked or (fresh and now_s - memory.said_s >= COOLDOWN_S)):
            events += _scores(state.config, view, before)
            memory.view, memory.said_s = view, now_s
        elif asked:
            reason = "no game of this config was scored yet"
            events.append(_failed(state.config, "requested", reason, None))
        return events

    def _checks(self, state: ConfigState, memory: _LastReport, view: QualityView) -> list[Announcement]:
        """The checks by the rules: begun, ended, failed, and how many games they refuse."""
        config, events = state.config, []
        running = {job.job_id for job in state.open_of("validate")}
        if running - memory.checks_running:
            games = sum(shard.games for shard in state.unchecked())
            events.append(("PARITY_VALIDATION_STARTED", {"config_key": config, "games_planned": games}))
        failures = state.failures.get("validate")
        failed = 0 if failures is None else failures.in_a_row
        # One that is no longer open has ended; whether well is told by the failures in a row.
        if memory.checks_running - running:
            if failures is not None and failed > memory.check_failures:
                events.append(_failed(config, "validate", failures.error, view.score))
            else:
                events.append(_parity(config, view))
        memory.checks_running, memory.check_failures = running, failed
        rate = view.refused_share
        if view.games + view.refused and abs(rate - (memory.parity_rate or 0.0)) >= PARITY_CHANGE_MIN:
            events.append(_parity_rate(config, view, memory.parity_rate or 0.0))
            memory.parity_rate = rate
        return events + _refusal_alert(config, view, memory)


def _differs(before: QualityView, now: QualityView) -> bool:
    if before.state is not now.state or before.score is None or now.score is None:
        return True
    # Crossing the limit matters, however small the step.
    return abs(now.score - before.score) >= CHANGE_MIN or (before.score < LOW) != (now.score < LOW)


def _scores(config: str, view: QualityView, before: QualityView | None) -> list[Announcement]:
    assert view.score is not None
    known = None if before is None else before.score
    updated = {
        "config_key": config,
        "quality_score": view.score,
        "total_games": view.games,
        "high_quality_games": view.high_quality_games,
    }
    events: list[Announcement] = [
        ("QUALITY_SCORE_UPDATED", updated if known is None else {**updated, "previous_score": known}),
        ("QUALITY_DISTRIBUTION_CHANGED", _distribution(config, view)),
    ]
    if view.score >= HIGH:
        high = {"avg_quality": view.score, "high_quality_count": view.high_quality_games}
        events.append(("HIGH_QUALITY_DATA_AVAILABLE", {"config_key": config, **high}))
    if view.score < LOW:
        events += _low(config, view, known)
    return events


def _low(config: str, view: QualityView, known: float | None) -> list[Announcement]:
    assert view.score is not None
    reason = f"the newest {view.games} games score {view.score:.2f}"
    low = {
        "config_key": config,
        "avg_quality": view.score,
        "low_quality_count": view.low_quality_games,
        "low_quality_ratio": view.low_quality_games / max(1, view.games),
        "reason": reason,
    }
    events: list[Announcement] = [("LOW_QUALITY_DATA_WARNING", low)]
    if known is None or known >= LOW:
        degraded: dict[str, Any] = {"config_key": config, "quality_score": view.score, "threshold": LOW}
        if known is not None:
            degraded |= {"previous_score": known, "degradation": known - view.score}
        events.append(("QUALITY_DEGRADED", degraded))
    return events


def _distribution(config: str, view: QualityView) -> dict[str, Any]:
    games = max(1, view.games)
    return {
        "config_key": config,
        "avg_quality": view.score,
        "high_quality_ratio": view.high_quality_games / games,
        "low_quality_ratio": view.low_quality_games / games,
        "total_games": view.games,
    }


def _refused_shards(state: ConfigState, memory: _LastReport) -> list[Announcement]:
    """Shards among the newest that nobody should learn from, each once."""
    events: list[Announcement] = []
    # Only the newest: after a start nothing is remembered, and all old refusals would be told again.
    for shard in islice(reversed(state.shards.values()), SHARDS_SEEN):
        why = refuse_shard(shard)
        if why is None or shard.digest in memory.shards_reported:
            continue
        memory.shards_reported[shard.digest] = None
        while len(memory.shards_reported) > SHARDS_REMEMBERED:
            del memory.shards_reported[next(iter(memory.shards_reported))]
        about = {"config_key": state.config, "db_path": shard.name}
        message = f"shard {shard.digest[:12]} of worker {shard.worker} is left out: {why}"
        alert = {"alert_type": "shard_refused", "severity": "error", "message": message}
        events.append(("DATA_QUALITY_ALERT", {**about, **alert}))
    return events


def _blocked_training(state: ConfigState, memory: _LastReport) -> list[Announcement]:
    """Rows came for a training, and all since the last one are of shards that nobody should learn from."""
    # Set again below while it holds, so every return in between means that it is over.
    before, memory.blocked = memory.blocked, False
    rules, newest = state.bucket_rules, state.newest_model
    if state.open_of("export", "train"):
        return []
    since_s = float("-inf") if newest is None else newest.made_s
    shards = [
        each
        for each in takewhile(lambda shard: shard.made_s > since_s, reversed(state.shards.values()))
        if each.state is ShardState.CHECKED and each.rows
    ]
    refused = [each for each in shards if each.quality is not None and refuse_shard(each) is not None]
    if not shards or len(refused) < len(shards):
        return []
    # Refused ones earn nothing, so that they are counted here as if they did.
    would_be = earn(state.bucket, sum(each.rows for each in refused if not each.steps_per_row), rules)
    if not steps_to_train(would_be, rules, rows_total=state.rows, has_model=newest is not None):
        return []
    memory.blocked = True
    if before:
        return []
    games = sum(each.games for each in refused)
    score = sum((each.quality or 0.0) * each.games for each in refused) / games
    reason = f"all {games} games since the last training are refused; the newest: {refuse_shard(refused[0])}"
    blocked = {"quality_score": score, "threshold": SHARD_QUALITY_MIN, "reason": reason}
    return [("TRAINING_BLOCKED_BY_QUALITY", {"config_key": state.config, **blocked})]


def _refusal_alert(config: str, view: QualityView, memory: _LastReport) -> list[Announcement]:
    high = view.refused_share > REFUSED_ALERT
    if high == memory.alerted:
        return []
    memory.alerted = high
    if not high:
        return []
    worst = ", ".join(f"{count} {reason}" for reason, count in sorted(view.reasons.items()))
    message = f"{view.refused_share:.0%} of the newest games do not agree with the rules: {worst}"
    alert = {"alert_type": "games_refused", "severity": "warning", "message": message}
    return [("DATA_QUALITY_ALERT", {"config_key": config, **alert})]


def _failed(config: str, check: str, reason: str, last: float | None) -> Announcement:
    payload = {"config_key": config, "check_type": check, "reason": reason}
    return "QUALITY_CHECK_FAILED", payload if last is None else {**payload, "last_quality": last}


def _parity(config: str, view: QualityView) -> Announcement:
    checked = view.games + view.refused
    payload = {"games_checked": checked, "games_failed": view.refused, "passed": not view.refused}
    return "PARITY_VALIDATION_COMPLETED", {"config_key": config, **payload}


def _parity_rate(config: str, view: QualityView, before: float) -> Announcement:
    payload = {"new_rate": view.refused_share, "old_rate": before, "total_checked": view.games + view.refused}
    return "PARITY_FAILURE_RATE_CHANGED", {"config_key": config, **payload}


# The daemon.


INTERVAL_S = 15.0


class QualityMonitorDaemon(AskedDaemon):
    """Scores are read from the run's state; this daemon keeps only what it has said."""

    capability: ClassVar[str] = "data_quality"
    plans_as = "quality_monitor"
    interval_s = INTERVAL_S
    emits: ClassVar[tuple[str, ...]] = (
        "DATA_QUALITY_ALERT",
        "HIGH_QUALITY_DATA_AVAILABLE",
        "LOW_QUALITY_DATA_WARNING",
        "PARITY_FAILURE_RATE_CHANGED",
        "PARITY_VALIDATION_COMPLETED",
        "PARITY_VALIDATION_STARTED",
        "QUALITY_CHECK_FAILED",
        "QUALITY_DEGRADED",
        "QUALITY_DISTRIBUTION_CHANGED",
        "QUALITY_SCORE_UPDATED",
        "TRAINING_BLOCKED_BY_QUALITY",
    )

    def _set_up(self) -> None:
        self._watch = QualityWatch()

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return dict.fromkeys(heard_by("quality_monitor"), self._on_event)

    async def _on_event(self, event: RouterEvent) -> None:
        """New data, a check that ended or a model about to be judged: look now. Its own words are no news."""
        if event.source == self.name:
            return
        config = event.payload.get("config_key")
        asked = event.event_type == "QUALITY_CHECK_REQUESTED"
        known = self._situations
        for situation in [known.get(str(config))] if config else list(known.all().values()):
            if situation is not None:
                await self._look(situation, asked=asked)

    async def _look(self, situation: Situation, /, *, asked: bool = False) -> None:
        await self.tell(self._watch.look(situation.state, self._runtime.now_s(), asked=asked))

    # --- what it knows --------------------------------------------------------------------------------

    def get_quality(self, config_key: str) -> QualityView | None:
        """The quality of the newest games now; None for a config that no run has."""
        situation = self._answers.get(config_key)
        return None if situation is None else quality_of(situation.state)

    def refused_shards(self, config_key: str) -> dict[str, str]:
        """The shards that nobody should learn from, with the reason."""
        situation = self._answers.get(config_key)
        shards = [] if situation is None else situation.state.shards.values()
        return {shard.digest: why for shard in shards if (why := refuse_shard(shard)) is not None}

    @reported_health
    def health_check(self) -> HealthCheckResult:
        views = {config: quality_of(situation.state) for config, situation in self._situations.all().items()}
        details = {
            "quality": {config: view.score for config, view in views.items()},
            "states": {config: view.state.value for config, view in views.items()},
        }
        poor = sorted(config for config, view in views.items() if view.state is QualityState.POOR)
        problem = f"games of {', '.join(poor)} are poor" if poor else ""
        return super().health_check().with_details(**details).or_degraded(problem)


get_quality_monitor = getter_of("get_quality_monitor", QualityMonitorDaemon)
reset_quality_monitor = QualityMonitorDaemon.reset_instance
