"""Checking games: what a replay by the rules finds, bad policies, games that are there twice; and how much
a game is worth as teaching material.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from math import inf, log
from statistics import fmean
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import ActionArray, Game, LegalActions, States, ragged_index
from ringrift.jobs.files import scratch_database
from ringrift.jobs.shards.records import RESIGNATION, Floats, SoftPolicies, StoredGame
from ringrift.jobs.shards.storage import MOVE_BYTES, BrokenGame

# Replaying recorded games by the rules, many at a time, with the first fault of each.


Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a game is refused; *move* counts from 0."""

    reason: str  # one of `docs/formats.md`
    detail: str
    move: int | None = None


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """The positions before one move of every game that has such a move."""

    move: int
    rows: Numbers  # which of the replayed games
    states: States
    legal: LegalActions
    actions: ActionArray  # the recorded move of each


class RecordedMoves:
    """What was recorded of the moves of some games, as columns: one game after the other."""

    def __init__(self, games: Sequence[StoredGame]) -> None:
        lengths = np.array([0, *(len(each.game.actions) for each in games)], dtype=np.int64)
        self._starts = np.cumsum(lengths)[:-1]
        self.players = np.concatenate([each.moves.players for each in games])
        self.phases = [phase for each in games for phase in each.moves.phases]
        self.types = [kind for each in games for kind in each.moves.types]
        self.root_values = np.concatenate([each.game.root_values for each in games])
        self.surprise = np.concatenate([_surprise_of(each) for each in games])
        self.policies = SoftPolicies.joined([each.game.policies for each in games])
        self.named = np.diff(self.policies.offsets)  # actions in each policy

    def places(self, rows: Numbers, moves: Numbers | int) -> Numbers:
        """Where *moves* of the games *rows* lie in the columns."""
        places: Numbers = self._starts[rows] + moves
        return places

    def names_all(self, places: Numbers, legal: LegalActions) -> npt.NDArray[np.bool_]:
        """Which of the policies at *places* name exactly the *legal* actions, in the same order."""
        counts = self.named[places]
        alike: npt.NDArray[np.bool_] = counts == legal.counts
        rows = np.flatnonzero(alike)
        named, _ = ragged_index(self.policies.offsets, places[rows])
        allowed, _ = ragged_index(legal.offsets, rows)
        differ = self.policies.actions[named] != legal.actions[allowed]
        alike[np.repeat(rows, counts[rows])[differ]] = False
        return alike


def _surprise_of(stored: StoredGame) -> npt.NDArray[np.float32]:
    known = stored.game.surprise
    return np.full(len(stored.game.actions), np.nan, dtype=np.float32) if known is None else known


