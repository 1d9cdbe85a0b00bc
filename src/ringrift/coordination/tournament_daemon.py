"""TOURNAMENT_DAEMON: requests for ladder matches, and a view of the tournaments that the plan holds.

Promotion matches link a champion to the one before it and no further. A ladder match against the baseline
nearest in strength fixes where the config stands, twice as often while its ratings swing or fall; the
tournaments of the last champions, which the plan orders (`learning/plan/evaluation.py`), tie those together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from ringrift.coordination.run_coordinator import AskedDaemon
from ringrift.engine.run_reports import reported_health
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import Curve
from ringrift.learning.facts.facts import Noted
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging.ratings import ANCHORS, assess_stability, is_baseline, rate
from ringrift.learning.plan.evaluation import TOURNAMENT_STAGE as TOURNAMENT
from ringrift.learning.plan.evaluation import WANTED_TOPIC, request_details, wanted_games
from ringrift.learning.plan.orders import RATING
from ringrift.learning.situation import Situation, Situations
from ringrift.process import getter_of
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

INTERVAL_S = 60.0
LADDER_S = 3600.0
UNSTEADY_LADDER_S = 1800.0  # while the ratings of a config swing or fall
LADDER_GAMES = 40
# Ladder games are cheap only while the baseline is: beyond this a ladder match would take the cluster's day.
LADDER = ("random", "mcts:32", "mcts:128", "mcts:512")


class TournamentRules(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and how many games."""

    ladder_s: float = LADDER_S
    ladder_games: int = LADDER_GAMES
    unsteady_ladder_s: float = UNSTEADY_LADDER_S


def tournament_requests(
    state: ConfigState, now_s: float, rules: TournamentRules, curve: Sequence[Curve] = ()
) -> list[Noted]:
    """What to ask for now: at most one ladder match. *curve* says how steady the ratings are."""
    champion, found = state.champion, assess_stability(curve, now_s=now_s)
    every_s = rules.ladder_s if found.is_safe else min(rules.ladder_s, rules.unsteady_ladder_s)
    if champion is None or wanted_games(state, now_s) or not _due(state, now_s, every_s):
        return []
    baseline = ladder_baseline(state, champion)
    details = request_details(champion, [baseline], games=rules.ladder_games)
    text = f"ladder match with {baseline}"
    if not found.is_safe:
        text += f", as ratings are {found.level.value}: {found.reason}"
    return [Noted(at_s=now_s, topic=WANTED_TOPIC, text=text, details=details)]


def ladder_baseline(state: ConfigState, champion: str) -> str:
    """The baseline nearest in strength: games with much weaker or stronger ones say little."""
    ratings = rate(state.trusted_matches())
    mine = ratings.get(champion)
    # Without a rating the weakest is the best guess: a first champion is weak.
    if mine is None:
        return LADDER[0]

    def strength(name: str) -> float:
        return ratings[name].rating if name in ratings else ANCHORS[name]

    return min(LADDER, key=lambda name: abs(strength(name) - mine.rating))


def _due(state: ConfigState, now_s: float, every_s: float) -> bool:
    """Whether the last ladder match of the config, by whichever champion, is long enough ago."""
    # From the first champion on; before it there is nobody to place.
    began_s = state.promotions[0].at_s if state.promotions else now_s
    last_s = max(
        (
            match.at_s
            for match in state.trusted_matches()
            if match.purpose == RATING and is_baseline(match.second)
        ),
        default=began_s,
    )
    return now_s - last_s >= every_s


class TournamentDaemon(AskedDaemon):
    """Asks for rating games when they are due. The plan orders them when no candidate waits."""

    capability: ClassVar[str] = "evaluation"
    plans_as = "tournament_daemon"
    interval_s = INTERVAL_S

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
        rules: TournamentRules | None = None,
        interval_s: float | None = None,
    ) -> None:
        super().__init__(router=router, runtime=runtime, situations=situations, interval_s=interval_s)
        self.rules = rules or TournamentRules()
        self.requests = 0

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"MODEL_PROMOTED": self._on_promoted}

    async def _on_promoted(self, event: RouterEvent) -> None:
        await self._look_at(event.payload.get("config_key"))

    async def _look(self, situation: Situation) -> None:
        loop, state = self._situations.loop, situation.state
        if loop is None:
            return
        for request in tournament_requests(state, self._runtime.now_s(), self.rules, situation.curve):
            self.requests += 1
            await loop.write(state.config, request)

    @reported_health
    def health_check(self) -> HealthCheckResult:
        held = {
            config: each.state.last_done[TOURNAMENT].at_s
            for config, each in self._situations.all().items()
            if TOURNAMENT in each.state.last_done
        }
        now_s = self._runtime.now_s()
        steady = {
            config: f"{found.level.value}: {found.reason}"
            for config, each in self._situations.all().items()
            if (found := assess_stability(each.curve, now_s=now_s))
        }
        return (
            super()
            .health_check()
            .with_details(requests=self.requests, last_tournament_s=held, stability=steady)
        )


get_tournament_daemon = getter_of("get_tournament_daemon", TournamentDaemon)
reset_tournament_daemon = TournamentDaemon.reset_instance
