"""The game: phases, turns, victory. Sections named in the docstrings are those of the rules' text.

`legal()` lists the decisions of the player on turn; a phase without any is passed through in silence.
A recovery slide is one move of the rules but several decisions here (slide, line option, payment), so
victory is judged when all of them are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringrift.errors import ConfigError
from ringrift.games.ringrift.boards import Board, BoardPosition, Move, Segment, cap

# The rounds that decide who is the last player with a real action (§11).


STREAK_TO_WIN = 3


@dataclass(slots=True)
class LastStanding:
    """Who opened the round, who could really act in it, and who was alone in that for how many rounds."""

    opener: int | None = None
    acted: set[int] = field(default_factory=set)
    streak: int = 0
    holder: int | None = None

    def start_turn(self, player: int, live: Sequence[int], real_action: Callable[[int], bool]) -> bool:
        """Record that a turn starts by rotation; true if *player* wins by it."""
        if self.opener not in live:
            self.opener, self.acted = player, set()
            if self.holder not in live:
                self.streak, self.holder = 0, None
        elif player == self.opener:
            self._close_round(live)
        if real_action(player):
            self.acted.add(player)
        if self.streak < STREAK_TO_WIN or self.holder != player:
            return False
        return [seat for seat in live if real_action(seat)] == [player]

    def _close_round(self, live: Sequence[int]) -> None:
        acted = [seat for seat in live if seat in self.acted]
        if len(acted) == 1:
            # Another holder starts again at one: rounds count for one player in a row.
            self.streak = self.streak + 1 if self.holder == acted[0] else 1
            self.holder = acted[0]
        else:
            self.streak, self.holder = 0, None
        self.acted = set()


# How a game ends (§12) and how the seats are ranked; reads a position, changes nothing.


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


PLACEMENT, MOVEMENT, CAPTURE, CHAIN = "ring_placement", "movement", "capture", "chain_capture"
LINES, TERRITORY, FORCED = "line_processing", "territory_processing", "forced_elimination"
OVER = "game_over"
NEXT_PHASE = {PLACEMENT: MOVEMENT, MOVEMENT: LINES, LINES: TERRITORY, TERRITORY: FORCED}


class ReferenceGame:
    """A game in progress."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.position = BoardPosition(board)
        self.seats = {player: Seat(hand=board.rings) for player in range(1, board.players + 1)}
        self.gone = dict.fromkeys(self.seats, 0)  # rings eliminated, by their own color
        self.player, self.phase = 1, PLACEMENT
        self.must_move: int | None = None
        self.active: int | None = None  # the stack that may capture, or the marker that recovered
        self.changed = self.recovered = False
        self.debt: str | None = None  # line, territory, recovery_line, recovery
        self.last_standing = LastStanding()
        self.decisions = 0
        self.winner: int | None = None
        self.reason: str | None = None
        self._legal: list[Move] | None = None  # asked several times between two moves, and slow to make

    # --- decisions ---------------------------------------------------------------------------------

    def legal(self) -> list[Move]:
        """Decisions of the player on turn; empty only when the game is over."""
        if self._legal is None:
            self._legal = [] if self.winner else self._debt_moves() if self.debt else self._phase_moves()
        return self._legal

    def legal_texts(self) -> list[str]:
        return sorted(move.text(self.board) for move in self.legal())

    def apply(self, move: Move) -> None:
        """Make *move*; raises `ConfigError` and changes nothing if it is not legal."""
        if move not in self.legal():
            raise ConfigError(
                f"illegal move {move.text(self.board)!r} for player {self.player} in {self.phase}"
            )
        self.decisions += 1
        self._perform(move)
        self._note_losses()
        # A skip changes nothing on the board, so nobody can have won by it.
        if move.kind[0] != "S" and self.debt not in ("recovery_line", "recovery"):
            self._judge()
        self._legal = None
        while self.winner is None and not self.legal():  # phases without a decision are passed through
            self._leave_phase()
            self._legal = None
        if self.winner is not None:
            self.phase = OVER

    def apply_text(self, text: str) -> None:
        for move in self.legal():
            if move.text(self.board) == text:
                return self.apply(move)
        raise ConfigError(f"illegal move {text!r} for player {self.player} in {self.phase}")

    def _phase_moves(self) -> list[Move]:
        match self.phase:
            case "ring_placement":
                return self._placement_moves()
            case "movement":
                return self._movement_moves()
            case "capture":
                return [*self._captures(self._active_cell()), Move("SC")]
            case "chain_capture":
                return self._captures(self._active_cell())
            case "line_processing":
                return [move for run in self.position.lines(self.player) for move in self._line_moves(run)]
            case "territory_processing":
                regions = [region for region in self.position.candidate_regions() if self._payable(region)]
                return [Move("T", tuple(sorted(region))) for region in regions] + [Move("ST")] * bool(regions)
        if self.changed:  # §9: only a turn without any change of the board ends with an elimination
            return []
        return [Move("F", (cell,)) for cell in self.position.controlled(self.player)]

    def _placement_moves(self) -> list[Move]:
        """§4."""
        hand = self.seats[self.player].hand
        if not hand:
            return []
        moves = [Move("P", (cell,), str(n)) for cell, n in self.position.placements(self.player, hand)]
        if self._some_stack_can_act(self.player) or self._recovery_eligible():
            moves.append(Move("SP"))
        return moves

    def _movement_moves(self) -> list[Move]:
        """§5, §6, §10."""
        position = self.position
        cells = position.controlled(self.player) if self.must_move is None else [self.must_move]
        moves = [Move("M", (s.start, s.end)) for c in cells for s in position.slides(c, position.stacks[c])]
        moves += [move for cell in cells for move in self._captures(cell)]
        if not moves and self._recovery_eligible():
            slides = self._recovery_moves()
            moves = slides + [Move("SR")] * bool(slides)
        return moves

    def _captures(self, cell: int) -> list[Move]:
        segments = self.position.captures(cell, self.position.stacks[cell])
        return [Move("C", (s.start, s.target, s.end)) for s in segments if s.target is not None]

    def _line_moves(self, run: tuple[int, ...]) -> list[Move]:
        """§7: the whole run, or any part of the minimum length if the run is longer."""
        length = self.board.line_length
        parts = [run[at : at + length] for at in range(len(run) - length + 1)] if len(run) > length else []
        return [Move("L", run, "full"), *(Move("L", part, "min") for part in parts)]

    def _payable(self, region: frozenset[int]) -> bool:
        """§8: the player keeps something outside to pay with."""
        payers = self.position.controlled(self.player)
        if self.recovered:
            payers += self.position.holding_buried(self.player)
        return any(cell not in region for cell in payers)

    def _debt_moves(self) -> list[Move]:
        match self.debt:
            case "recovery_line":
                return self._line_moves(self._recovery_run(self._active_cell()))
            case "recovery":
                cells = self.position.holding(self.player)
            case "territory" if self.recovered and self.position.holding_buried(self.player):
                cells = self.position.holding_buried(self.player)
            case _:
                cells = self.position.controlled(self.player)
        return [Move("E", (cell,)) for cell in cells]

    # --- recovery (§10) ----------------------------------------------------------------------------

    def _recovery_eligible(self) -> bool:
        position = self.position
        return (
            not position.controlled(self.player)
            and self.player in position.markers.values()
            and bool(position.holding(self.player))
        )

    def _recovery_moves(self) -> list[Move]:
        position = self.position
        steps = [
            (start, ray[0])
            for start in sorted(position.markers)
            if position.markers[start] == self.player
            for ray in self.board.rays[start]
            if ray
        ]
        empty = [(start, end) for start, end in steps if position.empty(end)]
        lines = [step for step in empty if self._completes_line(*step)]
        if lines:
            return [Move("R", step, "line") for step in lines]
        strikes = [step for step in steps if step[1] in position.stacks]
        return [Move("R", step, "fallback") for step in empty] + [
            Move("R", step, "stack_strike") for step in strikes
        ]

    def _completes_line(self, start: int, end: int) -> bool:
        owner = self.position.markers.pop(start)
        found = bool(self._recovery_run(end))
        self.position.markers[start] = owner
        return found

    def _recovery_run(self, cell: int) -> tuple[int, ...]:
        """The line through *cell* on the first axis that has one, as if a marker lay there."""
        runs = (self.position.run_through(cell, axis, self.player) for axis in range(self.board.axes))
        return next((run for run in runs if len(run) >= self.board.line_length), ())

    def _perform_recovery(self, move: Move) -> None:
        start, end = move.cells
        position = self.position
        del position.markers[start]
        self.changed = self.recovered = True
        self.debt = "recovery"
        if move.tag == "stack_strike":
            self._eliminate_top(end, 1)
            return
        position.markers[end] = self.player
        run = self._recovery_run(end) if move.tag == "line" else ()
        if len(run) == self.board.line_length:
            self._collapse(run)
        elif run:
            self.debt, self.active = "recovery_line", end

    # --- what moves do -----------------------------------------------------------------------------

    def _perform(self, move: Move) -> None:
        match move.kind:
            case "P":
                self._perform_placement(move)
            case "M" | "C":
                self._perform_segment(move)
            case "L":
                self._perform_line(move)
            case "T":
                self._perform_region(frozenset(move.cells))
            case "E" | "F":
                self._pay(move)
            case "R":
                self._perform_recovery(move)
            case "SP":
                self.phase = MOVEMENT
            case "SC" | "SR":
                self.phase = LINES
            case "ST":
                self.phase = FORCED

    def _perform_placement(self, move: Move) -> None:
        (cell,), count = move.cells, int(move.tag)
        self.position.stacks[cell] = self.position.stacks.get(cell, ()) + (self.player,) * count
        self.seats[self.player].hand -= count
        self.must_move, self.changed, self.phase = cell, True, MOVEMENT

    def _perform_segment(self, move: Move) -> None:
        """§5 and §6, effects in the order of the text."""
        position = self.position
        start, end = move.cells[0], move.cells[-1]
        stack = position.stacks[start]
        ways = position.captures(start, stack) if move.kind == "C" else position.slides(start, stack)
        segment = next(way for way in ways if way.end == end)
        del position.stacks[start]
        position.markers[start] = self.player
        self._cross(segment)
        landed_on_marker = position.markers.pop(end, None) is not None
        if segment.target is not None:
            target = position.stacks[segment.target]
            stack = (target[-1], *stack)
            self._set_stack(segment.target, target[:-1])
        position.stacks[end] = stack
        if landed_on_marker:
            self._eliminate_top(end, 1)
        self.changed = True
        still_ours = position.stacks.get(end, (0,))[-1] == self.player
        if still_ours and self._captures(end):
            self.phase, self.active = (CHAIN if move.kind == "C" else CAPTURE), end
        else:
            self.phase = LINES

    def _cross(self, segment: Segment) -> None:
        for cell in segment.between:
            owner = self.position.markers.get(cell)
            if owner == self.player:
                self._collapse((cell,))
            elif owner is not None:
                self.position.markers[cell] = self.player

    def _perform_line(self, move: Move) -> None:
        self._collapse(move.cells)
        self.changed = True
        if self.debt == "recovery_line":
            if move.tag == "full":
                self.debt = "recovery"
            else:
                self.debt, self.phase = None, LINES
        elif move.tag == "full":
            self.debt = "line"

    def _perform_region(self, region: frozenset[int]) -> None:
        """§8."""
        border = self.position.border_markers(region)
        for cell in region & self.position.stacks.keys():
            self._eliminate_top(cell, len(self.position.stacks[cell]))
        self._collapse((*region, *border))
        self.changed, self.debt = True, "territory"

    def _pay(self, move: Move) -> None:
        (cell,) = move.cells
        stack = self.position.stacks[cell]
        buried = self.position.holding_buried(self.player)
        if self.debt == "recovery" or (self.debt == "territory" and self.recovered and buried):
            lowest = stack.index(self.player)
            self._set_stack(cell, stack[:lowest] + stack[lowest + 1 :])
            self.seats[self.player].elim += 1
            self.gone[self.player] += 1
        else:
            self._eliminate_top(cell, 1 if self.debt == "line" else cap(stack))
        if self.debt == "recovery":
            self.phase = LINES
        self.debt = None
        self.changed = True

    def _eliminate_top(self, cell: int, count: int) -> None:
        """Remove the top rings; they are credited to the player on turn, whatever their color."""
        stack = self.position.stacks[cell]
        for color in stack[len(stack) - count :]:
            self.gone[color] += 1
        self.seats[self.player].elim += count
        self._set_stack(cell, stack[: len(stack) - count])

    def _set_stack(self, cell: int, stack: tuple[int, ...]) -> None:
        if stack:
            self.position.stacks[cell] = stack
        else:
            del self.position.stacks[cell]

    def _collapse(self, cells: tuple[int, ...]) -> None:
        for cell in cells:
            self.position.markers.pop(cell, None)
            self.position.collapsed[cell] = self.player
        self.seats[self.player].terr += len(cells)

    def _active_cell(self) -> int:
        assert self.active is not None
        return self.active

    # --- turns and their end -----------------------------------------------------------------------

    def _leave_phase(self) -> None:
        """Pass through a phase without a decision; a line elimination that nobody can pay is waived."""
        if self.debt is not None:
            self.debt = None
        elif self.phase in NEXT_PHASE:
            self.phase = NEXT_PHASE[self.phase]
        else:
            self._next_turn()

    def _next_turn(self) -> None:
        live = live_seats(self.position, self.seats)
        seats = self.board.players
        # the player itself is the last: it may be the only one left
        order = [(self.player - 1 + step) % seats + 1 for step in range(1, seats + 1)]
        self.player = next(player for player in order if player in live)
        self.phase, self.must_move, self.active = PLACEMENT, None, None
        self.changed = self.recovered = False
        if self.last_standing.start_turn(self.player, live, self._real_action):
            self.winner, self.reason = self.player, "last_player_standing"

    def _some_stack_can_act(self, player: int) -> bool:
        stacks = self.position.stacks
        return any(self.position.can_act(cell, stacks[cell]) for cell in self.position.controlled(player))

    def _real_action(self, player: int) -> bool:
        placements = self.position.placements(player, self.seats[player].hand)
        return self._some_stack_can_act(player) or any(True for _ in placements)

    def _note_losses(self) -> None:
        live = live_seats(self.position, self.seats)
        for player, seat in self.seats.items():
            if player not in live and seat.lost_at is None:
                seat.lost_at = self.decisions

    def _judge(self) -> None:
        verdict = judge(self.position, self.seats, last_mover=self.player)
        if verdict is not None:
            self.winner, self.reason = verdict

    def ranking(self) -> tuple[int, ...]:
        """Rank of each seat in seat order; only when the game is over."""
        assert self.winner is not None
        return ranking(self.position, self.seats, self.winner)


# States of the reference engine in the JSON that the compiled rules write, both ways.


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
