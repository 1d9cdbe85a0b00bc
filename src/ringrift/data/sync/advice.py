"""The scheduler under the names of the documents: advice on request, and carried out when told to."""

from __future__ import annotations

from ringrift.data.plane import DataPlane, get_data_plane, open_data_plane
from ringrift.data.sync.config import AutoSyncConfig, read_sync_config
from ringrift.data.sync.constants import SyncAction
from ringrift.data.sync.facade import SyncFacade, get_sync_facade
from ringrift.data.sync.history import SyncHistory, SyncRecord
from ringrift.data.sync.news import NewsDesk, get_news_desk
from ringrift.data.sync.picture import take_picture
from ringrift.data.sync.requests import SyncRequest, SyncResponse
from ringrift.data.sync.scheduler import (
    ClusterDataStatus,
    HostState,
    SyncRecommendation,
    cluster_status,
    host_states,
    recommend,
)
from ringrift.engine.blocking import run_blocking
from ringrift.errors import ConfigError
from ringrift.process import process_scope
from ringrift.status import HealthCheckResult
from ringrift.work.backpressure_levels import BackpressureLevel

_ADVICE_MAX = 10


class SyncScheduler:
    """Advises which host's data should be brought to safety next, and does it when told to."""

    def __init__(
        self,
        plane: DataPlane | None = None,
        *,
        config: AutoSyncConfig | None = None,
        facade: SyncFacade | None = None,
        news: NewsDesk | None = None,
    ) -> None:
        self._plane, self._config, self._facade = plane, config, facade
        self._news = news or get_news_desk()
        self.pressure = BackpressureLevel.NONE

    async def hosts(self) -> list[HostState]:
        plane = self._plane or await open_data_plane()
        if self._config is None:
            self._config = read_sync_config(plane.settings.sync)
        return host_states(await take_picture(plane, self._config, news=self._news.news(plane.runtime)))

    async def recommendations(self, max_recommendations: int = _ADVICE_MAX) -> list[SyncRecommendation]:
        return recommend(await self.hosts(), pressure=self.pressure, max_recommendations=max_recommendations)

    async def status(self) -> ClusterDataStatus:
        hosts, plane = await self.hosts(), self._plane or get_data_plane()
        advice = recommend(hosts, pressure=self.pressure, max_recommendations=_ADVICE_MAX)
        return cluster_status(hosts, advice, now_s=plane.runtime.now_s())

    async def execute(self, advice: SyncRecommendation) -> SyncResponse:
        """Bring the host's data to where it is safe."""
        plane = self._plane or await open_data_plane()
        facade = self._facade or get_sync_facade()
        source = None if advice.host == plane.this.name else advice.host
        return await facade.sync(
            SyncRequest(data_type="all", priority=advice.priority.request_priority, source_node=source)
        )

    # --- for code without an event loop ---------------------------------------------------------------

    def get_recommendations(self, max_recommendations: int = _ADVICE_MAX) -> list[SyncRecommendation]:
        return run_blocking(self.recommendations(max_recommendations))

    def get_cluster_status(self) -> ClusterDataStatus:
        return run_blocking(self.status())

    def get_host_states(self) -> list[HostState]:
        return run_blocking(self.hosts())

    def get_sync_history(self, host: str | None = None, limit: int = 100) -> list[SyncRecord]:
        """What became of the last syncs, newest last."""
        plane = self._plane or get_data_plane()
        records = run_blocking(SyncHistory(plane.kv, plane.runtime).records())
        return [each for each in records if host in (None, each.host)][-limit:]

    def health_check(self) -> HealthCheckResult:
        status = self.get_cluster_status()
        if status.critical_hosts:
            told = f"data of {', '.join(status.critical_hosts)} is at risk"
            return HealthCheckResult.degraded(told, **status.to_dict())
        return HealthCheckResult.ok("", **status.to_dict())


def get_sync_scheduler() -> SyncScheduler:
    return process_scope().get(SyncScheduler, SyncScheduler)


def get_sync_recommendations(max_recommendations: int = _ADVICE_MAX) -> list[SyncRecommendation]:
    """Return which hosts should be synced, the most urgent first."""
    return get_sync_scheduler().get_recommendations(max_recommendations)


def get_cluster_data_status() -> ClusterDataStatus:
    """Return how well the data of all hosts is kept."""
    return get_sync_scheduler().get_cluster_status()


async def execute_priority_sync(
    recommendation: SyncRecommendation | None = None, *, max_syncs: int = 1
) -> list[SyncResponse]:
    """Carry out one recommendation, or the *max_syncs* most urgent ones that are not to be skipped."""
    scheduler = get_sync_scheduler()
    if recommendation is not None:
        return [await scheduler.execute(recommendation)]
    if max_syncs < 1:
        raise ConfigError(f"max_syncs is {max_syncs}; it must be at least 1")
    advice = [each for each in await scheduler.recommendations() if each.action is not SyncAction.SKIP]
    return [await scheduler.execute(each) for each in advice[:max_syncs]]
