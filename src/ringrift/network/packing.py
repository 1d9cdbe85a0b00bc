"""Compiled copies between the game's arrays and the network's: planes in, logits and values out.

Inside a network a position lies cell by cell, all channels of a cell together. bfloat16 numbers travel as
the upper halves of 32-bit ones, since NumPy does not know them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.games.contract import ActionArray

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]
Words32 = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

FINGERPRINT = source_fingerprint(Path(__file__))


class RawOutput(NamedTuple):
    """What a network says of a batch."""

    planes: Halves  # positions x (cells x action planes), as bfloat16
    placeless: Floats  # positions x placeless actions
    values: Floats  # positions x players, the player on turn first


class Request(NamedTuple):
    """Which states of a larger batch the output belongs to, and their legal actions."""

    states: Longs
    movers: Longs
    offsets: Longs
    actions: ActionArray


@cached_kernel(FINGERPRINT)
def pack_halves(planes: Words32, out: Halves) -> None:
    """Planes (given as the bits of their numbers) to bfloat16, rounded to nearest even, channels last."""
    for at in range(planes.shape[0]):
        for plane in range(planes.shape[1]):
            for row in range(planes.shape[2]):
                for column in range(planes.shape[3]):
                    bits = np.int64(planes[at, plane, row, column])
                    out[at, row, column, plane] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@cached_kernel(FINGERPRINT)
def pack_bytes(planes: Floats, scale: float, out: Bytes) -> None:
    """Planes in steps of *scale*, from 0 to 255, channels last."""
    inverse = np.float32(1.0 / scale)
    for at in range(planes.shape[0]):
        for plane in range(planes.shape[1]):
            for row in range(planes.shape[2]):
                for column in range(planes.shape[3]):
                    steps = planes[at, plane, row, column] * inverse + np.float32(0.5)
                    out[at, row, column, plane] = np.uint8(
                        min(max(steps, np.float32(0.0)), np.float32(255.0))
                    )


@compiled
def _half_as_word(half: np.uint16) -> np.uint32:
    return np.uint32(half) << np.uint32(16)


@cached_kernel(FINGERPRINT)
def write_placed(asked: Request, places: ActionArray, planes: Halves, logits: Words32) -> None:
    """Pick the logits of legal actions that have a place on the board; *logits* are bits of numbers."""
    for number in range(asked.states.shape[0]):
        state = asked.states[number]
        for at in range(asked.offsets[state], asked.offsets[state + 1]):
            place = places[asked.actions[at]]
            if place >= 0:
                logits[at] = _half_as_word(planes[number, place])


@cached_kernel(FINGERPRINT)
def write_others(
    asked: Request, places: ActionArray, output: RawOutput, logits: Floats, values: Floats
) -> None:
    """Pick the logits of actions without a place, and turn values from the player on turn to seats."""
    players = output.values.shape[1]
    for number in range(asked.states.shape[0]):
        state = asked.states[number]
        for at in range(asked.offsets[state], asked.offsets[state + 1]):
            place = places[asked.actions[at]]
            if place < 0:
                logits[at] = output.placeless[number, -1 - place]
        for ahead in range(players):
            values[state, (asked.movers[number] + ahead) % players] = output.values[number, ahead]
