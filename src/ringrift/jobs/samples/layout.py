"""What is in a sample file: the arrays, their types, and the codes that stand for words.

Sparse policies are flat: with `o = policy_offsets`, sample i has `policy_indices[o[i]:o[i+1]]` and the same
span of `policy_values`. They name every legal action of the position. Words are small integers; the
`codes` scalar lists them. So nothing needs unpickling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.contract import Game

EXPORT_VERSION = "3.1"
SEATS_MAX = 4
GLOBALS = ("seat", "players")
CODED = ("phases", "victory_types", "engine_modes", "move_types", "opponent_types")
NO_WORD = -1

Columns = Mapping[str, npt.NDArray[Any]]


FEATURES = "features"  # may be left out: they follow from `states`, and are most of the bytes
DRAW_WEIGHTS = "draw_weights"  # older files have none: all their rows are drawn alike


def row_columns(game: Game) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Arrays with one entry per sample: type, and shape of an entry."""
    f4, i1, i2, i4 = (np.dtype(name) for name in ("<f4", "i1", "<i2", "<i4"))
    return {
        FEATURES: (f4, game.observation_shape),
        "states": (np.dtype("<i8"), (game.words,)),
        "globals": (f4, (len(GLOBALS),)),
        "values": (f4, ()),
        "values_mp": (f4, (SEATS_MAX,)),
        "num_players": (i1, ()),
        "seats": (i1, ()),
        "move_numbers": (i4, ()),
        "total_game_moves": (i4, ()),
        "phases": (i2, ()),
        "move_types": (i2, ()),
        "victory_types": (i2, ()),
        "engine_modes": (i2, ()),
        "opponent_types": (i2, ()),
        "generator_elo": (f4, ()),
        "opponent_elo": (f4, ()),
        "quality_score": (f4, ()),
        "sample_weights": (f4, ()),
        DRAW_WEIGHTS: (f4, ()),
        "timestamps": (np.dtype("<f8"), ()),
        "game_hashes": (np.dtype("<u8"), ()),
        "symmetries": (i1, ()),
        "policy_counts": (i4, ()),
    }


def flat_columns() -> dict[str, np.dtype[Any]]:
    """Arrays with one entry per legal action of every sample."""
    return {"policy_indices": np.dtype("<i4"), "policy_values": np.dtype("<f4")}


@dataclass(slots=True)
class Codes:
    """Numbers for words, given out as they are met."""

    words: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in CODED})

    def of(self, column: str, word: str | None) -> int:
        if word is None:
            return NO_WORD
        known = self.words[column]
        return known.setdefault(word, len(known))

    def of_all(self, column: str, words: Sequence[str | None]) -> npt.NDArray[np.int16]:
        """The number of each word; a word that no sample needs may be among them."""
        numbers = {word: self.of(column, word) for word in dict.fromkeys(words)}
        return np.array([numbers[word] for word in words], dtype=np.int16)

    def as_json(self) -> dict[str, list[str]]:
        return {column: list(known) for column, known in self.words.items()}


def scalars(game: Game, *, rows: int, policy_index_max: int) -> dict[str, Any]:
    """The scalars that describe the encoding."""
    planes, height, width = game.observation_shape
    board = game.key if ":" in game.key else game.key.rpartition("_")[0]
    return {
        "config_key": game.key,
        "board_type": board,
        "players": game.players,
        "board_size": height,
        "spatial_size": width,
        "history_length": 0,
        "feature_version": 1,
        "encoder_type": "planes_from_the_player_on_turn",
        "encoder_version": 1,
        "in_channels": planes,
        "policy_encoding": "legal_actions",
        "policy_size": game.action_count,
        "max_policy_index": policy_index_max,
        "policies_normalized": True,
        "export_version": EXPORT_VERSION,
        "sample_count": rows,
    }


# What the rows of a game learn besides the policies of its searches: one place for all that trains.


Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
DRAW_WEIGHT_MIN, DRAW_WEIGHT_MAX = 1e-3, 8.0  # networks that learn give their rows 0.5 to 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """How the targets of rows are made of a game."""

    value_mix: float = 0.0  # share of the searches in the value; the rest is the game's result
    value_decay: float = 0.0  # of that, the share of the searches of later moves
    surprise: float = 0.0  # share of how often a row is drawn that goes by its surprise

    def __post_init__(self) -> None:
        for name in ("value_mix", "value_decay", "surprise"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"targets: {name} must lie between 0 and 1, not {getattr(self, name)}")

    def draw_weights(self, surprise: Floats, games: Numbers) -> Floats:
        """How often rows are drawn: 1 on average over a game; *games* says of which game each row is.

        Where the search disagrees with the network there is most to learn. What a worker says of its rows
        only moves weight between the rows of one game, and no row gets more than `DRAW_WEIGHT_MAX`. A row
        whose surprise is not known weighs 1.
        """
        known = np.isfinite(surprise)
        sums = np.bincount(games[known], surprise[known], minlength=int(games.max(initial=0)) + 1)
        counts = np.bincount(games[known], minlength=len(sums))
        means = np.divide(sums, counts, out=np.zeros(len(sums)), where=counts > 0)[games]
        ratios = np.divide(surprise, means, out=np.ones(len(games)), where=known & (means > 0))
        weights = (1 - self.surprise) + self.surprise * ratios
        return np.clip(weights, DRAW_WEIGHT_MIN, DRAW_WEIGHT_MAX).astype(np.float32)

    def values(self, results: Floats, root_values: Floats) -> Floats:
        """Value targets per seat of rows whose games ended with *results*.

        *root_values* are those of `later_values`; where they are not known, the result is all there is.
        """
        if not self.value_mix:
            return results
        mixed = (1 - self.value_mix) * results + self.value_mix * root_values
        unknown = np.isnan(root_values).any(axis=1, keepdims=True)
        return np.where(unknown, results, np.clip(mixed, -1, 1)).astype(np.float32)


def later_values(root_values: Floats, lengths: Numbers, decay: float) -> Floats:
    """What each search said, mixed with what those after it said: (1 - decay) now, the rest later.

    The moves of several games lie one game after the other, *lengths* of them each. A search is noisy, and
    those of later moves know more: their mean is nearer to the truth than one search, and sooner than the
    result. A move without a search stays without a value, and is passed over by those before it.
    """
    if not decay:
        return root_values
    values = root_values.astype(np.float32)
    unknown = np.isnan(values)
    ends = np.cumsum(lengths)
    for back in range(1, int(lengths.max(initial=0))):
        now = (ends - 1 - back)[lengths > back]
        later = np.where(np.isnan(values[now + 1]), values[now], values[now + 1])
        own = np.where(unknown[now], later, values[now])
        values[now] = (1 - decay) * own + decay * later
    return np.where(unknown, np.float32(np.nan), values)


def drawn(weights_upto: npt.NDArray[np.float64], rng: np.random.Generator, count: int) -> Numbers:
    """*count* places, each as often as its weight says; *weights_upto* are the sums up to each place."""
    places = np.searchsorted(weights_upto, rng.random(count) * weights_upto[-1], side="right")
    inside: Numbers = np.minimum(places, len(weights_upto) - 1)
    return inside
