"""AUTO_PROMOTION: how the judgment of each config stands, and what follows a verdict.

The plan decides and the controller swaps the champion. This daemon shows why, publishes the champion's files,
and turns what is said against a champion into a second look at it: games against its predecessor, judged by
the same test as any promotion.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import structlog

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.run_coordinator import AskedDaemon
from ringrift.engine.opening import get_engine
from ringrift.engine.run_reports import reported_health
from ringrift.errors import Corrupt, RingRiftError
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import Curve
from ringrift.learning.facts.facts import Noted
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.job_announcements import blob_path
from ringrift.learning.judging.promotion import ROLLBACK, PromotionJudgment, PromotionRules, judge
from ringrift.learning.models import MODELS_FOLDER, ChampionFiles
from ringrift.learning.plan.evaluation import RECHECK_TOPIC, recheck_count, rechecked_since, under_judgment
from ringrift.learning.plan.trust import previous_champion
from ringrift.learning.situation import Situation, Situations
from ringrift.process import getter_of
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult
from ringrift.work.coordinator import heard_by

__all__ = ["AutoPromotionDaemon", "get_auto_promotion_daemon", "reset_auto_promotion_daemon"]

log = structlog.get_logger()

INTERVAL_S = 60.0
# One regression leads to several events within seconds; they are one reason to look again.
COOLDOWN_S = 300.0
REPORTS_MAX = 100
# A regression this small is noise as often as not; the test would only repeat what it said.
_MILD = frozenset({"none", "minor"})
_SHOWN_ONLY = frozenset({"LOW_QUALITY_DATA_WARNING"})  # of the data, which says nothing of this champion
RATING_MOVED = "ELO_SIGNIFICANT_CHANGE"
# The test errs with a small probability at each look: repeated without a limit it would depose any champion.
LOOKS_MAX = 3


class AutoPromotionDaemon(AskedDaemon):
    """AUTO_PROMOTION: verdicts count while it runs; it also installs the champions' files.

    It looks again at champions of which something bad was said, and tells when all configs moved on.
    """

    capability: ClassVar[str] = "promotion"
    plans_as = "auto_promotion"
    interval_s = INTERVAL_S
    emits: ClassVar[tuple[str, ...]] = ("CROSSBOARD_PROMOTION", "MODEL_CORRUPTED", "PROMOTION_FAILED")

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
        settings: Mapping[str, Any] | None = None,
        files: ChampionFiles | None = None,
    ) -> None:
        super().__init__(router=router, runtime=runtime, situations=situations)
        self._cooldown_s = float((settings or {}).get("cooldown_s", COOLDOWN_S))
        self._reports: OrderedDict[str, tuple[float, str]] = OrderedDict()  # config: when, what is against it
        self._files = files
        self._failed: dict[str, tuple[str, str]] = {}  # config: champion, why its files are not installed
        self._crossed: dict[str, int] | None = None  # config: promotions when all had moved on last

    # --- what it knows ------------------------------------------------------------------------------------

    def get_judgment(self, config_key: str) -> PromotionJudgment | None:
        """How the candidate stands that is judged now or next; None if there is none."""
        situation = self._situations.get(config_key)
        candidate = None if situation is None else under_judgment(situation.state)
        if situation is None or candidate is None:
            return None
        state = situation.state
        # The same call as the plan makes, on the same matches, so that what is shown is the verdict.
        return judge(candidate.digest, state.champion, state.trusted_matches(), rules=self.rules)

    @property
    def rules(self) -> PromotionRules:
        """Those of the run."""
        # Without a loop in this process its rules are not known; the defaults are those of a run without any.
        running = getattr(self._situations.loop, "rules", None)
        return getattr(running, "promotion", None) or PromotionRules()

    # --- events -------------------------------------------------------------------------------------------

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        own = dict.fromkeys((*heard_by("auto_promotion"), "MODEL_PROMOTED", "PROMOTION_ROLLED_BACK"))
        bad = dict.fromkeys(heard_by("rollback_manager"), self._on_bad_outcome)
        return {**dict.fromkeys(own, self._on_word), **bad}

    async def _on_bad_outcome(self, event: RouterEvent) -> None:
        """Look again at a champion of which something bad was said, at most once per cooldown."""
        config, payload = str(event.payload.get("config_key")), event.payload
        loop, now_s = self._situations.loop, self._runtime.now_s()
        words = bad_outcome(event.event_type, payload)
        # Only the process that runs the loop may write facts; where it runs, the event is heard too.
        if not words or loop is None or config not in loop.configs():
            return
        # Kept before the checks below, so that health shows a report also when it leads to no second look.
        self._reports[config] = (now_s, words)
        while len(self._reports) > REPORTS_MAX:
            self._reports.popitem(last=False)
        state = loop.state(config)
        if event.event_type in _SHOWN_ONLY or not self._may_look_again(state, now_s):
            return
        # The first results of a champion are nearly always too good: later ones move the joint fit back.
        if event.event_type == RATING_MOVED and _is_ahead(loop.curves.of(state), state.champion):
            return
        note = Noted(at_s=now_s, topic=RECHECK_TOPIC, text=words, details={"model": state.champion})
        await loop.write(config, note)

    def _may_look_again(self, state: ConfigState, now_s: float) -> bool:
        """If the last look was answered, and not too often: every look may err, and costs games."""
        champion = state.champion
        if champion is None or previous_champion(state) is None:
            return False  # there is nothing to go back to
        since_s = rechecked_since(state, champion)
        if recheck_count(state, champion) >= LOOKS_MAX or now_s - since_s < self._cooldown_s:
            return False
        return any(
            match.first == champion and match.purpose == ROLLBACK and match.at_s > since_s
            for match in state.trusted_matches()
        )

    async def _on_word(self, event: RouterEvent) -> None:
        config = str(event.payload.get("config_key"))
        situation = self._situations.get(config)
        if situation is not None:
            await self._install(situation.state)
            await self._tell_crossing(situation.state)

    async def _look(self, situation: Situation) -> None:
        await self._install(situation.state)

    async def _install(self, state: ConfigState) -> None:
        """Publish the champion's files. A failure is told once, and stays visible in the health."""
        champion = state.champion
        if champion is None:
            return
        try:
            await (await self._champion_files()).publish(state)
        except (RingRiftError, OSError) as error:
            log.error("promotion.not_installed", config=state.config, model=champion, error=str(error))
            # Told once per champion: the cycle tries again every minute and would repeat the event each time.
            reported, _ = self._failed.get(state.config, ("", ""))
            if champion != reported:
                self._failed[state.config] = (champion, str(error))
                await self._tell_failed(state.config, champion, error)
        else:
            self._failed.pop(state.config, None)

    async def _tell_failed(self, config: str, champion: str, error: RingRiftError | OSError) -> None:
        if isinstance(error, Corrupt):
            about = {"model_id": champion, "model_path": blob_path(champion)}
            damage = {**about, "corruption_type": error.found, "node_id": self._runtime.hostname}
            await self.router.publish("MODEL_CORRUPTED", damage, self.name)
        failed = {"config_key": config, "model_id": champion, "error": str(error)}
        await self.router.publish("PROMOTION_FAILED", failed, self.name)

    async def _champion_files(self) -> ChampionFiles:
        if self._files is None:
            engine = await get_engine()
            self._files = ChampionFiles(Path(get_settings().data_dir) / MODELS_FOLDER, engine.blobs)
        return self._files

    async def _tell_crossing(self, state: ConfigState) -> None:
        """Told when every config of the run has a newer champion than when it was told last."""
        now = {config: len(each.state.promotions) for config, each in self._situations.all().items()}
        # The first look only learns the counts: what was promoted before does not count as moving on.
        if self._crossed is None:
            self._crossed = now
        if len(now) < 2 or not all(count > self._crossed.get(config, 0) for config, count in now.items()):
            return
        self._crossed = now
        models = {"model_id": state.champion or "", "config_keys": sorted(now)}
        decision = "every config has a new champion"
        await self.router.publish("CROSSBOARD_PROMOTION", {**models, "decision": decision}, self.name)

    @reported_health
    def health_check(self) -> HealthCheckResult:
        standing = {
            config: found.reason
            for config in self._situations.all()
            if (found := self.get_judgment(config)) is not None
        }
        reports = {config: words for config, (_, words) in self._reports.items()}
        failed = dict(self._failed.values())
        own = super().health_check().with_details(judgements=standing, bad_outcome=reports)
        why = "; ".join(sorted(set(failed.values())))
        problem = f"champions are damaged or cannot be installed: {why}" if failed else ""
        return own.with_details(not_installed=failed).or_degraded(problem)


