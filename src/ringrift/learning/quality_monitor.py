"""QUALITY_MONITOR: looks at the newest games of every config and tells what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ringrift.engine.run_reports import reported_health
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.quality_scores import QualityState, QualityView, quality_of, refuse_shard
from ringrift.learning.quality_watch import QualityWatch
from ringrift.learning.signals_face import heard_by
from ringrift.learning.signals_source import Situations
from ringrift.learning.situation_daemons import SituationDaemon
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

INTERVAL_S = 15.0


class QualityMonitorDaemon(SituationDaemon):
    """Scores are read from the run's state; this daemon keeps only what it has said."""

    capability: ClassVar[str] = "data_quality"
    plans_as = "quality_monitor"
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

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__(
            "quality_monitor", interval_s=interval_s, router=router, runtime=runtime, situations=situations
        )
        self._watch = QualityWatch()

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return dict.fromkeys(heard_by("quality_monitor"), self._on_event)

    async def _run_cycle(self) -> None:
        for config in self._situations.all():
            await self._look(config)

    async def _on_event(self, event: RouterEvent) -> None:
        """New data, a check that ended or a model about to be judged: look now. Its own words are no news."""
        if event.source == self.name:
            return
        config = event.payload.get("config_key")
        asked = event.event_type == "QUALITY_CHECK_REQUESTED"
        for each in [str(config)] if config else list(self._situations.all()):
            await self._look(each, asked=asked)

    async def _look(self, config: str, *, asked: bool = False) -> None:
        situation = self._situations.get(config)
        if situation is None:
            return
        for name, payload in self._watch.look(situation.state, self._runtime.now_s(), asked=asked):
            await self.router.publish(name, payload, self.name)

    # --- what it knows --------------------------------------------------------------------------------

    def get_quality(self, config_key: str) -> QualityView | None:
        """The quality of the newest games now; None for a config that does not run here."""
        situation = self._situations.get(config_key)
        return None if situation is None else quality_of(situation.state)

    def refused_shards(self, config_key: str) -> dict[str, str]:
        """The shards that nobody should learn from, with the reason."""
        situation = self._situations.get(config_key)
        shards = [] if situation is None else situation.state.shards.values()
        return {shard.digest: why for shard in shards if (why := refuse_shard(shard)) is not None}

    @reported_health
    def health_check(self) -> HealthCheckResult:
        own = super().health_check()
        views = {config: quality_of(situation.state) for config, situation in self._situations.all().items()}
        details = {
            **own.details,
            "quality": {config: view.score for config, view in views.items()},
            "states": {config: view.state.value for config, view in views.items()},
        }
        poor = sorted(config for config, view in views.items() if view.state is QualityState.POOR)
        if own.healthy and poor:
            return HealthCheckResult.degraded(f"games of {', '.join(poor)} are poor", **details)
        return own.with_details(**details)


def get_quality_monitor() -> QualityMonitorDaemon:
    return QualityMonitorDaemon.get_instance()
