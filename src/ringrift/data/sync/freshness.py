"""Is the data that a training would use new enough? By when games were made: copying a file renews nothing.

To check is only to look. To ensure is also to ask for a sync and to wait for what it brings, no longer than
until that sync has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ringrift.data.artifacts import Artifact, kinds_of
from ringrift.data.manifest.store import games_in
from ringrift.data.plane import DataPlane, OpenPlane
from ringrift.errors import ConfigError
from ringrift.events.event import RouterEvent
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import first_of
from ringrift.work.limits import FRESH_HOURS_MAX, GAMES_MIN, NEVER_HOURS, why_stale

__all__ = ["FreshnessCheck", "FreshnessConfig", "FreshnessResult", "judge_freshness"]

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessConfig:
    """When data is too old or too little."""

    max_age_hours: float = FRESH_HOURS_MAX
    min_games: int = GAMES_MIN
    sync_timeout_seconds: float = 300.0
    poll_s: float = 5.0

    def __post_init__(self) -> None:
        if self.max_age_hours <= 0 or self.sync_timeout_seconds <= 0 or self.poll_s <= 0:
            raise ConfigError("max_age_hours, sync_timeout_seconds and poll_s must be above 0")
        if self.min_games < 0:
            raise ConfigError(f"min_games is {self.min_games}; it must not be below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessResult:
    """What was found, and what was done about it."""

    success: bool
    is_fresh: bool
    data_age_hours: float | None  # None: there is no data at all
    games_available: int  # made within the limit and held here
    sync_triggered: bool = False
    sync_completed: bool = False
    sync_duration_seconds: float = 0.0
    error: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def judge_freshness(
    artifacts: Iterable[Artifact], config: FreshnessConfig, *, now_s: float
) -> FreshnessResult:
    """Judge files of one config. A clock that was set back makes nothing younger than new."""
    files = list(artifacts)
    made = [each for each in files if each.kind in kinds_of("games") | kinds_of("npz") and each.created_s > 0]
    if not made:
        return FreshnessResult(
            success=True, is_fresh=False, data_age_hours=None, games_available=0, error="no data is held here"
        )
    limit_s = config.max_age_hours * _HOUR_S
    age_s = max(0.0, now_s - max(each.created_s for each in made))
    young = [each for each in made if now_s - each.created_s <= limit_s]
    games = max(
        games_in(young), max((each.games for each in young if each.kind not in kinds_of("games")), default=0)
    )
    why = why_stale(age_s, games, hours_max=config.max_age_hours, games_min=config.min_games)
    return FreshnessResult(
        success=True,
        is_fresh=not why,
        data_age_hours=age_s / _HOUR_S,
        games_available=games,
        error=why,
        details={"files": len(files), "young_files": len(young)},
    )


class FreshnessCheck:
    """Looks at what this node holds, because that is what it would train on."""

    capability: ClassVar[str] = "freshness"
    emits: ClassVar[tuple[str, ...]] = ("DATA_FRESH", "DATA_STALE", "SYNC_TRIGGERED")

    def __init__(
        self,
        plane: DataPlane | OpenPlane,
        *,
        router: UnifiedEventRouter,
        config: FreshnessConfig | None = None,
    ) -> None:
        self._plane, self._router = plane, router
        self.config = config or FreshnessConfig()

    async def check(self, config_key: str) -> FreshnessResult:
        """Look, and tell what was found."""
        plane = await self._open()
        result = await self._look(plane, config_key)
        payload = {
            "config_key": config_key,
            "data_age_hours": _reported_age(result),
            "threshold_hours": self.config.max_age_hours,
        }
        await self._publish("DATA_FRESH" if result.is_fresh else "DATA_STALE", payload)
        return result

    async def ensure_fresh(self, config_key: str) -> FreshnessResult:
        """Look; if the data is old, ask for a sync and wait for what it brings, while it may."""
        plane = await self._open()
        first = await self.check(config_key)
        if first.is_fresh:
            return first
        payload = {
            "config_key": config_key,
            "reason": first.error or "stale data",
            "targets": [plane.this.name],
            "data_age_hours": _reported_age(first),
            "priority": "high",
        }
        failure = _SyncFailure(plane.this.name, config_key)
        end_hearing = self._router.subscribe("DATA_SYNC_FAILED", failure.hear)
        try:
            await self._publish("SYNC_TRIGGERED", payload)
            return await self._wait(plane, config_key, failure)
        finally:
            end_hearing()

    async def watch(self) -> dict[str, FreshnessResult]:
        """Look at every config of which there is data anywhere; ask for a sync where it is old here."""
        plane = await self._open()
        view = await plane.view()
        found = {}
        for config_key in sorted({each.config for each in view.artifacts.values() if each.config}):
            found[config_key] = result = await self.check(config_key)
            if not result.is_fresh:
                payload = {
                    "config_key": config_key,
                    "reason": result.error,
                    "data_age_hours": _reported_age(result),
                }
                await self._publish("SYNC_TRIGGERED", payload)
        return found

    async def _wait(self, plane: DataPlane, config_key: str, failure: _SyncFailure) -> FreshnessResult:
        runtime = plane.runtime
        began_s = runtime.monotonic_s()
        while True:
            failed = failure.error  # before the look: what a sync brought in part counts
            result = await self._look(plane, config_key)
            waited_s = runtime.monotonic_s() - began_s
            left_s = self.config.sync_timeout_seconds - waited_s
            if result.is_fresh or failed or left_s <= 0:
                break
            await first_of(failure.heard.wait(), runtime.sleep(min(self.config.poll_s, left_s)))
        error = f"still not fresh after {waited_s:.0f} s: {result.error}"
        if failed:
            error += f"; the sync failed: {failed}"
        return replace(
            result,
            success=result.is_fresh,
            sync_triggered=True,
            sync_completed=result.is_fresh,
            sync_duration_seconds=waited_s,
            error="" if result.is_fresh else error,
        )

    async def _look(self, plane: DataPlane, config_key: str) -> FreshnessResult:
        view = await plane.view()
        held = [each for each in view.held_by(plane.this.name) if each.config == config_key]
        return judge_freshness(held, self.config, now_s=plane.runtime.now_s())

    async def _open(self) -> DataPlane:
        return await self._plane() if callable(self._plane) else self._plane

    async def _publish(self, event: str, payload: dict[str, Any]) -> None:
        await self._router.publish(event, payload=payload, source="training_freshness")


class _SyncFailure:
    """Hears that a sync of this node failed which could have brought data of one config."""

    def __init__(self, node: str, config_key: str) -> None:
        self._node, self._config_key = node, config_key
        self.heard = asyncio.Event()
        self.error = ""

    def hear(self, event: RouterEvent) -> None:
        found = event.payload
        if found.get("node_id") in (None, self._node) and found.get("config_key") in (None, self._config_key):
            self.error = str(found["error"]) or "nobody said why"
            self.heard.set()


def _reported_age(result: FreshnessResult) -> float:
    return NEVER_HOURS if result.data_age_hours is None else result.data_age_hours
