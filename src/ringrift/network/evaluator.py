"""A network as the evaluator of a search, also from the file of a model; and positions to try one on.

What it says of a position is the same to the last bit, whatever stands beside it in a batch: positions are
judged in batches of one size, or of smaller sizes that were seen to give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ringrift.errors import ConfigError
from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.games.contract import ActionArray, Game, LegalActions, Planes, States
from ringrift.network.architecture import Preset, architecture_for, require_same
from ringrift.network.engines import (
    InferenceEngine,
    ModuleEngine,
    OneDnnEngine,
    Precision,
    QuantizedEngine,
    RawOutput,
    Request,
    write_others,
    write_placed,
)
from ringrift.network.model import ResidualNet, chosen_device
from ringrift.network.storage import load_model
from ringrift.search.contract import Evaluation, Evaluator

# --- what was judged before ---------------------------------------------------------------------------
#
# A bounded memory of evaluations, looked up by the whole state row.
#
# The table is cut into sets of a few places. A row belongs to one set by its hash and is compared word by
# word, so an answer is always that of the very same state. A full set gives up its longest unused place.
# States with more legal actions than a place has room for are not kept.


Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

FINGERPRINT = source_fingerprint(Path(__file__))
PLACES_PER_SET = 4
LOGITS_MAX = 96
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER = np.uint64(0xFF51AFD7ED558CCD)
NONE = -1


class Table(NamedTuple):
    rows: Longs  # places x words
    hashes: npt.NDArray[np.uint64]
    used_at: Longs  # 0 for an empty place, else when it was used last
    logits: Floats
    values: Floats
    clock: Longs  # one number that counts lookups


class Lookup(NamedTuple):
    """Per state: its hash, and its number among the states to evaluate or NONE if the table knew it."""

    hashes: npt.NDArray[np.uint64]
    wanted: Longs


@compiled
def hash_row(row: Longs) -> np.uint64:
    word = GOLDEN
    for at in range(row.shape[0]):
        word = (word ^ np.uint64(row[at])) * MULTIPLIER
        word ^= word >> np.uint64(32)
    return word


@compiled
def same_row(one: Longs, other: Longs) -> bool:
    differs = False
    for at in range(one.shape[0]):
        differs |= one[at] != other[at]
    return not differs


@compiled
def find_place(table: Table, hashed: np.uint64, row: Longs) -> int:
    sets = table.hashes.shape[0] // PLACES_PER_SET
    first = np.int64(hashed & np.uint64(sets - 1)) * PLACES_PER_SET
    for place in range(first, first + PLACES_PER_SET):
        if table.used_at[place] != 0 and table.hashes[place] == hashed and same_row(table.rows[place], row):
            return place
    return NONE


@cached_kernel(FINGERPRINT)
def look_up(
    table: Table, states: Longs, offsets: Longs, out: Lookup, logits: Floats, values: Floats
) -> Longs:
    """Copy what is known to *logits* and *values*; returns the other states, each different one once."""
    count = states.shape[0]
    missing = np.empty(count, dtype=np.int64)
    missed = 0
    size = 16
    while size < 2 * count:
        size *= 2
    seen = np.full(size, NONE, dtype=np.int64)
    table.clock[0] += 1
    for state in range(count):
        hashed = hash_row(states[state])
        out.hashes[state] = hashed
        place = find_place(table, hashed, states[state])
        if place != NONE:
            out.wanted[state] = NONE
            table.used_at[place] = table.clock[0]
            for at in range(offsets[state], offsets[state + 1]):
                logits[at] = table.logits[place, at - offsets[state]]
            for seat in range(values.shape[1]):
                values[state, seat] = table.values[place, seat]
            continue
        slot = np.int64(hashed >> np.uint64(20)) & (size - 1)
        while seen[slot] != NONE and not same_row(states[missing[seen[slot]]], states[state]):
            slot = (slot + 1) & (size - 1)
        if seen[slot] == NONE:
            seen[slot] = missed
            missing[missed] = state
            missed += 1
        out.wanted[state] = seen[slot]
    return missing[:missed]


@compiled
def remember(table: Table, hashed: np.uint64, row: Longs, logits: Floats, values: Floats) -> None:
    sets = table.hashes.shape[0] // PLACES_PER_SET
    first = np.int64(hashed & np.uint64(sets - 1)) * PLACES_PER_SET
    oldest = int(first)
    for place in range(first + 1, first + PLACES_PER_SET):
        if table.used_at[place] < table.used_at[oldest]:
            oldest = place
    table.used_at[oldest] = table.clock[0]
    table.hashes[oldest] = hashed
    for at in range(row.shape[0]):
        table.rows[oldest, at] = row[at]
    for at in range(logits.shape[0]):
        table.logits[oldest, at] = logits[at]
    for seat in range(values.shape[0]):
        table.values[oldest, seat] = values[seat]


@cached_kernel(FINGERPRINT)
def fill_in(
    table: Table,
    states: Longs,
    offsets: Longs,
    looked: Lookup,
    missing: Longs,
    logits: Floats,
    values: Floats,
) -> None:
    """Spread new evaluations, given at the *missing* states, to their repetitions, and remember them."""
    for number in range(missing.shape[0]):
        state = missing[number]
        start, end = offsets[state], offsets[state + 1]
        if end - start <= table.logits.shape[1]:
            remember(table, looked.hashes[state], states[state], logits[start:end], values[state])
    for state in range(states.shape[0]):
        wanted = looked.wanted[state]
        if wanted == NONE or missing[wanted] == state:
            continue
        source = missing[wanted]
        for at in range(offsets[state + 1] - offsets[state]):
            logits[offsets[state] + at] = logits[offsets[source] + at]
        for seat in range(values.shape[1]):
            values[state, seat] = values[source, seat]


class EvaluationCache:
    """The memory of one network for one game."""

    def __init__(self, game: Game, *, size_bytes_max: int) -> None:
        width = min(LOGITS_MAX, game.action_count)
        place_bytes = 8 * game.words + 4 * width + 4 * game.players + 16
        sets = 1
        while 2 * sets * PLACES_PER_SET * place_bytes <= size_bytes_max:
            sets *= 2
        places = sets * PLACES_PER_SET
        self.places = places
        self._players = game.players
        self._table = Table(
            rows=np.zeros((places, game.words), dtype=np.int64),
            hashes=np.zeros(places, dtype=np.uint64),
            used_at=np.zeros(places, dtype=np.int64),
            logits=np.zeros((places, width), dtype=np.float32),
            values=np.zeros((places, game.players), dtype=np.float32),
            clock=np.zeros(1, dtype=np.int64),
        )

    def look_up(self, states: States, legal: LegalActions) -> tuple[Lookup, Longs, Evaluation]:
        """What is known, and which states are not: the caller fills those in and calls `fill_in`."""
        looked = Lookup(np.empty(len(states), dtype=np.uint64), np.empty(len(states), dtype=np.int64))
        logits = np.empty(len(legal.actions), dtype=np.float32)
        values = np.empty((len(states), self._players), dtype=np.float32)
        missing: Longs = look_up(self._table, states, legal.offsets, looked, logits, values)
        return looked, missing, Evaluation(logits, values)

    def fill_in(
        self, states: States, legal: LegalActions, looked: Lookup, missing: Longs, evaluation: Evaluation
    ) -> None:
        fill_in(self._table, states, legal.offsets, looked, missing, evaluation.logits, evaluation.values)

    def clear(self) -> None:
        self._table.used_at[:] = 0


# --- the evaluator ------------------------------------------------------------------------------------


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
        return _checked(QuantizedEngine(model, batch=batch, samples=samples), model, samples)
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
