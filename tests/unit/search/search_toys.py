"""A tiny game for any number of players, and evaluators that are quick and never change their mind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import IllegalAction
from ringrift.games.contract import (
    ActionArray,
    ActionLayout,
    Game,
    LegalActions,
    Planes,
    RandomPlay,
    State,
    States,
    results_from_rankings,
)
from ringrift.search.contract import Evaluation


class Countdown:
    """Players in turn take one to three stones; who takes the last stone wins, all others lose alike."""

    words = 3  # stones left, seat on turn, winner from 1
    action_count = 3
    observation_shape = (1, 1, 3)
    symmetries = 1
    action_layout = ActionLayout(planes=1, rows=1, columns=3, placeless=0, slots=np.arange(3, dtype=np.int32))

    def __init__(self, players: int, stones: int = 10) -> None:
        self.key, self.players, self.stones = f"countdown_{players}p", players, stones

    def new_states(self, count: int) -> States:
        return np.tile(np.array([self.stones, 0, 0]), (count, 1))

    def position(self, stones: int, seat: int = 0) -> States:
        return np.array([[stones, seat, 0]])

    def legal(self, states: States) -> LegalActions:
        counts = np.minimum(states[:, 0], 3)
        actions = np.concatenate([np.arange(count) for count in counts])
        return LegalActions(np.concatenate(([0], np.cumsum(counts))), actions.astype(np.int32))

    def apply(self, states: States, actions: ActionArray, *, trusted: bool = False) -> None:
        if (actions < 0).any() or (actions >= states[:, 0]).any():
            raise IllegalAction(str(actions), why="too few stones")
        states[:, 0] -= actions + 1
        states[:, 2] = np.where(states[:, 0] == 0, states[:, 1] + 1, 0)
        states[:, 1] = (states[:, 1] + 1) % self.players

    def terminal(self, states: States) -> npt.NDArray[np.bool_]:
        return states[:, 0] == 0

    def to_move(self, states: States) -> npt.NDArray[np.int64]:
        return states[:, 1]

    def results(self, states: States) -> npt.NDArray[np.float32]:
        return results_from_rankings(self.rankings(states))

    def rankings(self, states: States) -> npt.NDArray[np.int64]:
        won = states[:, 2, None] == np.arange(1, self.players + 1)
        return np.where(states[:, 2, None] == 0, 0, np.where(won, 1, 2))

    def observe(self, states: States) -> Planes:
        return np.repeat(states[:, None, None, :1], 3, axis=3).astype(np.float32)

    def turned(self, states: States, symmetry: int) -> States:
        return states.copy()

    def turned_actions(self, states: States, legal: LegalActions, symmetry: int) -> ActionArray:
        return legal.actions

    def turned_grid(self, symmetry: int) -> npt.NDArray[np.int64]:
        return np.arange(3)

    def play_random(self, states: States, *, seed: int) -> RandomPlay:
        raise NotImplementedError

    def action_texts(self, state: State, actions: Sequence[int] | ActionArray) -> list[str]:
        return [str(action + 1) for action in actions]

    def parse_action(self, state: State, text: str) -> int:
        return int(text) - 1

    def to_json(self, state: State) -> dict[str, Any]:
        return {"state": state.tolist()}

    def from_json(self, fields: Mapping[str, Any]) -> State:
        return np.array(fields["state"])

    def draw(self, state: State) -> str:
        return str(state)


class ScatteredEvaluator:
    """Pseudo-random logits and values that are a function of the state alone."""

    def __init__(self, game: Game) -> None:
        self.players = game.players
        self.seen = 0

    def evaluate(self, states: States, legal: LegalActions) -> Evaluation:
        self.seen += len(states)
        weights = np.arange(1, states.shape[1] + 1) * 7919
        base = (states * weights).sum(axis=1) % 100_003
        owner = np.repeat(np.arange(len(states)), legal.counts)
        logits = np.sin(base[owner] * 0.37 + legal.actions * 1.7) * 2
        values = np.sin(base[:, None] * 0.11 + np.arange(self.players))
        if self.players == 2:
            values = np.stack((values[:, 0], -values[:, 0]), axis=1)
        return Evaluation(logits.astype(np.float32), values.astype(np.float32))


class TableEvaluator:
    """Says of each seat what *seat_values* says, with all actions alike."""

    def __init__(self, seat_values: Sequence[float]) -> None:
        self.seat_values = np.array(seat_values, dtype=np.float32)

    def evaluate(self, states: States, legal: LegalActions) -> Evaluation:
        return Evaluation(
            np.zeros(len(legal.actions), dtype=np.float32), np.tile(self.seat_values, (len(states), 1))
        )
