"""How good the newest games of a config are, read from the reports of their check.

A score is between 0 and 1 and stays what it was measured to be: it does not decay with time, and a config
whose games were not scored yet is unknown, which holds nothing up. Only shards are refused, never a stage, so
that bad games cannot keep good ones from being played.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import islice

import msgspec

from ringrift.learning.facts.records import Shard, ShardState
from ringrift.learning.facts.state import ConfigState

SHARDS_SEEN = 50  # the newest ones
GAMES_MIN = 20  # fewer games of a shard do not condemn it
HIGH, LOW = 0.8, 0.6
SHARD_QUALITY_MIN = 0.3
REFUSED_SHARE_MAX = 0.5
HALF_CONFIDENCE_GAMES = 100.0
GATE_GAMES_MIN = 50
_GATES_BY_PLAYERS = {2: 0.50, 3: 0.55, 4: 0.65}
_GATES_BY_BOARD = {"hex8": 0.0, "square8": 0.02, "square19": 0.05, "hexagonal": 0.08}


class QualityState(StrEnum):
    """A score in a word."""

    EXCELLENT = "excellent"
    GOOD = "good"
    DEGRADED = "degraded"
    POOR = "poor"
    UNKNOWN = "unknown"


class QualityView(msgspec.Struct, frozen=True, kw_only=True):
    """The quality of the newest checked games of a config."""

    score: float | None  # None: nothing was scored yet
    state: QualityState
    confidence: float  # 0 to 1, by the number of games
    games: int
    high_quality_games: int
    low_quality_games: int
    refused: int
    reasons: dict[str, int]  # why games were refused, and how often

    @property
    def refused_share(self) -> float:
        total = self.games + self.refused
        return self.refused / total if total else 0.0


def quality_state(score: float | None) -> QualityState:
    if score is None:
        return QualityState.UNKNOWN
    if score >= 0.9:
        return QualityState.EXCELLENT
    if score >= 0.7:
        return QualityState.GOOD
    return QualityState.DEGRADED if score >= 0.5 else QualityState.POOR


def quality_of(state: ConfigState) -> QualityView:
    """The quality of what *state* has checked last."""
    checked = (
        s for s in reversed(state.shards.values()) if s.state in (ShardState.CHECKED, ShardState.REFUSED)
    )
    return quality_view(islice(checked, SHARDS_SEEN))


def quality_view(shards: Iterable[Shard]) -> QualityView:
    """Put checked shards together, each by the number of its games."""
    games = high = low = refused = scored = 0
    total = 0.0
    reasons: dict[str, int] = {}
    for shard in shards:
        games += shard.games
        refused += shard.refused
        for reason, count in shard.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
        if shard.quality is None:
            continue
        scored += shard.games
        total += shard.quality * shard.games
        high += shard.games if shard.quality >= HIGH else 0
        low += shard.games if shard.quality < LOW else 0
    score = round(total / scored, 4) if scored else None
    return QualityView(
        score=score,
        state=quality_state(score),
        confidence=1.0 - 2.0 ** (-scored / HALF_CONFIDENCE_GAMES),
        games=games,
        high_quality_games=high,
        low_quality_games=low,
        refused=refused,
        reasons=reasons,
    )


def refuse_shard(shard: Shard, *, by_score: bool = True) -> str | None:
    """Why nobody should learn from a checked shard; None if there is no reason, or nothing known.

    Without *by_score* only the rules of the game count, which always do.
    """
    if shard.state is not ShardState.CHECKED:
        return None
    games = shard.games + shard.refused
    if games < GAMES_MIN:
        return None
    if shard.refused > REFUSED_SHARE_MAX * games:
        return f"{shard.refused} of its {games} games do not agree with the rules"
    if by_score and shard.quality is not None and shard.quality < SHARD_QUALITY_MIN:
        return f"the quality of its games is {shard.quality:.2f}, below {SHARD_QUALITY_MIN:.2f}"
    return None


def quality_gate(config: str) -> float:
    """The score that the documents ask for before training, by players and board."""
    board, _, players = config.rpartition("_")
    count = int(players[:-1]) if players[:-1].isdigit() else 2
    return _GATES_BY_PLAYERS.get(count, 0.50) + _GATES_BY_BOARD.get(board, 0.0)


def passes_gate(config: str, view: QualityView) -> bool:
    """Whether the score reaches the gate of its config. Unknown passes, and so do too few games."""
    return view.score is None or view.games < GATE_GAMES_MIN or view.score >= quality_gate(config)
