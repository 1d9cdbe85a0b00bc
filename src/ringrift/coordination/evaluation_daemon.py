"""EVALUATION: what is being evaluated, what came of it, and what the ratings say."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from ringrift.coordination.model_lifecycle_coordinator import UNRATED_SPREAD
from ringrift.coordination.run_coordinator import AskedDaemon, answers_of
from ringrift.coordination.tournament_daemon import TournamentDaemon, get_tournament_daemon
from ringrift.engine.arguments import check_integer, check_name, check_text
from ringrift.engine.limits import ERROR_CHARS_MAX
from ringrift.engine.opening import get_engine
from ringrift.engine.run_reports import reported_health
from ringrift.errors import ConfigError
from ringrift.events.event import Announcement, RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.health.run_status import Curve
from ringrift.learning.facts.facts import Noted
from ringrift.learning.facts.records import Match
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.job_announcements import RATING_START
from ringrift.learning.judging.promotion import PromotionRules, gather
from ringrift.learning.judging.ratings import Pool, Rating, fit_line, is_baseline, pools, rate
from ringrift.learning.plan.evaluation import (
    REQUESTS_MAX,
    WANTED_TOPIC,
    WantedGames,
    request_details,
    wanted_games,
)
from ringrift.learning.requests import GameRequests
from ringrift.learning.situation import Situation, Situations
from ringrift.process import getter_of, reset_of
from ringrift.statistics.match_evidence import expected_score
from ringrift.status import HealthCheckResult
from ringrift.work.coordinator import heard_by

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
    "reset_elo_service",
    "reset_evaluation_daemon",
]


# A model's games against baselines in the shape of a gauntlet's result: a view of the matches.


# The least share by players: of points for two, of first places for more.
HEURISTIC_FLOORS: Mapping[int, float] = {2: 0.85, 3: 0.45, 4: 0.35}
HARNESS = "paired_games"


@dataclass(frozen=True, slots=True)
class OpponentResult:
    """Games against one baseline."""

    wins: float
    games: int
    win_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GauntletResult:
    """How a model did against the baselines. Without games it has not passed, whatever is asked."""

    config_key: str
    model_id: str
    total_games: int
    total_wins: float
    win_rate: float
    opponent_results: Mapping[str, OpponentResult] = field(default_factory=dict)
    thresholds_met: Mapping[str, bool] = field(default_factory=dict)
    failed_baselines: tuple[str, ...] = ()
    estimated_elo: float | None = None
    elo_interval: tuple[float, float] | None = None
    harness: str = HARNESS
    failure_reason: str = ""

    @property
    def passes_baseline_gating(self) -> bool:
        return self.total_games > 0 and not self.failed_baselines

    @property
    def passed(self) -> bool:
        return self.passes_baseline_gating and not self.failure_reason

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passes_baseline_gating": self.passes_baseline_gating, "passed": self.passed}


def gauntlet_result(state: ConfigState, model: str, *, rules: PromotionRules | None = None) -> GauntletResult:
    """Add up what *model* played against baselines."""
    matches = state.trusted_matches()
    # All matches of a config have the same number of players.
    players = matches[0].players if matches else 2
    names = sorted({each.second for each in matches if each.first == model and is_baseline(each.second)})
    results: dict[str, OpponentResult] = {}
    for name in names:
        found = gather(model, name, matches, players=players, purpose="promotion")
        if found.games:
            share = found.win_share
            results[name] = OpponentResult(round(share * found.games, 1), found.games, share)
    games = sum(each.games for each in results.values())
    wins = sum(each.wins for each in results.values())
    met = {
        name: each.win_rate >= win_rate_wanted(name, players, rules or PromotionRules())
        for name, each in results.items()
    }
    rating = rate(matches).get(model)
    return GauntletResult(
        config_key=state.config,
        model_id=model,
        total_games=games,
        total_wins=wins,
        win_rate=wins / games if games else 0.0,
        opponent_results=results,
        thresholds_met=met,
        failed_baselines=tuple(name for name, passed in met.items() if not passed),
        estimated_elo=None if rating is None else rating.rating,
        elo_interval=None if rating is None else (rating.low, rating.high),
        failure_reason="" if games else "no games were played",
    )


def win_rate_wanted(baseline: str, players: int, rules: PromotionRules) -> float:
    """A floor against the weak baselines, parity against the strong ones."""
    if baseline == "random":
        return rules.floor(players)
    if baseline.startswith("heuristic"):
        return HEURISTIC_FLOORS.get(players, 1 / players)
    return 1 / players


# Ratings: leaderboard, history and expected scores, all computed from the matches.
#
# Nothing can be written here. A rating follows from games, so the way to change one is to play.


PROVISIONAL_GAMES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EloRating:
    """One participant of one pool."""

    participant_id: str
    config_key: str
    rating: float
    low: float
    high: float
    games_played: int
    is_baseline: bool

    @property
    def is_provisional(self) -> bool:
        return self.games_played < PROVISIONAL_GAMES

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "is_provisional": self.is_provisional}


class EloService:
    """Asks the run of the data folder; without a run nobody is rated."""

    def __init__(self, *, situations: Situations | None = None) -> None:
        self._answers = answers_of(situations)

    def get_rating(self, participant_id: str, config_key: str, *, pool: Pool | None = None) -> EloRating:
        """Who has not played in the pool has the rating that everybody starts with, and its wide interval."""
        found = self._rated(config_key, pool).get(participant_id)
        if found is None:
            spread = UNRATED_SPREAD
            found = Rating(
                rating=RATING_START, low=RATING_START - spread, high=RATING_START + spread, games=0
            )
        return _entry(participant_id, config_key, found)

    def get_leaderboard(
        self, config_key: str, limit: int = 20, *, baselines: bool = True, pool: Pool | None = None
    ) -> list[EloRating]:
        """The strongest first. *baselines* False compares models with models only."""
        entries = [_entry(name, config_key, each) for name, each in self._rated(config_key, pool).items()]
        wanted = [entry for entry in entries if baselines or not entry.is_baseline]
        return sorted(wanted, key=lambda entry: (-entry.rating, entry.participant_id))[:limit]

    def get_pools(self, config_key: str) -> list[Pool]:
        return sorted(pools(self._state(config_key).matches))

    def get_rating_history(self, config_key: str) -> tuple[Curve, ...]:
        """Every champion with its rating, as known now."""
        situation = self._answers.get(config_key)
        return () if situation is None else situation.curve

    def get_expected_score(self, first: str, second: str, config_key: str) -> float:
        ratings = (self.get_rating(name, config_key).rating for name in (first, second))
        one, other = ratings
        return expected_score(one - other)

    def _rated(self, config_key: str, pool: Pool | None) -> dict[str, Rating]:
        return rate(self._state(config_key).matches, pool=pool)

    def _state(self, config_key: str) -> ConfigState:
        run = self._answers.run()
        if run is None:
            raise ConfigError("there is no run in the data folder, so there are no ratings")
        return run.state(config_key)


def _entry(name: str, config_key: str, rating: Rating) -> EloRating:
    return EloRating(
        participant_id=name,
        config_key=config_key,
        rating=rating.rating,
        low=rating.low,
        high=rating.high,
        games_played=rating.games,
        is_baseline=is_baseline(name),
    )


get_elo_service = getter_of("get_elo_service", EloService)
reset_elo_service = reset_of("reset_elo_service", EloService)


# What is worth telling of new ratings: a pure comparison of now with what was told before.


UPDATE_POINTS_MIN = 1.0  # a rating that moved less says nothing new
SIGNIFICANT_POINTS = 25.0
# A joint fit moves every rating a little with each match; the largest changes are worth an event.
UPDATES_AT_ONCE = 20
VELOCITY_WINDOW_S = 48 * 3600.0
VELOCITY_POINTS_MIN = 3
VELOCITY_STEP = 0.2  # share by which it must change to be told again
STEADY_PER_H = 1.0
HOUR_S = 3600.0
_SIGNIFICANT = "ELO_SIGNIFICANT_CHANGE"


@dataclass(frozen=True, slots=True)
class KnownRatings:
    """What others know of one config."""

    matches: Sequence[Match] = ()  # that count
    ratings: Mapping[str, float] = field(default_factory=dict)
    champion: str | None = None
    significant: float | None = None  # the champion's rating when a change was last called significant
    velocity: float | None = None


def look(
    before: KnownRatings | None, state: ConfigState, curve: Sequence[Curve]
) -> tuple[KnownRatings, list[Announcement]]:
    """What is known now, and what to tell. The first look learns and tells nothing: it is no change."""
    # Themselves and not their number: where one was recalled and another came, that is the same.
    matches = state.trusted_matches()
    if before is not None and matches == before.matches and state.champion == before.champion:
        return before, []
    ratings = rate(matches)
    values = {name: each.rating for name, each in ratings.items() if not is_baseline(name)}
    mine = None if state.champion is None else values.get(state.champion)
    now_velocity = velocity(curve)
    if before is None:
        return KnownRatings(matches, values, state.champion, mine, now_velocity), []
    events = [*_updates(before, state.config, ratings), *_significant(before, state, mine)]
    changed = _velocity_changed(before, state.config, now_velocity)
    # Kept until a change is told: small steps in one direction add up.
    significant = (
        mine
        if before.significant is None or any(n == _SIGNIFICANT for n, _ in events)
        else before.significant
    )
    known = now_velocity if changed or before.velocity is None else before.velocity
    return KnownRatings(matches, values, state.champion, significant, known), [*events, *changed]


def velocity(curve: Sequence[Curve]) -> float | None:
    """Points per hour of the last champions; None for too few of them."""
    if not curve:
        return None
    window = [point for point in curve if point.at_s >= curve[-1].at_s - VELOCITY_WINDOW_S]
    if len(window) < VELOCITY_POINTS_MIN:
        return None
    line = fit_line([point.at_s for point in window], [point.rating for point in window])
    return None if line is None else line.slope * HOUR_S


def trend_of(per_h: float) -> str:
    if abs(per_h) < STEADY_PER_H:
        return "plateau"
    return "improving" if per_h > 0 else "declining"


def _updates(before: KnownRatings, config: str, ratings: Mapping[str, Rating]) -> list[Announcement]:
    """The largest changes first; who was not rated before starts where everybody starts."""
    changes = []
    for name, rating in ratings.items():
        if is_baseline(name):
            continue
        old = before.ratings.get(name, RATING_START)
        if name not in before.ratings or abs(rating.rating - old) >= UPDATE_POINTS_MIN:
            changes.append((abs(rating.rating - old), name, old, rating))
    events: list[Announcement] = []
    for _, name, old, rating in sorted(changes, key=lambda each: (-each[0], each[1]))[:UPDATES_AT_ONCE]:
        payload = {
            "config_key": config,
            "model_id": name,
            "new_elo": rating.rating,
            "old_elo": old,
            "elo_delta": rating.rating - old,
            "games_played": rating.games,
        }
        events.append(("ELO_UPDATED", payload))
    return events


def _significant(before: KnownRatings, state: ConfigState, mine: float | None) -> list[Announcement]:
    """The strength of a config is its champion's; a step of it is told once."""
    if mine is None or before.significant is None or state.champion is None:
        return []
    delta = mine - before.significant
    if abs(delta) < SIGNIFICANT_POINTS:
        return []
    payload = {
        "config_key": state.config,
        "model_id": state.champion,
        "elo_delta": delta,
        "new_elo": mine,
        "old_elo": before.significant,
        "threshold": SIGNIFICANT_POINTS,
    }
    return [(_SIGNIFICANT, payload)]


