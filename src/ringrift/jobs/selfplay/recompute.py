"""The `recompute` job: searches recorded moves again and says whether they are what the parameters give.

What a search finds follows from the position, the seed of the game and the number of the move, so every
recorded move can be searched alone, in any order and beside others. On the kind of machine that played, with
the same libraries, the answer must be the same to the last bit. Elsewhere floating-point numbers differ in
their last digits, and a search may turn another way on them; then policies and values must agree on average.

Of games that another job began, the moves that were handed over must be there unchanged, and only those
after them are searched: they alone were made by the job in question, with its weights. Games that the job
handed over itself are searched like those that it finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ringrift.games.contract import Game, States
from ringrift.games.registry import load_game
from ringrift.jobs.frame import Job, JobSpec, Outcome, run_job
from ringrift.jobs.selfplay.selfplay import (
    SUFFIX,
    ResumedGame,
    SelfplayParams,
    machine_of,
    make_evaluator,
    read_all_unfinished,
    read_unfinished,
    run_identity,
    selfplay_config,
)
from ringrift.jobs.shards.checking import BatchReplay, in_groups
from ringrift.jobs.shards.records import RESIGNATION, PlayedGame, SoftPolicies
from ringrift.jobs.shards.storage import BrokenGame, open_shard
from ringrift.machine import machine_kind
from ringrift.players.contract import derived
from ringrift.search.batch import BatchSearch
from ringrift.search.contract import Evaluator, SearchResult
from ringrift.search.records import Flags
from ringrift.search.selfplay import SelfplayConfig

AT_ONCE = 256  # positions that are searched together
VALUE_FARTHEST = 2.0
UNFINISHED = "unfinished"  # how a game ended that did not
EXACT_DEVICES = ("cpu", "none")  # a GPU may choose other kernels in every process


class RecomputeParams(SelfplayParams, frozen=True, kw_only=True):
    """Parameters of `recompute`: those of the `selfplay` job that played, and what to look at."""

    shard: Annotated[Path, msgspec.Meta(description="The games that it brought, finished or unfinished.")]
    sample_games: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="Games to look at.")] = 4
    sample_moves: Annotated[
        int, msgspec.Meta(ge=1, description="Moves to search, where bits are compared; else all are.")
    ] = 200
    sample_seed: Annotated[int, msgspec.Meta(ge=0, description="Chooses games and moves.")] = 0
    played_on: Annotated[str, msgspec.Meta(description="The kind of machine, by its worker.")] = ""
    policy_distance: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="Mean total variation that other machines may have.")
    ] = 0.06
    value_distance: Annotated[
        float, msgspec.Meta(ge=0, le=2, description="Mean distance of values that other machines may have.")
    ] = 0.025
    other_moves: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="Share of other moves that other machines may choose.")
    ] = 0.1


@dataclass(frozen=True, slots=True)
class RecordDifference:
    """Where a record is not what was found."""

    game: str
    what: str
    move: int | None = None  # from 0

    def as_json(self) -> dict[str, Any]:
        return {"game": self.game, "move": self.move, "what": self.what}


@dataclass(slots=True)
class RecordedMove:
    """One recorded decision."""

    game: PlayedGame
    move: int
    state: States  # one row


@dataclass(slots=True)
class Agreement:
    """What all searched moves add up to."""

    moves: int = 0
    identical: int = 0
    other_actions: int = 0
    policies: int = 0
    policy_sum: float = 0.0
    policy_max: float = 0.0
    value_sum: float = 0.0
    value_max: float = 0.0
    first: RecordDifference | None = None
    worst: RecordDifference | None = None

    def distances(self) -> dict[str, float]:
        return {
            "policy_distance": round(self.policy_sum / max(1, self.policies), 6),
            "policy_distance_max": round(self.policy_max, 6),
            "value_distance": round(self.value_sum / max(1, self.moves), 6),
            "value_distance_max": round(self.value_max, 6),
            "other_moves": round(self.other_actions / max(1, self.moves), 6),
        }


def run_recompute(job: Job, params: RecomputeParams) -> Outcome:
    game, played = load_game(params.config), as_played(params)
    evaluator, digest = make_evaluator(played, game)
    machine = machine_of(evaluator, played)
    # A worker without a GPU says what it is itself; of one with a GPU the job has to say what computed.
    is_same = params.played_on in (machine, machine_kind())
    is_exact = is_same and not params.tree_reuse and _is_exact(evaluator)
    handed, digests = read_all_unfinished(params.resume, game)
    order = _Order(params, run_identity(played, digest, resumed=digests), handed)
    games = _sample(params, game)
    wrong = [fault for each in games if (fault := order.fault_of(each))]
    whole = [each for each in games if isinstance(each, PlayedGame)]
    agreement = Agreement()
    if not wrong:
        positions, wrong = _positions(game, whole)
        positions = [each for each in positions if each.move >= order.first_move_of(each.game)]
        if is_exact:  # a distance is an average, which a few altered moves among many could hide in
            positions = _some(positions, params)
        job.stage("searching", total=len(positions))
        for some in in_groups(positions, AT_ONCE):
            job.stop_point()
            _compare(agreement, some, *_searched(game, evaluator, selfplay_config(played), some))
            job.progress(agreement.moves)
    first = wrong[0] if wrong else _verdict(agreement, params, is_exact=is_exact)
    result: dict[str, Any] = {
        "config": game.key,
        "machine": machine,
        "exact": is_exact,
        "games": len(games),
        "moves": agreement.moves,
        "identical_moves": agreement.identical,
        "agrees": first is None,
        "first_difference": None if first is None else first.as_json(),
        **agreement.distances(),
    }
    return Outcome(fields=result)


def as_played(params: RecomputeParams) -> SelfplayParams:
    """The parameters of the job that played."""
    names = [field.name for field in msgspec.structs.fields(SelfplayParams)]
    return SelfplayParams(**{name: getattr(params, name) for name in names})


def _is_exact(evaluator: Evaluator) -> bool:
    name: str = getattr(getattr(evaluator, "engine", None), "name", "none")
    return name.split()[0] in EXACT_DEVICES


# --- what is looked at --------------------------------------------------------------------------------------


def _sample(params: RecomputeParams, game: Game) -> list[PlayedGame | BrokenGame]:
    """Some games, chosen by the seed of the order: whoever played could not know which."""

    def lot(game_id: str) -> bytes:
        return hashlib.sha256(f"{params.sample_seed} {game_id}".encode()).digest()

    if params.shard.name.endswith(SUFFIX):
        handed, _ = read_unfinished(params.shard, game)
        handed.sort(key=lambda each: lot(each.about.game_id))
        return [_as_played(game, each) for each in handed[: params.sample_games]]
    with open_shard(params.shard) as shard:
        ids = sorted((summary.game_id for summary in shard.summaries()), key=lot)
        wanted = set(ids[: params.sample_games])
        stored = list(shard.games(wanted.intersection))
    return [each if isinstance(each, BrokenGame) else each.game for each in stored]


def _as_played(game: Game, handed: ResumedGame) -> PlayedGame:
    """An unfinished game as far as it was played."""
    about, moves = handed.about, handed.progress.moves
    legal = [move.legal if move.full else move.legal[:0] for move in moves]
    shares = [move.policy if move.full else move.policy[:0] for move in moves]
    return PlayedGame(
        game_id=about.game_id,
        config_key=game.key,
        seed=about.seed,
        run_id=about.run_id,
        run_index=about.run_index,
        source="selfplay",
        engine_mode="",
        started_s=about.started_s,
        completed_s=about.started_s,
        termination=UNFINISHED,
        seats=(),
        actions=np.array([move.action for move in moves], dtype=np.int32),
        policies=SoftPolicies(
            np.cumsum([0, *(len(each) for each in legal)], dtype=np.int64),
            np.concatenate([np.empty(0, np.int32), *legal]),
            np.concatenate([np.empty(0, np.float32), *shares]),
        ),
        root_values=np.array([move.root_values for move in moves], np.float32).reshape(-1, game.players),
        surprise=np.array([move.surprise for move in moves], dtype=np.float32),
    )


class _Order:
    """What the order asked for: new games by their numbers, and games of others to be played on."""

    def __init__(self, params: RecomputeParams, run_id: str, handed: Sequence[ResumedGame]) -> None:
        self._params, self._run_id = params, run_id
        self._handed = {each.about.game_id: each for each in handed}

    def first_move_of(self, game: PlayedGame) -> int:
        """The first move that the order's own job made."""
        handed = self._handed.get(game.game_id)
        return 0 if handed is None else len(handed.progress.moves)

    def fault_of(self, game: PlayedGame | BrokenGame) -> RecordDifference | None:
        """Why a game is not one that the order asks for."""
        if isinstance(game, BrokenGame):
            return RecordDifference(game.game_id, f"it cannot be read: {game.why}")
        params = self._params
        if game.config_key != params.config:
            return RecordDifference(game.game_id, f"it is a game of {game.config_key}")
        if (handed := self._handed.get(game.game_id)) is not None:
            return _handed_fault(game, handed)
        if game.run_id != self._run_id:
            return RecordDifference(
                game.game_id, "it was not played with the parameters and the model of the order"
            )
        if not 0 <= game.run_index < params.games:
            return RecordDifference(
                game.game_id, f"{params.games} games were ordered, not number {game.run_index}"
            )
        seed = int(derived(params.seed, game.run_index)[0])
        if game.seed != seed:
            return RecordDifference(game.game_id, f"its seed is {game.seed}; the order gives {seed}")
        return None


