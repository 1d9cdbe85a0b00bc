"""When data is fresh enough to train on: one rule, for the files of a node and for the games of a run.

The age is that of the newest game, by when it was made: copying a file renews nothing.
"""

from __future__ import annotations

FRESH_HOURS_MAX = 24.0
GAMES_MIN = 50  # made within the limit
NEVER_HOURS = 1e6  # what events call the age of data that does not exist


def why_stale(age_s: float | None, games: int, *, hours_max: float, games_min: int) -> str:
    """Why data whose newest game is of *age_s* is too old or too little; empty if it is fresh."""
    if age_s is not None and age_s <= hours_max * 3600 and games >= games_min:
        return ""
    return f"{games} games of the last {hours_max:g} h, {games_min} are needed"
