"""States of the reference engine in the JSON that the compiled rules write, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringrift.games.ringrift.boards import Board
from ringrift.games.ringrift.reference.engine import ReferenceGame


def reference_to_json(game: ReferenceGame) -> dict[str, Any]:
    names, position, record = game.board.names, game.position, game.last_standing
    return {
        "config": str(game.board.key),
        "cur": game.player,
        "phase": game.phase,
        "status": "active" if game.winner is None else "completed",
        "winner": game.winner,
        "reason": game.reason,
        "players": [[seat.hand, seat.elim, seat.terr] for seat in game.seats.values()],
        "stacks": {names[cell]: list(stack) for cell, stack in position.stacks.items()},
        "markers": {names[cell]: owner for cell, owner in position.markers.items()},
        "collapsed": {names[cell]: owner for cell, owner in position.collapsed.items()},
        "turn": {
            "must_move": None if game.must_move is None else names[game.must_move],
            "active": None if game.active is None else names[game.active],
            "changed": game.changed,
            "recovered": game.recovered,
            "debt": game.debt,
        },
        "last_standing": {
            "opener": record.opener,
            "acted": sorted(record.acted),
            "streak": record.streak,
            "holder": record.holder,
        },
        "decisions": game.decisions,
        "lost_at": [seat.lost_at for seat in game.seats.values()],
    }


def reference_from_json(board: Board, fields: Mapping[str, Any]) -> ReferenceGame:
    """A game that goes on from *fields*, which must be whole: nothing is filled in."""
    game = ReferenceGame(board)
    cell_of = board.by_name
    game.position.stacks = {cell_of[name]: tuple(rings) for name, rings in fields["stacks"].items()}
    game.position.markers = {cell_of[name]: owner for name, owner in fields["markers"].items()}
    game.position.collapsed = {cell_of[name]: owner for name, owner in fields["collapsed"].items()}
    game.player, game.phase, game.decisions = fields["cur"], fields["phase"], fields["decisions"]
    game.winner, game.reason = fields["winner"], fields["reason"]
    for player, seat in game.seats.items():
        seat.hand, seat.elim, seat.terr = fields["players"][player - 1]
        seat.lost_at = fields["lost_at"][player - 1]
        game.gone[player] = board.rings - seat.hand - game.position.rings_of(player)
    turn, record = fields["turn"], fields["last_standing"]
    game.must_move, game.active = cell_of.get(turn["must_move"]), cell_of.get(turn["active"])
    game.changed, game.recovered, game.debt = turn["changed"], turn["recovered"], turn["debt"]
    game.last_standing.opener, game.last_standing.acted = record["opener"], set(record["acted"])
    game.last_standing.streak, game.last_standing.holder = record["streak"], record["holder"]
    return game
