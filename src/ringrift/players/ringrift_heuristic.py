"""The heuristic player of RingRift: weights of the features, the value of a position, and a short search
over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from math import isfinite, tanh
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.games.contract import ActionArray, Game, LegalActions, States, check_batch
from ringrift.games.ringrift import core
from ringrift.games.ringrift.core.geometry import (
    Table,
    axes,
    cells,
    directions,
    elimination_target,
    line_length,
    make_table,
    on_ray,
    players,
    ray_from,
    ray_length,
    rings_each,
    territory_target,
)
from ringrift.games.ringrift.core.layout import (
    CAPTURE,
    CHAIN,
    CONTROLLED,
    CUR,
    DEBT,
    ELIM,
    FREE_BELOW,
    HAND,
    LINE_DEBT,
    LINES,
    MARKS,
    MOVEMENT,
    MUST,
    NO_CELL,
    ON_BOARD,
    PHASE,
    STACK,
    STACK_FROM,
    TERR,
    TERRITORY,
    TERRITORY_DEBT,
    Words,
    cap_at,
    code_at,
    height_at,
    rings_at,
)
from ringrift.games.ringrift.core.legal import capture_until
from ringrift.games.ringrift.core.regions import active_colors, clear_marks, flood, is_open
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.players.contract import Seeds, derived

# --- features -----------------------------------------------------------------------------------------
#
# What counts in a position, as numbers per seat. All are shares, so that one set of weights fits all boards.
#
# Row *player* of the features belongs to that player, counted from 1; row 0 is unused.


# Regions as a value: who could take how much, and who would lose it.


Gains = npt.NDArray[np.float64]  # players + 1 x (rings, cells, trapped rings)
RINGS, CELLS, TRAPPED = 0, 1, 2


@compiled
def find_enclosures(s: Words, t: Table, work: Words, gains: Gains) -> None:
    """Note for each player the best region it could process if it were in that phase, and what it risks."""
    active = active_colors(s, t)
    collapsed = 0
    for player in range(1, players(t) + 1):
        collapsed += s[TERR + player]
    for border in range(players(t) + 1):
        bounding = collapsed if border == 0 else collapsed + s[MARKS + border]
        if bounding < 2 or (border > 0 and s[MARKS + border] == 0):
            continue
        clear_marks(t, work)
        for cell in range(cells(t)):
            if work[cell] == 0 and is_open(s, cell, border):
                size = flood(s, t, cell, border, work)
                if size == cells(t) - bounding:
                    break
                _weigh(s, t, border, size, active, work, gains)


@compiled
def _weigh(s: Words, t: Table, border: int, size: int, active: int, work: Words, gains: Gains) -> None:
    """Credit the region listed in *work* to everybody who could process it."""
    inside, rings, stacks, colors = contents(s, t, size, work)
    alone = inside != 0 and inside & (inside - 1) == 0
    if inside == active or (border == 0 and not alone):
        return
    takers = 0
    for player in range(1, players(t) + 1):
        if ((stacks >> (10 * player)) & 1023) < s[CONTROLLED + player]:
            takers |= 1 << player
            if 3 * rings + size > 3 * gains[player, RINGS] + gains[player, CELLS]:
                gains[player, RINGS], gains[player, CELLS] = rings, size
    for player in range(1, players(t) + 1):
        if takers & ~(1 << player):
            gains[player, TRAPPED] = max(gains[player, TRAPPED], (colors >> (10 * player)) & 1023)


@compiled
def contents(s: Words, t: Table, size: int, work: Words) -> tuple[int, int, int, int]:
    """Controllers inside as bits, rings, and stacks and rings by player in ten bits each."""
    inside, rings, stacks, colors = 0, 0, 0, 0
    for at in range(size):
        cell = work[cells(t) + at]
        code = code_at(s, cell)
        if code < STACK_FROM:
            continue
        inside |= 1 << (code - STACK)
        stacks += 1 << (10 * (code - STACK))
        height, tower = height_at(s, cell), rings_at(s, cell)
        rings += height
        for place in range(height):
            colors += 1 << (10 * (((tower >> (2 * place)) & 3) + 1))
    return inside, rings, stacks, colors


Features = npt.NDArray[np.float64]  # players + 1 x FEATURE_COUNT

FEATURE_NAMES = (
    "eliminated",  # of the target
    "eliminated_squared",
    "territory",  # of the target
    "territory_squared",
    "hand",  # rings, of those a player starts with
    "stacks",
    "caps",
    "captives",  # rings under a cap the player controls
    "buried",  # own rings that are not in an own cap
    "tallest_cap",
    "lone",  # nearly out of stacks: 1 without any, ½ with one, a third with two
    "fuel",  # rings in hand and in controlled stacks, per ring still to be eliminated, up to 2
    "shortage",  # rings still to be eliminated beyond those, of the target
    "idle",  # no placement left and no stack that can act
    "win_threat",  # the best region, its payment or a single shot would reach a target
    "markers",
    "line_ready",  # windows of a line's length, by own markers in them; the rest can still become one
    "line_but_one",
    "line_but_two",
    "slides",
    "stuck_stacks",
    "shots",  # stacks that can land on a marker, and so eliminate a ring
    "sweep",  # own markers that the best slide would collapse
    "attacks",  # stacks of others that own ones can overtake
    "attacked",  # own stacks that others can overtake
    "enclosed_rings",  # in the best region to process
    "enclosed_cells",
    "trapped_rings",  # own rings in a region that somebody else may process
    "turn",  # is on turn
    "turn_enclosed_rings",
    "turn_enclosed_cells",
    "turn_capture",
    "turn_line",
    "turn_region",
    "turn_line_debt",
    "turn_region_debt",
    "must_shot",  # the stack that must move
    "must_attacks",
    "must_slides",
)
FEATURE_COUNT = len(FEATURE_NAMES)
(
    ELIMINATED,
    ELIMINATED_SQUARED,
    TERRITORY_SHARE,
    TERRITORY_SQUARED,
    IN_HAND,
    STACKS,
    CAPS,
    CAPTIVES,
    BURIED,
    TALLEST_CAP,
    LONE,
    FUEL,
    SHORTAGE,
    IDLE,
    WIN_THREAT,
    MARKERS,
    LINE_READY,
    LINE_BUT_ONE,
    LINE_BUT_TWO,
    SLIDES,
    STUCK_STACKS,
    SHOTS,
    SWEEP,
    ATTACKS,
    ATTACKED,
    ENCLOSED_RINGS,
    ENCLOSED_CELLS,
    TRAPPED_RINGS,
    TURN,
    TURN_ENCLOSED_RINGS,
    TURN_ENCLOSED_CELLS,
    TURN_CAPTURE,
    TURN_LINE,
    TURN_REGION,
    TURN_LINE_DEBT,
    TURN_REGION_DEBT,
    MUST_SHOT,
    MUST_ATTACKS,
    MUST_SLIDES,
) = range(FEATURE_COUNT)


@compiled
def read_features(s: Words, t: Table, work: Words, out: Features) -> None:
    """Write the features of every seat."""
    out[:] = 0.0
    _count_stacks(s, t, out)
    _count_lines(s, t, out)
    find_enclosures(s, t, work, out[:, ENCLOSED_RINGS : TRAPPED_RINGS + 1])
    for player in range(1, players(t) + 1):
        _scale(s, t, player, out[player])
    _describe_turn(s, t, out[s[CUR]])


@compiled
def _scale(s: Words, t: Table, player: int, row: Features) -> None:
    rings, most = rings_each(t), cells(t)
    eliminated, territory = s[ELIM + player] / elimination_target(t), s[TERR + player] / territory_target(t)
    row[ELIMINATED], row[ELIMINATED_SQUARED] = eliminated, eliminated * eliminated
    row[TERRITORY_SHARE], row[TERRITORY_SQUARED] = territory, territory * territory
    row[IN_HAND] = s[HAND + player] / rings
    row[STACKS] = s[CONTROLLED + player] / rings
    row[BURIED] = (s[ON_BOARD + player] - row[CAPS]) / rings
    row[LONE] = 1.0 / (1 + s[CONTROLLED + player])
    _judge_reserves(s, t, player, row)
    row[MARKERS] = s[MARKS + player] / most
    for feature in (CAPS, CAPTIVES, TALLEST_CAP, STUCK_STACKS, SHOTS, ATTACKS, ATTACKED):
        row[feature] /= rings
    for feature in (LINE_READY, LINE_BUT_ONE, LINE_BUT_TWO, SLIDES):
        row[feature] /= most
    for feature in (ENCLOSED_RINGS, TRAPPED_RINGS):
        row[feature] /= elimination_target(t)
    for feature in (SWEEP, ENCLOSED_CELLS):
        row[feature] /= territory_target(t)


@compiled
def _judge_reserves(s: Words, t: Table, player: int, row: Features) -> None:
    """Whether the rings at hand can still win, or win at once; *row* still holds counts."""
    needed = elimination_target(t) - s[ELIM + player]
    rings = s[HAND + player] + row[CAPS] + row[CAPTIVES]
    row[FUEL] = min(2.0, rings / max(1, needed))
    row[SHORTAGE] = max(0.0, needed - rings) / elimination_target(t)
    row[IDLE] = 1.0 if s[HAND + player] == 0 and row[STUCK_STACKS] == s[CONTROLLED + player] else 0.0
    at_once = 1.0 if row[SHOTS] > 0 else 0.0
    if row[ENCLOSED_CELLS] > 0:
        at_once = max(at_once, row[ENCLOSED_RINGS] + row[TALLEST_CAP])
    enough_cells = s[TERR + player] + row[ENCLOSED_CELLS] >= territory_target(t)
    row[WIN_THREAT] = 1.0 if at_once >= needed or (row[ENCLOSED_CELLS] > 0 and enough_cells) else 0.0


@compiled
def _describe_turn(s: Words, t: Table, row: Features) -> None:
    """What the player on turn has before it."""
    phase, debt = s[PHASE], s[DEBT]
    row[TURN] = 1.0
    row[TURN_ENCLOSED_RINGS] = row[ENCLOSED_RINGS]
    row[TURN_ENCLOSED_CELLS] = row[ENCLOSED_CELLS]
    row[TURN_CAPTURE] = 1.0 if phase in (CAPTURE, CHAIN) else 0.0
    row[TURN_LINE] = 1.0 if phase == LINES else 0.0
    row[TURN_REGION] = 1.0 if phase == TERRITORY else 0.0
    row[TURN_LINE_DEBT] = 1.0 if debt == LINE_DEBT else 0.0
    row[TURN_REGION_DEBT] = 1.0 if debt == TERRITORY_DEBT else 0.0
    if phase == MOVEMENT and s[MUST] != NO_CELL:
        for direction in range(directions(t)):
            slides, shot, _, target = reach(s, t, s[MUST], direction)
            row[MUST_SLIDES] += slides / cells(t)
            row[MUST_SHOT] = max(row[MUST_SHOT], shot)
            row[MUST_ATTACKS] += 0.25 if target != NO_CELL else 0.0


@compiled
def _count_stacks(s: Words, t: Table, out: Features) -> None:
    for cell in range(cells(t)):
        code = code_at(s, cell)
        if code >= STACK_FROM:
            row = out[code - STACK]
            row[CAPS] += cap_at(s, cell)
            row[TALLEST_CAP] = max(row[TALLEST_CAP], cap_at(s, cell))
            row[CAPTIVES] += height_at(s, cell) - cap_at(s, cell)
            _count_reach(s, t, cell, row, out)


@compiled
def _count_reach(s: Words, t: Table, cell: int, row: Features, out: Features) -> None:
    can_act, can_shoot = False, False
    for direction in range(directions(t)):
        slides, shot, passed, target = reach(s, t, cell, direction)
        can_act |= slides > 0 or target != NO_CELL
        can_shoot |= shot > 0
        row[SLIDES] += slides
        row[SWEEP] = max(row[SWEEP], passed)
        if target != NO_CELL:
            row[ATTACKS] += 1
            out[code_at(s, target) - STACK, ATTACKED] += 1
    if not can_act:
        row[STUCK_STACKS] += 1
    if can_shoot:
        row[SHOTS] += 1


@compiled
def reach(s: Words, t: Table, cell: int, direction: int) -> tuple[int, int, int, int]:
    """What the stack on *cell* can do in one direction.

    Number of slides, 1 if one ends on a marker, own markers that the longest passes, and the cell of
    another player's stack that it can overtake.
    """
    ray, own, height = ray_from(t, cell, direction), code_at(s, cell) - STACK, height_at(s, cell)
    length = ray_length(t, ray)
    if length < height:
        return 0, 0, 0, NO_CELL
    slides, shot, passed, last_own, step = 0, 0, 0, 0, 0
    while step < length:
        code = code_at(s, on_ray(t, ray, step))
        if code >= FREE_BELOW:
            break
        step += 1
        passed += last_own
        last_own = 1 if code == own else 0
        if step >= height:
            slides += 1
            if code != 0:
                shot = 1
    target = NO_CELL
    if step < length:
        stop = on_ray(t, ray, step)
        if code_at(s, stop) != STACK + own and capture_until(s, t, ray, step, cap_at(s, cell)) > max(
            step + 1, height - 1
        ):
            target = stop
    return slides, shot, passed if slides > 0 else 0, target


@compiled
def _count_lines(s: Words, t: Table, out: Features) -> None:
    """Count windows of a line's length by the markers of the one player who has any in them."""
    length = line_length(t)
    for cell in range(cells(t)):
        for axis in range(axes(t)):
            ray = ray_from(t, cell, axis)
            if ray_length(t, ray) >= length - 1:
                owner, own = window_owner(s, t, cell, ray, length)
                if own > length - 3:
                    out[owner, LINE_READY + length - own] += 1


