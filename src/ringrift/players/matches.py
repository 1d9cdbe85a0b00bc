"""Matches: every opening is played once per rotation of the seats, many games at a time.

Openings are counted in their order, whichever game ends first: a match that stops early would otherwise
favor whoever wins quickly. What is played follows from the seed alone, not from the size of the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringrift.errors import ConfigError, IllegalAction
from ringrift.games.contract import ActionArray, Game, State, States
from ringrift.players.contract import Player, Seeds, derived, picked
from ringrift.statistics.match_evidence import PAIR_OUTCOMES
from ringrift.statistics.ratings import wilson_interval

# Counting what a match has shown: wins and intervals for the first entrant, game by game and per opening.


@dataclass(frozen=True, slots=True)
class GameRecord:
    """One finished game. *seats* holds the entrant in each seat; *opening_plies* of the moves were given."""

    opening: int
    rotation: int
    seed: int
    seats: tuple[int, ...]
    opening_plies: int
    moves: tuple[int, ...]
    results: tuple[float, ...]
    ranking: tuple[int, ...]

    def result_of(self, entrant: int) -> float:
        """Mean result over the seats of *entrant*."""
        own = [result for seat, result in zip(self.seats, self.results, strict=True) if seat == entrant]
        return sum(own) / len(own)


@dataclass(slots=True)
class Tally:
    """Results of entrant 0, counted opening by opening.

    A game counts as a win if its result lies above 0, the mean of all seats: with four players that is
    first or second place. *first_places* counts outright wins. *places* counts first, second, … place; of
    places that several share, the seats take turns in getting the better one.
    """

    wins: int = 0
    draws: int = 0
    losses: int = 0
    first_places: int = 0
    pairs: list[int] = field(default_factory=lambda: [0] * PAIR_OUTCOMES)
    places: list[int] = field(default_factory=list)

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float:
        """Share of the points; ½ before the first game."""
        return (self.wins + self.draws / 2) / self.games if self.games else 0.5

    @property
    def outcomes(self) -> list[int]:
        """Losses, draws, wins."""
        return [self.losses, self.draws, self.wins]

    @property
    def sprt_counts(self) -> list[int]:
        """Pairs where games come in pairs, else single games."""
        return self.pairs if sum(self.pairs) else self.outcomes

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the score."""
        return wilson_interval(self.score, self.games)

    def add_opening(self, records: Sequence[GameRecord]) -> None:
        """Count all games of one opening."""
        points = 0
        for record in records:
            result = record.result_of(0)
            self.wins += result > 0
            self.draws += result == 0
            self.losses += result < 0
            self.first_places += record.ranking[record.seats.index(0)] == 1
            self._count_place(record)
            points += 1 + (result > 0) - (result < 0)
        if len(records) == 2:
            self.pairs[points] += 1

    def _count_place(self, record: GameRecord) -> None:
        if not self.places:
            self.places = [0] * len(record.seats)
        rank = record.ranking[record.seats.index(0)]
        shared = record.ranking.count(rank)
        # A game that was cut off has no ranks; all its seats are equal.
        self.places[max(rank, 1) - 1 + (record.opening + record.rotation) % shared] += 1


OPENING, DECISIONS = 0, 1  # streams of an opening's seed


