"""Which files of samples a training reads, and which checked games are in none of them yet.

Every checked game is exported once: an export makes a file of the games that came since the last one, and a
training reads as many of the newest files as fill the window. A file that holds recalled games is read by
nobody any more; its other games are exported again. So are, once, those of a file that a training refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringrift.learning.quality_scores import refuse_shard
from ringrift.learning.recall import has_recalled
from ringrift.learning.records import Samples, Shard, ShardState
from ringrift.learning.rules import LearningRules
from ringrift.learning.stages import QUALITY_MONITOR, is_stopped
from ringrift.learning.state import ConfigState
from ringrift.learning.window import base_rows, growth_of, shards_in_window, window_rows

FILES_MAX = 64  # an order is one value of the store, and names each file
SHARDS_MAX = 500  # of one export, for the same reason
UNFIT_EXPORTS_MAX = 2  # files with the same games that trainings refuse; then they are left alone


def rows_in_window(state: ConfigState, rules: LearningRules) -> int:
    """How many of the newest rows are learned from."""
    base = rules.window_base or base_rows(state.config)
    growth = growth_of(state.config)
    return window_rows(state.rows, base=base, growth=growth, share=rules.window_share)


def window_files(state: ConfigState, rules: LearningRules) -> list[Samples]:
    """The newest files that fill the window, the newest last; the first may reach over its edge."""
    wanted, rows = rows_in_window(state, rules), 0
    taken: list[Samples] = []
    held: set[str] = set()
    for samples in reversed(state.samples.values()):
        if rows >= wanted or len(taken) == FILES_MAX:
            break
        # Older versions wrote the whole window into each file, so two of theirs hold the same games.
        if not held.isdisjoint(samples.shards) or not _is_readable(state, samples):
            continue
        taken.append(samples)
        held.update(samples.shards)
        rows += samples.rows
    return taken[::-1]


def unsampled_shards(state: ConfigState, rules: LearningRules) -> list[Shard]:
    """Checked games of the window that no usable file holds, newest first."""
    base, growth = rules.window_base or base_rows(state.config), growth_of(state.config)
    shards = shards_in_window(
        fit_shards(state), state.rows, base=base, growth=growth, share=rules.window_share
    )
    return [shard for shard in shards if not _is_sampled(state, shard)]


def next_export(state: ConfigState, rules: LearningRules) -> list[Shard]:
    """What the next file is made of: games that were all played with, or all without a network.

    What the search says of a position is worth learning only where a network guided it.
    """
    left = unsampled_shards(state, rules)
    bare = [shard for shard in left if shard.model is None]
    return (bare or left)[:SHARDS_MAX]


def fit_shards(state: ConfigState) -> Iterator[Shard]:
    """What may be learned from, newest first."""
    by_score = not is_stopped(state, QUALITY_MONITOR)
    return (
        shard
        for shard in reversed(state.shards.values())
        if shard.state is ShardState.CHECKED
        and shard.rows > 0
        and refuse_shard(shard, by_score=by_score) is None
    )


def _is_sampled(state: ConfigState, shard: Shard) -> bool:
    if state.unfit_exports[shard.digest] >= UNFIT_EXPORTS_MAX:
        return True  # whoever exports it makes what no training takes: another file would be refused, too
    samples = state.samples.get(state.sampled.get(shard.digest, ""))
    return samples is not None and _is_readable(state, samples)


def _is_readable(state: ConfigState, samples: Samples) -> bool:
    return samples.digest not in state.unfit_samples and not has_recalled(state, samples.shards)