def _handed_fault(game: PlayedGame, handed: ResumedGame) -> RecordDifference | None:
    """Why a game does not begin as it was handed over."""
    about = handed.about
    if (game.run_id, game.run_index, game.seed) != (about.run_id, about.run_index, about.seed):
        return RecordDifference(game.game_id, "its run, number or seed is not that of the game handed over")
    for number, move in enumerate(handed.progress.moves):
        if number >= len(game.actions):
            return RecordDifference(game.game_id, "it ends before it was handed over", number)
        named, shares = game.policies.of(number)
        policy = (move.legal, move.policy) if move.full else (move.legal[:0], move.policy[:0])
        same = np.array_equal(named, policy[0]) and np.array_equal(shares, policy[1])
        if game.actions[number] != move.action or not same:
            return RecordDifference(game.game_id, "the move is not the one that was handed over", number)
        if not _same_surprise(game, number, move.surprise):
            return RecordDifference(game.game_id, "its surprise is not that of the game handed over", number)
        if not np.array_equal(game.root_values[number], move.root_values):
            return RecordDifference(game.game_id, "its values are not those that were handed over", number)
    return None


def _positions(game: Game, games: Sequence[PlayedGame]) -> tuple[list[RecordedMove], list[RecordDifference]]:
    """All decisions of *games*, and the games that break the rules."""
    found: list[RecordedMove] = []
    replayed = BatchReplay(game, [each.actions for each in games])
    for step in replayed.steps():
        found += [
            RecordedMove(games[row], step.move, step.states[at : at + 1].copy())
            for at, row in enumerate(step.rows.tolist())
        ]
    faults = [
        RecordDifference(games[row].game_id, fault.detail, fault.move)
        for row, fault in sorted(replayed.faults.items())
        if games[row].termination not in (RESIGNATION, UNFINISHED)
    ]
    return found, faults


