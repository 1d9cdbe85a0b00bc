"""Sample files: what is in one, how it is written, and whether one from elsewhere holds what it says.

Sparse policies are flat: with `o = policy_offsets`, sample i has `policy_indices[o[i]:o[i+1]]` and the same
span of `policy_values`. They name every legal action of the position. Words are small integers; the
`codes` scalar lists them. So nothing needs unpickling.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.foreign_files.paths import parse_config_key
from ringrift.foreign_files.sample_archives import ROWS_MAX, UNREADABLE, SampleArchive, open_samples
from ringrift.games.contract import Game
from ringrift.jobs.files import scratch_folder

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
    board = game.key if ":" in game.key else parse_config_key(game.key).board
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


# --- files --------------------------------------------------------------------------------------------
#
# Sample files: written piece by piece, and checked before anybody trains on them, without loading them.


# Writing NPZ files piece by piece: memory holds one piece, whatever the size of the file.
#
# A zip takes one member at a time, so the largest array goes straight into it and the others wait in files
# of their own. The number of samples is known before the first is made, because headers come first.


_COPY_BYTES = 2**18


class SampleWriter:
    """Writes *rows* samples into *path*; a context manager, so that waiting files are removed."""

    def __init__(
        self, path: Path, game: Game, *, rows: int, compress: bool, with_features: bool = True
    ) -> None:
        self._rows, self._written, self._flat = rows, 0, 0
        self._columns, self._flat_columns = row_columns(game), flat_columns()
        if not with_features:
            del self._columns[FEATURES]
        self._streamed = next(iter(self._columns))  # the largest comes first
        self._digests = {name: hashlib.sha256() for name in (*self._columns, *self._flat_columns)}
        self._waiting_folder = scratch_folder(path.parent, f"{path.name}-")
        self._waiting: dict[str, IO[bytes]] = {
            name: (Path(self._waiting_folder.name) / name).open("w+b")
            for name in self._digests
            if name != self._streamed
        }
        how = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        self._zip = zipfile.ZipFile(path, "w", compression=how, compresslevel=1 if compress else None)
        dtype, shape = self._columns[self._streamed]
        self._stream = self._open_member(self._streamed, dtype, (rows, *shape))

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._waiting.values():
            file.close()
        self._stream.close()
        self._zip.close()
        self._waiting_folder.cleanup()

    def add(self, columns: Columns) -> None:
        """Append samples: all row columns, and the flat ones of the same samples."""
        count = len(columns["values"])
        for name, (dtype, shape) in self._columns.items():
            if columns[name].shape != (count, *shape):
                raise ConfigError(f"{name}: {columns[name].shape} for {count} samples of shape {shape}")
            self._append(name, columns[name], dtype)
        for name, dtype in self._flat_columns.items():
            self._append(name, columns[name], dtype)
        self._written += count
        self._flat += len(columns["policy_indices"])

    def finish(self, scalars: Mapping[str, Any]) -> None:
        """Write what waits, the scalars and the checksums."""
        assert self._written == self._rows, f"{self._written} of {self._rows} samples were written"
        self._stream.close()
        self._write_offsets()
        for name, waiting in self._waiting.items():
            dtype, shape = self._columns.get(name, (self._flat_columns.get(name), ()))
            assert dtype is not None
            count = self._rows if name in self._columns else self._flat
            waiting.seek(0)
            with self._open_member(name, dtype, (count, *shape)) as member:
                shutil.copyfileobj(waiting, member, _COPY_BYTES)
        checksums = {name: digest.hexdigest() for name, digest in sorted(self._digests.items())}
        for name, value in {**scalars, "checksums": json.dumps(checksums)}.items():
            self._write_scalar(name, np.asarray(value))
        self._zip.close()

    def _append(self, name: str, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
        content = np.ascontiguousarray(array, dtype=dtype).tobytes()
        self._digests[name].update(content)
        (self._stream if name == self._streamed else self._waiting[name]).write(content)

    def _write_offsets(self) -> None:
        """Sum the counts up, a piece at a time."""
        waiting, digest, end = self._waiting["policy_counts"], hashlib.sha256(), np.int64(0)
        waiting.seek(0)
        with self._open_member("policy_offsets", np.dtype("<i8"), (self._rows + 1,)) as member:
            content = end.astype("<i8").tobytes()
            while content:
                member.write(content)
                digest.update(content)
                counts = np.frombuffer(waiting.read(_COPY_BYTES), dtype="<i4")
                offsets = end + np.cumsum(counts, dtype="<i8")
                end = offsets[-1] if len(offsets) else end
                content = offsets.tobytes()
        self._digests["policy_offsets"] = digest

    def _open_member(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> IO[bytes]:
        # By name: a `ZipInfo` would not be packed as the archive is. No time: the same makes the same bytes.
        member = self._zip.open(f"{name}.npy", "w", force_zip64=True)
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        return member

    def _write_scalar(self, name: str, value: np.ndarray[Any, Any]) -> None:
        assert not value.dtype.hasobject
        with self._open_member(name, value.dtype, value.shape) as member:
            member.write(value.tobytes())


# Checking sample files before anybody trains on them, without loading them.
#
# Headers are read first and must make sense: a file stitched together by a resumed copy may claim billions
# of elements. The deep check then streams every array once: checksums, finite numbers, ranges, policy sums.
# With a game, every row must be a position of it, with the player on turn and exactly the legal actions:
# compiled code trusts what it is given.


POLICY_SUM_TOLERANCE = 1e-3
FLAT = {"policy_indices", "policy_values", "policy_offsets"}
MISDIVIDED = "policy_offsets do not divide the policies among the samples"
PLAYED = ("states", "seats", "policy_offsets", "policy_indices")  # what the rules have a say in
_PIECE_BYTES = 2**18
_PIECE_VALUES = 2**15
_ROWS_AT_ONCE = 2**12

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class SampleCheck:
    """What was found in one file."""

    sample_count: int = 0
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    array_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    array_dtypes: dict[str, str] = field(default_factory=dict)
    file_size: int = 0
    config: str | None = None  # that it says it is of; asked for with a game only

    @property
    def valid(self) -> bool:
        return not self.errors


@dataclass(frozen=True, slots=True)
class Unpacking:
    """Arrays that are kept unpacked, each as a file of its name, while they are checked."""

    folder: Path
    names: Sequence[str]


class _Unpacked:
    """The same arrays as those of an archive, read from where they were unpacked to."""

    def __init__(self, archive: SampleArchive, unpack: Unpacking) -> None:
        self._folder = unpack.folder
        self.arrays = {name: archive.arrays[name] for name in unpack.names if name in archive.arrays}

    def pieces(self, name: str, bytes_max: int = _PIECE_BYTES) -> Iterator[bytes]:
        with (self._folder / name).open("rb") as file:
            while piece := file.read(bytes_max):
                yield piece


_Source = SampleArchive | _Unpacked


def quick_check(path: Path) -> tuple[bool, str]:
    """Headers only; returns whether the file may be used, and why not."""
    found = check_samples(path, deep=False)
    return found.valid, "; ".join(found.errors) or f"{found.sample_count} samples"


def check_samples(
    path: Path, *, game: Game | None = None, deep: bool = True, unpack: Unpacking | None = None
) -> SampleCheck:
    """Check a file, also against *game* if given; never raises for what is wrong with the file."""
    found = SampleCheck()
    try:
        found.file_size = path.stat().st_size
        if not found.file_size:
            found.errors.append("the file is empty")
            return found
        with open_samples(path) as archive:
            _check_headers(archive, found)
            if game is not None:
                _check_game(archive, game, found)
                found.config = archive.text("config_key")
            source = archive if unpack is None else _Unpacked(archive, unpack)
            if deep and found.valid:
                _check_contents(archive, found, unpack)
                _check_policies(source, found)
            if deep and found.valid and game is not None:
                _check_rows(source, game, found)
    except UNREADABLE as fault:
        found.errors.append(f"unreadable: {fault}")
    return found


def _check_headers(archive: SampleArchive, found: SampleCheck) -> None:
    found.errors += [f"{name}: {fault}" for name, fault in archive.faults.items()]
    found.array_shapes = {name: array.shape for name, array in archive.arrays.items()}
    found.array_dtypes = {name: array.dtype for name, array in archive.arrays.items()}
    shapes = found.array_shapes
    if not shapes:
        found.errors.append("no arrays")
    if not shapes.keys() & {FEATURES, "states"}:
        found.errors.append(f"{FEATURES} and states are missing")
    if "values" not in shapes:
        found.errors.append("values is missing")
    if "values" not in shapes:
        return
    found.sample_count = (shapes["values"] or (0,))[0]
    if not found.sample_count:
        found.errors.append("no samples")
    if found.sample_count > ROWS_MAX:
        found.errors.append(f"{found.sample_count} samples cannot be")
    for name, shape in shapes.items():
        if shape and name not in FLAT and shape[0] != found.sample_count:
            found.errors.append(f"{name}: {shape[0]} entries for {found.sample_count} samples")
    if FEATURES in shapes and archive.arrays[FEATURES].kind != "f":
        found.warnings.append(f"{FEATURES} are {found.array_dtypes[FEATURES]}")
    _check_policy_headers(archive, found)


def _check_policy_headers(archive: SampleArchive, found: SampleCheck) -> None:
    missing = sorted(FLAT - found.array_shapes.keys())
    if missing:
        found.warnings.append(f"no {', '.join(missing)}: nothing to learn a policy from")
        return
    indices, values, offsets = (
        archive.arrays[name] for name in ("policy_indices", "policy_values", "policy_offsets")
    )
    if offsets.shape != (found.sample_count + 1,) or offsets.dtype != "<i8":
        found.errors.append(f"policy_offsets: {offsets.shape} for {found.sample_count} samples")
    if indices.shape != values.shape:
        found.errors.append("policy_indices and policy_values differ in length")
    if len(indices.shape) != 1 or indices.kind not in "iu" or values.kind != "f":
        found.errors.append("policy_indices and policy_values are no lists of numbers")


def _check_game(archive: SampleArchive, game: Game, found: SampleCheck) -> None:
    """Rows and policies must have the type and shape that the game gives them."""
    for name, (dtype, shape) in row_columns(game).items():
        array = archive.arrays.get(name)
        if array is None:
            if name not in (FEATURES, DRAW_WEIGHTS):
                found.warnings.append(f"{name} is missing")
        elif not array.shape or array.shape[1:] != shape:
            found.errors.append(f"{name}: entries of {array.shape[1:]}; {game.key} has {shape}")
        elif np.dtype(array.dtype) != dtype:
            found.errors.append(f"{name}: {array.dtype}, expected {dtype}")
    for name, wanted in (("policy_indices", "<i4"), ("policy_values", "<f4")):
        if name in archive.arrays and archive.arrays[name].dtype != wanted:
            found.errors.append(f"{name}: {archive.arrays[name].dtype}, expected {wanted}")


def _check_contents(archive: SampleArchive, found: SampleCheck, unpack: Unpacking | None) -> None:
    checksums = archive.checksums()
    listed = {name for name, shape in found.array_shapes.items() if shape}
    if unsummed := sorted(listed - checksums.keys()):
        found.errors.append(f"{unsummed[0]}: no checksum says what was written")
    for name in found.array_shapes:
        digest = hashlib.sha256()
        low, high = np.inf, -np.inf
        with ExitStack() as files:
            kept = None
            if unpack is not None and name in unpack.names:
                kept = files.enter_context((unpack.folder / name).open("wb"))
            for content in archive.pieces(name, _PIECE_BYTES):
                digest.update(content)
                if kept is not None:
                    kept.write(content)
                piece: Array = np.frombuffer(content, dtype=np.dtype(archive.arrays[name].dtype))
                if piece.dtype.kind in "fiu" and piece.size:
                    low, high = min(low, float(piece.min())), max(high, float(piece.max()))
        if name in checksums and digest.hexdigest() != checksums[name]:
            found.errors.append(f"{name}: the content is not what was written (checksum)")
        _check_range(name, archive.arrays[name].kind, low, high, found)


def _check_range(name: str, kind: str, low: float, high: float, found: SampleCheck) -> None:
    if kind == "f" and not name.endswith("_elo") and not np.isfinite([low, high]).all():
        found.errors.append(f"{name}: not all numbers are finite")
    elif name in ("values", "values_mp") and not -1.001 <= low <= high <= 1.001:
        found.errors.append(f"{name}: from {low:g} to {high:g}, expected -1 to 1")
    elif name == "seats" and not 0 <= low <= high < SEATS_MAX:
        found.errors.append(f"{name}: from {low:g} to {high:g}, expected 0 to {SEATS_MAX - 1}")
    elif name == DRAW_WEIGHTS and not 0 < low <= high <= DRAW_WEIGHT_MAX:
        found.errors.append(
            f"{name}: from {low:g} to {high:g}, expected up to {DRAW_WEIGHT_MAX:g} and above 0"
        )
    elif name in ("policy_values", "sample_weights", "policy_indices") and low < 0:
        found.errors.append(f"{name}: {low:g} is negative")


def _check_policies(archive: _Source, found: SampleCheck) -> None:
    if found.array_shapes.keys() >= FLAT and (wrong := _policy_fault(archive)):
        found.errors.append(wrong)


def _policy_fault(archive: _Source) -> str:
    """The first thing that is wrong with offsets and sums, read side by side."""
    values, total = _Stream(archive, "policy_values"), archive.arrays["policy_values"].shape[0]
    sample, start = 0, None
    for ends in _pieces(archive, "policy_offsets"):
        offsets = ends if start is None else np.concatenate(([start], ends))
        if (start is None and offsets[0] != 0) or (np.diff(offsets) <= 0).any() or offsets[-1] > total:
            return MISDIVIDED
        counts = np.diff(offsets)
        for some in np.array_split(counts, 1 + int(counts.sum()) // _PIECE_VALUES):
            taken = values.take(int(some.sum()))
            if len(some):
                sums = np.add.reduceat(taken.astype(np.float64), np.cumsum(some) - some)
                off = np.flatnonzero(np.abs(sums - 1) > POLICY_SUM_TOLERANCE)
                if off.size:
                    return f"the policy of sample {sample + off[0]} sums to {sums[off[0]]:.4f}"
            sample += len(some)
        start = offsets[-1]
    return MISDIVIDED if start != total else ""


def _check_rows(archive: _Source, game: Game, found: SampleCheck) -> None:
    """Hold positions, players on turn and legal actions against the rules; needs sound offsets."""
    if not found.array_shapes.keys() >= set(PLAYED):
        return
    states, seats, offsets, indices = (_Stream(archive, name) for name in PLAYED)
    possible = getattr(game, "possible", None)  # a game of another package may lack it
    start = int(offsets.take(1)[0])
    for first in range(0, found.sample_count, _ROWS_AT_ONCE):
        rows = min(_ROWS_AT_ONCE, found.sample_count - first)
        some = np.ascontiguousarray(states.take(rows * game.words).reshape(rows, game.words))
        ends = offsets.take(rows)
        counts = np.diff(ends, prepend=start)
        named, start = indices.take(int(ends[-1]) - start), int(ends[-1])
        if possible is not None and not (can_be := possible(some)).all():
            found.errors.append(
                f"states: sample {first + int(np.argmin(can_be))} is no position of {game.key}"
            )
            return
        if (wrong := np.flatnonzero(game.to_move(some) != seats.take(rows))).size:
            found.errors.append(f"seats: another player is on turn in sample {first + int(wrong[0])}")
            return
        legal = game.legal(some)
        fine = np.array_equal(legal.counts, counts)
        if fine and not np.array_equal(legal.actions, named):  # a turned position has them in another order
            fine = np.array_equal(_sorted_by_row(legal.actions, counts), _sorted_by_row(named, counts))
        if not fine:
            found.errors.append(
                f"policy_indices: not the legal actions of samples {first} to {first + rows - 1}"
            )
            return


def _sorted_by_row(actions: Array, counts: Array) -> Array:
    rows = np.repeat(np.arange(len(counts)), counts)
    return np.sort((rows << 32) + actions.astype(np.int64))


class _Stream:
    """A flat array, read on and on in parts of any size."""

    def __init__(self, archive: _Source, name: str) -> None:
        self._pieces = _pieces(archive, name)
        self._left: Array = np.empty(0, archive.arrays[name].dtype)

    def take(self, count: int) -> Array:
        """The next *count* entries, fewer at the end."""
        parts, missing = [self._left], count - len(self._left)
        while missing > 0 and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            missing -= len(piece)
        joined = np.concatenate(parts)
        self._left = joined[count:]
        return joined[:count]


def _pieces(archive: _Source, name: str) -> Iterator[Array]:
    dtype = np.dtype(archive.arrays[name].dtype)
    for piece in archive.pieces(name, _PIECE_BYTES):
        yield np.frombuffer(piece, dtype=dtype)
