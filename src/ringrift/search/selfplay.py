"""Playing whole games by search, many at once, without losing any when asked to stop.

Each slot plays its game at its own pace: when a game ends, the next seed takes its slot. A game depends on
its seed and on nothing else, so a game that was exported when the loop stopped and imported into another
one ends the same way (unless trees are reused between moves: a tree is not exported).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.search.batch import BatchSearch
from ringrift.search.contract import (
    SIMULATIONS_MAX,
    Evaluator,
    Interrupted,
    Numbers,
    SearchConfig,
    SearchResult,
)
from ringrift.search.records import FinishedGame, Flags, GameInProgress, MoveRecord, finish

# How temperature and search budget change over a game.


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
NEVER_PLY, OPENING_PLY = (1 << 62) - 1, (1 << 62) - 2  # no game has such a ply
OPENING_TEMPERATURE = 10.0
CAP_STREAM = np.uint64(0xD1B54A32D192ED03)  # keeps these draws apart from those of the search


@dataclass(frozen=True, kw_only=True, slots=True)
class TemperatureSchedule:
    """Full temperature for some plies, then halved again and again down to a floor."""

    start: float = 1.0
    plies: int = 30
    half_life_plies: float = 10.0
    floor: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= self.start or self.plies < 0 or self.half_life_plies <= 0:
            raise ConfigError(
                f"temperature: needs 0 <= floor <= start, plies >= 0, half life > 0; got {self}"
            )

    def at(self, plies: Numbers) -> npt.NDArray[np.float64]:
        late = np.maximum(plies - self.plies, 0)
        fallen: npt.NDArray[np.float64] = self.start * 0.5 ** (late / self.half_life_plies)
        return np.maximum(fallen, self.floor)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayoutCaps:
    """Most moves get a quick search, some a full one; only full ones teach the policy.

    Quick moves play on with the same temperature but without noise on the root's policy. Which move is
    which depends on the game's seed and the ply.
    """

    quick_simulations: int
    full_share: float = 0.25

    def __post_init__(self) -> None:
        if not 1 <= self.quick_simulations <= SIMULATIONS_MAX or not 0 < self.full_share <= 1:
            raise ConfigError(
                f"playout caps: quick simulations from 1 up and a full share in (0, 1], not {self}"
            )

    def full(self, seeds: Numbers, plies: Numbers) -> npt.NDArray[np.bool_]:
        """Which moves get the full search."""
        return np.less(_unit_draws(seeds, plies), self.full_share)


@dataclass(frozen=True, kw_only=True, slots=True)
class Openings:
    """Some games begin with moves drawn at random, so that positions off the best line are learned too.

    Such a move is drawn from the network's policy at a high temperature, without a search, and teaches
    nothing. How many there are in a game depends on its seed.
    """

    plies_max: int
    share: float = 0.5  # of the games

    def __post_init__(self) -> None:
        if self.plies_max < 1 or not 0 < self.share <= 1:
            raise ConfigError(f"openings: at least one ply and a share in (0, 1], not {self}")

    def plies(self, seeds: Numbers) -> Numbers:
        """The random moves at the beginning of each game: from 1 to the most, or none."""
        drawn = _unit_draws(seeds, np.full(len(seeds), OPENING_PLY)) / self.share
        plies: Numbers = np.where(drawn < 1, 1 + np.floor(drawn * self.plies_max), 0).astype(np.int64)
        return plies


@dataclass(frozen=True, kw_only=True, slots=True)
class Resignation:
    """A player gives up when its root value stays below a threshold; for two players only."""

    below: float = -0.95
    moves: int = 3  # own moves in a row
    never_share: float = 0.1  # games played to the end all the same, to see how often giving up was wrong

    def __post_init__(self) -> None:
        if not -1 <= self.below < 0 or self.moves < 1 or not 0 <= self.never_share <= 1:
            raise ConfigError(f"resignation: below in [-1, 0), moves from 1, a share in [0, 1]; got {self}")

    def allowed(self, seed: int) -> bool:
        """Whether players of the game with *seed* may give up."""
        return bool(_unit_draws(np.array([seed]), np.array([NEVER_PLY]))[0] >= self.never_share)

    def gives_up(self, values: Sequence[float]) -> bool:
        """Whether a player with these root values at its own moves, oldest first, gives up now."""
        last = values[-self.moves :]
        return len(last) == self.moves and max(last) < self.below


def _unit_draws(seeds: Numbers, plies: Numbers) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each seed and ply."""
    word = seeds.astype(np.uint64) * GOLDEN + (plies.astype(np.uint64) + np.uint64(1)) * CAP_STREAM
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    draws: npt.NDArray[np.float64] = (word ^ (word >> np.uint64(31))) / 2.0**64
    return draws