def _some(positions: list[RecordedMove], params: RecomputeParams) -> list[RecordedMove]:
    """As many as were asked for, chosen like the games."""
    if len(positions) <= params.sample_moves:
        return positions
    lots = np.random.Generator(np.random.PCG64(params.sample_seed))
    kept = lots.choice(len(positions), size=params.sample_moves, replace=False)
    return [positions[at] for at in sorted(kept.tolist())]


def _searched(
    game: Game, evaluator: Evaluator, config: SelfplayConfig, positions: Sequence[RecordedMove]
) -> tuple[SearchResult, Flags]:
    """Search each position as the game that it is of did; and which of them teach a policy."""
    slots = np.arange(len(positions))
    seeds = np.array([each.game.seed for each in positions], dtype=np.int64)
    plies = np.array([each.move for each in positions], dtype=np.int64)
    budgets = config.budgets(seeds, plies)
    search = BatchSearch(game, evaluator, config.search, slots=len(positions))
    search.restart(slots, np.concatenate([each.state for each in positions]), seeds, plies)
    search.begin(
        slots,
        simulations=budgets.simulations,
        temperatures=budgets.temperatures,
        explore=budgets.full,
    )
    left = len(positions)
    while left:
        left -= len(search.wave())
    return search.results(slots), budgets.full