@dataclass(frozen=True, slots=True)
class MatchConfig:
    """How much is played. *opening_plies* random actions give deterministic players different games."""

    openings: int
    seed: int
    opening_plies: int = 4
    batch: int = 64

    def __post_init__(self) -> None:
        for name, least in (("openings", 1), ("seed", 0), ("opening_plies", 0), ("batch", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"match: {name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class MatchResult:
    """All games of the openings that count, and their tally."""

    entrants: tuple[str, ...]
    records: tuple[GameRecord, ...]
    tally: Tally
    stopped_early: bool


def seat_entrants(entrants: int, players: int) -> tuple[int, ...]:
    """Who sits where before rotation: one entrant per seat, or the first against copies of the second."""
    if entrants == players:
        return tuple(range(players))
    if entrants == 2:
        return (0, *(1,) * (players - 1))
    raise ConfigError(f"{players} seats need {players} entrants, or two, not {entrants}")


def rotated(seats: tuple[int, ...], rotation: int) -> tuple[int, ...]:
    """The same entrants, each *rotation* seats on."""
    return seats[-rotation:] + seats[:-rotation] if rotation else seats


def play_match(
    game: Game,
    entrants: Sequence[Player],
    config: MatchConfig,
    *,
    stop: Callable[[Tally], bool] | None = None,
    watch: Callable[[Sequence[GameRecord]], None] | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> MatchResult:
    """Play until the openings are used up or *stop* says so; *watch* is told each opening's games.

    *interrupted* is asked between two decisions; the openings that are over by then are still handed over.
    """
    tally = Tally()
    records: list[GameRecord] = []
    stopped = False
    for group in played_openings(game, entrants, config, interrupted=interrupted):
        tally.add_opening(group)
        records += group
        if watch is not None:
            watch(group)
        stopped = stop is not None and stop(tally)
        if stopped:
            break
    names = tuple(player.name for player in entrants)
    stopped = stopped or len(records) < config.openings * game.players
    return MatchResult(entrants=names, records=tuple(records), tally=tally, stopped_early=stopped)


def played_openings(
    game: Game,
    entrants: Sequence[Player],
    config: MatchConfig,
    *,
    interrupted: Callable[[], bool] | None = None,
) -> Iterator[tuple[GameRecord, ...]]:
    """The games of each opening, in the openings' order; after an interruption also those beyond a gap."""
    waiting: dict[int, tuple[GameRecord, ...]] = {}
    wanted = 0
    for group in finished_openings(game, entrants, config, interrupted=interrupted):
        waiting[group[0].opening] = group
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted += 1
    yield from (waiting[opening] for opening in sorted(waiting))


def finished_openings(
    game: Game,
    entrants: Sequence[Player],
    config: MatchConfig,
    *,
    skip: Collection[int] = (),
    begin: Callable[[int], bool] | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Iterator[tuple[GameRecord, ...]]:
    """The games of each opening as soon as all of them are over; the next begin in their place.

    Openings in *skip* are left out. *begin* is asked before each; once it says no, those under way are
    played to their end and no other begins. *interrupted* is asked between two decisions and ends it there.
    """
    table = _Table(game, entrants, config, skip=skip, begin=begin)
    finished: dict[int, list[GameRecord]] = {}
    while not (interrupted is not None and interrupted()):
        ended = table.play_once()
        if ended is None:
            return
        for record in ended:
            finished.setdefault(record.opening, []).append(record)
            if len(finished[record.opening]) == game.players:
                group = finished.pop(record.opening)
                yield tuple(sorted(group, key=lambda each: each.rotation))


def opening_position(game: Game, seed: int, plies: int) -> tuple[State, tuple[int, ...]]:
    """A position after *plies* random actions, fewer if the game would be over by then."""
    states, moves = game.new_states(1), []
    for ply in range(plies):
        legal = game.legal(states)
        action = legal.actions[picked(derived(seed, ply), legal.counts)]
        after = states.copy()
        game.apply(after, action, trusted=True)
        if game.terminal(after)[0]:
            break
        states = after
        moves.append(int(action[0]))
    return states[0], tuple(moves)


@dataclass(slots=True)
class _Running:
    """A game under way; its state lies in the table's row of the same number."""

    opening: int
    rotation: int
    seed: int
    seats: tuple[int, ...]
    opening_moves: tuple[int, ...]
    moves: list[int] = field(default_factory=list)


class _Table:
    """Up to a batch of games, all moved on by one decision at a time; free places are refilled."""

    def __init__(
        self,
        game: Game,
        entrants: Sequence[Player],
        config: MatchConfig,
        *,
        skip: Collection[int],
        begin: Callable[[int], bool] | None,
    ) -> None:
        self._game, self._entrants, self._config, self._begin = game, entrants, config, begin
        self._seats = seat_entrants(len(entrants), game.players)
        self._states: States = game.new_states(0)
        self._running: list[_Running] = []
        self._openings: Iterator[int] = (each for each in range(config.openings) if each not in skip)
        self._waiting: deque[tuple[_Running, State]] = deque()  # games of an opening that has begun

    def play_once(self) -> list[GameRecord] | None:
        """One decision in every game; returns the games that it ended, None when all were over before."""
        self._fill()
        if not self._running:
            return None
        chosen = self._choose()
        self._game.apply(self._states, chosen)
        for game, action in zip(self._running, chosen, strict=True):
            game.moves.append(int(action))
        over = self._game.terminal(self._states)
        if not over.any():
            return []
        records = self._records(np.flatnonzero(over))
        self._states = self._states[~over]
        self._running = [game for game, ended in zip(self._running, over, strict=True) if not ended]
        return records

    def _fill(self) -> None:
        fresh: list[State] = []
        while len(self._running) < self._config.batch and (self._waiting or self._begin_opening()):
            running, state = self._waiting.popleft()
            self._running.append(running)
            fresh.append(state)
        if fresh:
            self._states = np.ascontiguousarray(np.concatenate([self._states, np.stack(fresh)]))

    def _begin_opening(self) -> bool:
        """Make the games of the next opening ready; false if no other begins."""
        opening = next(self._openings, None)
        if opening is None:
            return False
        if self._begin is not None and not self._begin(opening):
            self._openings = iter(())
            return False
        seed = int(derived(self._config.seed, opening)[0])
        state, moves = opening_position(
            self._game, int(derived(seed, OPENING)[0]), self._config.opening_plies
        )
        for rotation in range(self._game.players):
            seats = rotated(self._seats, rotation)
            self._waiting.append((_Running(opening, rotation, seed, seats, moves), state))
        return True

    def _choose(self) -> ActionArray:
        seats = self._game.to_move(self._states)
        movers = np.array([game.seats[seat] for game, seat in zip(self._running, seats, strict=True)])
        chosen = np.empty(len(self._running), dtype=np.int32)
        seeds = self._seeds()
        for entrant, player in enumerate(self._entrants):
            mine = np.flatnonzero(movers == entrant)
            if not mine.size:
                continue
            actions = player.choose(self._states[mine], seeds[mine])
            if actions.shape != mine.shape:
                raise IllegalAction(player.name, why=f"{actions.shape} actions for {mine.size} games")
            chosen[mine] = actions
        return chosen

    def _seeds(self) -> Seeds:
        games = np.array([game.seed for game in self._running], dtype=np.int64)
        plies = np.array([len(game.moves) for game in self._running], dtype=np.int64)
        return derived(derived(games, DECISIONS), plies)

    def _records(self, ended: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[GameRecord]:
        results, rankings = self._game.results(self._states[ended]), self._game.rankings(self._states[ended])
        records = []
        for at, (result, ranking) in zip(ended, zip(results, rankings, strict=True), strict=True):
            game = self._running[at]
            records.append(
                GameRecord(
                    opening=game.opening,
                    rotation=game.rotation,
                    seed=game.seed,
                    seats=game.seats,
                    opening_plies=len(game.opening_moves),
                    moves=(*game.opening_moves, *game.moves),
                    results=tuple(float(value) for value in result),
                    ranking=tuple(int(rank) for rank in ranking),
                )
            )
        return records