class MoveBudgets(NamedTuple):
    """How the next moves of some games are searched."""

    full: Flags  # whose policies are targets of training
    simulations: Numbers
    temperatures: npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfplayConfig:
    """How to play."""

    search: SearchConfig = field(default_factory=SearchConfig)
    slots: int = 64
    temperature: TemperatureSchedule = field(default_factory=TemperatureSchedule)
    playout_caps: PlayoutCaps | None = None
    openings: Openings | None = None
    resignation: Resignation | None = None
    moves_max: int = 100_000  # a game is cut off there, without a result

    def __post_init__(self) -> None:
        if self.slots < 1 or self.moves_max < 1:
            raise ConfigError(f"selfplay: slots and moves_max must be at least 1, not {self}")

    def budgets(self, seeds: Numbers, plies: Numbers) -> MoveBudgets:
        """How moves are searched, which follows from the game's seed and the number of the move alone."""
        full = np.ones(len(seeds), dtype=bool)
        simulations = np.full(len(seeds), self.search.simulations, dtype=np.int64)
        temperatures = self.temperature.at(plies)
        if self.playout_caps is not None:
            full = self.playout_caps.full(seeds, plies)
            simulations[~full] = self.playout_caps.quick_simulations
        if self.openings is not None:
            opening = plies < self.openings.plies(seeds)
            full &= ~opening
            simulations[opening], temperatures[opening] = 1, OPENING_TEMPERATURE
        return MoveBudgets(full, simulations, temperatures)