# --- how far it agrees --------------------------------------------------------------------------------------


def _compare(
    agreement: Agreement, positions: Sequence[RecordedMove], found: SearchResult, full: Flags
) -> None:
    for at, position in enumerate(positions):
        here = slice(found.legal.offsets[at], found.legal.offsets[at + 1])
        move = _Compared(
            position,
            legal=found.legal.actions[here],
            policy=found.policy[here],
            values=found.root_values[at],
            surprise=float(found.surprise[at]),
            action=int(found.actions[at]),
            full=bool(full[at]),
        )
        move.add_to(agreement)


class _Compared:
    """One recorded decision beside the one that was found."""

    def __init__(
        self,
        position: RecordedMove,
        *,
        legal: Any,
        policy: Any,
        values: Any,
        surprise: float,
        action: int,
        full: bool,
    ) -> None:
        record, move = position.game, position.move
        self._game_id, self._move = record.game_id, move
        self._recorded, self._found, self._full = int(record.actions[move]), action, full
        named, shares = record.policies.of(move)
        same = np.array_equal(named, legal if full else legal[:0])
        # A policy that is missing, too much or over other moves is as far away as can be.
        self._policy = 1.0 if not same else _variation(shares, policy) if full else 0.0
        said = record.root_values[move]
        self._value = VALUE_FARTHEST if np.isnan(said).any() else float(np.abs(said - values).max())
        self._identical = (
            self._recorded == action
            and np.array_equal(said, values)
            and same
            and (not full or np.array_equal(shares, policy))
            and _same_surprise(record, move, surprise)
        )

    def add_to(self, agreement: Agreement) -> None:
        agreement.moves += 1
        agreement.identical += self._identical
        agreement.other_actions += self._recorded != self._found
        agreement.policies += self._full or self._policy > 0
        agreement.policy_sum += self._policy
        agreement.value_sum += self._value
        if agreement.first is None and not self._identical:
            agreement.first = self._difference()
        if self._policy + self._value > agreement.policy_max + agreement.value_max or agreement.worst is None:
            agreement.worst = self._difference()
        agreement.policy_max = max(agreement.policy_max, self._policy)
        agreement.value_max = max(agreement.value_max, self._value)

    def _difference(self) -> RecordDifference:
        moves = f"recorded move {self._recorded}, found {self._found}"
        what = f"policy off by {self._policy:.4f}, value by {self._value:.4f}; {moves}"
        return RecordDifference(self._game_id, what, self._move)


def _same_surprise(record: PlayedGame, move: int, found: float) -> bool:
    """Whether the recorded surprise is the one found; what is not known is not wrong, it weighs nothing."""
    recorded = np.nan if record.surprise is None else float(record.surprise[move])
    return bool(np.isnan(recorded) or recorded == np.float32(found))


def _variation(first: Any, second: Any) -> float:
    distance = float(np.abs(first - second).sum()) / 2
    return distance if np.isfinite(distance) else 1.0


def _verdict(agreement: Agreement, params: RecomputeParams, *, is_exact: bool) -> RecordDifference | None:
    """What does not agree; None if all does."""
    if is_exact:
        return agreement.first
    found = agreement.distances()
    for name in ("policy_distance", "value_distance", "other_moves"):
        limit = getattr(params, name)
        if found[name] > limit:
            worst = agreement.worst or RecordDifference("", "")
            what = f"{name} is {found[name]:.4f} on average of {agreement.moves} moves, above {limit:g}"
            return RecordDifference(worst.game, f"{what}; the worst: {worst.what}", worst.move)
    return None


RECOMPUTE = JobSpec(
    "recompute", "Search recorded moves again and compare them.", RecomputeParams, run_recompute
)


def main(argv: Sequence[str]) -> int:
    return run_job(RECOMPUTE, argv)
