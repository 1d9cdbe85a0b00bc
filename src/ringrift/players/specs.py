"""Players by name: `random`, `heuristic`, `mcts:100`, `model:PATH@32`, and the other `FORMS`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from ringrift.errors import ConfigError, Corrupt
from ringrift.foreign_files.documents import NoDocument, parse_json
from ringrift.foreign_files.paths import read_regular
from ringrift.games.contract import ActionArray, Game, States
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.players.contract import Player, Seeds, picked
from ringrift.players.ringrift_heuristic import HeuristicPlayer, Weights
from ringrift.players.rollout import RolloutPlayer

# The player that any legal action will do for.


class RandomPlayer:
    """Uniform over the legal actions."""

    name = "random"

    def __init__(self, game: Game) -> None:
        self._game = game

    def choose(self, states: States, seeds: Seeds) -> ActionArray:
        legal = self._game.legal(states)
        chosen: ActionArray = legal.actions[legal.offsets[:-1] + picked(seeds, legal.counts)]
        return chosen


FORMS = (
    "random, heuristic, heuristic:quick, heuristic:WEIGHTS.json, mcts:SIMULATIONS, "
    "model:PATH@SIMULATIONS, untrained:PRESET@SIMULATIONS"
)
# Players with a network live in a module of their own, because it takes seconds to import torch.
NETWORK_PLAYERS = "ringrift.players.search_player"
BASELINE_SIMULATIONS = 64
DIGITS_MAX = 18
WEIGHTS_BYTES_MAX = 1_000_000


def baselines(game: Game) -> tuple[str, ...]:
    """The fixed opponents that *game* has, weakest first as far as is known."""
    heuristic = ("heuristic",) if isinstance(game, RingRiftGame) else ()
    return ("random", f"mcts:{BASELINE_SIMULATIONS}", *heuristic)


def parse_player(text: str, game: Game, *, device: str = "cpu") -> Player:
    """The player that *text* names, for *game*; raises `ConfigError` that says what would be right.

    A network computes on *device*: cpu, cuda, or auto for whichever is there.
    """
    kind, colon, rest = text.strip().partition(":")
    if kind == "random" and not colon:
        return RandomPlayer(game)
    if kind == "mcts" and rest:
        return RolloutPlayer(game, simulations=_whole_number(rest, text))
    if text.strip() in ("heuristic", "heuristic:quick") or (kind == "heuristic" and rest.endswith(".json")):
        return _heuristic(text, rest, game)
    if kind in ("model", "untrained") and rest:
        return _with_network(kind, rest, text, game, device=device)
    raise ConfigError(f"{text!r} names no player; there are {FORMS}")


def _heuristic(text: str, rest: str, game: Game) -> Player:
    if not isinstance(game, RingRiftGame):
        raise ConfigError(f"{text!r}: there is no heuristic player for {game.key}")
    if not rest or rest == "quick":
        return HeuristicPlayer(game, quick=bool(rest))
    return HeuristicPlayer(game, weights=_read_weights(Path(rest)), name=text.strip())


def _read_weights(path: Path) -> Weights:
    """Weights as the job `tune` writes them, or a plain object of names and numbers."""
    try:
        found = parse_json(read_regular(path, bytes_max=WEIGHTS_BYTES_MAX))
    except (OSError, Corrupt, NoDocument) as fault:
        raise ConfigError(f"{path}: no weights: {fault}") from fault
    weights = found.get("best_params", found) if isinstance(found, dict) else None
    if not isinstance(weights, dict):
        raise ConfigError(f"{path}: weights are a JSON object of names and numbers")
    return Weights.from_names(weights)


def _with_network(kind: str, rest: str, text: str, game: Game, *, device: str) -> Player:
    source, at, simulations = rest.rpartition("@")
    if not at or not source:
        raise ConfigError(f"{text!r}: say how many simulations, such as {kind}:{rest or 'PATH'}@32")
    count = _whole_number(simulations, text)
    make: Callable[..., Player] = getattr(importlib.import_module(NETWORK_PLAYERS), f"{kind}_player")
    return make(source, game, simulations=count, device=device)


def _whole_number(digits: str, text: str) -> int:
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigError(f"{text!r}: {digits!r} is no whole number")
    if len(digits) > DIGITS_MAX:
        raise ConfigError(f"{text[:80]!r}: a number of {len(digits)} digits is too large")
    return int(digits)
