"""Which games are not to be trusted: recalls by worker, model and time span."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ringrift.learning.facts import Recalled
from ringrift.learning.records import Shard, Unfinished


def is_recalled(
    recalls: Sequence[Recalled], *, worker: str, models: Collection[str | None], at_s: float
) -> bool:
    """Whether any recall covers games of *worker*, made with *models*, at *at_s*."""
    return any(_covers(recall, worker, models, at_s) for recall in recalls)


def are_games_recalled(
    recalls: Sequence[Recalled], made: Shard | Unfinished, unfinished: Mapping[str, Unfinished]
) -> bool:
    """Whether any recall covers a worker and a model that played in the games of *made*."""
    return any(
        is_recalled(recalls, worker=each.worker, models=(each.model,), at_s=each.made_s)
        for each in makers_of(made, unfinished)
    )


def makers_of(made: Shard | Unfinished, unfinished: Mapping[str, Unfinished]) -> Iterator[Shard | Unfinished]:
    """*made*, and the files through which its games came from job to job."""
    yield made
    seen: set[str] = set()
    last: list[Shard | Unfinished] = [made]
    for _ in range(made.turns):
        before = dict.fromkeys(digest for each in last for digest in each.resumed if digest not in seen)
        if not before:
            return
        seen |= before.keys()
        last = [unfinished[digest] for digest in before if digest in unfinished]
        yield from last


def _covers(recall: Recalled, worker: str, models: Collection[str | None], at_s: float) -> bool:
    """All that the recall names must hold; one that names nothing covers nothing."""
    if recall.worker is None and recall.model is None and recall.from_s is None and recall.until_s is None:
        return False
    return (
        (recall.worker is None or recall.worker == worker)
        and (recall.model is None or recall.model in models)
        and (recall.from_s is None or at_s >= recall.from_s)
        and (recall.until_s is None or at_s < recall.until_s)
    )
