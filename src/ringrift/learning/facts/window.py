"""Which rows are trained on, and how much: the replay window and the train bucket.

The window grows more slowly than the data, so old games leave it while the config gets stronger. The bucket
pays for training with new rows only: every accepted row earns sample-steps, and a training run spends them.
Without new rows there is nothing to spend, however long ago the last training was.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ringrift.errors import ConfigError
from ringrift.learning.facts.records import Shard, ShardState

EXPONENT, GROWTH = 0.75, 0.4
# Small boards: what a run of minutes learns from must not still be the games of its first net.
_BASE_ROWS = {"hex8": 10_000, "square8": 10_000, "square19": 100_000, "hexagonal": 150_000}
_BASE_ROWS_OTHER = 10_000
# Measured: with random openings and few full searches a window of 50,000 that stays so teaches more
# (docs/learning.md).
_BASE_ROWS_MEASURED = {"connect_four": 50_000}
_GROWTH_MEASURED = {"connect_four": 0.0}
RINGRIFT_BOARDS = frozenset(_BASE_ROWS)


def base_rows(config: str) -> int:
    """Return the size from which the window grows more slowly than the data; by the board's rows per game."""
    board = config.rsplit("_", 1)[0]
    return _BASE_ROWS.get(board) or _BASE_ROWS_MEASURED.get(board, _BASE_ROWS_OTHER)


def growth_of(config: str) -> float:
    """Return how fast the window grows beyond its base; 0: it stays."""
    return _GROWTH_MEASURED.get(config.rsplit("_", 1)[0], GROWTH)


def window_rows(rows_total: int, *, base: int, growth: float = GROWTH, share: float = 1.0) -> int:
    """Return how many of the newest rows are in the window: all of them up to *base*, a power law beyond.

    Of a *share* below 1, the newest rows of that.
    """
    if base <= 0:
        raise ConfigError(f"the window needs a base above 0, not {base}")
    if rows_total <= base:
        return max(0, round(rows_total * share))
    grown: float = (rows_total / base) ** EXPONENT
    return min(rows_total, round(share * base * (1 + growth * (grown - 1) / EXPONENT)))


def shards_in_window(
    shards: Iterable[Shard],
    rows_total: int,
    *,
    base: int,
    growth: float = GROWTH,
    share: float = 1.0,
    shards_max: int | None = None,
) -> tuple[Shard, ...]:
    """Return the checked shards, newest first as given, that fill the window; the last may reach over.

    At most *shards_max* of them: the oldest of the window are then left out.
    """
    taken: list[Shard] = []
    wanted, rows = window_rows(rows_total, base=base, growth=growth, share=share), 0
    for shard in shards:
        if rows >= wanted or len(taken) == shards_max:
            break
        if shard.state is ShardState.CHECKED and shard.rows > 0:
            taken.append(shard)
            rows += shard.rows
    return tuple(taken)


class BucketRules(msgspec.Struct, frozen=True, kw_only=True):
    """How training is paid for, in sample-steps: one row seen once."""

    steps_per_row: float = 4.0
    chunk_steps: int = 40_000  # what one training run spends
    cap_steps: int = 400_000  # what is not spent beyond this is forfeited
    rows_first_min: int = 2_000  # rows before the first network

    def __post_init__(self) -> None:
        if self.steps_per_row <= 0 or self.chunk_steps <= 0 or self.rows_first_min < 0:
            raise ConfigError("the train bucket needs positive steps per row and a positive chunk")
        if self.cap_steps < self.chunk_steps:
            raise ConfigError(f"a cap of {self.cap_steps} steps never holds a chunk of {self.chunk_steps}")


class TrainBucket(msgspec.Struct, frozen=True, kw_only=True):
    """What was earned, spent and forfeited. Nothing else changes `available`, so steps are conserved."""

    earned: float = 0.0
    spent: float = 0.0
    forfeited: float = 0.0

    @property
    def available(self) -> float:
        """Below 0 when rows were recalled after they had been spent: later rows pay for that first."""
        return self.earned - self.spent - self.forfeited


def earn(bucket: TrainBucket, rows: int, rules: BucketRules) -> TrainBucket:
    """Rows were accepted."""
    if rows < 0:
        raise ConfigError(f"{rows} rows cannot be accepted")
    filled = msgspec.structs.replace(bucket, earned=bucket.earned + rows * rules.steps_per_row)
    overflow = max(0.0, filled.available - rules.cap_steps)
    return msgspec.structs.replace(filled, forfeited=filled.forfeited + overflow)


def withdraw(bucket: TrainBucket, rows: int, rules: BucketRules) -> TrainBucket:
    """Rows were recalled; what they earned is taken back, in proportion from what was forfeited."""
    taken = min(bucket.earned, rows * rules.steps_per_row)
    forfeited_share = bucket.forfeited / bucket.earned if bucket.earned else 0.0
    forfeited = bucket.forfeited - taken * forfeited_share
    return msgspec.structs.replace(bucket, earned=bucket.earned - taken, forfeited=forfeited)


def spend(bucket: TrainBucket, steps: float) -> TrainBucket:
    """A training run saw *steps* rows."""
    if steps < 0:
        raise ConfigError(f"{steps} steps cannot be spent")
    return msgspec.structs.replace(bucket, spent=bucket.spent + steps)


def steps_to_train(bucket: TrainBucket, rules: BucketRules, *, rows_total: int, has_model: bool) -> int:
    """Return what a training run may spend now: one chunk, or 0 while it is not earned yet.

    The first network does not wait for a whole chunk, only for enough rows to be worth learning from.
    """
    if rows_total < rules.rows_first_min:
        return 0
    if not has_model:
        return max(0, min(rules.chunk_steps, int(bucket.available)))
    return rules.chunk_steps if bucket.available >= rules.chunk_steps else 0


def rows_missing(bucket: TrainBucket, rules: BucketRules, *, rows_total: int, has_model: bool) -> int:
    """Return how many more accepted rows the next training run waits for."""
    first = max(0, rules.rows_first_min - rows_total)
    if not has_model:
        return first
    lacking = max(0.0, rules.chunk_steps - bucket.available)
    return max(first, -int(-lacking // rules.steps_per_row))
