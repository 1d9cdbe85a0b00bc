"""How many simulations a self-play move gets, and how many games a config needs.

Early games are searched lightly, because a weak network gains more from many games than from deep ones; the
budget grows with the rating. A game records the budget it was played with.
"""

from __future__ import annotations

BUDGET_MIN = 16
INTENSITY_MIN, INTENSITY_MAX = 0.5, 1.75
LARGE_BOARDS = frozenset({"square19", "hexagonal"})
GAMES_NEEDED_MAX = 500_000

_BY_GAMES = ((100, 64), (500, 150), (1000, 300))
_BY_RATING = ((1800.0, 3200), (1600.0, 1600))
_BUDGET_GROWN = 800
_LARGE_GAMES_FEW, _LARGE_BUDGET_FEW, _LARGE_BUDGET = 500, 400, 800
_MORE_SEATS_FACTOR = 0.8
_BOARD_FACTORS = {"hex8": 1.0, "square8": 1.2, "square19": 2.0, "hexagonal": 2.5}
_SEAT_FACTORS = {2: 1.0, 3: 1.5, 4: 2.5}
_GAMES_PER_POINT = 500
_QUALITY_FACTORS = ((0.3, 1.5), (0.5, 1.3), (0.7, 1.0))


def board_and_players(config: str) -> tuple[str, int]:
    """Split `square8_2p`; a key without a number of players counts as two."""
    board, _, seats = config.rpartition("_")
    if board and seats.endswith("p") and seats[:-1].isdigit():
        return board, int(seats[:-1])
    return config, 2


def search_budget(config: str, *, games: int, rating: float | None, intensity: float = 1.0) -> int:
    """Return the simulations per move for a config with *games* accepted games and a champion of *rating*."""
    board, players = board_and_players(config)
    budget = float(_budget_by_progress(games, rating))
    if board in LARGE_BOARDS:
        budget = min(budget, _LARGE_BUDGET_FEW if games < _LARGE_GAMES_FEW else _LARGE_BUDGET)
    if players > 2:
        budget *= _MORE_SEATS_FACTOR
    budget *= min(INTENSITY_MAX, max(INTENSITY_MIN, intensity))
    return max(BUDGET_MIN, round(budget))


def games_needed(config: str, *, rating: float | None, target: float = 1900.0) -> int:
    """Return how many games the way to *target* may take; 0 at it."""
    board, players = board_and_players(config)
    gap = max(0.0, target - (1500.0 if rating is None else rating))
    factor = _BOARD_FACTORS.get(board, 1.0) * _SEAT_FACTORS.get(players, 1.0)
    return min(GAMES_NEEDED_MAX, round(gap * _GAMES_PER_POINT * factor))


def quality_factor(quality: float | None) -> float:
    """Return how many times the games poor data asks for; unknown quality changes nothing."""
    if quality is None:
        return 1.0
    return next((factor for below, factor in _QUALITY_FACTORS if quality < below), 0.9)


def _budget_by_progress(games: int, rating: float | None) -> int:
    for below, budget in _BY_GAMES:
        if games < below:
            return budget
    for at_least, budget in _BY_RATING:
        if rating is not None and rating >= at_least:
            return budget
    return _BUDGET_GROWN
