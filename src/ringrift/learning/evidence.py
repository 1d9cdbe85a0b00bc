"""The matches that speak for or against a participant, added up."""

from __future__ import annotations

from collections.abc import Sequence

from ringrift.learning.records import Match
from ringrift.statistics.match_evidence import Evidence
from ringrift.statistics.sprt import PAIR_OUTCOMES


def gather(
    participant: str,
    opponent: str,
    matches: Sequence[Match],
    *,
    players: int,
    purpose: str,
    only: int | None = None,
) -> Evidence:
    """Add up what was played between the two for *purpose*, with *only* that many simulations if given.

    Matches for ratings count for a promotion too; those for a rollback answer another question. Among
    copies only the one who sat alone was tested.
    """
    found = Evidence(players, places=[0] * players if players > 2 else [])
    for match in matches:
        wanted = match.purpose == purpose or (purpose == "promotion" and match.purpose == "rating")
        if match.recalled or match.players != players or not wanted or only not in (None, match.simulations):
            continue
        if (match.first, match.second) == (participant, opponent):
            found.add(_counted(match))
        elif (match.second, match.first) == (participant, opponent) and players == 2:
            found.add(_counted(match).turned())
    return found


def _counted(match: Match) -> Evidence:
    return Evidence(
        match.players,
        games=match.games,
        wins=match.wins,
        draws=match.draws,
        losses=match.losses,
        pairs=list(match.pairs or [0] * PAIR_OUTCOMES),
        places=list(match.places) if match.players > 2 else [],
    )
