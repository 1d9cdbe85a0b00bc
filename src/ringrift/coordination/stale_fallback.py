"""STALE_FALLBACK: while it runs, a training goes on with what is there when no newer games come.

When it goes on is a rule of the plan (`learning.fallback`), with this daemon as one of its inputs. The daemon
also looks whether the newest model and data of each config are really there.
What the facts name and the blobs lack is missing: a disk was lost, or a folder was cleaned by hand. It is
told in words, and by `missing` to whoever plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import structlog

from ringrift.engine.opening import get_engine
from ringrift.engine.ports import Blobs
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.plan.stages import STALE_FALLBACK
from ringrift.learning.plan.training_data import Fallback, fallback_tier, good_model, good_samples
from ringrift.learning.situation import Situations, get_situations
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult
from ringrift.work.stages import StageDaemon, get_loop_waker

log = structlog.get_logger()

INTERVAL_S = 60.0


class StaleFallbackDaemon(StageDaemon):
    """Which files are missing, and what is used instead."""

    plans_as = STALE_FALLBACK

    capability: ClassVar[str] = "training_fallback"

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
        blobs: Blobs | None = None,
    ) -> None:
        super().__init__(STALE_FALLBACK, cycle_interval=INTERVAL_S, router=router, runtime=runtime)
        self._situations, self._blobs = situations or get_situations(), blobs
        self.missing: dict[str, frozenset[str]] = {}
        self.fallbacks: dict[str, dict[str, Fallback]] = {}
        self._missing_since_s: dict[str, float] = {}

    async def _run_cycle(self) -> None:
        blobs = self._blobs or (await get_engine()).blobs
        for config, situation in self._situations.all().items():
            state = situation.state
            wanted = _newest_files(state)
            missing = frozenset([digest for digest in wanted if not await blobs.has(digest)])
            if missing != self.missing.get(config, frozenset()):
                log.warning("fallback.missing_changed", config=config, missing=sorted(missing))
                get_loop_waker().ring("files went missing or came back")
            self.missing[config] = missing
            self._note_since(config, missing=bool(missing))
            found = {"model": good_model(state, missing), "samples": good_samples(state, missing)}
            self.fallbacks[config] = found

    def _note_since(self, config: str, *, missing: bool) -> None:
        if not missing:
            self._missing_since_s.pop(config, None)
        else:
            self._missing_since_s.setdefault(config, self._runtime.now_s())

    def tier(self, config: str) -> int:
        """How far to step back for *config*, 0 to 3."""
        since_s = self._missing_since_s.get(config)
        if since_s is None:
            return 0
        situation = self._situations.get(config)
        failures = None if situation is None else situation.state.failures.get("train")
        waited_s = self._runtime.now_s() - since_s
        return fallback_tier(failures=0 if failures is None else failures.in_a_row, waited_s=waited_s)

    def needed(self) -> Mapping[str, str]:
        """Return in words what each config goes on without."""
        return {
            f"{config} {what}": found.reason
            for config, both in self.fallbacks.items()
            for what, found in both.items()
            if found.needed
        }

    def health_check(self) -> HealthCheckResult:
        own = (
            super().health_check().with_details(missing={c: sorted(m) for c, m in self.missing.items() if m})
        )
        if own.healthy and (needed := self.needed()):
            words = "; ".join(f"{what}: {reason}" for what, reason in needed.items())
            return HealthCheckResult.degraded(words, **own.details)
        return own

    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), "fallbacks": dict(self.needed())}


def _newest_files(state: ConfigState) -> list[str]:
    files = [] if state.champion is None else [state.champion, state.models[state.champion].card]
    newest = state.newest_samples
    return files if newest is None else [*files, newest.digest]


def create_stale_fallback(
    router: UnifiedEventRouter | None = None, runtime: Runtime | None = None
) -> StaleFallbackDaemon:
    return StaleFallbackDaemon(router=router, runtime=runtime)
