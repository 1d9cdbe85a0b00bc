"""A model's games against baselines in the shape of a gauntlet's result: a view of the matches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ringrift.learning.evidence import gather
from ringrift.learning.promotion import PromotionRules
from ringrift.learning.ratings import is_baseline, rate
from ringrift.learning.state import ConfigState

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
