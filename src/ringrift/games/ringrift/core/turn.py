"""Turns: victory after a change of the board, phases without a decision, rotation, last standing."""

from __future__ import annotations

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.acts import any_placement, real_action
from ringrift.games.ringrift.core.geometry import Table, elimination_target, players, territory_target
from ringrift.games.ringrift.core.layout import (
    ACTED,
    ACTIVE,
    BY_ELIMINATION,
    BY_LAST_STANDING,
    BY_STALEMATE,
    BY_TERRITORY,
    CHANGED,
    CONTROLLED,
    CUR,
    DEBT,
    DECISIONS,
    ELIM,
    FORCED,
    HAND,
    HOLDER,
    LINES,
    LOST_AT,
    MARKS,
    MOVEMENT,
    MUST,
    NO_CELL,
    NO_DEBT,
    ON_BOARD,
    OPENER,
    OVER,
    PHASE,
    PLACEMENT,
    REASON,
    RECOVERED,
    STREAK,
    TERR,
    TERRITORY,
    WINNER,
    Words,
    to_int,
)
from ringrift.games.ringrift.core.legal import any_decision

STREAK_TO_WIN = 3


@compiled
def is_live(s: Words, player: int) -> bool:
    """Whether *player* has any ring: in hand, on top or buried."""
    return s[HAND + player] + s[ON_BOARD + player] > 0


@compiled
def note_losses(s: Words, t: Table) -> None:
    for player in range(1, players(t) + 1):
        if s[LOST_AT + player] == 0 and not is_live(s, player):
            s[LOST_AT + player] = s[DECISIONS]


@compiled
def judge(s: Words, t: Table) -> None:
    """End the game if somebody has won by the last change of the board."""
    for player in range(1, players(t) + 1):
        if s[ELIM + player] >= elimination_target(t):
            return end_game(s, player, to_int(BY_ELIMINATION))
    collapsed, live, controllers, last = 0, 0, 0, to_int(0)
    for player in range(1, players(t) + 1):
        collapsed += s[TERR + player]
        live += is_live(s, player)
        if s[CONTROLLED + player] > 0:
            controllers += 1
            last = player
    for player in range(1, players(t) + 1):
        if s[TERR + player] >= territory_target(t) and 2 * s[TERR + player] > collapsed:
            return end_game(s, player, to_int(BY_TERRITORY))
    if controllers == 1 and live == 1:
        return end_game(s, last, to_int(BY_LAST_STANDING))
    if controllers == 0 and not _anybody_can_place(s, t):
        return end_game(s, _stalemate_winner(s, t), to_int(BY_STALEMATE))
    return None


@compiled
def end_game(s: Words, winner: int, reason: int) -> None:
    s[WINNER] = winner
    s[REASON] = reason
    s[PHASE] = OVER


@compiled
def _anybody_can_place(s: Words, t: Table) -> bool:
    for player in range(1, players(t) + 1):
        if any_placement(s, t, player):
            return True
    return False


@compiled
def _stalemate_winner(s: Words, t: Table) -> int:
    """Best by territory, rings eliminated or in hand, markers, last move, lowest seat."""
    best = 1
    for player in range(2, players(t) + 1):
        rings, best_rings = s[ELIM + player] + s[HAND + player], s[ELIM + best] + s[HAND + best]
        if s[TERR + player] != s[TERR + best]:
            better = s[TERR + player] > s[TERR + best]
        elif rings != best_rings:
            better = rings > best_rings
        elif s[MARKS + player] != s[MARKS + best]:
            better = s[MARKS + player] > s[MARKS + best]
        else:
            better = player == s[CUR]
        if better:
            best = player
    return best


@compiled
def settle(s: Words, t: Table, work: Words) -> None:
    """Pass through everything that needs no decision; a line elimination nobody can pay is waived."""
    while s[WINNER] == 0 and not any_decision(s, t, work):
        if s[DEBT] != NO_DEBT:
            s[DEBT] = NO_DEBT
        elif s[PHASE] == PLACEMENT:
            s[PHASE] = MOVEMENT
        elif s[PHASE] == MOVEMENT:
            s[PHASE] = LINES
        elif s[PHASE] == LINES:
            s[PHASE] = TERRITORY
        elif s[PHASE] == TERRITORY:
            s[PHASE] = FORCED
        else:
            _next_turn(s, t)


@compiled
def _next_turn(s: Words, t: Table) -> None:
    player = s[CUR] % players(t) + 1
    while not is_live(s, player):
        player = player % players(t) + 1
    s[CUR] = player
    s[PHASE] = PLACEMENT
    s[MUST] = NO_CELL
    s[ACTIVE] = NO_CELL
    s[CHANGED] = 0
    s[RECOVERED] = 0
    _record_turn_start(s, t, player)


@compiled
def _record_turn_start(s: Words, t: Table, player: int) -> None:
    if s[OPENER] == 0 or not is_live(s, s[OPENER]):
        s[OPENER] = player
        s[ACTED] = 0
        if s[HOLDER] == 0 or not is_live(s, s[HOLDER]):
            s[STREAK] = 0
            s[HOLDER] = 0
    elif s[OPENER] == player:
        _close_round(s, t)
    acts = real_action(s, t, player)
    if acts:
        s[ACTED] |= 1 << player
    if s[STREAK] < STREAK_TO_WIN or s[HOLDER] != player or not acts:
        return
    for other in range(1, players(t) + 1):
        if other != player and is_live(s, other) and real_action(s, t, other):
            return
    end_game(s, player, to_int(BY_LAST_STANDING))


@compiled
def _close_round(s: Words, t: Table) -> None:
    acted, last = 0, 0
    for player in range(1, players(t) + 1):
        if s[ACTED] >> player & 1 and is_live(s, player):
            acted += 1
            last = player
    if acted != 1:
        s[STREAK] = 0
        s[HOLDER] = 0
    elif s[HOLDER] == last:
        s[STREAK] += 1
    else:
        s[STREAK] = 1
        s[HOLDER] = last
    s[ACTED] = 0
