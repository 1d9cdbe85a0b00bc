"""Games to samples: at every searched move what the player saw, what the search said, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import Corrupt
from ringrift.games.contract import Game, LegalActions, States
from ringrift.jobs.checking import GAMES_AT_ONCE, in_groups
from ringrift.jobs.replaying import BatchReplay, ReplayStep
from ringrift.jobs.samples.hold_out import game_hash
from ringrift.jobs.samples.layout import FEATURES, SEATS_MAX, Codes, Columns
from ringrift.jobs.samples.plan import Marks
from ringrift.jobs.shards.records import RESIGNATION, Floats, StoredGame


@dataclass(frozen=True, slots=True)
class Teaching:
    """How games are turned into samples."""

    symmetries: Sequence[int]  # 0 alone leaves the board as it was played
    value_mix: float  # share of the search's value in the target; the rest is the game's result
    with_features: bool = True


MarkedGame = tuple[StoredGame, Marks]


def game_samples(
    game: Game,
    marked: Iterable[MarkedGame],
    *,
    teaching: Teaching,
    codes: Codes,
) -> Iterator[Columns]:
    """Samples of validated games, a bounded number at a time."""
    for group in in_groups(marked, GAMES_AT_ONCE):
        some = [stored for stored, _ in group]
        replay = BatchReplay(game, [each.game.actions for each in some])
        full = [each.game.policies.searched for each in some]
        for step in replay.steps():
            searched = np.array([full[row][step.move] for row in step.rows])
            if searched.any():
                taught = _Step(game, _only(game, step, searched), group, teaching, codes)
                for symmetry in teaching.symmetries:
                    yield taught.columns(symmetry)
        for row, fault in replay.faults.items():
            name = some[row].game.game_id
            if fault.reason == "unfinished" and some[row].game.termination == RESIGNATION:
                continue
            raise Corrupt(name, found=f"{fault.reason}: {fault.detail}", advice="Validate the shard again")


def _only(game: Game, step: ReplayStep, mask: npt.NDArray[np.bool_]) -> ReplayStep:
    if mask.all():
        return step
    states = step.states[mask]
    return ReplayStep(step.move, step.rows[mask], states, game.legal(states), step.actions[mask])


class _Step:
    """The samples of one move of several games."""

    def __init__(
        self,
        game: Game,
        step: ReplayStep,
        group: Sequence[MarkedGame],
        teaching: Teaching,
        codes: Codes,
    ) -> None:
        self._game, self._step = game, step
        self._stored = [group[row][0] for row in step.rows]
        self._marks = [group[row][1] for row in step.rows]
        self._seats = game.to_move(step.states)
        self._policy = np.concatenate(
            [
                policy_on(step.legal.of(at), *each.game.policies.of(step.move))
                for at, each in enumerate(self._stored)
            ]
        )
        self._with_features = teaching.with_features
        self._fixed = self._same_for_all_symmetries(teaching, codes)

    def columns(self, symmetry: int) -> Columns:
        """All columns of these samples, turned."""
        states: States = self._step.states
        legal: LegalActions = self._step.legal
        actions = legal.actions
        if symmetry:
            actions = self._game.turned_actions(states, legal, symmetry)
            states = self._game.turned(states, symmetry)
        seen = {FEATURES: self._game.observe(states)} if self._with_features else {}
        return {
            **self._fixed,
            **seen,
            "states": states,
            "policy_counts": legal.counts,
            "policy_indices": actions,
            "policy_values": self._policy,
            "symmetries": np.full(len(states), symmetry),
        }

    def _same_for_all_symmetries(self, teaching: Teaching, codes: Codes) -> dict[str, npt.NDArray[Any]]:
        move, stored = self._step.move, self._stored
        values = np.stack([_value_target(each, move, teaching.value_mix) for each in stored])
        rows = np.arange(len(stored))
        padded = np.zeros((len(stored), SEATS_MAX), dtype=np.float32)
        padded[:, : values.shape[1]] = values
        games = [each.game for each in stored]
        elos = [each.metadata.get("generator_elo", np.nan) for each in games]
        rivals = [_opponent(each, seat) for each, seat in zip(stored, self._seats, strict=True)]
        return {
            "globals": np.stack([self._seats, np.full(len(stored), self._game.players)], axis=1),
            "values": values[rows, self._seats],
            "values_mp": padded,
            "num_players": np.full(len(stored), self._game.players),
            "seats": self._seats,
            "move_numbers": np.full(len(stored), move),
            "total_game_moves": np.array([each.total_moves for each in stored]),
            "phases": np.array([codes.of("phases", each.moves.phases[move]) for each in stored]),
            "move_types": np.array([codes.of("move_types", each.moves.types[move]) for each in stored]),
            "victory_types": np.array([codes.of("victory_types", each.termination) for each in games]),
            "engine_modes": np.array([codes.of("engine_modes", each.engine_mode) for each in games]),
            "opponent_types": np.array([codes.of("opponent_types", rival) for rival in rivals]),
            "generator_elo": np.array(elos, dtype=np.float32),
            "opponent_elo": np.array(elos, dtype=np.float32),
            "quality_score": np.array([mark.quality for mark in self._marks]),
            "sample_weights": np.array([mark.weight for mark in self._marks]),
            "timestamps": np.array([each.completed_s for each in games]),
            "game_hashes": np.array([game_hash(each.fingerprint) for each in stored], dtype=np.uint64),
        }


def policy_on(legal: npt.NDArray[np.int32], actions: npt.NDArray[np.int32], probabilities: Floats) -> Floats:
    """The distribution over all *legal* actions, summing to 1 exactly enough for training."""
    if not np.array_equal(legal, actions):
        spread = np.zeros(len(legal), dtype=np.float32)
        order = np.argsort(legal)
        spread[order[np.searchsorted(legal[order], actions)]] = probabilities
        probabilities = spread
    summing_to_one: Floats = np.divide(probabilities, probabilities.sum(), dtype=np.float32)
    return summing_to_one


def _value_target(stored: StoredGame, move: int, mix: float) -> Floats:
    results, found = stored.game.results, stored.game.root_values[move]
    if not mix or np.isnan(found).any():
        return results
    mixed: Floats = np.clip((1 - mix) * results + mix * found, -1, 1).astype(np.float32)
    return mixed


def _opponent(stored: StoredGame, seat: int) -> str:
    """Who sat at the next seat."""
    seats = stored.game.seats
    return seats[(seat + 1) % len(seats)].ai_type