class Selfplay:
    """The loop over games. Iterate to play; in between or after a stop, take the unfinished games along."""

    def __init__(
        self,
        game: Game,
        evaluator: Evaluator,
        config: SelfplayConfig,
        seeds: Iterable[int],
        *,
        resume: Sequence[GameInProgress] = (),
        stop: Callable[[], bool] = lambda: False,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        if config.resignation is not None and game.players != 2:
            raise ConfigError(f"{game.key}: giving up is defined for two players only")
        self.game, self.config = game, config
        self.simulations, self.moves = 0, 0
        self._evaluator = evaluator
        self._search = self._new_search()
        self._seeds, self._stop, self._enough = iter(seeds), stop, enough
        self._waiting = deque(resume)
        self._running: dict[int, GameInProgress] = {}
        self._finished: deque[FinishedGame] = deque()

    def in_progress(self) -> list[GameInProgress]:
        """Games begun and not finished, ready to be resumed; the move being searched is searched again."""
        return [*self._running.values(), *self._waiting]

    def take_finished(self) -> list[FinishedGame]:
        """Games that ended but were not handed over, because somebody left the loop early."""
        left, self._finished = list(self._finished), deque()
        return left

    def __iter__(self) -> Iterator[FinishedGame]:
        """Play until there are no more seeds, or until told to stop, which is asked between simulations.

        Once it is *enough*, no game begins another move, and the loop ends when those under way are made. An
        evaluator that raises `Interrupted` ends it at once: the moves under way are searched again. Finished
        games are handed over before the loop ends; iterating again goes on where it ended.
        """
        try:
            if not self._running:
                self._fill(np.arange(self.config.slots))
            while True:
                while self._finished:
                    yield self._finished.popleft()
                if not self._running or self._stop():
                    return
                done = self._search.wave()
                if len(done):
                    self._make_moves(done)
        except Interrupted:
            self._drop_search()
        while self._finished:
            yield self._finished.popleft()

    def _new_search(self) -> BatchSearch:
        return BatchSearch(self.game, self._evaluator, self.config.search, slots=self.config.slots)

    def _drop_search(self) -> None:
        """Let all games wait where they stand; their trees are in the middle of a change."""
        self._waiting.extendleft(reversed(self._running.values()))
        self._running.clear()
        self._search = self._new_search()

    def _fill(self, slots: Numbers) -> None:
        """Give empty slots the next games and begin to search them."""
        filled: list[int] = []
        for slot in slots.tolist():
            if not self._waiting and (seed := next(self._seeds, None)) is not None:
                self._waiting.append(GameInProgress(int(seed), self.game.new_states(1)[0]))
            if not self._waiting:
                break
            self._running[slot] = self._waiting.popleft()
            filled.append(slot)
        if filled:
            games = [self._running[slot] for slot in filled]
            self._search.restart(
                np.array(filled),
                np.stack([game.state for game in games]),
                np.array([game.seed for game in games]),
                np.array([len(game.moves) for game in games]),
            )
            self._begin(np.array(filled))

    def _begin(self, slots: Numbers) -> None:
        games = [self._running[slot] for slot in slots.tolist()]
        budgets = self._budgets(games)
        self._search.begin(
            slots,
            simulations=budgets.simulations,
            temperatures=budgets.temperatures,
            explore=budgets.full,
        )

    def _budgets(self, games: list[GameInProgress]) -> MoveBudgets:
        """How the next moves of *games* are searched."""
        seeds, plies = [game.seed for game in games], [len(game.moves) for game in games]
        return self.config.budgets(np.array(seeds, dtype=np.int64), np.array(plies, dtype=np.int64))

    def _make_moves(self, slots: Numbers) -> None:
        """Play what the searches of *slots* chose, close the games that are over, and search on."""
        found, movers = self._search.results(slots), self.game.to_move(self._search.states(slots))
        games = [self._running[slot] for slot in slots.tolist()]
        full = self._budgets(games).full
        self._search.advance(slots, found.actions)
        states = self._search.states(slots)
        over = self.game.terminal(states)
        ended = np.zeros(len(slots), dtype=bool)
        for at, game in enumerate(games):
            game.moves.append(_record(found, at, int(movers[at]), full=bool(full[at])))
            game.state = states[at]
            loser = None if over[at] else self._resigning(game, int(movers[at]))
            if over[at] or loser is not None or len(game.moves) >= self.config.moves_max:
                ended[at] = True
                del self._running[int(slots[at])]
                self._finished.append(finish(self.game, game, resigned_by=loser))
        self.moves += len(slots)
        self.simulations += int(found.simulations.sum())
        if self._enough():
            self._waiting.extend(self._running.pop(slot) for slot in slots[~ended].tolist())
            return
        if not ended.all():
            self._begin(slots[~ended])
        self._fill(slots[ended])

    def _resigning(self, game: GameInProgress, seat: int) -> int | None:
        """The seat that gives up after its move, if it does."""
        rule = self.config.resignation
        if rule is None or not rule.allowed(game.seed):
            return None
        own = [float(move.root_values[seat]) for move in game.moves if move.seat == seat]
        return seat if rule.gives_up(own) else None


def play_games(
    game: Game,
    evaluator: Evaluator,
    config: SelfplayConfig,
    seeds: Iterable[int],
    on_game_finished: Callable[[FinishedGame], None] | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_stop: Callable[[list[GameInProgress]], None] | None = None,
    resume: Sequence[GameInProgress] = (),
) -> Iterator[FinishedGame]:
    """Play one game per seed and yield them as they end.

    However the caller leaves the loop, every finished game has gone to *on_game_finished* and every
    unfinished one to *on_stop*.
    """
    selfplay = Selfplay(game, evaluator, config, seeds, resume=resume, stop=stop)
    try:
        for finished in selfplay:
            if on_game_finished is not None:
                on_game_finished(finished)
            yield finished
    finally:
        if on_game_finished is not None:
            for finished in selfplay.take_finished():
                on_game_finished(finished)
        if on_stop is not None:
            on_stop(selfplay.in_progress())


def _record(found: SearchResult, at: int, seat: int, *, full: bool) -> MoveRecord:
    here = slice(found.legal.offsets[at], found.legal.offsets[at + 1])
    return MoveRecord(
        seat=seat,
        action=int(found.actions[at]),
        legal=found.legal.actions[here],
        policy=found.policy[here],
        root_values=found.root_values[at],
        simulations=int(found.simulations[at]),
        full=full,
        surprise=float(found.surprise[at]),
    )
