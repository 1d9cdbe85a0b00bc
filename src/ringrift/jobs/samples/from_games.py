"""Games to samples: at every searched move what the player saw, what the search said, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import Corrupt
from ringrift.games.contract import Game, LegalActions, States, ragged_index
from ringrift.jobs.checking import held_together
from ringrift.jobs.replaying import BatchReplay, Numbers, RecordedMoves, ReplayStep, joined_steps
from ringrift.jobs.samples.hold_out import game_hash
from ringrift.jobs.samples.layout import DRAW_WEIGHTS, FEATURES, SEATS_MAX, Codes, Columns
from ringrift.jobs.samples.plan import Marks
from ringrift.jobs.samples.targets import Targets, later_values
from ringrift.jobs.shards.reader import MOVE_BYTES
from ringrift.jobs.shards.records import RESIGNATION, Floats, StoredGame

BYTES_GATHERED = 1 << 20  # of samples, before they are handed on


@dataclass(frozen=True, slots=True)
class Teaching:
    """How games are turned into samples."""

    symmetries: Sequence[int]  # 0 alone leaves the board as it was played
    targets: Targets
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
    for group in held_together(marked, lambda each: each[0]):
        some = [stored for stored, _ in group]
        replay = BatchReplay(game, [each.game.actions for each in some])
        lessons = _Lessons(game, group, teaching, codes)
        gathered: list[ReplayStep] = []
        size = 0
        for step in replay.steps():
            if (searched := lessons.searched(step)) is not None:
                gathered.append(searched)
                size += lessons.size(searched)
            if size >= BYTES_GATHERED:
                yield from lessons.of(gathered)
                gathered, size = [], 0
        if gathered:
            yield from lessons.of(gathered)
        for row, fault in replay.faults.items():
            name = some[row].game.game_id
            if fault.reason == "unfinished" and some[row].game.termination == RESIGNATION:
                continue
            raise Corrupt(name, found=f"{fault.reason}: {fault.detail}", advice="Validate the shard again")


class _Lessons:
    """The samples of some games: what is the same for all moves of a game is looked up once."""

    def __init__(self, game: Game, group: Sequence[MarkedGame], teaching: Teaching, codes: Codes) -> None:
        self._game, self._teaching = game, teaching
        stored, marks = [each for each, _ in group], [mark for _, mark in group]
        games = [each.game for each in stored]
        self._recorded = RecordedMoves(stored)
        self._results = np.array([each.results for each in games])
        lengths = np.array([len(each.actions) for each in games], dtype=np.int64)
        decay = teaching.targets.value_decay
        self._root_values = later_values(self._recorded.root_values, lengths, decay)
        self._draw_weights = self._weights_of_moves(lengths)
        self._phases = codes.of_all("phases", self._recorded.phases)
        self._types = codes.of_all("move_types", self._recorded.types)
        elos = np.array([each.metadata.get("generator_elo", np.nan) for each in games], dtype=np.float32)
        seats = [seat.ai_type for each in games for seat in each.seats]
        self._players = codes.of_all("opponent_types", seats).reshape(len(games), game.players)
        self._of_game: dict[str, npt.NDArray[Any]] = {
            "total_game_moves": np.array([each.total_moves for each in stored]),
            "victory_types": codes.of_all("victory_types", [each.termination for each in games]),
            "engine_modes": codes.of_all("engine_modes", [each.engine_mode for each in games]),
            "generator_elo": elos,
            "opponent_elo": elos,
            "quality_score": np.array([mark.quality for mark in marks]),
            "sample_weights": np.array([mark.weight for mark in marks]),
            "timestamps": np.array([each.completed_s for each in games]),
            "game_hashes": np.array([game_hash(each.fingerprint) for each in stored], dtype=np.uint64),
        }

    def _weights_of_moves(self, lengths: Numbers) -> Floats:
        """How often each move is drawn; those that teach nothing do not count."""
        rows = np.flatnonzero(self._recorded.named)
        games = np.repeat(np.arange(len(lengths)), lengths)
        weights = np.ones(len(games), dtype=np.float32)
        weights[rows] = self._teaching.targets.draw_weights(self._recorded.surprise[rows], games[rows])
        return weights

    def searched(self, step: ReplayStep) -> ReplayStep | None:
        """The part of *step* that teaches something."""
        rows = np.flatnonzero(self._recorded.named[self._recorded.places(step.rows, step.move)])
        if len(rows) == len(step.rows):
            return step
        flat, offsets = ragged_index(step.legal.offsets, rows)
        legal = LegalActions(offsets, step.legal.actions[flat])
        kept = ReplayStep(step.move, step.rows[rows], step.states[rows], legal, step.actions[rows])
        return kept if len(rows) else None

    def size(self, step: ReplayStep) -> int:
        """Bytes of its samples, about."""
        seen = 4 * prod(self._game.observation_shape) if self._teaching.with_features else 0
        each = step.states.nbytes + 8 * len(step.legal.actions) + (seen + MOVE_BYTES) * len(step.rows)
        return each * len(self._teaching.symmetries)

    def of(self, steps: Sequence[ReplayStep]) -> Iterator[Columns]:
        """All columns of *steps*, in each symmetry."""
        rows, moves, states, legal = joined_steps(steps)
        fixed = self._same_for_all_symmetries(rows, moves, states, legal)
        for symmetry in self._teaching.symmetries:
            turned, actions = states, legal.actions
            if symmetry:
                turned = self._game.turned(states, symmetry)
                actions = self._game.turned_actions(states, legal, symmetry)
            seen = {FEATURES: self._game.observe(turned)} if self._teaching.with_features else {}
            which = np.full(len(rows), symmetry)
            yield {**fixed, **seen, "states": turned, "policy_indices": actions, "symmetries": which}

    def _same_for_all_symmetries(
        self, rows: Numbers, moves: Numbers, states: States, legal: LegalActions
    ) -> dict[str, npt.NDArray[Any]]:
        game, places = self._game, self._recorded.places(rows, moves)
        seats = game.to_move(states)
        values = self._teaching.targets.values(self._results[rows], self._root_values[places])
        padded = np.zeros((len(rows), SEATS_MAX), dtype=np.float32)
        padded[:, : values.shape[1]] = values
        players = np.full(len(rows), game.players)
        return {
            **{name: column[rows] for name, column in self._of_game.items()},
            "globals": np.stack([seats, players], axis=1),
            "values": values[np.arange(len(rows)), seats],
            "values_mp": padded,
            "num_players": players,
            "seats": seats,
            "move_numbers": moves,
            "phases": self._phases[places],
            "move_types": self._types[places],
            "opponent_types": self._players[rows, (seats + 1) % game.players],  # who sat next
            DRAW_WEIGHTS: self._draw_weights[places],
            "policy_counts": legal.counts,
            "policy_values": self._policies(places, legal),
        }

    def _policies(self, places: Numbers, legal: LegalActions) -> Floats:
        """Over all legal actions, each summing to 1 exactly enough for training."""
        policies = self._recorded.policies
        if (alike := self._recorded.names_all(places, legal)).all():
            flat = policies.probabilities[ragged_index(policies.offsets, places)[0]]
        else:
            flat = np.zeros(len(legal.actions), dtype=np.float32)
            named, _ = ragged_index(policies.offsets, places[alike])
            flat[ragged_index(legal.offsets, np.flatnonzero(alike))[0]] = policies.probabilities[named]
            for at in np.flatnonzero(~alike).tolist():
                span = slice(legal.offsets[at], legal.offsets[at + 1])
                flat[span] = policy_on(legal.of(at), *policies.of(int(places[at])))
        totals = np.add.reduceat(flat, legal.offsets[:-1])
        summing_to_one: Floats = np.divide(flat, np.repeat(totals, legal.counts), dtype=np.float32)
        return summing_to_one


def policy_on(legal: npt.NDArray[np.int32], actions: npt.NDArray[np.int32], probabilities: Floats) -> Floats:
    """The distribution over all *legal* actions, of which it names some, in any order."""
    spread = np.zeros(len(legal), dtype=np.float32)
    order = np.argsort(legal)
    spread[order[np.searchsorted(legal[order], actions)]] = probabilities
    return spread
