"""Which games are not to be trusted: recalls by worker, model and time span."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ringrift.learning.facts import Recalled


def is_recalled(
    recalls: Sequence[Recalled], *, worker: str, models: Collection[str | None], at_s: float
) -> bool:
    """Whether any recall covers games of *worker*, made with *models*, at *at_s*."""
    return any(_covers(recall, worker, models, at_s) for recall in recalls)


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