def _velocity_changed(before: KnownRatings, config: str, now: float | None) -> list[Announcement]:
    if now is None:
        return []
    old = before.velocity or 0.0
    enough = abs(now - old) >= max(STEADY_PER_H, VELOCITY_STEP * abs(old))
    if before.velocity is not None and trend_of(now) == trend_of(old) and not enough:
        return []
    change = {"velocity": now, "previous_velocity": old, "velocity_change": now - old, "trend": trend_of(now)}
    return [("ELO_VELOCITY_CHANGED", {"config_key": config, **change})]


# The games are ordered by the plan and played by workers. The daemon takes requests (as notes that the plan
# sees), shows the results, and tells when ratings change.


INTERVAL_S = 15.0
GAMES_DEFAULT = 60
OPPONENTS_DEFAULT = ("random", "mcts:32")
MISSING_MAX = 100


class EvaluationDaemon(AskedDaemon):
    """A view of the evaluations of the run, with a door for requests."""

    capability: ClassVar[str] = "evaluation"
    plans_as = "evaluation"
    interval_s = INTERVAL_S
    emits: ClassVar[tuple[str, ...]] = (
        "ELO_SIGNIFICANT_CHANGE",
        "ELO_UPDATED",
        "ELO_VELOCITY_CHANGED",
        "MODEL_EVALUATION_BLOCKED",
    )

    def _set_up(self) -> None:
        self._reported: dict[str, KnownRatings] = {}
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
        """Request games of a model (the champion by default); returns all open requests of the config.

        A request to a run that is not in this process waits in the store, for up to a day. Asking again for
        games that are open already changes nothing. Raises `ConfigError` when there is no such run or model,
        when nothing would be played, or when too many requests are open.
        """
        loop = self._situations.loop
        run = loop or await asyncio.to_thread(self._answers.run)
        if run is None:
            raise ConfigError("there is no run in the data folder, so nobody could play the games")
        check_text("reason", reason, chars_max=ERROR_CHARS_MAX, empty=True)
        check_integer("games", games)
        for name in opponents:
            check_name("opponent", name)
        state, now_s = run.state(config_key), self._runtime.now_s()
        requests = None if loop is not None else GameRequests((await get_engine()).kv)
        waiting = [] if requests is None else await requests.waiting(config_key)
        model = model_id or state.champion
        if model is None or model not in state.models:
            raise ConfigError(f"{config_key} has no model {model_id or 'yet'}")
        if games < 1 or not opponents:
            raise ConfigError("an evaluation needs games and opponents")
        open_now = wanted_games(state, now_s, waiting)
        known = {(request.model, request.opponent) for request in open_now}
        new = [name for name in dict.fromkeys(opponents) if (model, name) not in known]
        if not new:
            return open_now
        if len(open_now) + len(new) > REQUESTS_MAX:
            raise ConfigError(
                f"{len(open_now)} requests of {config_key} are open and {len(new)} more were made; "
                f"{REQUESTS_MAX} are the limit"
            )
        details = request_details(model, new, games=games)
        note = Noted(at_s=now_s, topic=WANTED_TOPIC, text=reason, details=details)
        if requests is None:  # the state is live: what is written is in it
            await run.write(config_key, note)
        else:
            await requests.add(config_key, note)
            waiting.append(note)
        return wanted_games(state, now_s, waiting)

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
                    f"{request.games} games of {request.model[:12]}"
                    f" against {request.opponent[:12]}: {request.reason}"
                    for request in wanted_games(situation.state, now_s)
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
        return {**dict.fromkeys(heard_by("evaluation"), self._on_change), **special}

    async def _on_change(self, event: RouterEvent) -> None:
        await self._look_at(event.payload.get("config_key"))

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
        # An event that names no model says of none that it is where it has to be.
        for path in [path for path in self._missing if model and model in path]:
            del self._missing[path]

    async def _look(self, situation: Situation) -> None:
        config = situation.state.config
        self._reported[config], events = look(self._reported.get(config), situation.state, situation.curve)
        await self.tell(events)

    @reported_health
    def health_check(self) -> HealthCheckResult:
        failing = {
            config: failures.error
            for config, situation in self._situations.all().items()
            if (failures := situation.state.failures.get("evaluate")) is not None and failures.in_a_row
        }
        words = (f"evaluation of {config} failed: {error}" for config, error in failing.items())
        details = {"queue": self.get_queue(), "waiting": dict(self._missing), "failing": failing}
        return super().health_check().with_details(**details).or_degraded(next(words, ""))


get_evaluation_daemon = getter_of("get_evaluation_daemon", EvaluationDaemon)
reset_evaluation_daemon = EvaluationDaemon.reset_instance
