"""Games that somebody asked for: an evaluation, a ladder, a second look at a champion.

A wish is a note among the facts of a config. It stays open until its games were played or its time is over,
and the plan orders them when no candidate waits: nobody but the plan starts games.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ringrift.learning.facts import Noted
from ringrift.learning.records import Match
from ringrift.learning.state import ConfigState

TOPIC = "wanted_games"
RECHECK_TOPIC = "rollback_check"
WISH_S_MAX = 24 * 3600.0  # a wish that nobody could fulfil for a day is dropped
WISHES_MAX = 20
GAMES_MAX = 1000


class WantedGames(msgspec.Struct, frozen=True, kw_only=True):
    """Games of *model* against *opponent*, of which *games* are still to be played."""

    model: str
    opponent: str
    games: int
    reason: str
    at_s: float
    purpose: str = "rating"


def wish_details(model: str, opponents: Iterable[str], *, games: int) -> dict[str, Any]:
    """What a note of the topic `TOPIC` carries."""
    return {"model": model, "opponents": list(opponents), "games": min(games, GAMES_MAX)}


def wanted_games(state: ConfigState, now_s: float) -> list[WantedGames]:
    """The open wishes, oldest first. What cannot be played (an unknown model) is no wish."""
    wishes: dict[tuple[str, str], WantedGames] = {}
    for note in state.notes:
        # A wish of a clock that was put back since waits for its time: no game would count as played for it.
        if note.topic != TOPIC or not 0.0 <= now_s - note.at_s <= WISH_S_MAX:
            continue
        for wish in _wishes_of(note):
            if wish.model in state.models and wish.opponent != wish.model:
                wishes[wish.model, wish.opponent] = wish  # a newer wish for the same games replaces it
    left = [
        msgspec.structs.replace(wish, games=wish.games - _played(wish, state.matches))
        for wish in wishes.values()
    ]
    return [wish for wish in left if wish.games > 0][:WISHES_MAX]


def rechecked_since(state: ConfigState, model: str) -> float:
    """Since when the champion *model* is looked at again; 0 if nobody asked."""
    return max((note.at_s for note in _rechecks(state, model)), default=0.0)


def recheck_count(state: ConfigState, model: str) -> int:
    """How often somebody asked to look at *model* again."""
    return len(_rechecks(state, model))


def _rechecks(state: ConfigState, model: str) -> list[Noted]:
    return [
        note for note in state.notes if note.topic == RECHECK_TOPIC and note.details.get("model") == model
    ]


def _wishes_of(note: Noted) -> list[WantedGames]:
    details = note.details
    opponents: Sequence[Any] = details.get("opponents") or ()
    return [
        WantedGames(
            model=str(details.get("model", "")),
            opponent=str(opponent),
            games=int(details.get("games", 0)),
            reason=note.text,
            at_s=note.at_s,
        )
        for opponent in opponents
    ]


def _played(wish: WantedGames, matches: Iterable[Match]) -> int:
    return sum(
        match.games
        for match in matches
        if match.at_s > wish.at_s
        and not match.recalled
        and (match.first, match.second) == (wish.model, wish.opponent)
    )