@compiled
def window_owner(s: Words, t: Table, cell: int, ray: int, length: int) -> tuple[int, int]:
    """Whose markers lie in the window from *cell* along *ray*, and how many; 0 if it cannot be a line."""
    owner, own = 0, 0
    for step in range(length):
        code = code_at(s, cell if step == 0 else on_ray(t, ray, step - 1))
        if code == 0:
            continue
        if code < FREE_BELOW:
            if owner != 0 and owner != code:
                return 0, 0
            owner = code
            own += 1
        elif code < STACK_FROM:
            return 0, 0
    return owner, own


# --- the player ---------------------------------------------------------------------------------------


# How much each feature counts.


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Log-odds of ending ahead of another player, per unit by which a feature exceeds the other's.

    The defaults were set by hand and moved part of the way to what stochastic approximation found in matches
    of the player against itself on square8 and hex8; all the way played worse against other players. The
    job `tune` searches on from here.
    """

    eliminated: float = 5.94
    eliminated_squared: float = 1.64
    territory: float = 3.11
    territory_squared: float = 7.12
    hand: float = 2.42
    stacks: float = 4.48
    caps: float = 2.21
    captives: float = 1.7
    buried: float = 0.61
    tallest_cap: float = -2.13
    lone: float = -2.31
    fuel: float = 0.85
    shortage: float = -6.0
    idle: float = -0.29
    win_threat: float = 1.86
    markers: float = 4.83
    line_ready: float = 2.0
    line_but_one: float = 4.28
    line_but_two: float = 6.07
    slides: float = -0.02
    stuck_stacks: float = -3.97
    shots: float = 1.39
    sweep: float = 1.92
    attacks: float = -2.49
    attacked: float = -4.78
    enclosed_rings: float = 0.68
    enclosed_cells: float = 1.08
    trapped_rings: float = -0.66
    turn: float = 0.66
    turn_enclosed_rings: float = 5.82
    turn_enclosed_cells: float = 3.1
    turn_capture: float = 0.75
    turn_line: float = 1.89
    turn_region: float = 0.45
    turn_line_debt: float = 1.82
    turn_region_debt: float = -0.54
    must_shot: float = 0.43
    must_attacks: float = 2.92
    must_slides: float = 2.57

    def array(self) -> npt.NDArray[np.float64]:
        return np.array(astuple(self), dtype=np.float64)

    @classmethod
    def from_names(cls, values: Mapping[str, Any]) -> Weights:
        """Weights by the names of features; those not named keep their defaults."""
        unknown = sorted(values.keys() - set(FEATURE_NAMES))
        if unknown:
            raise ConfigError(f"heuristic: there is no feature {unknown[0]!r}")
        if wrong := [name for name, value in values.items() if not _is_finite(value)]:
            raise ConfigError(f"heuristic: the weight of {wrong[0]} is {values[wrong[0]]!r}, not a number")
        return cls(**values)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


# The value of RingRift positions per seat.
#
# A position's value for a seat is how likely it is to end ahead of the others, taken one by one, on the scale
# of results.


FINGERPRINT = source_fingerprint(Path(__file__), Path(core.__file__).parent)

Floats = npt.NDArray[np.float64]


@compiled
def compare(strengths: Floats, out: Floats) -> None:
    """Turn strengths, counted from seat 1, into the mean chance against each other seat."""
    count = out.shape[0]
    for seat in range(count):
        total = 0.0
        for other in range(count):
            if other != seat:
                total += tanh(0.5 * (strengths[seat + 1] - strengths[other + 1]))
        out[seat] = total / (count - 1)


@cached_kernel(FINGERPRINT)
def judge_batch(states: Words, t: Table, weights: Floats, out: Floats) -> None:
    """Write the value of every game for every seat, games x players."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    features = np.empty((players(t) + 1, FEATURE_COUNT), dtype=np.float64)
    for game in range(states.shape[0]):
        read_features(states[game], t, work, features)
        compare(features @ weights, out[game])


