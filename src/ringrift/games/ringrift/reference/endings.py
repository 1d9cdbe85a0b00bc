"""How a game ends (§12) and how the seats are ranked; reads a position, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringrift.games.ringrift.reference.position import BoardPosition


@dataclass(slots=True)
class Seat:
    """One player's counters."""

    hand: int
    elim: int = 0
    terr: int = 0
    lost_at: int | None = None  # the decision with which the last ring went


Seats = Mapping[int, Seat]


def live_seats(position: BoardPosition, seats: Seats) -> list[int]:
    """Players with any ring: in hand, on top or buried."""
    return [player for player, seat in seats.items() if seat.hand or position.rings_of(player)]


def judge(position: BoardPosition, seats: Seats, *, last_mover: int) -> tuple[int, str] | None:
    """Winner and reason if the game is over after a change of the board."""
    board = position.board
    for player, seat in seats.items():
        if seat.elim >= board.elimination_target:
            return player, "ring_elimination"
    all_terr = sum(seat.terr for seat in seats.values())
    for player, seat in seats.items():
        if seat.terr >= board.territory_target and 2 * seat.terr > all_terr:
            return player, "territory"
    controllers = {stack[-1] for stack in position.stacks.values()}
    if len(controllers) == 1 and set(live_seats(position, seats)) == controllers:
        return controllers.pop(), "last_player_standing"
    if not controllers and not any(_can_place(position, player, seat) for player, seat in seats.items()):
        return _stalemate_winner(position, seats, last_mover=last_mover), "stalemate"
    return None


def _can_place(position: BoardPosition, player: int, seat: Seat) -> bool:
    return any(True for _ in position.placements(player, seat.hand))


def _stalemate_winner(position: BoardPosition, seats: Seats, *, last_mover: int) -> int:
    """Rings in hand count as eliminated; without any they add nothing."""

    def standing(player: int) -> tuple[int, int, int, bool, int]:
        seat, marks = seats[player], list(position.markers.values()).count(player)
        return seat.terr, seat.elim + seat.hand, marks, player == last_mover, -player

    return max(seats, key=standing)


def ranking(position: BoardPosition, seats: Seats, winner: int) -> tuple[int, ...]:
    """Rank of each seat in seat order; the winner is first, equal seats share a rank."""
    markers = list(position.markers.values())

    def standing(player: int) -> tuple[bool, int, int, int, float]:
        seat = seats[player]
        lost_at = float("inf") if seat.lost_at is None else seat.lost_at
        return player == winner, seat.terr, seat.elim, markers.count(player), lost_at

    return tuple(1 + sum(standing(other) > standing(player) for other in seats) for player in seats)
