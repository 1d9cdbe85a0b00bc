"""EVALUATION: what is being evaluated, what came of it, and what the ratings say.

The games are ordered by the plan and played by workers. This daemon takes requests (as wishes that the plan
sees), shows the results, and tells when ratings change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ringrift.engine.run_reports import reported_health
from ringrift.errors import ConfigError
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.evaluation_results import GauntletResult, OpponentResult, gauntlet_result
from ringrift.learning.evaluation_tournaments import TournamentDaemon, get_tournament_daemon
from ringrift.learning.facts import Noted
from ringrift.learning.ratings_service import EloRating, EloService, get_elo_service
from ringrift.learning.ratings_watch import ToldRatings, look
from ringrift.learning.signals_face import heard_by
from ringrift.learning.signals_source import Situations
from ringrift.learning.situation_daemons import AskedDaemon
from ringrift.learning.wanted import TOPIC, WISHES_MAX, WantedGames, wanted_games, wish_details
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

__all__ = [
    "EloRating",
    "EloService",
    "EvaluationDaemon",
    "GauntletResult",
    "OpponentResult",
    "TournamentDaemon",
    "get_elo_service",
    "get_evaluation_daemon",
    "get_tournament_daemon",
]

INTERVAL_S = 15.0
GAMES_DEFAULT = 60
OPPONENTS_DEFAULT = ("random", "mcts:32")
MISSING_MAX = 100


class EvaluationDaemon(AskedDaemon):
    """A view of the evaluations of the run, with a door for requests."""

    capability: ClassVar[str] = "evaluation"
    plans_as = "evaluation"
    emits: ClassVar[tuple[str, ...]] = (
        "ELO_SIGNIFICANT_CHANGE",
        "ELO_UPDATED",
        "ELO_VELOCITY_CHANGED",
        "MODEL_EVALUATION_BLOCKED",
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
            "evaluation", interval_s=interval_s, router=router, runtime=runtime, situations=situations
        )
        self._told: dict[str, ToldRatings] = {}
        self._missing: OrderedDict[str, str] = OrderedDict()  # model path: on too few nodes, why

    # --- requests ---------------------------------------------------------------------------------------

    async def request_evaluation(
        self,
        config_key: str,
        model_id: str | None = None,
        *,
        opponents: Sequence[str] = OPPONENTS_DEFAULT,
        games: int = GAMES_DEFAULT,
        reason: str = "asked for",
    ) -> list[WantedGames]:
        """Wish for games of a model (the champion by default); returns all open wishes of the config.

        Asking again for games that are open already changes nothing. Raises `ConfigError` when there is no
        such run or model, when nothing would be played, or when too many wishes are open.
        """
        loop = self._situations.loop
        if loop is None:
            raise ConfigError("no run is open in this process, so nobody could play the games")
        state, now_s = loop.state(config_key), self._runtime.now_s()
        model = model_id or state.champion
        if model is None or model not in state.models:
            raise ConfigError(f"{config_key} has no model {model_id or 'yet'}")
        if games < 1 or not opponents:
            raise ConfigError("an evaluation needs games and opponents")
        open_now = wanted_games(state, now_s)
        known = {(wish.model, wish.opponent) for wish in open_now}
        new = [name for name in dict.fromkeys(opponents) if (model, name) not in known]
        if not new:
            return open_now
        if len(open_now) + len(new) > WISHES_MAX:
            raise ConfigError(f"{len(open_now)} wishes of {config_key} are open; {WISHES_MAX} are the limit")
        details = wish_details(model, new, games=games)
        await loop.write(config_key, Noted(at_s=now_s, topic=TOPIC, text=reason, details=details))
        return wanted_games(state, now_s)

    # --- what it knows ------------------------------------------------------------------------------------

    def get_result(self, config_key: str, model_id: str) -> GauntletResult | None:
        """The games of a model against baselines; None for an unknown config."""
        situation = self._situations.get(config_key)
        return None if situation is None else gauntlet_result(situation.state, model_id)

    def get_queue(self) -> dict[str, list[str]]:
        """What is played or wished for, by config, in words."""
        now_s = self._runtime.now_s()
        return {
            config: [
                *(f"{job.job_id}: {job.reason}" for job in situation.state.open_of("evaluate")),
                *(
                    f"{wish.games} games of {wish.model[:12]} against {wish.opponent[:12]}: {wish.reason}"
                    for wish in wanted_games(situation.state, now_s)
                ),
            ]
            for config, situation in self._situations.all().items()
        }

    def get_waiting_for_distribution(self) -> dict[str, str]:
        """Models that are on too few nodes, with the words of whoever said so."""
        return dict(self._missing)

    # --- events -------------------------------------------------------------------------------------------

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        special: dict[str, Callback] = {
            "DISTRIBUTION_INCOMPLETE": self._on_incomplete,
            "MODEL_DISTRIBUTION_COMPLETE": self._on_distributed,
        }
        return {**dict.fromkeys(heard_by("evaluation"), self._on_news), **special}

    async def _run_cycle(self) -> None:
        for config in self._situations.all():
            await self._tell_ratings(config)

    async def _on_news(self, event: RouterEvent) -> None:
        await self._tell_ratings(str(event.payload.get("config_key")))

    async def _on_incomplete(self, event: RouterEvent) -> None:
        """A model that is on too few nodes cannot be evaluated there; whoever distributes has to know."""
        path, payload = str(event.payload.get("model_path")), event.payload
        required, actual = int(payload.get("required_nodes", 0)), int(payload.get("actual_nodes", 0))
        reason = f"on {actual} of {required} nodes"
        known = path in self._missing
        self._missing[path] = reason
        while len(self._missing) > MISSING_MAX:
            self._missing.popitem(last=False)
        if not known:
            nodes = {"required_nodes": required, "actual_nodes": actual}
            blocked = {"model_path": path, "reason": reason, **nodes}
            await self.router.publish("MODEL_EVALUATION_BLOCKED", blocked, self.name)

    async def _on_distributed(self, event: RouterEvent) -> None:
        model = str(event.payload.get("model_id") or "")
        for path in [path for path in self._missing if not model or model in path]:
            del self._missing[path]

    async def _tell_ratings(self, config: str) -> None:
        situation = self._situations.get(config)
        if situation is None:
            return
        self._told[config], told = look(self._told.get(config), situation.state, situation.curve)
        for name, payload in told:
            await self.router.publish(name, payload, self.name)

    @reported_health
    def health_check(self) -> HealthCheckResult:
        own = super().health_check()
        failing = {
            config: failures.error
            for config, situation in self._situations.all().items()
            if (failures := situation.state.failures.get("evaluate")) is not None and failures.in_a_row
        }
        details = {
            **own.details,
            "queue": self.get_queue(),
            "waiting": dict(self._missing),
            "failing": failing,
        }
        if own.healthy and failing:
            config, error = next(iter(failing.items()))
            return HealthCheckResult.degraded(f"evaluation of {config} failed: {error}", **details)
        return own.with_details(**details)


def get_evaluation_daemon() -> EvaluationDaemon:
    return EvaluationDaemon.get_instance()