def _is_ahead(curve: Sequence[Curve], champion: str | None) -> bool:
    """Whether the champion is rated above the one before it."""
    last = [point for point in curve if point.model == champion]
    before = [point for point in curve if point.model != champion]
    return bool(last and before) and last[-1].rating > before[-1].rating


def bad_outcome(event_type: str, payload: Mapping[str, Any]) -> str:
    """What an event says against a champion; empty if it says nothing of weight."""
    if event_type == RATING_MOVED:
        delta = float(payload.get("elo_delta", 0.0))
        return f"its rating fell by {-delta:.0f} points" if delta < 0 else ""
    if event_type == "REGRESSION_DETECTED" and str(payload.get("severity", "")).lower() in _MILD:
        return ""
    if event_type == "LOW_QUALITY_DATA_WARNING":
        return f"the newest data are poor (quality {float(payload.get('avg_quality', 0.0)):.2f})"
    if event_type == "TRAINING_ROLLBACK_NEEDED":
        return str(payload.get("reason") or "a rollback was asked for")
    drop = payload.get("elo_drop")
    return (
        f"a regression of {float(drop):.0f} points was found"
        if drop is not None
        else "a regression was found"
    )


get_auto_promotion_daemon = getter_of("get_auto_promotion_daemon", AutoPromotionDaemon)
reset_auto_promotion_daemon = AutoPromotionDaemon.reset_instance
