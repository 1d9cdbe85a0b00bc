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