# A short search over somebody's judgment of positions.
#
# It judges the position after each action. Where a turn takes several decisions, that compares a turn half
# made with one that is over; so the most promising actions can be followed to the end of the turn, each
# further decision made by the same judgment, and compared there; and the best of those through the turn of
# the next seat, which decides by its own value.


Values: TypeAlias = npt.NDArray[np.float64]  # games x players
Judge: TypeAlias = Callable[[States], Values]
Indices: TypeAlias = npt.NDArray[np.int64]

TURN_DECISIONS_MAX = 64  # a longer turn is judged where it stands
CHILD_BYTES_MAX = 64 << 20
OPTIONS_GUESS = 64  # legal actions per game, to size the parts of a batch
TIE_BREAK = 1e-6
OUT_OF_QUESTION = -2.0  # below every value


class LookAhead:
    """Chooses actions by a judge.

    *followed* says how many are followed to the end of the turn, how many of those through the next turn,
    which is another seat's, and so on; none if it is empty.
    """

    def __init__(self, game: Game, judge: Judge, *, followed: tuple[int, ...]) -> None:
        if any(count < 1 for count in followed):
            raise ConfigError(f"look-ahead: at least one action must be followed, not {followed}")
        self._game, self._judge, self._followed = game, judge, followed
        self._games_max = max(1, CHILD_BYTES_MAX // (8 * game.words * OPTIONS_GUESS))

    def choose(self, states: States, seeds: Seeds) -> ActionArray:
        part = self._games_max
        chosen = [
            self._choose(states[start : start + part], seeds[start : start + part])
            for start in range(0, len(states), part)
        ]
        return np.concatenate(chosen)

    def _choose(self, states: States, seeds: Seeds) -> ActionArray:
        legal, children, values = self._judge_children(states)
        parents = np.repeat(np.arange(len(states)), legal.counts)
        seats = self._game.to_move(states)[parents]
        places = np.arange(len(parents)) - legal.offsets[parents]
        scores = values[np.arange(len(parents)), seats]
        tie_break = TIE_BREAK * (derived(seeds[parents], places) / 2.0**63)
        scores = scores + tie_break
        left = np.arange(len(scores))
        for turn, keep in enumerate(self._followed):
            left = left[_highest(scores[left], parents[left], keep)]
            movers = self._game.to_move(children[left]) if turn else seats[left]
            children[left], values[left] = self._follow(children[left], values[left], movers)
            scores[left] = values[left, seats[left]] + tie_break[left]
        dropped = np.ones(len(scores), dtype=bool)
        dropped[left] = False
        scores[dropped] = OUT_OF_QUESTION
        return legal.actions[_best(scores, legal.offsets)]

    def _follow(self, states: States, values: Values, seats: Indices) -> tuple[States, Values]:
        """Play on by each seat's best decisions until its turn is over, at once where it is over already."""
        states, values = states.copy(), values.copy()
        for _ in range(TURN_DECISIONS_MAX):
            same_turn = (self._game.to_move(states) == seats) & ~self._game.terminal(states)
            rows = np.flatnonzero(same_turn)
            if not rows.size:
                break
            for start in range(0, rows.size, self._games_max):
                part = rows[start : start + self._games_max]
                legal, children, judged = self._judge_children(states[part])
                own = judged[np.arange(len(children)), np.repeat(seats[part], legal.counts)]
                best = _best(own, legal.offsets)
                states[part], values[part] = children[best], judged[best]
        return states, values

    def _judge_children(self, states: States) -> tuple[LegalActions, States, Values]:
        """Every position that one action leads to, and its value; the result where the game is over."""
        legal = self._game.legal(states)
        children = np.repeat(states, legal.counts, axis=0)
        self._game.apply(children, legal.actions, trusted=True)
        values = self._judge(children)
        over = self._game.terminal(children)
        if over.any():
            values[over] = self._game.results(children[over])
        return legal, children, values


def _best(scores: Values, offsets: Indices) -> Indices:
    """Index of the highest score of each game, the first among equals."""
    counts = np.diff(offsets)
    highest = np.repeat(np.maximum.reduceat(scores, offsets[:-1]), counts)
    first = np.where(scores == highest, np.arange(len(scores)), len(scores))
    return np.minimum.reduceat(first, offsets[:-1])


def _highest(scores: Values, games: Indices, count: int) -> Indices:
    """Indices of the *count* highest scores of each game; *games* says whose score each is, in order."""
    order = np.lexsort((-scores, games))
    rank = np.arange(len(scores)) - np.searchsorted(games, games)
    return np.sort(order[rank < count])


# The heuristic player of RingRift.


# Actions that are followed to the end of the turn, and on through the next one.
FOLLOWED = (16, 5)


class HeuristicPlayer:
    """Plays the action with the best value after this turn and the next, or if *quick* after the action."""

    def __init__(
        self, game: RingRiftGame, *, quick: bool = False, weights: Weights | None = None, name: str = ""
    ) -> None:
        self.name = name or ("heuristic:quick" if quick else "heuristic")
        self._game = game
        self._table = make_table(game.board)
        self.quick, self.weights = quick, weights or Weights()
        self._weights = self.weights.array()
        self._search = LookAhead(game, self.judge, followed=() if quick else FOLLOWED)

    def choose(self, states: States, seeds: Seeds) -> ActionArray:
        return self._search.choose(states, seeds)

    def judge(self, states: States) -> Values:
        """The value of each position for each seat, of games that are not over."""
        check_batch(self._game, states)
        values = np.empty((len(states), self._game.players))
        judge_batch(states, self._table, self._weights, values)
        return values
