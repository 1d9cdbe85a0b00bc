"""Matches: every opening is played once per rotation of the seats, many games at a time.

Openings are counted in their order, whichever game ends first: a match that stops early would otherwise
favour whoever wins quickly. What is played follows from the seed alone, not from the size of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringrift.errors import ConfigError, IllegalAction
from ringrift.games.contract import ActionArray, Game, State, States
from ringrift.players.contract import Player, Seeds
from ringrift.players.seeds import derived, picked
from ringrift.players.tally import GameRecord, Tally

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
    """The games of each opening, in the openings' order."""
    table = _Table(game, entrants, config)
    finished: dict[int, list[GameRecord]] = {}
    wanted = 0
    while wanted < config.openings:
        if interrupted is not None and interrupted():
            whole = (opening for opening in sorted(finished) if len(finished[opening]) == game.players)
            yield from (_by_rotation(finished[opening]) for opening in whole)
            return
        for record in table.play_once():
            finished.setdefault(record.opening, []).append(record)
        while len(finished.get(wanted, ())) == game.players:
            yield _by_rotation(finished.pop(wanted))
            wanted += 1


def _by_rotation(group: Sequence[GameRecord]) -> tuple[GameRecord, ...]:
    return tuple(sorted(group, key=lambda record: record.rotation))


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

    def __init__(self, game: Game, entrants: Sequence[Player], config: MatchConfig) -> None:
        self._game, self._entrants, self._config = game, entrants, config
        self._seats = seat_entrants(len(entrants), game.players)
        self._states: States = game.new_states(0)
        self._running: list[_Running] = []
        self._next_game = 0
        self._opening: tuple[int, State, tuple[int, ...]] | None = None

    def play_once(self) -> list[GameRecord]:
        """One decision in every game; returns the games that it ended."""
        self._fill()
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
        total = self._config.openings * self._game.players
        fresh: list[State] = []
        while len(self._running) < self._config.batch and self._next_game < total:
            opening, rotation = divmod(self._next_game, self._game.players)
            self._next_game += 1
            seed = int(derived(self._config.seed, opening)[0])
            if self._opening is None or self._opening[0] != opening:
                stream = int(derived(seed, OPENING)[0])
                position = opening_position(self._game, stream, self._config.opening_plies)
                self._opening = (opening, *position)
            _, state, moves = self._opening
            seats = rotated(self._seats, rotation)
            self._running.append(_Running(opening, rotation, seed, seats, moves))
            fresh.append(state)
        if fresh:
            self._states = np.ascontiguousarray(np.concatenate([self._states, np.stack(fresh)]))

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
