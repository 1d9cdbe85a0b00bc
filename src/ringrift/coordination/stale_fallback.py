"""STALE_FALLBACK: while it runs, a training goes on with what is there when no newer games come.

When it goes on is a rule of the plan (`learning.plan.training_data`), with this daemon as one of its inputs.
It notes among the facts of a config what the plan cannot know: that a sync failed while a training waits for
newer games, and which files of the next training are gone. What the facts name and the blobs lack is missing:
a disk was lost, or a folder was cleaned by hand. No training is ordered with it, and it is said in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import structlog

from ringrift.coordination.run_coordinator import StageDaemon, get_loop_waker, get_situations
from ringrift.engine.opening import get_engine
from ringrift.engine.ports import Blobs
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.facts.facts import MISSING_TOPIC, SYNC_FAILED_TOPIC
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.plan.plan import training_parent
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.plan.stages import STALE_FALLBACK
from ringrift.learning.plan.training_data import (
    Fallback,
    failed_syncs,
    fallback_tier,
    good_model,
    good_samples,
    missing_files,
    stale_since_s,
    window_files,
)
from ringrift.learning.situation import Situations
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

log = structlog.get_logger()

INTERVAL_S = 60.0
TEXT_MAX = 500
MISSING_MAX = 500  # that a note names; the rest is named when some of these are back or no longer wanted


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

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"DATA_SYNC_FAILED": self._on_sync_failed}

    async def _on_sync_failed(self, event: RouterEvent) -> None:
        """Count it for each training that waits for what the sync could have brought."""
        about = event.payload.get("config_key")
        for config, situation in self._situations.all().items():
            since_s = stale_since_s(situation.state)
            # A failure that names no config may have been of this one.
            if since_s is None or about not in (None, "", config):
                continue
            failures = failed_syncs(situation.state) + 1
            text = f"sync {failures} failed while a training waits for newer games: {event.payload['error']}"
            await self._situations.note(
                config, SYNC_FAILED_TOPIC, text[:TEXT_MAX], since_s=since_s, failures=failures
            )
            get_loop_waker().wake_for(event)

    async def _run_cycle(self) -> None:
        blobs = self._blobs or (await get_engine()).blobs
        loop = self._situations.loop
        if loop is None:
            return
        for config, situation in self._situations.all().items():
            missing = await _missing(situation.state, loop.rules, blobs)
            await self._note_missing(config, situation.state, missing)
            self.missing[config] = missing
            self._note_since(config, missing=bool(missing))
            state = situation.state
            found = {"model": good_model(state, missing), "samples": good_samples(state, missing)}
            self.fallbacks[config] = found

    async def _note_missing(self, config: str, state: ConfigState, missing: frozenset[str]) -> None:
        # Facts stay for good, so only a change is written.
        if missing == missing_files(state):
            return
        log.warning("fallback.missing_changed", config=config, missing=sorted(missing))
        text = f"{len(missing)} files are missing" if missing else "the files that were missing are back"
        await self._situations.note(config, MISSING_TOPIC, text, missing=sorted(missing))
        get_loop_waker().wake("files went missing or came back")

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
        missing = {config: sorted(files) for config, files in self.missing.items() if files}
        needed = "; ".join(f"{what}: {reason}" for what, reason in self.needed().items())
        return super().health_check().with_details(missing=missing).or_degraded(needed)

    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), "fallbacks": dict(self.needed())}


async def _missing(state: ConfigState, rules: LearningRules, blobs: Blobs) -> frozenset[str]:
    """What the next training or the champion needs and *blobs* lacks.

    What was missing before is looked for again, although a plan without it no longer names it. Of a file of
    samples that is gone the games are looked for, too: they would be exported again.
    """
    before = missing_files(state)
    wanted = dict.fromkeys([*_needed(state, rules), *sorted(before)])
    gone = [digest for digest in wanted if not await blobs.has(digest)]
    # A copy of the list, which grows in the loop.
    for digest in [each for each in gone if each in state.samples]:
        shards = state.samples[digest].shards
        gone += [each for each in shards if each not in wanted and not await blobs.has(each)]
    return frozenset(gone[:MISSING_MAX])


def _needed(state: ConfigState, rules: LearningRules) -> list[str]:
    files = [] if state.champion is None else [state.champion, state.models[state.champion].card]
    parent = training_parent(state, rules)
    files += [] if parent is None else [parent.digest]
    newest = state.newest_samples
    files += [] if newest is None else [newest.digest]
    return files + [samples.digest for samples in window_files(state, rules)]


def create_stale_fallback(
    router: UnifiedEventRouter | None = None, runtime: Runtime | None = None
) -> StaleFallbackDaemon:
    return StaleFallbackDaemon(router=router, runtime=runtime)
