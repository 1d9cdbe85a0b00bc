"""A network as the evaluator of a search, also from the file of a model; and positions to try one on.

What it says of a position is the same to the last bit, whatever stands beside it in a batch: positions are
judged in batches of one size, or of smaller sizes that were seen to give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from ringrift.errors import ConfigError
from ringrift.games.contract import ActionArray, Game, LegalActions, Planes, States
from ringrift.network.architecture import Preset, architecture_for, require_same
from ringrift.network.cache import EvaluationCache
from ringrift.network.engines import InferenceEngine, ModuleEngine, OneDnnEngine, Precision, QuantisedEngine
from ringrift.network.model import ResidualNet, chosen_device
from ringrift.network.packing import RawOutput, Request, write_others, write_placed
from ringrift.network.storage import load_model
from ringrift.search.contract import Evaluation, Evaluator

# Positions to try a network on.


PLIES_MAX = 64


def sample_positions(game: Game, count: int, *, seed: int = 1) -> States:
    """Running games after up to `PLIES_MAX` random plies each; the same for the same seed."""
    rng = np.random.default_rng(seed)
    states = game.new_states(count)
    plies = rng.integers(0, PLIES_MAX, count)
    for ply in range(PLIES_MAX):
        moving = np.flatnonzero(plies > ply)
        if not len(moving):
            break
        rows = states[moving]
        legal = game.legal(rows)
        draws = (rng.random(len(moving)) * legal.counts).astype(np.int64)
        game.apply(rows, legal.actions[legal.offsets[:-1] + draws], trusted=True)
        running = ~game.terminal(rows)
        states[moving[running]] = rows[running]
        plies[moving[~running]] = 0  # a finished game stays where it was before its last move
    return states


Longs = npt.NDArray[np.int64]

BATCH = 64
SMALLER_BATCHES = (8, 16, 32)
CACHE_BYTES = 64 << 20
SAMPLES = 256
VALUE_TOLERANCE = 0.1


@dataclass(slots=True)
class EvaluatorCounts:
    """What an evaluator has done so far."""

    asked: int = 0
    judged: int = 0  # by the network; the others were known or stood twice in a batch
    batches: int = 0
    rows: int = 0  # judged and filled up


class NetEvaluator:
    """Judges positions of one game with one network."""

    def __init__(
        self,
        model: ResidualNet,
        game: Game,
        *,
        batch: int = BATCH,
        precision: Precision | Literal["auto"] = "auto",
        device: str = "cpu",
        cache_bytes_max: int = CACHE_BYTES,
        before_batch: Callable[[], None] | None = None,
    ) -> None:
        """*before_batch* is called before each batch, and may raise `Interrupted`."""
        if batch < 1:
            raise ConfigError(f"evaluator: batch must be at least 1, not {batch}")
        a = model.architecture
        size = Preset(channels=a.channels, blocks=a.blocks, neck=a.neck, hidden=a.hidden)
        require_same("model", wanted=architecture_for(game, size), found=a)
        self.game, self.batch, self.counts = game, batch, EvaluatorCounts()
        self._before_batch = before_batch
        self.engine = make_engine(model, game, batch=batch, precision=precision, device=device)
        self._sizes = [batch]
        if device == "cpu":
            smaller = [size for size in SMALLER_BATCHES if size < batch]
            self._sizes = [*_same_to_the_bit(self.engine, game, batch, smaller), batch]
        self._places = _places(game)
        self._cache = EvaluationCache(game, size_bytes_max=cache_bytes_max) if cache_bytes_max else None

    def evaluate(self, states: States, legal: LegalActions) -> Evaluation:
        self.counts.asked += len(states)
        if self._cache is None:
            evaluation = Evaluation(
                np.empty(len(legal.actions), dtype=np.float32),
                np.empty((len(states), self.game.players), dtype=np.float32),
            )
            self._judge(states, legal, np.arange(len(states)), evaluation)
            return evaluation
        looked, missing, evaluation = self._cache.look_up(states, legal)
        if len(missing):
            self._judge(states, legal, missing, evaluation)
        self._cache.fill_in(states, legal, looked, missing, evaluation)
        return evaluation

    def _judge(self, states: States, legal: LegalActions, missing: Longs, out: Evaluation) -> None:
        """Write what the network says of the *missing* states to *out*."""
        for start in range(0, len(missing), self.batch):
            if self._before_batch is not None:
                self._before_batch()
            part = missing[start : start + self.batch]
            rows = states[part]
            output = self._judge_rows(self.game.observe(rows))
            movers = np.asarray(self.game.to_move(rows), dtype=np.int64)
            asked = Request(part, movers, legal.offsets, legal.actions)
            if output.planes.shape[1]:
                write_placed(asked, self._places, output.planes, out.logits.view(np.uint32))
            write_others(asked, self._places, output, out.logits, out.values)
        self.counts.judged += len(missing)

    def _judge_rows(self, planes: Planes) -> RawOutput:
        """Fill up to the next size of a batch."""
        count = len(planes)
        size = next(size for size in self._sizes if size >= count)
        if size > count:
            planes = np.concatenate((planes, np.zeros((size - count, *planes.shape[1:]), dtype=np.float32)))
        self.counts.batches += 1
        self.counts.rows += size
        return self.engine.judge(planes)


def make_engine(
    model: ResidualNet, game: Game, *, batch: int, precision: Precision | Literal["auto"], device: str
) -> InferenceEngine:
    """The fastest engine for what is asked; on a GPU that is bfloat16 unless float32 is asked for."""
    where = torch.device(device)
    if where.type != "cpu":
        if precision == "int8":
            raise ConfigError("network: int8 is for processors; use bfloat16 on a GPU")
        dtype = torch.float32 if precision == "float32" else torch.bfloat16
        return ModuleEngine(model, dtype=dtype, device=where)
    samples = game.observe(sample_positions(game, SAMPLES))
    if precision == "int8":
        return _checked(QuantisedEngine(model, batch=batch, samples=samples), model, samples)
    if precision == "bfloat16" or (precision == "auto" and has_bfloat16()):
        return _checked(OneDnnEngine(model, batch=batch), model, samples)
    return ModuleEngine(model, dtype=torch.float32, device=where)


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 natively."""
    flags = Path("/proc/cpuinfo")
    return flags.exists() and "avx512_bf16" in flags.read_text(encoding="ascii", errors="replace")


