"""Ratings as a service: leaderboard, history and expected scores, all computed from the matches.

Nothing can be written here. A rating follows from games, so the way to change one is to play.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ringrift.errors import ConfigError
from ringrift.learning.announcement_scene import RATING_START
from ringrift.learning.models_view import UNRATED_SPREAD
from ringrift.learning.ratings import Pool, Rating, is_baseline, pools, rate
from ringrift.learning.run_status import Curve
from ringrift.learning.signals_source import RunAnswers, Situations
from ringrift.learning.state import ConfigState
from ringrift.process import process_scope
from ringrift.statistics.sprt import expected_score

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
        self._answers = RunAnswers(situations)

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


def get_elo_service() -> EloService:
    return process_scope().get(EloService, EloService)
