"""How old the newest games of a config are, from when they were made: copying a file does not renew it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from ringrift.learning.records import ShardState
from ringrift.learning.state import ConfigState
from ringrift.work.freshness_rules import FRESH_HOURS_MAX, GAMES_MIN, why_stale

FILES_SEEN = 200


class FreshnessView(msgspec.Struct, frozen=True, kw_only=True):
    """The age of what would be trained on."""

    age_s: float | None  # of the newest checked games; None: there are none
    games: int  # made within the limit
    is_fresh: bool
    reason: str


def freshness_of(state: ConfigState, *, now_s: float, games_min: int = GAMES_MIN) -> FreshnessView:
    """Judge the newest checked games; each file counts once."""
    hours_max = FRESH_HOURS_MAX
    newest = list(islice(_learned_from(state), FILES_SEEN))
    if not newest:
        return FreshnessView(age_s=None, games=0, is_fresh=False, reason="no game is checked yet")
    # A clock that was set back makes nothing younger than new.
    age_s = max(0.0, now_s - max(made_s for made_s, _ in newest))
    games = sum(count for made_s, count in newest if now_s - made_s <= hours_max * 3600)
    fresh = not why_stale(age_s, games, hours_max=hours_max, games_min=games_min)
    told = f"{games} games of the last {hours_max:g} hours, the newest {age_s / 3600:.1f} hours old"
    return FreshnessView(age_s=age_s, games=games, is_fresh=fresh, reason=told)


def _learned_from(state: ConfigState) -> Iterator[tuple[float, int]]:
    """When files that can be learned from were made, and their games; the newest first.

    Samples that somebody brought are of games that the run does not know.
    """
    for shard in reversed(state.shards.values()):
        if shard.state is ShardState.CHECKED:
            yield shard.made_s, shard.games
    for samples in reversed(state.samples.values()):
        if not samples.shards:
            yield samples.made_s, samples.games
