"""How old the newest games of a config are, from when they were made: copying a file does not renew it."""

from __future__ import annotations

from itertools import islice

import msgspec

from ringrift.learning.records import ShardState
from ringrift.learning.state import ConfigState

FRESH_S_MAX = 24 * 3600.0
GAMES_MIN = 50
SHARDS_SEEN = 50


class FreshnessView(msgspec.Struct, frozen=True, kw_only=True):
    """The age of what would be trained on. It informs; nothing waits for it."""

    age_s: float | None  # of the newest checked games; None: there are none
    games: int  # made within the limit
    is_fresh: bool
    reason: str


def freshness_of(state: ConfigState, *, now_s: float, max_age_s: float = FRESH_S_MAX) -> FreshnessView:
    """Judge the newest checked games; each shard counts once."""
    checked = (shard for shard in reversed(state.shards.values()) if shard.state is ShardState.CHECKED)
    newest = list(islice(checked, SHARDS_SEEN))
    if not newest:
        return FreshnessView(age_s=None, games=0, is_fresh=False, reason="no game is checked yet")
    # A clock that was set back makes nothing younger than new.
    age_s = max(0.0, now_s - max(shard.made_s for shard in newest))
    games = sum(shard.games for shard in newest if now_s - shard.made_s <= max_age_s)
    fresh = age_s <= max_age_s and games >= GAMES_MIN
    told = f"{games} games of the last {max_age_s / 3600:.0f} hours, the newest {age_s / 3600:.1f} hours old"
    return FreshnessView(age_s=age_s, games=games, is_fresh=fresh, reason=told)