class BatchReplay:
    """Walks some games move by move; a game with a fault leaves the walk."""

    def __init__(self, game: Game, recorded: Sequence[ActionArray]) -> None:
        self._game = game
        self._lengths = np.array([len(actions) for actions in recorded], dtype=np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._actions = np.concatenate([np.empty(0, np.int32), *recorded])
        self._going_on = np.ones(len(recorded), dtype=bool)
        self.finals: States = game.new_states(len(recorded))
        self.faults: dict[int, Fault] = {}

    def steps(self) -> Iterator[ReplayStep]:
        """Each step in turn; afterwards `faults` is complete and `finals` holds the last positions."""
        for move in range(int(self._lengths.max(initial=0))):
            rows = np.flatnonzero(self._going_on & (self._lengths > move))
            if not rows.size:
                break
            step = self._step(move, rows)
            if step is not None:
                yield step
                self._advance(step)
        self._find_unfinished()

    def refuse(self, row: int, fault: Fault) -> None:
        """Take a game out of the walk; of several faults that of the earliest move stays."""
        before = self.faults.get(int(row))
        if before is None or _move_of(fault) < _move_of(before):
            self.faults[int(row)] = fault
        self._going_on[row] = False

    def _step(self, move: int, rows: Numbers) -> ReplayStep | None:
        """The step without the games whose move is against the rules."""
        states = self.finals[rows]
        actions = self._actions[self._starts[rows] + move]
        legal = self._game.legal(states)
        fine = is_legal(legal, actions)
        if not fine.all():
            over = self._game.terminal(states)
            for at in np.flatnonzero(~fine):
                reason = "moves_after_end" if over[at] else "illegal_move"
                problem = "the game was over before" if over[at] else f"action {actions[at]} is not legal"
                self.refuse(rows[at], Fault(reason, problem, move))
            if not fine.any():
                return None
            rows, states, actions = rows[fine], states[fine], actions[fine]
            legal = self._game.legal(states)
        return ReplayStep(move, rows, states, legal, actions)

    def _advance(self, step: ReplayStep) -> None:
        after = step.states.copy()
        self._game.apply(after, step.actions, trusted=True)
        self.finals[step.rows] = after

    def _find_unfinished(self) -> None:
        if not len(self._lengths):
            return
        for row in np.flatnonzero(~self._game.terminal(self.finals)):
            problem = f"the game is not over after its {self._lengths[row]} moves"
            self.refuse(int(row), Fault("unfinished", problem))


def _move_of(fault: Fault) -> float:
    """When it is found; what is wrong with a game as a whole comes after all of its moves."""
    return inf if fault.move is None else fault.move


def joined_steps(steps: Sequence[ReplayStep]) -> tuple[Numbers, Numbers, States, LegalActions]:
    """The rows, moves, positions and legal actions of several steps, one after the other."""
    counts = np.concatenate([np.zeros(1, np.int64), *(step.legal.counts for step in steps)])
    return (
        np.concatenate([step.rows for step in steps]),
        np.repeat([step.move for step in steps], [len(step.rows) for step in steps]),
        np.concatenate([step.states for step in steps]),
        LegalActions(np.cumsum(counts), np.concatenate([step.legal.actions for step in steps])),
    )


def is_legal(legal: LegalActions, actions: ActionArray) -> npt.NDArray[np.bool_]:
    """Whether each game's action is among its legal ones."""
    games = np.repeat(np.arange(len(actions)), legal.counts)
    hits = games[legal.actions == actions[games]]
    return np.bincount(hits, minlength=len(actions)) > 0


# Checking games: what a replay by the rules finds, bad policies, and games that are there twice.


GAMES_AT_ONCE = 256
BYTES_AT_ONCE = 32 << 20
STATES_AT_ONCE = 8 << 20  # bytes of positions that are compared with the record together
RESULT_TOLERANCE = 1e-6
POLICY_SUM_TOLERANCE = 1e-3
ALTERED = "altered"

_SEEN = """
CREATE TABLE seen (game_id TEXT UNIQUE NOT NULL, fingerprint TEXT NOT NULL);
CREATE INDEX by_fingerprint ON seen (fingerprint);
"""
_KNOWN = "SELECT game_id FROM seen WHERE game_id IN ({marks})"
# Of several the first: where there is one minimum, SQLite takes the other columns from its row.
_TWINS = """
SELECT fingerprint, game_id FROM (
  SELECT fingerprint, game_id, min(rowid) FROM seen WHERE fingerprint IN ({marks}) GROUP BY fingerprint
)
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckedGame:
    """A game and the first thing that is wrong with it, if any."""

    game_id: str
    stored: StoredGame | None
    fault: Fault | None


class SeenGames:
    """Ids and contents of the games met so far, over all shards of one run; a context manager."""

    def __init__(self) -> None:
        self._db = scratch_database(_SEEN)

    def __enter__(self) -> SeenGames:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def reasons(self, games: Sequence[tuple[str, str, int]]) -> list[str]:
        """Note games by id, fingerprint and rows; for each why it is there twice, empty if it is not."""
        ids, prints = [game[0] for game in games], [game[1] for game in games]
        known = {row[0] for row in self._db.execute(_KNOWN.format(marks=_marks(ids)), ids)}
        twins = dict(self._db.execute(_TWINS.format(marks=_marks(prints)), prints).fetchall())
        reasons, new = [], []
        for game_id, fingerprint, rows in games:
            twin = twins.get(fingerprint)
            if game_id in known:
                reasons.append("a game of this id was there before")
                continue
            # Without policies, two games of the same moves may well be two games.
            again = twin is not None and rows
            reasons.append(f"the same moves and policies as game {twin}" if again else "")
            known.add(game_id)
            twins.setdefault(fingerprint, game_id)
            new.append((game_id, fingerprint))
        self._db.executemany("INSERT INTO seen VALUES (?, ?)", new)
        return reasons


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def checked_games(
    game: Game, games: Iterable[StoredGame | BrokenGame], *, seen: SeenGames, moves_min: int
) -> Iterator[CheckedGame]:
    """Check every game, in order; holds a bounded number of them at a time."""
    for some in held_together(games, lambda each: each):
        faults = [_record_fault(game, each, moves_min=moves_min) for each in some]
        replayed = [at for at, fault in enumerate(faults) if fault is None or fault.reason == ALTERED]
        stored = [each for each in (some[at] for at in replayed) if isinstance(each, StoredGame)]
        for at, fault in zip(replayed, replay_faults(game, stored), strict=True):
            faults[at] = _joined(faults[at], fault)
        # A game that is refused makes no other a copy of it.
        sound = [(at, each) for at, each in zip(replayed, stored, strict=True) if faults[at] is None]
        noted = seen.reasons([(each.game.game_id, each.fingerprint, each.game.rows) for _, each in sound])
        for (at, _), why in zip(sound, noted, strict=True):
            faults[at] = Fault("duplicate", why) if why else None
        for each, fault in zip(some, faults, strict=True):
            if isinstance(each, BrokenGame):
                yield CheckedGame(each.game_id, None, fault)
            else:
                yield CheckedGame(each.game.game_id, each, fault)


def in_groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while group := list(islice(remaining, size)):
        yield group


def held_together(games: Iterable[T], of: Callable[[T], StoredGame | BrokenGame]) -> Iterator[list[T]]:
    """Some games at a time, fewer where they are large."""
    group: list[T] = []
    size = 0
    for each in games:
        group.append(each)
        stored = of(each)
        if isinstance(stored, StoredGame):
            size += stored.game.policies.actions.nbytes + MOVE_BYTES * len(stored.game.actions)
        if len(group) >= GAMES_AT_ONCE or size >= BYTES_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _record_fault(game: Game, found: StoredGame | BrokenGame, *, moves_min: int) -> Fault | None:
    """What is wrong with the rows themselves."""
    if isinstance(found, BrokenGame):
        return Fault("unreadable", found.why)
    played = found.game
    if played.config_key != game.key:
        return Fault("wrong_config", f"a game of {played.config_key}, not of {game.key}")
    if len(played.actions) != found.total_moves:
        return Fault("truncated", f"{len(played.actions)} of {found.total_moves} moves are there")
    if len(played.actions) < moves_min:
        return Fault("too_short", f"{len(played.actions)} moves, fewer than {moves_min}")
    if len(played.seats) != game.players:
        return Fault("wrong_config", f"{len(played.seats)} players, not {game.players}")
    if played.fingerprint() != found.fingerprint:
        return Fault(ALTERED, "moves or policies are not those that the game was written with")
    return None


def _joined(altered: Fault | None, by_rules: Fault | None) -> Fault | None:
    """An altered game stays one, and says where the rules were first broken, if they were."""
    if altered is None or by_rules is None:
        return altered or by_rules
    return Fault(altered.reason, f"{altered.detail}; by the rules: {by_rules.detail}", by_rules.move)


def replay_faults(game: Game, stored: Sequence[StoredGame]) -> list[Fault | None]:
    """Replay games of *game* and compare everything that was recorded."""
    if not stored:
        return []
    replay = BatchReplay(game, [each.game.actions for each in stored])
    recorded = RecordedMoves(stored)
    odd = _odd_probabilities(recorded.policies)
    gathered: list[ReplayStep] = []
    size = 0
    for step in replay.steps():
        gathered.append(step)
        size += step.states.nbytes
        if size >= STATES_AT_ONCE:
            _check_steps(game, replay, gathered, recorded, odd)
            gathered, size = [], 0
    if gathered:
        _check_steps(game, replay, gathered, recorded, odd)
    faults: list[Fault | None] = []
    results, rankings = game.results(replay.finals), game.rankings(replay.finals)
    wrong = ~np.isclose(results, [each.game.results for each in stored], atol=RESULT_TOLERANCE).all(axis=1)
    wrong |= (rankings != [[seat.ranking for seat in each.game.seats] for each in stored]).any(axis=1)
    for row, each in enumerate(stored):
        if each.game.termination == RESIGNATION:
            fault = _resignation_fault(replay, row, each)
        else:
            fault = replay.faults.get(row)
            if fault is None and wrong[row]:
                fault = _end_fault(each, results[row], rankings[row])
        if fault is None and each.winner != each.game.winner:
            fault = Fault("wrong_result", f"winner {each.winner}, by the ranks {each.game.winner}")
        faults.append(fault)
    return faults


def _end_fault(each: StoredGame, results: Floats, rankings: npt.NDArray[np.int64]) -> Fault | None:
    recorded = [seat.ranking for seat in each.game.seats]
    if not np.allclose(results, each.game.results, atol=RESULT_TOLERANCE):
        problem = f"recorded {each.game.results.tolist()}, by the rules {results.tolist()}"
        return Fault("wrong_result", problem)
    if recorded != rankings.tolist():
        return Fault("wrong_result", f"recorded ranks {recorded}, by the rules {rankings.tolist()}")
    return None


def _resignation_fault(replay: BatchReplay, row: int, each: StoredGame) -> Fault | None:
    """Who gave up is believed; that the game was still running is not."""
    fault = replay.faults.get(row)
    if fault is None:
        return Fault("wrong_result", "recorded as given up, but the game was over")
    if fault.reason != "unfinished":
        return fault
    if sorted(each.game.results.tolist()) != [-1.0, 1.0]:
        return Fault("wrong_result", f"a game given up cannot end {each.game.results.tolist()}")
    return None


def _odd_probabilities(policies: SoftPolicies) -> npt.NDArray[np.bool_]:
    """Which moves have a policy that is no distribution, whatever the actions are."""
    odd = np.zeros(len(policies.offsets) - 1, dtype=bool)
    searched = policies.searched
    starts = policies.offsets[:-1][searched]
    if starts.size:
        with np.errstate(invalid="ignore"):
            totals = np.add.reduceat(policies.probabilities.astype(np.float64), starts)
        least = np.minimum.reduceat(policies.probabilities, starts)
        odd[searched] = ~(np.abs(totals - 1) <= POLICY_SUM_TOLERANCE) | ~(least >= 0)
    return odd


def _check_steps(
    game: Game,
    replay: BatchReplay,
    steps: Sequence[ReplayStep],
    recorded: RecordedMoves,
    odd: npt.NDArray[np.bool_],
) -> None:
    """Refuse the games whose record of these moves is not what the rules say."""
    rows, moves, states, legal = joined_steps(steps)
    places = recorded.places(rows, moves)
    policies = recorded.policies
    doubtful = (recorded.named[places] > 0) & ~recorded.names_all(places, legal)
    movers, players = game.to_move(states) + 1, recorded.players[places]
    for at in np.flatnonzero(players != movers).tolist():
        problem = f"player {players[at]} is recorded, player {movers[at]} is on turn"
        replay.refuse(rows[at], Fault("wrong_player", problem, int(moves[at])))
    said = [recorded.phases[place] for place in places.tolist()]
    if said.count(None) < len(said):
        phases_of = getattr(game, "phases", None)  # an ability that a game may have
        phases = phases_of(states) if phases_of is not None else [None] * len(said)
        for at, (claimed, phase) in enumerate(zip(said, phases, strict=True)):
            if claimed is not None and claimed != phase:
                problem = f"{claimed} is recorded, {phase} by the rules"
                replay.refuse(rows[at], Fault("wrong_phase", problem, int(moves[at])))
    for at in np.flatnonzero(doubtful | odd[places]).tolist():
        if wrong := policy_problem(*policies.of(int(places[at])), legal.of(at)):
            replay.refuse(rows[at], Fault("bad_policy", wrong, int(moves[at])))


def policy_problem(actions: ActionArray, probabilities: Floats, legal: ActionArray) -> str:
    """What is wrong with a distribution over some of the *legal* actions; empty if nothing."""
    if not np.array_equal(actions, legal):
        if not np.isin(actions, legal).all():
            return "it names an action that is not legal"
        if len(np.unique(actions)) != len(actions):
            return "it names an action twice"
    if not np.isfinite(probabilities).all() or (probabilities < 0).any():
        return "it has a negative or infinite probability"
    total = float(probabilities.sum())
    if abs(total - 1) > POLICY_SUM_TOLERANCE:
        return f"its probabilities sum to {total:.4f}"
    return ""


# How much a game is worth as teaching material: five parts of a score from 0 to 1.
#
# Outcome, length, balance of phases, difference from the other games, and whether the source is known. It
# orders and reports; it decides nothing about what is right, which is the replay's business.


WEIGHTS = {"outcome": 0.25, "length": 0.25, "phases": 0.20, "diversity": 0.15, "source": 0.15}
DECISIVE, DRAWN = 1.0, 0.3
UNKNOWN_PART = 0.7
SOURCE_KNOWN, SOURCE_UNKNOWN = 0.8, 0.5
CATEGORIES = ((0.9, "excellent"), (0.7, "good"), (0.5, "fair"), (0.0, "poor"))
ACTION_TYPE, ACTION_BYTES = ">i4", 4  # big end first, so that bytes sort as the actions do

_TABLES = """
CREATE TABLE games (
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  rows INTEGER NOT NULL,
  moves INTEGER NOT NULL,
  fixed REAL NOT NULL,  -- the parts of the score that need no other game
  actions BLOB NOT NULL,
  shared INTEGER NOT NULL DEFAULT 0  -- first moves that the most similar other game has too
);
CREATE INDEX by_actions ON games (actions);
CREATE INDEX by_moves ON games (moves);
"""


@dataclass(frozen=True, slots=True)
class GameTraits:
    """What the score looks at."""

    decisive: bool
    actions: ActionArray
    kinds: Sequence[str]  # phase or type of each move
    source_known: bool


@dataclass(frozen=True, slots=True)
class ScoredGame:
    """A game and its score."""

    name: str
    rows: int
    quality: float


def quality_category(score: float) -> str:
    return next(name for least, name in CATEGORIES if score >= least)


def phase_balance(kinds: Sequence[str]) -> float:
    """Evenness of the kinds of moves: 1 if all are as frequent; a game of one kind cannot tell."""
    if len(set(kinds)) < 2:
        return UNKNOWN_PART
    counts = Counter(kinds)
    shares = [count / len(kinds) for count in counts.values()]
    return -sum(share * log(share) for share in shares) / log(len(counts))


class QualityScores:
    """Scores games against each other, as many as there are; a context manager."""

    def __init__(self) -> None:
        self._db = scratch_database(_TABLES)
        self._waiting: list[tuple[str, int, int, float, bytes]] = []  # to be stored many at a time

    def __enter__(self) -> QualityScores:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def __len__(self) -> int:
        self._store()
        count: int = self._db.execute("SELECT count(*) FROM games").fetchone()[0]
        return count

    def add(self, name: str, traits: GameTraits, *, rows: int) -> None:
        fixed = {
            "outcome": DECISIVE if traits.decisive else DRAWN,
            "phases": phase_balance(traits.kinds),
            "source": SOURCE_KNOWN if traits.source_known else SOURCE_UNKNOWN,
        }
        self._waiting.append(
            (
                name,
                rows,
                len(traits.actions),
                sum(WEIGHTS[part] * value for part, value in fixed.items()),
                traits.actions.astype(ACTION_TYPE).tobytes(),
            )
        )
        if len(self._waiting) >= GAMES_AT_ONCE:
            self._store()

    def _store(self) -> None:
        into = "INSERT INTO games (name, rows, moves, fixed, actions) VALUES (?, ?, ?, ?, ?)"
        self._db.executemany(into, self._waiting)
        self._waiting.clear()

    def scored(self, optimal_moves: float | None = None) -> Iterator[ScoredGame]:
        """Every game in the order in which they came; *optimal_moves* is their median if not given."""
        count = len(self)
        if not count:
            return
        self._compare()
        optimal = optimal_moves or self._median_moves(count)
        found = self._db.execute("SELECT name, rows, moves, fixed, shared FROM games ORDER BY number")
        for name, rows, moves, fixed, shared in found:
            length = min(moves / optimal, optimal / moves)
            diversity = 1 - shared / moves if count > 1 else UNKNOWN_PART
            score = fixed + WEIGHTS["length"] * length + WEIGHTS["diversity"] * diversity
            yield ScoredGame(name, rows, round(score, 4))

    def _compare(self) -> None:
        """Note how far each game went with another; its most similar one stands beside it when sorted."""
        longest = "UPDATE games SET shared = max(shared, ?) WHERE number = ?"
        self._db.executemany(longest, self._alike())

    def _alike(self) -> Iterator[tuple[int, int]]:
        """How many moves each game shares with its neighbors, and its number."""
        sorted_games = self._db.execute("SELECT number, actions FROM games ORDER BY actions")
        for (before, its), (number, actions) in pairwise(sorted_games):
            common = common_moves(its, actions)
            yield common, before
            yield common, number

    def _median_moves(self, count: int) -> float:
        middle = "SELECT moves FROM games ORDER BY moves LIMIT ? OFFSET ?"
        found = self._db.execute(middle, (2 - count % 2, (count - 1) // 2))
        return fmean(row[0] for row in found)


def common_moves(one: bytes, other: bytes) -> int:
    """How many first actions two games share."""
    length = min(len(one), len(other))
    # As numbers: comparing two short games as arrays takes several times as long.
    different = int.from_bytes(one[:length], "little") ^ int.from_bytes(other[:length], "little")
    bits_alike = (different & -different).bit_length() - 1 if different else 8 * length
    return bits_alike // (8 * ACTION_BYTES)