def _checked(engine: InferenceEngine, model: ResidualNet, samples: Planes) -> InferenceEngine:
    """Refuse an engine whose values are not the model's: its operators are not ours to trust."""
    plain = ModuleEngine(model, dtype=torch.float32, device=torch.device("cpu")).judge(samples)
    error = float(np.abs(engine.judge(samples).values - plain.values).mean())
    if not error <= VALUE_TOLERANCE:
        raise ConfigError(f"network: {engine.name} is off by {error:.3f} on average; use precision float32")
    return engine


def _same_to_the_bit(engine: InferenceEngine, game: Game, batch: int, sizes: list[int]) -> list[int]:
    """The *sizes* of batches that give every sample the same bits as a full batch."""
    planes = game.observe(sample_positions(game, batch))
    whole = engine.judge(planes)
    same = []
    for size in sizes:
        parts = [engine.judge(planes[at : at + size]) for at in range(0, batch - size + 1, size)]
        if all(_equal_bits(part, whole, at * size) for at, part in enumerate(parts)):
            same.append(size)
    return same


def _equal_bits(part: RawOutput, whole: RawOutput, start: int) -> bool:
    end = start + len(part.values)
    return (
        np.array_equal(part.planes, whole.planes[start:end])
        and np.array_equal(part.placeless, whole.placeless[start:end])
        and np.array_equal(part.values, whole.values[start:end])
    )


def _places(game: Game) -> ActionArray:
    """Where each action's logit lies: cell by cell, all planes of a cell together; -1 - k without a place."""
    layout = game.action_layout
    cells = layout.rows * layout.columns
    plane, cell = layout.slots // cells, layout.slots % cells
    placed = layout.slots < layout.planes * cells
    off_board = -1 - (layout.slots - layout.planes * cells)
    return np.where(placed, cell * layout.planes + plane, off_board).astype(np.int32)


# A model from a file as the evaluator of a search. Programs that may need none load this module when they do,
# since torch takes seconds.


def model_generator(
    path: Path,
    game: Game,
    *,
    threads: int,
    batch: int,
    device: str,
    before_batch: Callable[[], None] | None = None,
) -> tuple[Evaluator, str]:
    """The model in *path* and its digest; raises if it was made for another game."""
    torch.set_num_threads(threads)
    net, card = load_model(path, config=game.key)
    evaluator = NetEvaluator(net, game, batch=batch, device=chosen_device(device), before_batch=before_batch)
    return evaluator, card.sha256
