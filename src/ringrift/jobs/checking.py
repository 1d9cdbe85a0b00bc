"""Checking games: what a replay by the rules finds, bad policies, and games that are there twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import ActionArray, Game
from ringrift.jobs.replaying import BatchReplay, Fault, RecordedMoves, ReplayStep, joined_steps
from ringrift.jobs.scratch import scratch_database
from ringrift.jobs.shards.reader import MOVE_BYTES, BrokenGame, GameSummary
from ringrift.jobs.shards.records import RESIGNATION, Floats, SoftPolicies, StoredGame

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

    def fault_of(self, stored: StoredGame) -> Fault | None:
        """Note the game; a fault if it was there before."""
        why = self._note(stored.game.game_id, stored.fingerprint, stored.game.rows)
        return Fault("duplicate", why) if why else None

    def reason_of(self, summary: GameSummary) -> str:
        """The same for a game whose moves are not at hand."""
        return "duplicate" if self._note(summary.game_id, summary.fingerprint, summary.rows) else ""

    def _note(self, game_id: str, fingerprint: str, rows: int) -> str:
        twins = "SELECT game_id FROM seen WHERE fingerprint = ? ORDER BY rowid LIMIT 1"
        twin = self._db.execute(twins, (fingerprint,)).fetchone()
        noted = self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (game_id, fingerprint))
        if not noted.rowcount:
            return "a game of this id was there before"
        # Without policies, two games of the same moves may well be two games.
        return f"the same moves and policies as game {twin[0]}" if twin is not None and rows else ""


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
        for each, fault in zip(some, faults, strict=True):
            if isinstance(each, BrokenGame):
                yield CheckedGame(each.game_id, None, fault)
            else:
                yield CheckedGame(each.game.game_id, each, fault or seen.fault_of(each))


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
        told = f"recorded {each.game.results.tolist()}, by the rules {results.tolist()}"
        return Fault("wrong_result", told)
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
        told = f"player {players[at]} is recorded, player {movers[at]} is on turn"
        replay.refuse(rows[at], Fault("wrong_player", told, int(moves[at])))
    said = [recorded.phases[place] for place in places.tolist()]
    if any(phase is not None for phase in said):
        phases_of = getattr(game, "phases", None)  # an ability that a game may have
        phases = phases_of(states) if phases_of is not None else [None] * len(said)
        for at, (claimed, phase) in enumerate(zip(said, phases, strict=True)):
            if claimed is not None and claimed != phase:
                told = f"{claimed} is recorded, {phase} by the rules"
                replay.refuse(rows[at], Fault("wrong_phase", told, int(moves[at])))
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
