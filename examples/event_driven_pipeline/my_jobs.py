"""Jobs of one's own for connect four, in plain NumPy: play, export, train, evaluate.

Nothing here knows of RingRift but the forms of two files: weights are a safetensors file with a JSON card
beside it that names their hash, and results are the JSON that `docs/jobs.md` shows. A position is judged by
how many lines of four each side still has, with one to four stones in each; a model is eight weights.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROWS, COLUMNS = 6, 7
LINES = np.array(
    [
        [(row + step * down) * COLUMNS + column + step * right for step in range(4)]
        for row in range(ROWS)
        for column in range(COLUMNS)
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        if row + 3 * down < ROWS and 0 <= column + 3 * right < COLUMNS
    ]
)
UNTRAINED = np.zeros(8)  # judges all positions alike, so it plays at random

Board = np.ndarray[Any, Any]
Player = Callable[[Board, int, np.random.Generator], int]


def features(board: Board, side: int) -> np.ndarray[Any, Any]:
    """Lines of *side* and of the other with 1 to 4 stones, where nobody else has one."""
    stones = board[LINES]
    mine, theirs = (stones == side).sum(axis=1), (stones == -side).sum(axis=1)
    counts = [np.bincount(a[b == 0], minlength=5)[1:] for a, b in ((mine, theirs), (theirs, mine))]
    return np.concatenate(counts).astype(float)


def moves(board: Board) -> list[int]:
    """The lowest free cell of each column that is not full."""
    columns = board.reshape(ROWS, COLUMNS)
    return [int((columns[:, c] != 0).sum()) * COLUMNS + c for c in range(COLUMNS) if columns[-1, c] == 0]


def player(weights: np.ndarray[Any, Any]) -> Player:
    """Plays to the position that the weights like best; among equals by lot."""

    def choose(board: Board, side: int, lots: np.random.Generator) -> int:
        there = moves(board)
        values = []
        for cell in there:
            board[cell] = side
            values.append(float(features(board, side) @ weights))
            board[cell] = 0
        best = [cell for cell, value in zip(there, values, strict=True) if value == max(values)]
        return int(lots.choice(best))

    return choose


def play(first: Player, second: Player, lots: np.random.Generator) -> tuple[int, list[int]]:
    """Who won, 1 for the first, -1 for the second, 0 for nobody; and the cells in order."""
    board, record = np.zeros(ROWS * COLUMNS, dtype=int), []
    for turn in range(ROWS * COLUMNS):
        side = 1 if turn % 2 == 0 else -1
        cell = (first, second)[turn % 2](board, side, lots)
        board[cell] = side
        record.append(cell)
        if features(board, side)[3]:
            return side, record
    return 0, record


# --- the jobs ---------------------------------------------------------------------------------------------


def selfplay(path: Path, *, games: int, seed: int = 1) -> int:
    """Games of the untrained player with itself, one a line."""
    lots, one = np.random.default_rng(seed), player(UNTRAINED)
    played = [play(one, one, lots) for _ in range(games)]
    path.write_text("".join(json.dumps({"winner": w, "cells": cells}) + "\n" for w, cells in played))
    return len(played)


def export(games: Path, path: Path) -> int:
    """Every position after a move: what was seen by whom moved, and how it ended for him."""
    rows, values = [], []
    for line in games.read_text().splitlines():
        game = json.loads(line)
        board = np.zeros(ROWS * COLUMNS, dtype=int)
        for turn, cell in enumerate(game["cells"]):
            side = 1 if turn % 2 == 0 else -1
            board[cell] = side
            rows.append(features(board, side))
            values.append(side * game["winner"])
    np.savez(path, features=np.array(rows, np.float32), values=np.array(values, np.float32))
    return len(rows)


def train(samples: Path, path: Path) -> float:
    """Least squares. Writes weights and card, and returns the loss."""
    with np.load(samples, allow_pickle=False) as file:
        seen, values = file["features"].astype(float), file["values"].astype(float)
    weights = np.linalg.lstsq(seen, values, rcond=None)[0]
    data = weights.astype("<f4").tobytes()
    header = json.dumps({"weights": {"dtype": "F32", "shape": [8], "data_offsets": [0, len(data)]}}).encode()
    content = struct.pack("<Q", len(header)) + header + data
    path.write_bytes(content)
    card = {"sha256": hashlib.sha256(content).hexdigest(), "notes": {"trainer": "my_jobs.py"}}
    path.with_suffix(".json").write_text(json.dumps(card))
    return float(np.mean((seen @ weights - values) ** 2))


def read_model(path: Path) -> tuple[np.ndarray[Any, Any], str]:
    """The weights, and the hash by which a run knows the model."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    return np.frombuffer(content[8 + length :], "<f4").astype(float), hashlib.sha256(content).hexdigest()


def evaluate(model: Path, path: Path, *, config: str, games: int = 64, seed: int = 2) -> None:
    """Half of the games from each seat, against the untrained player and against one that plays at random."""
    weights, digest = read_model(model)
    lots, candidate, rival = np.random.default_rng(seed), player(weights), player(UNTRAINED)
    matches = []
    for opponent in ("untrained", "random"):
        ended = [play(candidate, rival, lots)[0] for _ in range(games // 2)]
        ended += [-play(rival, candidate, lots)[0] for _ in range(games // 2)]
        wins, draws, losses = (ended.count(end) for end in (1, 0, -1))
        score = (wins + draws / 2) / len(ended)
        counts = {"games": len(ended), "wins": wins, "draws": draws, "losses": losses, "score": score}
        matches.append({"opponent": opponent, **counts})
    path.write_text(json.dumps({"config": config, "model_sha256": digest, "matches": matches}))
